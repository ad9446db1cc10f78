#include "host/programs/bench/rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace gdx::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kFewMessages = 4;         // of the first sample that estimates
constexpr std::uint64_t kGrowth = 4;              // of the next one
constexpr double kPartOfTime = 0.95;              // the rest is for what no estimate has
constexpr std::uint64_t kLineNs = 1'000'000'000;  // between two lines of progress
constexpr std::size_t kBarCells = 30;

}  // namespace

Json to_json(std::size_t index, std::uint32_t round, const Sample& sample) {
  Json histogram = Json::array();
  for (const auto& [value, count] : sample.latency_ns.buckets()) histogram.push_back({value, count});
  Json occupancy = Json::array();
  for (const Occupancy& point : sample.occupancy)
    occupancy.push_back({point.at_ns, point.slots, point.in_flight});
  return {{"case", index},
          {"round", round},
          {"messages", sample.messages},
          {"elapsed_ns", sample.elapsed_ns},
          {"messages_per_s", sample.messages_per_s},
          {"median_ns", sample.median_ns},
          {"mean_ns", sample.mean_ns},
          {"mean_square_ns2", sample.mean_square_ns2},
          {"least_ns", sample.latency_ns.quantile(0)},
          {"most_ns", sample.latency_ns.quantile(1)},
          {"histogram_ns", std::move(histogram)},
          {"cpu_ns", sample.cpu_ns},
          {"posted", sample.posted},
          {"credit_stalls", sample.credit_stalls},
          {"occupancy", std::move(occupancy)},
          {"retransmissions", sample.retransmissions},
          {"pcie_reads", sample.pcie_reads ? Json(*sample.pcie_reads) : Json(nullptr)},
          {"pcie_record_reads", sample.pcie_record_reads ? Json(*sample.pcie_record_reads) : Json(nullptr)},
          {"pcie_writes", sample.pcie_writes ? Json(*sample.pcie_writes) : Json(nullptr)},
          {"checked_bytes", sample.checked_bytes},
          {"bad_bytes", sample.bad_bytes}};
}

Budget::Budget(const Plan& plan, const std::vector<Case>& cases)
    : fixed_(plan.messages), all_ns_(kPartOfTime * plan.seconds * 1e9), rounds_(plan.rounds) {
  cases_.reserve(cases.size());
  for (const Case& item : cases) cases_.push_back({.item = item, .messages = fixed_});
}

std::uint64_t Budget::Cost::least() const {
  return (kLeastTimedMessages + item.depth - 1) / item.depth * item.depth;
}

double Budget::Cost::ns(std::uint64_t count) const {
  return beside_ns + of_one_ns * static_cast<double>(count + warmup_of(count, item.depth));
}

// In whole windows. A tenth of the time for messages is that of those that warm up.
std::uint64_t Budget::Cost::fitting(double share_ns) const {
  const double many = (share_ns - beside_ns) / (1.1 * std::max(1.0, of_one_ns));
  const auto windows = static_cast<std::uint64_t>(std::clamp(many, 0.0, 1e9)) / item.depth;
  return std::clamp(windows * item.depth, least(),
                    std::max(least(), kMostTimedMessages / item.depth * item.depth));
}

std::uint64_t Budget::next(std::size_t index) const {
  const Cost& cost = cases_[index];
  if (fixed_ != 0) return cost.tried == 0 ? fixed_ : 0;
  if (cost.tried == 0) return std::max<std::uint64_t>(kFewMessages, cost.item.depth);
  const double share_ns = all_ns_ / rounds_ / static_cast<double>(cases_.size());
  if (cost.tried >= cost.least() || 2 * cost.wall_ns > share_ns) return 0;
  return std::min(kGrowth * cost.tried, cost.least());
}

void Budget::learn(std::size_t index, std::uint64_t messages, const Sample& sample, std::uint64_t wall_ns) {
  Cost& cost = cases_[index];
  cost.tried = messages;
  cost.wall_ns = static_cast<double>(wall_ns);
  cost.of_one_ns = static_cast<double>(sample.elapsed_ns) / static_cast<double>(messages);
  cost.beside_ns = 0;
  cost.beside_ns = std::max(0.0, cost.wall_ns - cost.ns(messages));
}

void Budget::divide(std::uint64_t spent_ns) {
  if (fixed_ != 0) return;
  const double left_ns = (all_ns_ - static_cast<double>(spent_ns)) / rounds_;
  // Ways that are compared have figures together, or none has.
  std::vector<std::vector<Cost*>> groups;
  groups.reserve(cases_.size());
  for (Cost& cost : cases_) {
    if (cost.tried == 0) continue;
    if (groups.empty() || !same_but_way(groups.back().front()->item, cost.item)) groups.emplace_back();
    groups.back().push_back(&cost);
  }
  const auto least_ns = [](const std::vector<Cost*>& group) {
    double sum = 0;
    for (const Cost* const cost : group) sum += cost->ns(cost->least());
    return sum;
  };
  std::ranges::sort(groups, {}, least_ns);
  std::vector<Cost*> known;
  known.reserve(cases_.size());
  double kept_ns = 0;
  for (const std::vector<Cost*>& group : groups) {
    kept_ns += least_ns(group);
    if (!known.empty() && kept_ns > left_ns) break;
    known.insert(known.end(), group.begin(), group.end());
  }
  const auto sum_ns = [&](double share_ns) {
    double sum = 0;
    for (const Cost* const cost : known) sum += cost->ns(cost->fitting(share_ns));
    return sum;
  };
  double fits_ns = 0;
  for (double step_ns = std::max(0.0, left_ns) / 2; step_ns > 1; step_ns /= 2) {
    if (sum_ns(fits_ns + step_ns) <= left_ns) fits_ns += step_ns;
  }
  for (Cost* const cost : known) cost->messages = cost->fitting(fits_ns);
}

std::string Meter::next(std::uint64_t now_ns, std::uint32_t round, std::uint32_t rounds,
                        const std::string& item) {
  const std::size_t done = done_++;
  const std::size_t percent = 100 * done / all_;
  if (terminal_) {
    return fmt::format("[{:.<{}}] {:3} %, round {} of {}: {}", std::string(kBarCells * done / all_, '#'),
                       kBarCells, percent, round, rounds, item);
  }
  if (10 * done / all_ <= tenths_ || now_ns - told_ns_ < kLineNs) return {};
  tenths_ = 10 * done / all_;
  told_ns_ = now_ns;
  return fmt::format("gdx bench: {} % done, round {} of {}\n", percent, round, rounds);
}

}  // namespace gdx::bench
