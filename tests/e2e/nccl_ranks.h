// Ranks of a driver of the plugin for NCCL, each a process, and what they share.
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "host/plugins/nccl/abi.h"

namespace gdx::nccl {

inline constexpr std::uint32_t kMostRanks = 8;
inline constexpr std::uint32_t kDevices = 2;  // at most, that are used
inline constexpr unsigned kHangS = 100;

struct Shared {
  std::atomic<std::uint32_t> arrived;
  std::array<std::array<std::array<std::byte, kHandleBytes>, kDevices>, kMostRanks> handles;
};

struct Arguments {
  std::string plugin;
  std::string version;
  std::string test;
  std::uint32_t ranks = 2;
  std::uint64_t seed = 1;
};
inline Arguments arguments_of(char** argv) {
  return {argv[1], argv[2], argv[3], static_cast<std::uint32_t>(std::atoi(argv[4])),
          static_cast<std::uint64_t>(std::atoll(argv[5]))};
}

inline std::atomic<int> warnings{0};

inline void logger(LogLevel level, unsigned long /*flags*/, const char* /*file*/, int /*line*/,
                   const char* format, ...) {
  std::array<char, 1024> text{};
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  if (level == LogLevel::kWarn) ++warnings;
  fmt::print(stderr, "{} {}: {}\n", getpid(), level == LogLevel::kWarn ? "WARN" : "INFO", text.data());
}

[[noreturn]] inline void fail_test(const std::string& why) {
  fmt::print(stderr, "nccl_driver: {}: {}\n", getpid(), why);
  std::_Exit(1);
}
inline void must(bool condition, const std::string& what) {
  if (!condition) fail_test(what);
}
inline void must_succeed(Outcome outcome, const char* what) {
  must(outcome == Outcome::kSuccess, fmt::format("{} returned {}", what, static_cast<int>(outcome)));
}

// Loads the plugin, which stays, and returns its struct of one interface: `name`, and the version.
template <typename Struct>
const Struct* interface_of(const Arguments& given, const char* name) {
  void* const library = dlopen(given.plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
  must(library != nullptr, fmt::format("{}", library == nullptr ? dlerror() : ""));
  const auto* const found = static_cast<const Struct*>(dlsym(library, (name + given.version).c_str()));
  must(found != nullptr, "no such version of the interface");
  return found;
}

inline std::byte pattern(std::uint64_t seed, std::uint64_t message, std::size_t at) {
  return static_cast<std::byte>((seed * 31 + message * 7 + at * 13 + (at >> 8)) & 0xff);
}

// Runs each rank in a process, and returns the worst result. Case `killed`: ranks but the first may kill
// themselves.
inline int run_ranks(const Arguments& arguments,
                     int (*run_rank)(const Arguments&, std::uint32_t rank, Shared& shared)) {
  void* const pages =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto& shared = *new (pages) Shared{};
  std::vector<pid_t> ranks;
  for (std::uint32_t rank = 0; rank < arguments.ranks; ++rank) {
    ranks.push_back(fork());
    if (ranks.back() != 0) continue;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(kHangS);
    std::exit(run_rank(arguments, rank, shared));
  }
  int worst = 0;
  for (std::uint32_t left = arguments.ranks; left != 0; --left) {
    int status = 0;
    const pid_t pid = wait(&status);
    const bool planned = arguments.test == "killed" && pid != ranks[0];
    if (WIFSIGNALED(status) && !(planned && WTERMSIG(status) == SIGKILL)) {
      fmt::print(stderr, "nccl_driver: process {} ended by signal {}{}\n", pid, WTERMSIG(status),
                 WTERMSIG(status) == SIGALRM ? ": it hung" : "");
      worst = 1;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) worst = WEXITSTATUS(status);
    if (worst == 0) continue;
    for (const pid_t other : ranks) (void)kill(other, SIGKILL);
  }
  return worst;
}

}  // namespace gdx::nccl
