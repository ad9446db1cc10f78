// Values as text: numbers, words of the environment, sizes, records of processes.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/environment.h"
#include "base/or_exit.h"
#include "base/process_stat.h"
#include "base/size_text.h"

namespace gdx {
namespace values_test {

constexpr char kVariable[] = "GDX_TEST_VALUE";

// The variable's value, during the object's lifetime.
class Given {
 public:
  explicit Given(const char* value) { setenv(kVariable, value, 1); }
  ~Given() { unsetenv(kVariable); }
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;
};

TEST(Numbers, are_the_whole_text_or_nothing) {
  EXPECT_EQ(parse_unsigned("0"), 0u);
  EXPECT_EQ(parse_unsigned("0102"), 102u);
  EXPECT_EQ(parse_unsigned("18446744073709551615"), std::numeric_limits<std::uint64_t>::max());
  for (const char* text : {"", "18446744073709551616", "-1", "+1", " 1", "1 ", "1x", "0x10", "1.0"})
    EXPECT_EQ(parse_unsigned(text), std::nullopt) << text;
}

TEST(Environment, number_is_taken_from_the_first_to_the_last_of_its_range) {
  const auto read = [] { return number_from_environment(kVariable, 5, 70); };
  unsetenv(kVariable);
  EXPECT_EQ(read().value(), std::nullopt);
  for (const std::uint64_t inside : {5u, 6u, 70u}) {
    const Given given(std::to_string(inside).c_str());
    EXPECT_EQ(read().value(), inside);
  }
  for (const char* outside : {"4", "71", "", "six"}) {
    const Given given(outside);
    const auto refused = read();
    ASSERT_FALSE(refused) << outside;
    EXPECT_EQ(refused.error().status, Status::kInvalidArgument);
    EXPECT_EQ(refused.error().message,
              fmt::format("GDX_TEST_VALUE = '{}': use a number from 5 to 70", outside));
  }
}

TEST(Environment, choice_is_the_words_own_and_the_first_without_a_word) {
  const auto read = [] {
    return choice_from_environment<int>(kVariable, {{"one", 1}, {"two", 2}, {"three", 3}});
  };
  unsetenv(kVariable);
  EXPECT_EQ(read().value(), 1);
  for (const auto& [word, choice] : {std::pair{"one", 1}, {"two", 2}, {"three", 3}}) {
    const Given given(word);
    EXPECT_EQ(read().value(), choice);
  }
  for (const char* unknown : {"", "on", "three ", "Two"}) {
    const Given given(unknown);
    const auto refused = read();
    ASSERT_FALSE(refused) << unknown;
    EXPECT_EQ(refused.error().status, Status::kInvalidArgument);
    EXPECT_EQ(refused.error().message, fmt::format("GDX_TEST_VALUE is '{}': use one, two or three", unknown));
  }
  const Given given("x");
  EXPECT_EQ(choice_from_environment<int>(kVariable, {{"one", 1}}).error().message,
            "GDX_TEST_VALUE is 'x': use one");
}

TEST(Clock, is_the_systems_in_nanoseconds) {
  const auto read = [](clockid_t clock) {
    timespec now{};
    EXPECT_EQ(clock_gettime(clock, &now), 0);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
  };
  const std::pair<clockid_t, std::uint64_t (*)()> clocks[] = {{CLOCK_MONOTONIC, monotonic_ns},
                                                              {CLOCK_REALTIME, unix_time_ns}};
  for (int i = 0; i < 200; ++i) {
    const auto& [clock, now] = clocks[i % 2];
    const std::uint64_t before = read(clock);
    const std::uint64_t present = now();
    EXPECT_LE(before, present);
    EXPECT_LE(present, read(clock));
  }
}

TEST(SizeText, has_the_largest_unit_of_which_it_is_a_whole_number) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(1023), "1023 B");
  EXPECT_EQ(size_text(1024), "1 KiB");
  EXPECT_EQ(size_text(6000), "6000 B");
  EXPECT_EQ(size_text(1023 * 1024), "1023 KiB");
  EXPECT_EQ(size_text(1 << 20), "1 MiB");
  EXPECT_EQ(size_text((1 << 20) + 1024), "1025 KiB");
  EXPECT_EQ(size_text((1 << 20) + 1), "1048577 B");
  EXPECT_EQ(size_text(3ull << 30), "3072 MiB");
}

// A process may have any name, also one that looks like fields of the record.
TEST(ProcessStat, is_the_state_the_parent_and_the_start_whatever_the_name) {
  const ProcessStat own = stat_of(getpid());
  EXPECT_EQ(own.parent, getppid());
  EXPECT_NE(own.started, 0u);
  char before[16] = {};
  ASSERT_EQ(prctl(PR_GET_NAME, before), 0);
  ASSERT_EQ(prctl(PR_SET_NAME, ") Z 1 2) x ("), 0);
  const ProcessStat renamed = stat_of(getpid());
  ASSERT_EQ(prctl(PR_SET_NAME, before), 0);
  EXPECT_EQ(renamed.state, 'R');
  EXPECT_EQ(renamed.parent, own.parent);
  EXPECT_EQ(renamed.started, own.started);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), nullptr, WEXITED | WNOWAIT), 0);
  const ProcessStat ended = stat_of(child);
  EXPECT_EQ(ended.state, 'Z');
  EXPECT_EQ(ended.parent, getpid());
  EXPECT_GE(ended.started, own.started);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(stat_of(child).started, 0u) << "nobody has this number now";
}

}  // namespace values_test
}  // namespace gdx

// A program with gdx's names and an own one, which must not meet gdx's.
namespace own_program {

using namespace gdx;  // NOLINT: as users write

template <typename T>
T or_exit(const Result<T>& result) {
  return *result;
}

TEST(OrExit, leaves_its_name_to_a_program_that_uses_the_namespace) { EXPECT_EQ(or_exit(Result<int>(7)), 7); }

}  // namespace own_program
