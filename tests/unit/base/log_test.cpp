// Lines where nobody reads stderr, and the limit on lines that others cause.
#include "base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "base/descriptor.h"

namespace gdx::log {
namespace log_test {

// Writes until more than a pipe holds was written, then reads.
TEST(Log, lines_that_nobody_reads_are_lost_and_counted_and_stop_no_thread) {
  constexpr std::size_t kLines = 1000;
  constexpr std::size_t kBytes = 5000;  // more than a pipe takes at once
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
  const Descriptor reads(ends[0]);
  const Descriptor before(::dup(STDERR_FILENO));
  ASSERT_GE(::dup2(ends[1], STDERR_FILENO), 0);
  ::close(ends[1]);
  for (std::size_t i = 0; i < kLines; ++i) error("{}", std::string(kBytes, 'x'));
  std::string text;
  const auto read_all = [&] {
    char part[4096];
    ssize_t got = 0;
    while ((got = ::read(reads.value(), part, sizeof part)) > 0)
      text.append(part, static_cast<std::size_t>(got));
  };
  read_all();
  error("the last");
  ::dup2(before.value(), STDERR_FILENO);
  read_all();
  std::size_t written = 0;
  const std::string line = ' ' + std::string(kBytes, 'x') + '\n';
  for (auto at = text.find(line); at != std::string::npos; at = text.find(line, at + 1)) ++written;
  EXPECT_GT(written, 3u);
  EXPECT_LT(written, 20u) << "of 64 KiB";
  EXPECT_NE(text.find("\ngdx[" + std::to_string(::getpid()) + "] warning: " +
                      std::to_string(kLines - written) + " lines were lost, because nobody read stderr\n"),
            std::string::npos);
  EXPECT_TRUE(text.ends_with("error: the last\n"));
}

TEST(LineRate, so_many_a_second_and_the_next_tells_of_the_others) {
  constexpr std::uint64_t kSecondNs = 1'000'000'000;
  LineRate rate(2);
  std::uint64_t now_ns = 5 * kSecondNs;
  EXPECT_EQ(rate.take(now_ns), 0u);
  EXPECT_EQ(rate.take(now_ns), 0u);
  for (int i = 0; i < 7; ++i) EXPECT_EQ(rate.take(now_ns + kSecondNs - 1), std::nullopt);
  now_ns += kSecondNs;
  EXPECT_EQ(rate.take(now_ns), 7u);
  EXPECT_EQ(rate.take(now_ns), 0u);
  EXPECT_EQ(rate.take(now_ns), std::nullopt);
}

}  // namespace log_test
}  // namespace gdx::log
