// gdx_bench: one of the two ranks of a benchmark; `gdx bench` starts them. The reporting rank writes one JSON
// document a line into its journal, and each as soon as it is measured: whatever ends the run, they are kept.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/command_line.h"
#include "base/output.h"
#include "host/bench/conditions.h"
#include "host/bench/kernels.h"
#include "host/bench/plan.h"
#include "host/bench/rank.h"
#include "host/gdx.h"

namespace gdx::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kExitNoGpu = 77;  // the status "skipped" of test drivers
constexpr std::uint64_t kLeastTimed = 3;
constexpr std::uint64_t kFewMessages = 4;  // of the first round, which estimates
constexpr std::size_t kConditionsBytes = 4096;
constexpr std::uint64_t kLineNs = 1'000'000'000;  // between two lines of progress
constexpr int kBarCells = 30;
constexpr double kPatience = 2;  // times the plan's seconds, after which no round begins

struct Options {
  std::string plan;
  int journal = -1;  // a descriptor
};

// Lines for the starter, which outlives this process. Nothing without a descriptor.
class Journal {
 public:
  explicit Journal(int descriptor) : descriptor_(descriptor) {}
  Result<void> add(const Json& line) const {
    if (descriptor_ < 0) return {};
    const std::string text = line.dump() + "\n";
    const ssize_t written = ::write(descriptor_, text.data(), text.size());
    if (written == static_cast<ssize_t>(text.size())) return {};
    return fail(Status::kSystem, fmt::format("cannot keep what was measured: {}; free some memory",
                                             written < 0 ? std::strerror(errno) : "no room"));
  }

 private:
  int descriptor_;
};

// On a terminal a bar that overwrites itself, elsewhere a line for each tenth.
class Meter {
 public:
  explicit Meter(std::size_t all) : all_(all), terminal_(isatty(STDERR_FILENO) == 1) {}

  void show(std::uint32_t round, std::uint32_t rounds, const Case& item) {
    const std::uint64_t now_ns = monotonic_ns();
    if (terminal_) {
      const auto filled = static_cast<std::size_t>(kBarCells) * done_ / all_;
      bar_.show("[{:.<{}}] {:3} %, round {} of {}: {}", std::string(filled, '#'), kBarCells,
                100 * done_ / all_, round, rounds, key_of(item));
    } else if (10 * done_ / all_ > tenths_ && now_ns - told_ns_ >= kLineNs) {
      tenths_ = 10 * done_ / all_;
      told_ns_ = now_ns;
      print_error("gdx bench: {} % done, round {} of {}\n", 100 * done_ / all_, round, rounds);
    }
    ++done_;
  }

 private:
  std::size_t all_;
  std::size_t done_ = 0;
  std::size_t tenths_ = 0;
  std::uint64_t told_ns_ = monotonic_ns();
  bool terminal_;
  Progress bar_;
};

Json to_json(std::size_t index, std::uint32_t round, const Sample& sample) {
  Json histogram = Json::array();
  for (const auto& [value, count] : sample.latency_ns.buckets()) histogram.push_back({value, count});
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
          {"cpu_ns", {sample.cpu_ns[0], sample.cpu_ns[1]}},
          {"posted", sample.posted},
          {"credit_stalls", sample.credit_stalls},
          {"retransmissions", sample.retransmissions},
          {"pcie_reads", sample.pcie_reads ? Json(*sample.pcie_reads) : Json(nullptr)},
          {"pcie_writes", sample.pcie_writes ? Json(*sample.pcie_writes) : Json(nullptr)},
          {"checked_bytes", sample.checked_bytes},
          {"bad_bytes", sample.bad_bytes}};
}

bool same_but_way(Case a, const Case& b) {
  a.way = b.way;
  return a == b;
}

// The order of one round: ways that are compared are neighbours, and take turns at being the first.
std::vector<std::size_t> order_of_round(const std::vector<Case>& cases, std::uint32_t round) {
  std::vector<std::size_t> order(cases.size());
  for (std::size_t begin = 0; begin < cases.size();) {
    std::size_t end = begin;
    while (end < cases.size() && same_but_way(cases[end], cases[begin])) ++end;
    for (std::size_t i = begin; i < end; ++i) order[i] = begin + (i - begin + round) % (end - begin);
    begin = end;
  }
  return order;
}

// Estimates how many messages fit into a sample's share of the time, from a first round of few messages.
class Budget {
 public:
  Budget(const Plan& plan, std::size_t cases)
      : fixed_(plan.messages),
        share_ns_(plan.seconds * 1e9 / static_cast<double>(cases) / (plan.rounds + 1)),
        messages_(cases, plan.messages) {}

  [[nodiscard]] std::uint64_t few(const Case& item) const {
    return fixed_ != 0 ? fixed_ : std::max<std::uint64_t>(kFewMessages, item.depth);
  }
  void learn(std::size_t index, const Case& item, const Sample& sample, std::uint64_t wall_ns) {
    if (fixed_ != 0) return;
    const double of_one = static_cast<double>(sample.elapsed_ns) * item.endpoints * (item.both_ways ? 2 : 1) /
                          static_cast<double>(std::max<std::uint64_t>(1, sample.messages));
    const double beside = static_cast<double>(wall_ns - std::min(wall_ns, sample.elapsed_ns));
    const double left = std::max(share_ns_ - beside, share_ns_ / 10);
    const double many = left / std::max(1.0, of_one);
    const std::uint64_t least = item.measure == Measure::kLatency ? kLeastTimed : item.depth;
    messages_[index] = std::clamp(static_cast<std::uint64_t>(std::min(many, 1e9)), least,
                                  std::max(least, kMostTimedMessages));
  }
  [[nodiscard]] std::uint64_t messages(std::size_t index) const { return messages_[index]; }

 private:
  std::uint64_t fixed_;
  double share_ns_;
  std::vector<std::uint64_t> messages_;
};

// All rounds, or those for which there is time. The first one warms up and estimates, and is dropped.
Result<bool> run_rounds(World& world, Rank& rank, const Plan& plan, const std::vector<Case>& cases,
                        const Journal& journal) {
  const bool reports = world.rank() == kReportingRank;
  std::optional<Meter> meter;
  if (reports) meter.emplace(cases.size() * (plan.rounds + 1));
  Budget budget(plan, cases.size());
  const std::size_t dies_at = cases.size() * (plan.rounds + 1) / 2;
  const std::uint64_t started_ns = monotonic_ns();
  std::size_t count = 0;
  bool verified = true;
  for (std::uint32_t round = 0; round <= plan.rounds; ++round) {
    const auto spent_s = static_cast<double>(monotonic_ns() - started_ns) / 1e9;
    const bool late = plan.messages == 0 && round > 1 && spent_s > kPatience * plan.seconds;
    for (const std::size_t index : order_of_round(cases, round)) {
      const Case& item = cases[index];
      if (meter) meter->show(round, plan.rounds, item);
      const std::uint64_t messages = late ? 0 : round == 0 ? budget.few(item) : budget.messages(index);
      const std::uint64_t begun_ns = monotonic_ns();
      const bool die = plan.kill_rank == static_cast<int>(world.rank()) && count++ == dies_at;
      const auto sample = GDX_TRY(rank.run(world, item, messages, die));
      if (sample.messages == 0) return verified;
      verified = verified && sample.bad_bytes == 0;
      if (!reports) continue;
      if (round == 0) {
        budget.learn(index, item, sample, monotonic_ns() - begun_ns);
      } else {
        GDX_TRY(journal.add(to_json(index, round, sample)));
      }
    }
  }
  return verified;
}

// Both ranks' conditions: text of a fixed size, as the world exchanges it.
Result<Json> exchange_conditions(World& world, const Hca& hca, const Gpu* gpu) {
  const std::string text = read_conditions(hca, gpu).dump();
  std::array<char, kConditionsBytes> mine{};
  if (text.size() >= mine.size())
    return fail(Status::kInvalidLength, "the conditions of this machine are too long: use an earlier gdx");
  std::ranges::copy(text, mine.begin());
  const auto all = GDX_TRY(world.allgather_value(mine, kExchangeTimeoutNs));
  Json conditions = Json::array();
  for (const auto& one : all) conditions.push_back(Json::parse(one.data()));
  return conditions;
}

// Ranks of two nodes are started by two command lines. Each may name an HCA of its own.
Result<void> agree_on(World& world, Plan plan) {
  plan.hca.clear();
  const std::uint64_t mine = std::hash<std::string>{}(to_json(plan).dump());
  const auto all = GDX_TRY(world.allgather_value(mine, kExchangeTimeoutNs));
  if (all[0] == all[1]) return {};
  return fail(Status::kInvalidArgument,
              "the two ranks were started with different options: give both the same");
}

Result<int> measure(const Options& options, const Gpu* gpu, const Journal& journal) {
  const auto plan = GDX_TRY(plan_from_json(options.plan));
  const auto cases = GDX_TRY(cases_of(plan));
  const auto world_options = GDX_TRY(WorldOptions::from_environment());
  if (world_options.size != kWorldSize) {
    return fail(
        Status::kInvalidArgument,
        fmt::format("a benchmark has 2 ranks, this world has {}: start it as gdx bench", world_options.size));
  }
  auto hca = GDX_TRY(Hca::open({.name = plan.hca}));
  auto world = GDX_TRY(World::join(world_options));
  GDX_TRY(agree_on(world, plan));
  auto rank = GDX_TRY(Rank::connect(std::move(hca), gpu, world, plan, cases));
  const auto conditions = GDX_TRY(exchange_conditions(world, rank.hca(), gpu));
  GDX_TRY(journal.add({{"conditions", conditions}, {"measured_on", measured_on(rank.hca(), gpu)}}));
  const auto verified = GDX_TRY(run_rounds(world, rank, plan, cases, journal));
  const auto violations = GDX_TRY(world.allgather_value(rank.staging_violations(), kExchangeTimeoutNs));
  const bool audited = violations[0] && violations[1];
  const std::uint64_t found = violations[0].value_or(0) + violations[1].value_or(0);
  GDX_TRY(journal.add({{"end", true}, {"staging_violations", audited ? Json(found) : Json(nullptr)}}));
  return verified && found == 0 ? 0 : 1;
}

// Faults that both ranks have are told by the reporting one.
int report(const Error& error, const Journal& journal, bool reports) {
  const bool common = error.status == Status::kInvalidArgument || error.status == Status::kNotFound ||
                      error.status == Status::kNoDevice;
  if (reports || !common) print_error("gdx bench: {}\n", error.message);
  (void)journal.add({{"failure", error.message}});
  return error.status == Status::kInvalidArgument ? command_line::kExitUsage : 1;
}

int run(const Options& options) {
  const char* const rank = std::getenv(kRankVariable);
  const bool reports = rank == nullptr || std::string_view(rank) == "0";
  const Journal journal(reports ? options.journal : -1);
  std::optional<Gpu> gpu;
  if (kernels_run_on_gpu()) {
    const auto opened = Gpu::open();
    if (!opened) {
      const Error& error = opened.error();
      const bool absent = error.status == Status::kNoDevice || error.status == Status::kUnsupported;
      const int status =
          report({error.status, (absent ? "SKIPPED: " : "") + error.message}, journal, reports);
      return absent ? kExitNoGpu : status;
    }
    gpu = *opened;
  }
  const auto done = measure(options, gpu ? &*gpu : nullptr, journal);
  return done ? *done : report(done.error(), journal, reports);
}

int run_command_line(int argc, char** argv) {
  Options options;
  command_line::App app("One rank of gdx bench; start it as `gdx bench`");
  app.add_option("--plan", options.plan, "What to measure, as JSON");
  app.add_option("--journal", options.journal, "Descriptor to write results to");
  if (const auto ends = app.parse("gdx_bench", argc, argv)) return *ends;
  return run(options);
}

}  // namespace
}  // namespace gdx::bench

int main(int argc, char** argv) {
  return gdx::run_program("gdx_bench", [&] { return gdx::bench::run_command_line(argc, argv); });
}
