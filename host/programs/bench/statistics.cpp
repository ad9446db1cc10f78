#include "host/programs/bench/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace gdx::bench {
namespace {

constexpr std::uint64_t kSingle = 64;    // values below it have a bucket each
constexpr std::uint64_t kOfOctave = 32;  // buckets of each power of two above
constexpr std::uint32_t kLogSingle = 6;

std::size_t bucket_of(std::uint64_t value) {
  if (value < kSingle) return value;
  const auto shift = static_cast<std::uint32_t>(std::bit_width(value)) - kLogSingle;
  return kSingle + (shift - 1) * kOfOctave + ((value >> shift) - kOfOctave);
}

std::uint64_t least_of(std::size_t bucket) {
  if (bucket < kSingle) return bucket;
  const std::size_t shift = (bucket - kSingle) / kOfOctave + 1;
  return (kOfOctave + (bucket - kSingle) % kOfOctave) << shift;
}

double middle_of(const std::vector<double>& sorted) {
  const std::size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

// Returns the greatest k for which twice the chance of a count below k is at most `error`, and that chance.
// `chance(i)`: of the count i; the counts are symmetric. At least 1.
template <typename Chance>
std::pair<std::size_t, double> tail(std::size_t most, double error, Chance chance) {
  std::size_t k = 1;
  double below = chance(0);
  while (k < most) {
    const double next = below + chance(k);
    if (2 * next > error) break;
    below = next;
    ++k;
  }
  return {k, 2 * below};
}

// Returns the chances of Mann and Whitney's statistic for n and m values of one distribution.
std::vector<double> rank_chances(std::size_t n, std::size_t m) {
  // ways[j][u]: of `i` values of the first kind among j of the second, u pairs in order.
  std::vector<std::vector<double>> ways(m + 1, std::vector<double>(n * m + 1));
  for (auto& row : ways) row[0] = 1;
  for (std::size_t i = 1; i <= n; ++i) {
    auto next = ways;
    for (std::size_t u = 0; u <= n * m; ++u) next[0][u] = u == 0 ? 1 : 0;
    for (std::size_t j = 1; j <= m; ++j) {
      for (std::size_t u = 0; u <= n * m; ++u) next[j][u] = next[j - 1][u] + (u >= j ? ways[j][u - j] : 0);
    }
    ways = std::move(next);
  }
  double all = 0;
  for (const double count : ways[m]) all += count;
  for (double& count : ways[m]) count /= all;
  return ways[m];
}

constexpr std::size_t kMostExact = 20;
constexpr double kValuesBeyond = 10;          // a quantile
constexpr double kNormalQuantile = 1.959964;  // of kWantedLevel, two-sided

}  // namespace

void Histogram::add(std::uint64_t value, std::uint64_t count) {
  if (count == 0) return;
  const std::size_t bucket = bucket_of(value);
  if (counts_.size() <= bucket) counts_.resize(bucket + 1);
  counts_[bucket] += count;
  least_ = count_ == 0 ? value : std::min(least_, value);
  most_ = std::max(most_, value);
  count_ += count;
}

double Histogram::quantile(double q) const {
  if (count_ == 0) return 0;
  if (q <= 0) return static_cast<double>(least_);
  if (q >= 1) return static_cast<double>(most_);
  const auto wanted = static_cast<std::uint64_t>(std::ceil(q * static_cast<double>(count_)));
  std::uint64_t seen = 0;
  for (std::size_t bucket = 0; bucket < counts_.size(); ++bucket) {
    seen += counts_[bucket];
    if (seen < wanted) continue;
    const double middle = static_cast<double>(least_of(bucket) + least_of(bucket + 1) - 1) / 2;
    return std::clamp(middle, static_cast<double>(least_), static_cast<double>(most_));
  }
  return static_cast<double>(most_);
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> Histogram::buckets() const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> filled;
  filled.reserve(counts_.size());
  for (std::size_t bucket = 0; bucket < counts_.size(); ++bucket) {
    if (counts_[bucket] != 0) filled.emplace_back(least_of(bucket), counts_[bucket]);
  }
  return filled;
}

bool has_quantile(std::uint64_t count, double q) {
  return static_cast<double>(count) * (1 - q) >= kValuesBeyond - 1e-6;
}

Interval median_interval(std::span<const double> values, double wanted) {
  if (values.empty()) return {};
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  const std::size_t n = sorted.size();
  // Chance that i of n values lie below the median.
  const auto chance = [n](std::size_t i) {
    const auto all = static_cast<double>(n);
    const auto some = static_cast<double>(i);
    return std::exp(std::lgamma(all + 1) - std::lgamma(some + 1) - std::lgamma(all - some + 1) -
                    all * std::log(2.0));
  };
  const auto [k, error] = tail((n + 1) / 2, 1 - wanted, chance);
  return {middle_of(sorted), sorted[k - 1], sorted[n - k], std::max(0.0, 1 - error)};
}

Interval paired_ratio(std::span<const double> a, std::span<const double> b) {
  std::vector<double> ratios(std::min(a.size(), b.size()));
  for (std::size_t i = 0; i < ratios.size(); ++i) ratios[i] = a[i] / b[i];
  return median_interval(ratios);
}

Interval unpaired_ratio(std::span<const double> a, std::span<const double> b) {
  if (a.empty() || b.empty()) return {};
  std::vector<double> ratios;
  ratios.reserve(a.size() * b.size());
  for (const double x : a) {
    for (const double y : b) ratios.push_back(x / y);
  }
  std::ranges::sort(ratios);
  const std::size_t pairs = ratios.size();
  std::size_t k = 1;
  double level = kWantedLevel;
  if (a.size() <= kMostExact && b.size() <= kMostExact) {
    const std::vector<double> chances = rank_chances(a.size(), b.size());
    const auto [found, error] =
        tail((pairs + 1) / 2, 1 - kWantedLevel, [&](std::size_t u) { return chances[u]; });
    k = found;
    level = std::max(0.0, 1 - error);
  } else {
    const auto n = static_cast<double>(a.size());
    const auto m = static_cast<double>(b.size());
    const double bound = n * m / 2 - kNormalQuantile * std::sqrt(n * m * (n + m + 1) / 12);
    k = static_cast<std::size_t>(std::max(1.0, bound));
  }
  return {middle_of(ratios), ratios[k - 1], ratios[pairs - k], level};
}

bool differs(const Interval& ratio) {
  return ratio.level >= kLeastLevel && (ratio.low > 1 || ratio.high < 1);
}

std::string describe_ratio(const Interval& ratio) {
  if (ratio.level < kLeastLevel) return "too few rounds";
  if (!differs(ratio)) return fmt::format("no difference seen [{:.4g}, {:.4g}]", ratio.low, ratio.high);
  return fmt::format("{:.3g} [{:.4g}, {:.4g}]", ratio.estimate, ratio.low, ratio.high);
}

}  // namespace gdx::bench
