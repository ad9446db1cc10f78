// Whatever ends a launch, nothing that it started is left: also not what made a session of its own.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>

#include "base/descriptor.h"
#include "host/cli/launcher.h"
#include "host/cli/process_tree.h"

namespace gdx {
namespace {

constexpr int kBoundMs = 20'000;  // never reached unless a test fails
constexpr int kRanks = 2;

// Each rank leaves a child in a session of its own and another beside it, both deaf to SIGTERM, and waits.
constexpr char kStubborn[] =
    "setsid sh -c 'trap \"\" TERM; echo >&$HELD; while :; do sleep 600; done' & "
    "sh -c 'trap \"\" TERM; echo >&$HELD; while :; do sleep 600; done'; echo over";
constexpr int kProcessesPerRank = 2;

// All that is started holds the writing end, so that its end is seen at the reading end.
class Supervision : public ::testing::Test {
 protected:
  void SetUp() override { setenv(kSofthcaLibraryVariable, EMPTY_PRELOAD, 1); }
  void TearDown() override { unsetenv(kSofthcaLibraryVariable); }

  static LaunchOptions shell(const std::string& script) {
    LaunchOptions options;
    options.command = {"sh", "-c", script};
    options.ranks = kRanks;
    options.grace_ns = 100'000'000;
    return options;
  }

  // As the gdx program: a process that launches and ends with the status.
  pid_t start_launcher(const LaunchOptions& options) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reader_ = Descriptor(ends[0]);
    const Descriptor writer(ends[1]);
    // A number of one digit: a shell takes no other.
    const Descriptor held(fcntl(writer.value(), F_DUPFD, 3));
    EXPECT_LT(held.value(), 10);
    setenv("HELD", std::to_string(held.value()).c_str(), 1);
    const pid_t pid = fork();
    if (pid == 0) {
      setpgid(0, 0);
      reader_.close();
      const auto status = launch(options);
      _exit(status ? *status : 99);
    }
    setpgid(pid, pid);
    return pid;
  }
  [[nodiscard]] bool readable() const {
    pollfd ready{reader_.value(), POLLIN, 0};
    return poll(&ready, 1, kBoundMs) == 1;
  }
  void wait_for_processes(int count) {
    for (char byte = 0; count > 0; --count) {
      ASSERT_TRUE(readable()) << count << " processes never came";
      ASSERT_EQ(read(reader_.value(), &byte, 1), 1);
    }
  }
  [[nodiscard]] bool all_gone() const {
    char byte = 0;
    while (readable()) {
      if (read(reader_.value(), &byte, 1) == 0) return true;
    }
    return false;
  }
  static int status_of(pid_t pid) {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return status;
  }
  // The launcher's child is the supervisor.
  static pid_t supervisor_of(pid_t launcher) {
    pid_t found = 0;
    const std::string id = std::to_string(launcher);
    std::ifstream("/proc/" + id + "/task/" + id + "/children") >> found;
    EXPECT_GT(found, 0);
    return found;
  }

  Descriptor reader_;
};

TEST_F(Supervision, signals_to_the_launcher_end_all_that_it_started) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
    const pid_t launcher = start_launcher(shell(kStubborn));
    wait_for_processes(kRanks * kProcessesPerRank);
    kill(launcher, signal);
    EXPECT_TRUE(all_gone()) << strsignal(signal);
    const int status = status_of(launcher);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 128 + signal);
  }
}

TEST_F(Supervision, killed_launcher_leaves_nothing) {
  const pid_t launcher = start_launcher(shell(kStubborn));
  wait_for_processes(kRanks * kProcessesPerRank);
  kill(launcher, SIGKILL);
  EXPECT_TRUE(all_gone());
  status_of(launcher);
}

TEST_F(Supervision, killed_process_group_leaves_nothing_even_in_other_sessions) {
  const pid_t launcher = start_launcher(shell(kStubborn));
  wait_for_processes(kRanks * kProcessesPerRank);
  kill(-launcher, SIGKILL);
  EXPECT_TRUE(all_gone());
  status_of(launcher);
}

TEST_F(Supervision, killed_supervisor_leaves_nothing_and_is_a_failure) {
  const pid_t launcher = start_launcher(shell(kStubborn));
  wait_for_processes(kRanks * kProcessesPerRank);
  kill(supervisor_of(launcher), SIGKILL);
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(WEXITSTATUS(status_of(launcher)), 128 + SIGKILL);
}

TEST_F(Supervision, time_is_up_nothing_is_left) {
  auto options = shell(kStubborn);
  options.timeout_ns = 500'000'000;
  const pid_t launcher = start_launcher(options);
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(WEXITSTATUS(status_of(launcher)), kExitTimeout);
}

TEST_F(Supervision, one_rank_fails_what_the_others_started_is_ended_too) {
  const pid_t launcher = start_launcher(shell(std::string("test $GDX_RANK = 1 && exit 7; ") + kStubborn));
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(WEXITSTATUS(status_of(launcher)), 7);
}

TEST_F(Supervision, what_ranks_leave_behind_may_finish_but_not_stay) {
  const pid_t launcher = start_launcher(shell("setsid sleep 600 & (echo >&$HELD) & exit 0"));
  wait_for_processes(kRanks);
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(WEXITSTATUS(status_of(launcher)), 0);
}

TEST_F(Supervision, children_from_before_are_none_of_its_business) {
  const pid_t before = fork();
  if (before == 0) {
    pause();
    _exit(0);
  }
  EXPECT_EQ(launch(shell("exit 3")).value_or(-1), 3);
  EXPECT_THAT(descendants(), ::testing::Contains(before));
  kill(before, SIGKILL);
  status_of(before);
}

TEST_F(Supervision, ranks_stay_in_the_group_of_the_launcher) {
  const std::string group = std::to_string(getpgrp());
  EXPECT_EQ(launch(shell("test $(cut -d' ' -f5 /proc/$$/stat) = " + group)).value_or(-1), 0);
}

}  // namespace
}  // namespace gdx
