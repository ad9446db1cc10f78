// Leftovers of a launch after every end: none, even of processes with a session of their own.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <new>
#include <stdexcept>
#include <string>

#include "base/clock.h"
#include "base/descriptor.h"
#include "host/programs/cli/launcher.h"
#include "host/programs/cli/process_tree.h"
#include "host/programs/cli/supervisor.h"

namespace gdx {
namespace supervision_test {

constexpr int kBoundMs = 120'000;  // never reached unless a test fails
constexpr int kRanks = 2;

// Each rank leaves a child in a new session and another beside it, both deaf to SIGTERM, and waits.
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
    options.follow_ns = 100'000'000;
    return options;
  }

  // As the gdx program: a process that launches and ends with the status.
  pid_t start_launcher(
      const LaunchOptions& options, const std::function<void()>& first = [] {}) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reader_ = Descriptor(ends[0]);
    Descriptor writer(ends[1]);
    close_writer_ = [&writer] { writer.close(); };
    constexpr int kHeld = 9;  // of one digit: a shell takes no other
    setenv("HELD", std::to_string(kHeld).c_str(), 1);
    const pid_t pid = fork();
    if (pid == 0) {
      setpgid(0, 0);
      reader_.close();
      if (dup2(writer.value(), kHeld) != kHeld || fcntl(kHeld, F_SETFD, 0) != 0) _exit(98);
      // Undoes that a shell's background, or nohup, ignores some of them.
      for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) std::signal(signal, SIG_DFL);
      first();
      const auto status = run_ranks(options);
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
  static std::string name_of(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // A child of the launcher.
  static pid_t supervisor_of(pid_t launcher) {
    const std::string id = std::to_string(launcher);
    std::ifstream children("/proc/" + id + "/task/" + id + "/children");
    for (pid_t child = 0; children >> child;) {
      if (name_of(child) == "rank-supervisor\n") return child;
    }
    throw std::runtime_error("no supervisor");  // no number will do: kill(2) takes 0 for this process's group
  }

  Descriptor reader_;
  std::function<void()> close_writer_;  // in a process that start_launcher() made
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

// As below nohup. Of two signals that wait, the ignored one would be taken first.
TEST_F(Supervision, signal_that_the_caller_ignores_stays_ignored) {
  static_assert(SIGHUP < SIGTERM);
  const pid_t launcher = start_launcher(shell(kStubborn), [] { std::signal(SIGHUP, SIG_IGN); });
  wait_for_processes(kRanks * kProcessesPerRank);
  kill(launcher, SIGHUP);
  kill(launcher, SIGTERM);
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(WEXITSTATUS(status_of(launcher)), 128 + SIGTERM);
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

// As pkill does, which also finds what has more in its name.
TEST_F(Supervision, all_by_the_programs_name_are_killed_nothing_is_left) {
  const pid_t launcher = start_launcher(shell(kStubborn), [] { prctl(PR_SET_NAME, "gdx"); });
  wait_for_processes(kRanks * kProcessesPerRank);
  auto named = descendants();
  std::erase_if(named,
                [](const Process& process) { return name_of(process.pid).find("gdx") == std::string::npos; });
  EXPECT_THAT(named, ::testing::Contains(::testing::Field(&Process::pid, launcher)));
  for (const Process& process : named) kill(process.pid, SIGKILL);
  EXPECT_TRUE(all_gone());
  status_of(launcher);
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
  // The launcher wakes up at the end of each orphan of the loop. The loop's own end is its failure.
  const pid_t launcher = start_launcher(
      shell("setsid sh -c 'for i in $(seq 300); do (sleep 0.1 &); sleep 0.3; done; kill -KILL '"
            "$PPID & (echo >&$HELD) & exit 0"));
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
  EXPECT_EQ(run_ranks(shell("exit 3")).value_or(-1), 3);
  EXPECT_THAT(descendants(), ::testing::Contains(::testing::Field(&Process::pid, before)));
  kill(before, SIGKILL);
  status_of(before);
}

// A process that starts another when it is told to, and waits.
[[noreturn]] void start_one_when_told(const Descriptor& told, const Descriptor& started) {
  char byte = 0;
  while (read(told.value(), &byte, 1) < 0) {
  }
  const std::array<pid_t, 2> both = {getpid(), fork()};
  if (both[1] > 0 && write(started.value(), both.data(), sizeof both) != sizeof both) _exit(1);
  for (;;) pause();
}

TEST_F(Supervision, killed_supervisor_what_a_process_from_before_starts_meanwhile_is_spared) {
  int told[2];
  int started[2];
  ASSERT_TRUE(pipe2(told, O_CLOEXEC) == 0 && pipe2(started, O_CLOEXEC) == 0);
  // Numbers above the one that start_launcher takes, whatever descriptors this process began with.
  for (int* const end : {&told[0], &told[1], &started[0], &started[1]}) {
    const Descriptor low(*end);
    *end = fcntl(*end, F_DUPFD_CLOEXEC, 20);
    ASSERT_GE(*end, 20);
  }
  const Descriptor told_reader(told[0]);
  const Descriptor told_writer(told[1]);
  const Descriptor started_reader(started[0]);
  const Descriptor started_writer(started[1]);
  pid_t before = 0;
  const pid_t launcher = start_launcher(shell(kStubborn), [&] {
    before = fork();
    if (before != 0) return;
    reader_.close();
    close(std::stoi(getenv("HELD")));
    close_writer_();
    start_one_when_told(told_reader, started_writer);
  });
  wait_for_processes(kRanks * kProcessesPerRank);
  ASSERT_EQ(write(told_writer.value(), "", 1), 1);
  std::array<pid_t, 2> both{};  // the one from before, and its child
  ASSERT_EQ(read(started_reader.value(), both.data(), sizeof both), static_cast<ssize_t>(sizeof both));
  kill(supervisor_of(launcher), SIGKILL);
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(WEXITSTATUS(status_of(launcher)), 128 + SIGKILL);
  std::string state;
  std::string skipped;
  std::ifstream("/proc/" + std::to_string(both[1]) + "/stat") >> skipped >> skipped >> state;
  EXPECT_TRUE(state == "S" || state == "R" || state == "D") << "it was ended: state '" << state << "'";
  for (const pid_t pid : both) kill(pid, SIGKILL);
}

TEST_F(Supervision, number_of_a_spared_process_is_no_reason_to_spare_another) {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  const auto all = descendants();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_THAT(descendants(all), ::testing::IsEmpty());
  EXPECT_EQ(descendants({{child, all.front().started + 1}}), all);
  kill(child, SIGKILL);
  status_of(child);
}

TEST_F(Supervision, processes_of_any_name_are_found) {
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_NAME, "a) 1 (b");  // as /proc shows a process whose parent is 1
    const pid_t grandchild = fork();
    if (grandchild > 0 && write(told[1], &grandchild, sizeof grandchild) != sizeof grandchild) _exit(1);
    for (;;) pause();
  }
  pid_t grandchild = 0;
  ASSERT_EQ(read(told[0], &grandchild, sizeof grandchild), static_cast<ssize_t>(sizeof grandchild));
  EXPECT_THAT(descendants(), ::testing::Contains(::testing::Field(&Process::pid, grandchild)));
  for (const pid_t each : {grandchild, child}) kill(each, SIGKILL);
  status_of(child);
  for (const int end : told) close(end);
}

// Below it a child, and one of that child's in a session of its own.
[[noreturn]] void end_all_without_proc() {
  alarm(200);
  const int apart = geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER;
  if (unshare(apart) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) _exit(77);
  if (mount("none", "/proc", "tmpfs", 0, nullptr) != 0) _exit(77);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (fork() == 0) {
    if (fork() == 0) setsid();
    for (;;) pause();
  }
  if (descendants().size() != 1) _exit(2);
  constexpr std::uint64_t kLongNs = 120'000'000'000;
  const std::size_t left = kill_descendants(monotonic_ns() + kLongNs);
  _exit(left != 0 || waitpid(-1, nullptr, WNOHANG) != -1 ? 1 : 0);
}

TEST_F(Supervision, where_proc_is_not_mounted_descendants_are_ended_all_the_same) {
  const pid_t child = fork();
  if (child == 0) end_all_without_proc();
  const int status = status_of(child);
  if (WEXITSTATUS(status) == 77) {
    GTEST_SKIP() << "SKIPPED: no mount namespace may be made here: allow user namespaces, or run as root";
  }
  EXPECT_EQ(status, 0);
}

TEST_F(Supervision, supervisor_that_runs_out_of_memory_is_an_error_of_the_launch) {
  const pid_t own = getpid();
  const SignalGuard signals;
  const auto failed = [&]() -> Result<int> {
    try {
      return supervise("it", signals, [](const auto&) -> Result<int> { throw std::bad_alloc(); });
    } catch (const std::exception&) {
      if (getpid() != own) _exit(3);  // the supervisor's own frames must not be the test's
      throw;
    }
  }();
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().status, Status::kNoMemory);
}

TEST_F(Supervision, ranks_stay_in_the_group_of_the_launcher) {
  const std::string group = std::to_string(getpgrp());
  EXPECT_EQ(run_ranks(shell("test $(cut -d' ' -f5 /proc/$$/stat) = " + group)).value_or(-1), 0);
}

}  // namespace supervision_test
}  // namespace gdx
