// The one line that an impossible command line gets, and the values that a possible one has.
#include "base/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/output.h"

namespace gdx::command_line {
namespace command_line_test {

using Words = std::vector<std::string>;

// A program with two commands and each kind of option, and what one command line makes of it.
struct Program {
  explicit Program(const Words& words) {
    App app("A program", "prog");
    app.require_command();
    app.add_version("a version");
    const Command run = app.add_command("run", "Run it");
    const Option share_option = run.add_option("--share", share, "Share").check(real(0.5, 2));
    const Option word_option = run.add_option("--word", word, "Word").check(one_of({"on", "off", "auto"}));
    const Option two = run.add_option("--two", "Two").list(':', 2);
    const Option fast = run.add_flag("--fast", is_fast, "Fast").excludes(share_option);
    const Option quiet = run.add_flag("--quiet", "Quiet").needs(word_option);
    run.add_option("--ranks", ranks, "Ranks").check(whole(1, 16));
    run.add_option("--name", name, "Name").check(not_empty("a name"));
    run.add_option("--sizes", sizes, "Sizes").list(',');
    run.show_examples({"run it", "run it again"});
    run.when_chosen([&] { ++chosen; });
    const Command other = app.add_command("other", "Keep what is unknown");
    other.keep_unknown();
    other.leave_help_out();
    other.when_chosen([&] { unknown = other.unknown(); });
    EXPECT_EQ(two.name(), "--two");
    EXPECT_TRUE(fast.is_flag() && !share_option.is_flag());
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    status = app.parse("prog", words);
    (void)flush_output();
    out = testing::internal::GetCapturedStdout();
    error = testing::internal::GetCapturedStderr();
    pair = two.values();
    quiet_is_given = quiet.given();
  }

  double share = 1;
  std::string word = "auto";
  Words pair;
  bool is_fast = false;
  bool quiet_is_given = false;
  std::uint32_t ranks = 3;
  std::string name = "nobody";
  std::vector<std::uint64_t> sizes;
  int chosen = 0;
  Words unknown;
  std::optional<int> status;
  std::string out;
  std::string error;
};

TEST(CommandLine, option_has_the_value_that_it_was_given_or_its_own) {
  const Program given({"run", "--ranks", "16", "--share=0.5", "--word", "on", "--name", "x", "--sizes",
                       "7,8,9", "--two", "a:b", "--quiet"});
  EXPECT_EQ(given.status, std::nullopt);
  EXPECT_EQ(given.out + given.error, "");
  EXPECT_EQ(given.ranks, 16u);
  EXPECT_EQ(given.share, 0.5);
  EXPECT_EQ(given.word + given.name, "onx");
  EXPECT_THAT(given.sizes, testing::ElementsAre(7, 8, 9));
  EXPECT_EQ(given.pair, (Words{"a", "b"}));
  EXPECT_TRUE(given.quiet_is_given && !given.is_fast);
  EXPECT_EQ(given.chosen, 1);
  const Program fast({"run", "--fast", "--share", "2", "--ranks", "1"});
  EXPECT_EQ(fast.status, kExitUsage);
  const Program own({"run", "--fast"});
  EXPECT_EQ(own.status, std::nullopt);
  EXPECT_EQ(own.word + own.name, "autonobody");
  EXPECT_TRUE(own.is_fast && !own.quiet_is_given);
  const Program other({"other", "--ranks", "7", "--help"});
  EXPECT_EQ(other.status, std::nullopt);
  EXPECT_EQ(other.unknown, (Words{"--ranks", "7", "--help"}));
  EXPECT_EQ(other.chosen, 0);
}

TEST(CommandLine, impossible_one_has_a_line_with_fault_option_and_remedy) {
  const std::string ranks = "': use a whole number from 1 to 16; see prog run --help";
  const std::string share = "': use a number from 0.5 to 2; see prog run --help";
  const std::string to_run = "; see prog run --help";
  const std::pair<Words, std::string> cases[] = {
      {{}, "no command: use help, run, other; see prog --help"},
      {{"rnu"}, "'rnu' is no command: did you mean run; see prog --help"},
      {{"launch"}, "'launch' is no command: use help, run, other; see prog --help"},
      {{"--ranks", "2", "run"}, "'--ranks' is no option before a command: give it after run" + to_run},
      {{"run", "--rank", "2"}, "'--rank' is no option: did you mean --ranks" + to_run},
      {{"run", "--wrod=on"}, "'--wrod=on' is no option: did you mean --word" + to_run},
      {{"run", "--nawes", "x"}, "'--nawes' is no option: did you mean --name" + to_run},
      {{"run", "--bogus"}, "'--bogus' is no option: leave it out" + to_run},
      {{"run", "--ranks"}, "--ranks: has no value; give one" + to_run},
      {{"run", "--two", "a:b:c"}, "--two: has too many values; leave some out" + to_run},
      {{"run", "--ranks", "0"}, "--ranks: '0" + ranks},
      {{"run", "--ranks", "17"}, "--ranks: '17" + ranks},
      {{"run", "--ranks", "1x"}, "--ranks: '1x" + ranks},
      {{"run", "--ranks", "-1"}, "--ranks: '-1" + ranks},
      {{"run", "--share", "0.4"}, "--share: '0.4" + share},
      {{"run", "--share", "2.1"}, "--share: '2.1" + share},
      {{"run", "--share", "nan"}, "--share: 'nan" + share},
      {{"run", "--word", "of"}, "--word: 'of': use on, off, auto" + to_run},
      {{"run", "--name", ""}, "--name: '': use a name" + to_run},
      {{"run", "--fast", "--share", "1"}, "--share excludes --fast: leave one of them out" + to_run},
      {{"run", "--quiet"}, "--quiet requires --word: give both" + to_run},
  };
  for (const auto& [words, line] : cases) {
    const Program program(words);
    EXPECT_EQ(program.status, kExitUsage) << line;
    EXPECT_EQ(program.error, "prog: " + line + "\n");
    EXPECT_EQ(program.out, "");
    EXPECT_EQ(program.chosen, 0);
  }
}

TEST(CommandLine, help_and_version_are_printed_with_status_0) {
  const auto printed = [](const Words& words) {
    const Program program(words);
    EXPECT_EQ(program.status, 0) << program.error;
    return program.out;
  };
  EXPECT_EQ(printed({"--version"}), "a version\n");
  const std::string of_run = printed({"run", "--help"});
  EXPECT_THAT(of_run, testing::EndsWith("Examples:\n  run it\n  run it again\n"));
  EXPECT_EQ(printed({"help", "run"}), of_run);
  EXPECT_EQ(printed({"help"}), printed({"--help"}));
  EXPECT_THAT(printed({"help"}), testing::HasSubstr("Keep what is unknown"));
}

}  // namespace command_line_test
}  // namespace gdx::command_line
