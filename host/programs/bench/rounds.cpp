#include "host/programs/bench/rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace gdx::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kLeastTimed = 3;
constexpr std::uint64_t kFewMessages = 4;         // of the first round, which estimates
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

Budget::Budget(const Plan& plan, std::size_t cases)
    : fixed_(plan.messages),
      share_ns_(plan.seconds * 1e9 / static_cast<double>(cases) / (plan.rounds + 1)),
      messages_(cases, plan.messages) {}

std::uint64_t Budget::few(const Case& item) const {
  return fixed_ != 0 ? fixed_ : std::max<std::uint64_t>(kFewMessages, item.depth);
}

void Budget::learn(std::size_t index, const Case& item, const Sample& sample, std::uint64_t wall_ns) {
  if (fixed_ != 0) return;
  const double of_one = static_cast<double>(sample.elapsed_ns) * item.endpoints * (item.both_ways ? 2 : 1) /
                        static_cast<double>(std::max<std::uint64_t>(1, sample.messages));
  const double beside = static_cast<double>(wall_ns - std::min(wall_ns, sample.elapsed_ns));
  const double left = std::max(share_ns_ - beside, share_ns_ / 10);
  const double many = left / std::max(1.0, of_one);
  const std::uint64_t least = item.measure == Measure::kLatency ? kLeastTimed : item.depth;
  messages_[index] =
      std::clamp(static_cast<std::uint64_t>(std::min(many, 1e9)), least, std::max(least, kMostTimedMessages));
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
