#include "host/programs/bench/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace gdx::bench {
namespace statistics_test {

TEST(Histogram, bucket_is_narrow_and_holds_its_least_value) {
  for (std::uint64_t value : {0u, 1u, 63u, 64u, 65u, 127u, 128u, 1000u, 1'000'000u, 4'000'000'000u}) {
    Histogram histogram;
    histogram.add(value);
    const auto buckets = histogram.buckets();
    ASSERT_EQ(buckets.size(), 1u);
    EXPECT_LE(buckets[0].first, value);
    EXPECT_LE(value - buckets[0].first, value / 32);
    Histogram again;
    again.add(buckets[0].first);
    EXPECT_EQ(again.buckets(), buckets) << "a bucket's least value lies in another bucket";
  }
}

TEST(Histogram, of_zeros_has_no_other_quantile) {
  Histogram histogram;
  histogram.add(0, 3);
  for (const double q : {0.0, 0.5, 1.0}) EXPECT_EQ(histogram.quantile(q), 0) << q;
}

TEST(Histogram, buckets_of_rising_values_never_fall) {
  std::uint64_t last = 0;
  for (std::uint64_t value = 0; value < 5000; ++value) {
    Histogram histogram;
    histogram.add(value);
    EXPECT_GE(histogram.buckets()[0].first, last);
    last = histogram.buckets()[0].first;
  }
}

TEST(Histogram, quantiles_of_a_uniform_distribution_are_the_values) {
  Histogram histogram;
  for (std::uint64_t value = 1; value <= 100'000; ++value) histogram.add(value);
  EXPECT_EQ(histogram.count(), 100'000u);
  EXPECT_EQ(histogram.quantile(0), 1);
  EXPECT_EQ(histogram.quantile(1), 100'000);
  for (const double q : {0.01, 0.25, 0.5, 0.9, 0.99, 0.999})
    EXPECT_NEAR(histogram.quantile(q), q * 1e5, q * 1e5 / 32) << q;
}

TEST(Histogram, quantile_is_the_value_of_that_rank) {
  Histogram histogram;
  for (std::uint64_t value = 1; value <= 10; ++value) histogram.add(value);
  EXPECT_EQ(histogram.quantile(0.5), 5);
  EXPECT_EQ(histogram.quantile(0.51), 6);
  EXPECT_EQ(histogram.quantile(0.9), 9);
}

TEST(Histogram, rare_slow_values_show_in_the_right_quantile) {
  Histogram histogram;
  histogram.add(1000, 9980);
  histogram.add(1'000'000, 20);  // 2 of 1000
  EXPECT_NEAR(histogram.quantile(0.99), 1000, 32);
  EXPECT_NEAR(histogram.quantile(0.999), 1e6, 1e6 / 32);
  EXPECT_EQ(Histogram().quantile(0.5), 0);
}

// Conover, Practical Nonparametric Statistics, and any table of the binomial distribution: of 6 values the
// least and the greatest hold the median in 31 of 32 cases; of 9 the second ones in 1 - 2 * 10 / 512.
TEST(Median, interval_is_that_of_the_sign_test) {
  const Interval six = median_interval(std::vector<double>{6, 1, 5, 2, 4, 3});
  EXPECT_DOUBLE_EQ(six.estimate, 3.5);
  EXPECT_DOUBLE_EQ(six.low, 1);
  EXPECT_DOUBLE_EQ(six.high, 6);
  EXPECT_NEAR(six.level, 31.0 / 32, 1e-9);
  const Interval nine = median_interval(std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8, 9});
  EXPECT_DOUBLE_EQ(nine.low, 2);
  EXPECT_DOUBLE_EQ(nine.high, 8);
  EXPECT_NEAR(nine.level, 1 - 20.0 / 512, 1e-9);
}

TEST(Median, interval_has_the_level_that_is_wanted) {
  const Interval half = median_interval(std::vector<double>{9, 8, 7, 6, 5, 4, 3, 2, 1}, 0.5);
  EXPECT_DOUBLE_EQ(half.estimate, 5);
  EXPECT_DOUBLE_EQ(half.low, 3);
  EXPECT_DOUBLE_EQ(half.high, 7);
  EXPECT_NEAR(half.level, 1 - 2 * 46.0 / 512, 1e-9);
}

TEST(Histogram, no_values_leave_it_as_it_was) {
  Histogram histogram;
  histogram.add(5, 0);
  EXPECT_EQ(histogram.count(), 0u);
  histogram.add(70, 2);
  histogram.add(3, 0);
  histogram.add(9000, 0);
  EXPECT_EQ(histogram.quantile(0), 70);
  EXPECT_EQ(histogram.quantile(1), 70);
  EXPECT_THAT(histogram.buckets(), testing::ElementsAre(std::pair(70, 2)));
}

TEST(Quantile, needs_ten_values_beyond_it) {
  EXPECT_FALSE(has_quantile(999, 0.99));
  EXPECT_TRUE(has_quantile(1000, 0.99));
  EXPECT_FALSE(has_quantile(9999, 0.999));
  EXPECT_TRUE(has_quantile(10'000, 0.999));
}

TEST(Median, few_values_say_that_their_level_is_low) {
  EXPECT_EQ(median_interval(std::vector<double>{}).level, 0);
  const Interval one = median_interval(std::vector<double>{7});
  EXPECT_EQ(one.level, 0);
  EXPECT_EQ(one.low, 7);
  EXPECT_NEAR(median_interval(std::vector<double>{7, 8}).level, 0.5, 1e-9);
}

// Intervals of a skewed distribution, as latencies are, hold its median as often as they say.
TEST(Median, interval_of_a_skewed_distribution_holds_the_median) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> distribution(0, 1.5);  // median 1
  for (const std::size_t n : {7u, 15u, 40u}) {
    int held = 0;
    constexpr int kTries = 4000;
    for (int i = 0; i < kTries; ++i) {
      std::vector<double> values(n);
      std::ranges::generate(values, [&] { return distribution(random); });
      const Interval interval = median_interval(values);
      held += interval.low <= 1 && 1 <= interval.high;
    }
    EXPECT_GE(held, kTries * 0.94) << n;
    EXPECT_LE(held, kTries * 0.995) << n;
  }
}

TEST(Ratio, of_rounds_is_taken_within_each_round) {
  // Both double from round to round, and one is always a tenth slower.
  std::vector<double> a;
  std::vector<double> b;
  for (int i = 0; i < 8; ++i) {
    b.push_back(std::pow(2, i));
    a.push_back(1.1 * b.back());
  }
  const Interval ratio = paired_ratio(a, b);
  EXPECT_NEAR(ratio.estimate, 1.1, 1e-9);
  EXPECT_TRUE(differs(ratio));
  EXPECT_EQ(describe_ratio(ratio), "1.1 [1.1, 1.1]");
  EXPECT_FALSE(differs(unpaired_ratio(a, b)));
}

// Tables of the Mann-Whitney U test: for 6 and 6 values the critical value at 5 % is 5, so the interval goes
// from the 6th to the 31st of 36 ratios.
TEST(Ratio, of_two_runs_has_the_bounds_of_mann_and_whitney) {
  const std::vector<double> a = {1, 2, 3, 4, 5, 6};
  const std::vector<double> b = {1, 2, 3, 4, 5, 6};
  std::vector<double> all;
  for (const double x : a) {
    for (const double y : b) all.push_back(x / y);
  }
  std::ranges::sort(all);
  const Interval ratio = unpaired_ratio(a, b);
  EXPECT_DOUBLE_EQ(ratio.estimate, 1);
  EXPECT_DOUBLE_EQ(ratio.low, all[5]);
  EXPECT_DOUBLE_EQ(ratio.high, all[30]);
  EXPECT_GE(ratio.level, 0.95);
  EXPECT_THAT(describe_ratio(ratio), testing::StartsWith("no difference seen ["));
}

// Above 20 values: half of the pairs, less 1.96 standard deviations of Mann and Whitney's statistic.
TEST(Ratio, of_two_long_runs_has_the_bounds_of_the_normal_approximation) {
  std::vector<double> a(21);
  std::vector<double> b(24);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = 100 + static_cast<double>(i);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = 90 + 1.5 * static_cast<double>(i);
  std::vector<double> all;
  for (const double x : a) {
    for (const double y : b) all.push_back(x / y);
  }
  std::ranges::sort(all);
  const auto k = static_cast<std::size_t>(252 - 1.959964 * std::sqrt(504.0 * 46 / 12));
  const Interval ratio = unpaired_ratio(a, b);
  EXPECT_DOUBLE_EQ(ratio.estimate, (all[251] + all[252]) / 2);
  EXPECT_DOUBLE_EQ(ratio.low, all[k - 1]);
  EXPECT_DOUBLE_EQ(ratio.high, all[504 - k]);
  EXPECT_EQ(ratio.level, 0.95);
  EXPECT_EQ(unpaired_ratio({}, b).level + unpaired_ratio(a, {}).level, 0);
}

TEST(Ratio, bounds_at_1_are_no_difference) {
  const auto told = [](double low, double high, double level) {
    return describe_ratio({1.23456, low, high, level});
  };
  EXPECT_EQ(told(1, 1.5, 0.95), "no difference seen [1, 1.5]");
  EXPECT_EQ(told(0.5, 1, 0.95), "no difference seen [0.5, 1]");
  EXPECT_EQ(told(1.00009, 1.5, 0.95), "1.23 [1, 1.5]");
  EXPECT_EQ(told(0.5, 0.99, 0.95), "1.23 [0.5, 0.99]");
  EXPECT_EQ(told(0.5, 0.99, 0.9499), "too few rounds");
}

TEST(Ratio, of_two_runs_holds_the_truth) {
  std::mt19937_64 random(11);
  std::lognormal_distribution<double> distribution(0, 0.5);
  for (const std::size_t n : {7u, 30u}) {
    int held = 0;
    constexpr int kTries = 1000;
    for (int i = 0; i < kTries; ++i) {
      std::vector<double> a(n);
      std::vector<double> b(n);
      std::ranges::generate(a, [&] { return 3 * distribution(random); });
      std::ranges::generate(b, [&] { return distribution(random); });
      const Interval ratio = unpaired_ratio(a, b);
      held += ratio.low <= 3 && 3 <= ratio.high;
    }
    EXPECT_GE(held, kTries * 0.93) << n;
  }
}

TEST(Ratio, of_too_few_rounds_is_no_verdict) {
  const std::vector<double> fast = {1, 1};
  const std::vector<double> slow = {9, 9};
  EXPECT_FALSE(differs(paired_ratio(slow, fast)));
  EXPECT_EQ(describe_ratio(unpaired_ratio(slow, fast)), "too few rounds");
  EXPECT_EQ(describe_ratio({}), "too few rounds");
}

}  // namespace statistics_test
}  // namespace gdx::bench
