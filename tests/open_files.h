// Number of this process's open files, which shows leaks, and a limit on it for a while.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace gdx::test {

inline std::size_t open_files() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// Returns the number that the next open file gets.
inline rlim_t next_open_file() {
  const int next = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
  EXPECT_GE(next, 0);
  close(next);
  return static_cast<rlim_t>(next);
}

// Lets new files get numbers below `files` only, until the end of the scope.
class OpenFileLimit {
 public:
  explicit OpenFileLimit(rlim_t files) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit lower{files, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &lower), 0);
  }
  ~OpenFileLimit() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
  OpenFileLimit(const OpenFileLimit&) = delete;
  OpenFileLimit& operator=(const OpenFileLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace gdx::test
