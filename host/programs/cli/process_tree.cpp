#include "host/programs/cli/process_tree.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <map>
#include <string>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/parse_number.h"
#include "base/process_stat.h"

namespace gdx {
namespace {

constexpr int kLookAgainMs = 5;
constexpr int kMaxDepth = 10'000;           // bound for a tree that changes while it is read
constexpr pid_t kPidEnd = 4 * 1024 * 1024;  // Linux's PID_MAX_LIMIT

bool is_child(pid_t pid) {
  siginfo_t state{};
  return waitid(P_PID, static_cast<id_t>(pid), &state, WEXITED | WNOHANG | WNOWAIT) == 0;
}

bool is_descendant(pid_t pid) {
  if (is_child(pid)) return true;
  for (int depth = 0; depth < kMaxDepth && pid > 1; ++depth) {
    pid = stat_of(pid).parent;
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

// The newest number, as that of a child that ends at once. -1: none can be had.
pid_t newest_number() {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  if (pid > 0) waitpid(pid, nullptr, 0);
  return pid;
}

std::vector<Process> children_between(pid_t first, pid_t end, const std::vector<Process>& spared) {
  std::vector<Process> found;
  for (pid_t pid = first; pid < end; ++pid) {
    const Process process{pid, 0};
    if (is_child(pid) && std::ranges::find(spared, process) == spared.end()) found.push_back(process);
  }
  return found;
}

enum class Wanted : std::uint8_t { kAll, kAny };

// Finds children by trying every number: takes seconds if there is any child. kAny begins above this
// process's number, because children are younger unless numbers have wrapped.
std::vector<Process> children_without_proc(const std::vector<Process>& spared, Wanted wanted) {
  siginfo_t state{};
  if (waitid(P_ALL, 0, &state, WEXITED | WNOHANG | WNOWAIT) != 0) return {};
  if (wanted == Wanted::kAny) {
    if (auto found = children_between(getpid() + 1, newest_number(), spared); !found.empty()) return found;
  }
  return children_between(2, kPidEnd, spared);
}

// Returns all processes by their parents. Returns none if /proc cannot be read, or shows the processes of
// another namespace.
std::multimap<pid_t, Process> all_processes() {
  std::multimap<pid_t, Process> children;
  std::error_code error;
  if (std::filesystem::read_symlink("/proc/self", error) != std::to_string(getpid())) return children;
  for (std::filesystem::directory_iterator place("/proc", error), end; !error && place != end;
       place.increment(error)) {
    const auto number = parse_unsigned(place->path().filename().string());
    if (!number) continue;
    const auto pid = static_cast<pid_t>(*number);
    const ProcessStat entry = stat_of(pid);
    if (entry.parent != 0) children.emplace(entry.parent, Process{pid, entry.started});
  }
  return children;
}

// Finds descendants: with kAny at least one if there is any, otherwise all.
std::vector<Process> find_descendants(const std::vector<Process>& spared, Wanted wanted) {
  std::vector<Process> found;
  const auto is_spared = [&](const Process& process) {
    return std::ranges::find(spared, process) != spared.end();
  };
  const auto children = all_processes();
  if (children.empty()) return children_without_proc(spared, wanted);
  found.push_back({getpid(), 0});
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto [first, last] = children.equal_range(found[i].pid);
    for (auto child = first; child != last; ++child) {
      const bool known = std::ranges::find(found, child->second) != found.end();
      if (!known && !is_spared(child->second)) found.push_back(child->second);
    }
  }
  found.erase(found.begin());
  return found;
}

}  // namespace

std::vector<Process> descendants(const std::vector<Process>& spared) {
  return find_descendants(spared, Wanted::kAll);
}

std::vector<Process> signal_descendants(int signal) {
  std::vector<Process> all = descendants();
  for (const Process& process : all) signal_process(process.pid, signal);
  return all;
}

std::size_t kill_descendants(std::uint64_t deadline_ns, const std::vector<Process>& spared) {
  for (;;) {
    const auto left = find_descendants(spared, Wanted::kAny);
    if (left.empty()) return 0;
    for (const Process& process : left) {
      signal_process(process.pid, SIGKILL);
      waitpid(process.pid, nullptr, WNOHANG);
    }
    if (monotonic_ns() >= deadline_ns) return left.size();
    poll(nullptr, 0, kLookAgainMs);
  }
}

}  // namespace gdx
