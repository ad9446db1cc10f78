// Output of a program and its exit status; lines of the log. Each case is a process of its own.
#include "base/output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>

#include "base/log.h"

namespace gdx {
namespace output_test {

using ::testing::ExitedWithCode;
using ::testing::MatchesRegex;

class OutputDeathTest : public ::testing::Test {
 protected:
  OutputDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

[[noreturn]] void log_all(const char* wanted) {
  if (wanted == nullptr) unsetenv("GDX_LOG");
  if (wanted != nullptr) setenv("GDX_LOG", wanted, 1);
  log::debug("a {}", 1);
  log::info("b {}", 2);
  log::warn("c {}", 3);
  log::error("d {}", 4);
  int enabled = 0;
  for (const log::Level level :
       {log::Level::kDebug, log::Level::kInfo, log::Level::kWarn, log::Level::kError})
    enabled = 2 * enabled + (log::enabled(level) ? 1 : 0);
  _exit(enabled);
}

TEST_F(OutputDeathTest, log_shows_lines_from_its_level_on) {
  const std::string debug = "gdx\\[[0-9]+\\] debug: a 1\n";
  const std::string info = "gdx\\[[0-9]+\\] info: b 2\n";
  const std::string warn = "gdx\\[[0-9]+\\] warning: c 3\n";
  const std::string error = "gdx\\[[0-9]+\\] error: d 4\n";
  EXPECT_EXIT(log_all("debug"), ExitedWithCode(0b1111), MatchesRegex(debug + info + warn + error));
  EXPECT_EXIT(log_all("info"), ExitedWithCode(0b0111), MatchesRegex(info + warn + error));
  EXPECT_EXIT(log_all("warn"), ExitedWithCode(0b0011), MatchesRegex(warn + error));
  EXPECT_EXIT(log_all("error"), ExitedWithCode(0b0001), MatchesRegex(error));
  EXPECT_EXIT(log_all("off"), ExitedWithCode(0), MatchesRegex(""));
  EXPECT_EXIT(log_all(nullptr), ExitedWithCode(0b0011), MatchesRegex(warn + error));
  EXPECT_EXIT(log_all(""), ExitedWithCode(0b0011), MatchesRegex(warn + error));
  const std::string unknown =
      "gdx\\[[0-9]+\\] warning: GDX_LOG=all: use debug, info, warn, error or off; now it is warn\n";
  EXPECT_EXIT(log_all("all"), ExitedWithCode(0b0011), MatchesRegex(unknown + warn + error));
}

template <typename Body>
[[noreturn]] void run(Body body, bool loses = false) {
  (void)flush_output();  // of the test's own
  const int out = open(loses ? "/dev/full" : "/dev/null", O_WRONLY);
  dup2(out, STDOUT_FILENO);
  const int status = run_program("a program", body);
  _exit(status);
}

TEST_F(OutputDeathTest, status_is_the_bodys_unless_it_fails_or_output_is_lost) {
  const auto prints = [](int status) {
    return [status] {
      print("{}\n", "a line");
      return status;
    };
  };
  const std::string lost =
      "a program: what it printed was lost: No space left on device; give it another place than this "
      "stdout\n";
  EXPECT_EXIT(run(prints(0)), ExitedWithCode(0), MatchesRegex(""));
  EXPECT_EXIT(run(prints(7)), ExitedWithCode(7), MatchesRegex(""));
  EXPECT_EXIT(run([] { return 0; }, true), ExitedWithCode(0), MatchesRegex("")) << "nothing to lose";
  EXPECT_EXIT(run(prints(0), true), ExitedWithCode(1), MatchesRegex(lost));
  EXPECT_EXIT(run(prints(7), true), ExitedWithCode(7), MatchesRegex(lost));
  EXPECT_EXIT(run([]() -> int { throw std::bad_alloc(); }), ExitedWithCode(1),
              MatchesRegex("a program: no memory is left: raise ulimit -v, or end other programs\n"));
  EXPECT_EXIT(run([]() -> int { throw std::runtime_error("odd"); }), ExitedWithCode(1),
              MatchesRegex("a program: unexpected failure: odd\n"));
}

// The first failure of stdout counts, and a later success does not hide it.
TEST_F(OutputDeathTest, lost_output_is_remembered) {
  EXPECT_EXIT(run(
                  [] {
                    print("lost");
                    const bool first = flush_output();
                    const int out = open("/dev/null", O_WRONLY);
                    dup2(out, STDOUT_FILENO);
                    print("kept");
                    return first || flush_output() ? 9 : 3;
                  },
                  true),
              ExitedWithCode(3), MatchesRegex("a program: what it printed was lost: No space left.*\n"));
}

[[noreturn]] void run_closed(int closed) {
  close(closed);
  const int status = run_program("a program", [closed] {
    const int flags = fcntl(closed, F_GETFL);
    const bool held = fcntl(closed, F_GETFD) == FD_CLOEXEC;
    const int way = closed == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    return held && (flags & O_ACCMODE) == way ? 40 + closed : 9;
  });
  _exit(status);
}

TEST_F(OutputDeathTest, closed_standard_descriptors_are_held_by_failing_ones) {
  for (const int closed : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    EXPECT_EXIT(run_closed(closed), ExitedWithCode(40 + closed), "");
}

[[noreturn]] void write_errors() {
  print_error("{} {}", "two", "words");
  write_error("\n");
  const Progress progress;  // stderr is no terminal
  progress.show("{} of {}", 1, 2);
  _exit(0);
}

TEST_F(OutputDeathTest, errors_are_written_at_once_and_progress_to_a_terminal_alone) {
  EXPECT_EXIT(write_errors(), ExitedWithCode(0), MatchesRegex("two words\n"));
}

}  // namespace output_test
}  // namespace gdx
