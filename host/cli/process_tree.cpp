#include "host/cli/process_tree.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/parse_number.h"

namespace gdx {
namespace {

constexpr int kLookAgainMs = 5;
constexpr int kMaxDepth = 10'000;  // of a tree that changes while it is read

// 0 where there is no such process. Source: proc(5), stat: the name before the state may hold any character.
pid_t parent_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  char state = 0;
  pid_t parent = 0;
  return std::sscanf(text.c_str() + name_end + 1, " %c %d", &state, &parent) == 2 ? parent : 0;
}

bool is_descendant(pid_t pid) {
  for (int depth = 0; depth < kMaxDepth && pid > 1; ++depth) {
    pid = parent_of(pid);
    if (pid == getpid()) return true;
  }
  return false;
}

// The descriptor holds the process before it is looked at, so that its number cannot pass to another.
void signal_process(pid_t pid, int signal) {
  const Descriptor held(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  const int error = errno;
  if (!is_descendant(pid)) return;
  if (held) {
    syscall(SYS_pidfd_send_signal, held.value(), signal, nullptr, 0);
  } else if (error != ESRCH) {
    kill(pid, signal);  // an old kernel, a filter of system calls, no descriptor left
  }
}

std::vector<pid_t> descendants_without(const std::vector<pid_t>& spared) {
  auto all = descendants();
  std::erase_if(all, [&](pid_t pid) { return std::ranges::find(spared, pid) != spared.end(); });
  return all;
}

}  // namespace

std::vector<pid_t> descendants() {
  std::multimap<pid_t, pid_t> children;
  std::error_code error;
  for (std::filesystem::directory_iterator place("/proc", error), end; !error && place != end;
       place.increment(error)) {
    const auto pid = parse_unsigned(place->path().filename().string());
    if (!pid) continue;
    if (const pid_t parent = parent_of(static_cast<pid_t>(*pid)); parent != 0)
      children.emplace(parent, static_cast<pid_t>(*pid));
  }
  std::vector<pid_t> found{getpid()};
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto [first, last] = children.equal_range(found[i]);
    for (auto child = first; child != last; ++child) {
      if (std::ranges::find(found, child->second) == found.end()) found.push_back(child->second);
    }
  }
  found.erase(found.begin());
  return found;
}

void signal_descendants(int signal, const std::vector<pid_t>& spared) {
  for (const pid_t pid : descendants_without(spared)) signal_process(pid, signal);
}

std::size_t kill_descendants(std::uint64_t deadline_ns, const std::vector<pid_t>& spared) {
  for (;;) {
    const auto left = descendants_without(spared);
    if (left.empty()) return 0;
    for (const pid_t pid : left) {
      signal_process(pid, SIGKILL);
      waitpid(pid, nullptr, WNOHANG);
    }
    if (monotonic_ns() >= deadline_ns) return left.size();
    poll(nullptr, 0, kLookAgainMs);
  }
}

}  // namespace gdx
