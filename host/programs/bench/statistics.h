// Statistics of measurements, free of any assumption about how times are distributed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gdx::bench {

inline constexpr double kWantedLevel = 0.95;
// Ratios whose interval has a lower level than this are no verdict.
inline constexpr double kLeastLevel = kWantedLevel;

// Counts of values in log-linear buckets: one for each value below 64, then 32 for each power of two. A
// bucket is at most 1/32 as wide as its least value.
class Histogram {
 public:
  void add(std::uint64_t value, std::uint64_t count = 1);
  [[nodiscard]] std::uint64_t count() const { return count_; }
  // Value below which the part `q` of all values lies, to the width of a bucket; exact at 0 and 1. 0 without
  // values.
  [[nodiscard]] double quantile(double q) const;
  // The least value of each bucket that is not empty, with its count.
  [[nodiscard]] std::vector<std::pair<std::uint64_t, std::uint64_t>> buckets() const;

 private:
  std::vector<std::uint64_t> counts_;
  std::uint64_t count_ = 0;
  std::uint64_t least_ = 0;
  std::uint64_t most_ = 0;
};

// Returns whether `count` values tell the quantile `q`: ten of them are to lie beyond it.
[[nodiscard]] bool has_quantile(std::uint64_t count, double q);

// An estimate, and bounds that hold the true value with probability `level` at least.
struct Interval {
  double estimate = 0;
  double low = 0;
  double high = 0;
  double level = 0;
};

// The median of `values`, between two order statistics. The narrowest pair of level `wanted`; the least and
// the greatest value where so few values have no such pair.
[[nodiscard]] Interval median_interval(std::span<const double> values, double wanted = kWantedLevel);

// The median of a[i] / b[i], of rounds in which both were measured. Equally many, b above 0.
[[nodiscard]] Interval paired_ratio(std::span<const double> a, std::span<const double> b);

// The ratio between two runs: the median of all a[i] / b[j]. The bounds are those of Mann and Whitney's test,
// for distributions that differ by a factor alone. Above 20 values the normal approximation gives them.
[[nodiscard]] Interval unpaired_ratio(std::span<const double> a, std::span<const double> b);

// Returns whether a ratio differs from 1 beyond noise.
[[nodiscard]] bool differs(const Interval& ratio);
// "0.83 [0.8021, 0.8614]", "no difference seen [0.9702, 1.021]" or "too few rounds".
[[nodiscard]] std::string describe_ratio(const Interval& ratio);

}  // namespace gdx::bench
