// gdx_bench: one of the ranks of a benchmark; `gdx bench` starts them. The reporting rank writes one JSON
// document a line into its journal, and each as soon as it is measured: whatever ends the run, they are kept.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/command_line.h"
#include "base/output.h"
#include "host/gdx.h"
#include "host/programs/bench/conditions.h"
#include "host/programs/bench/kernels.h"
#include "host/programs/bench/peer_ends.h"
#include "host/programs/bench/plan.h"
#include "host/programs/bench/rank.h"
#include "host/programs/bench/rounds.h"

namespace gdx::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kConditionsBytes = 4096;
// Part of the plan's seconds, after which no further case is estimated: where other programs keep the cores
// busy, it would leave the cases that are known too little time for a figure.
constexpr double kPartToEstimate = 0.25;
constexpr std::uint64_t kNoTime = ~std::uint64_t{0};
constexpr double kPatience = 1.5;  // times the plan's seconds, after which no round begins

struct Options {
  std::string plan;
  int journal = -1;  // a descriptor
  bool alone = false;
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

// All rounds, or those for which there is time. Number 0 warms up and estimates, and is dropped.
class Rounds {
 public:
  Rounds(World& world, Rank& rank, PeerEnds& peers, const Plan& plan, const std::vector<Case>& cases,
         const Journal& journal)
      : world_(world),
        rank_(rank),
        peers_(peers),
        plan_(plan),
        cases_(cases),
        journal_(journal),
        budget_(plan, cases),
        count_of_cases_(static_cast<std::size_t>(
            std::ranges::count_if(cases, [&](const Case& item) { return rank.can_run(item); }))),
        dies_at_(count_of_cases_ * plan.rounds / 2) {}

  // Returns whether every byte was right.
  Result<bool> run() {
    const bool terminal = isatty(STDERR_FILENO) == 1;
    std::optional<Progress> bar;
    if (reports_) bar.emplace();
    Meter meter(count_of_cases_ * (plan_.rounds + 1) + peers_.runs().size() * plan_.rounds, terminal,
                monotonic_ns());
    for (std::uint32_t round = 0; round <= plan_.rounds; ++round) {
      const auto spent_s = static_cast<double>(monotonic_ns() - begun_ns_) / 1e9;
      const bool late = plan_.messages == 0 && round > 1 && spent_s > kPatience * plan_.seconds;
      const auto ranks_late = GDX_TRY(world_.allgather_value<int>(late, kExchangeTimeoutNs));
      if (ranks_late[kReportingRank] != 0) return verified_;
      for (const std::size_t index : order_of(round)) {
        const bool peer = index >= cases_.size();
        if (peer ? round == 0 : !rank_.can_run(cases_[index])) continue;
        if (round == 0 && !has_time_ && !same_but_way(cases_[index], cases_[estimated_])) continue;
        if (bar) {
          const std::string text = meter.next(monotonic_ns(), round, plan_.rounds, name_of(index));
          terminal ? bar->show("{}", text) : print_error("{}", text);
        }
        if (peer) {
          GDX_TRY(run_peer(index - cases_.size(), round));
        } else if (round == 0) {
          GDX_TRY(estimate(index));
        } else {
          GDX_TRY(run_case(index, round));
        }
      }
      if (round == 0) GDX_TRY(divide_time());
    }
    return verified_;
  }

 private:
  [[nodiscard]] std::string name_of(std::size_t index) const {
    if (index < cases_.size()) return key_of(cases_[index]);
    const PeerRun& peer = peers_.runs()[index - cases_.size()];
    return fmt::format("{} of {} B", peer.program, peer.item.bytes);
  }

  // The round that estimates begins with the smallest messages, and so with the cheapest cases of each
  // benchmark.
  [[nodiscard]] std::vector<std::size_t> order_of(std::uint32_t round) const {
    std::vector<std::size_t> order = order_of_round(cases_, peers_.runs(), round);
    if (round != 0) return order;
    std::erase_if(order, [&](std::size_t index) { return index >= cases_.size(); });
    std::ranges::stable_sort(order, {}, [&](std::size_t index) { return cases_[index].bytes; });
    return order;
  }

  Result<void> drop(std::size_t index, std::uint64_t bad_bytes) {
    verified_ = verified_ && bad_bytes == 0;
    if (!reports_ || bad_bytes == 0) return {};
    return journal_.add({{"dropped", index}, {"bad_bytes", bad_bytes}});
  }

  // All ranks know how long the first sample is. The reporting one tells the others what follows, because an
  // exchange takes as long as a sample where other programs keep the cores busy.
  Result<void> estimate(std::size_t index) {
    estimated_ = index;
    std::uint64_t messages = budget_.next(index);
    while (messages != 0) {
      const std::uint64_t begun_ns = monotonic_ns();
      const auto sample = GDX_TRY(rank_.run(world_, cases_[index], messages, false));
      if (reports_) budget_.learn(index, messages, sample, monotonic_ns() - begun_ns);
      GDX_TRY(drop(index, sample.dropped_bad_bytes + sample.bad_bytes));
      if (plan_.messages != 0) return {};
      const auto spent_ns = static_cast<double>(monotonic_ns() - begun_ns_);
      const bool late = spent_ns > kPartToEstimate * plan_.seconds * 1e9;
      const std::uint64_t mine = late ? kNoTime : reports_ ? budget_.next(index) : 0;
      const auto next = GDX_TRY(world_.allgather_value(mine, kExchangeTimeoutNs));
      has_time_ = has_time_ && next[kReportingRank] != kNoTime;
      messages = has_time_ ? next[kReportingRank] : 0;
    }
    return {};
  }

  Result<void> divide_time() {
    if (reports_) budget_.divide(monotonic_ns() - begun_ns_);
    for (std::size_t i = 0; i < cases_.size(); ++i) messages_[i] = budget_.messages(i);
    const auto all = GDX_TRY(world_.allgather_values(messages_, kExchangeTimeoutNs));
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(kReportingRank * cases_.size());
    messages_.assign(first, first + static_cast<std::ptrdiff_t>(cases_.size()));
    for (std::size_t i = 0; reports_ && i < cases_.size(); ++i) {
      if (rank_.can_run(cases_[i]) && messages_[i] == 0) GDX_TRY(journal_.add({{"no_figure", i}}));
    }
    return {};
  }

  Result<void> run_case(std::size_t index, std::uint32_t round) {
    const bool die = plan_.kill_rank == static_cast<int>(world_.rank()) && count_++ >= dies_at_;
    const auto sample = GDX_TRY(rank_.run(world_, cases_[index], messages_[index], die));
    if (sample.messages == 0) return {};
    GDX_TRY(drop(index, sample.dropped_bad_bytes));
    verified_ = verified_ && sample.bad_bytes == 0;
    return reports_ ? journal_.add(to_json(index, round, sample)) : Result<void>{};
  }

  Result<void> run_peer(std::size_t index, std::uint32_t round) {
    const auto figures = GDX_TRY(peers_.run(world_, index));
    if (!figures) return {};
    Json line = to_json(*figures);
    line["peer"] = index;
    line["round"] = round;
    return journal_.add(line);
  }

  World& world_;
  Rank& rank_;
  PeerEnds& peers_;
  const Plan& plan_;
  const std::vector<Case>& cases_;
  const Journal& journal_;
  Budget budget_;
  std::vector<std::uint64_t> messages_ = std::vector<std::uint64_t>(cases_.size());  // of a sample, by case
  const std::size_t count_of_cases_;                                                 // that can run
  const std::size_t dies_at_;
  const bool reports_ = world_.rank() == kReportingRank;
  std::size_t count_ = 0;
  const std::uint64_t begun_ns_ = monotonic_ns();
  bool has_time_ = true;       // to estimate further cases
  std::size_t estimated_ = 0;  // the newest case that was estimated
  bool verified_ = true;
};

// All ranks' conditions: text of a fixed size, as the world exchanges it.
Result<Json> exchange_conditions(World& world, const Rank& rank, const Gpus& gpus) {
  const std::string text = read_conditions(rank, gpus).dump();
  std::array<char, kConditionsBytes> mine{};
  if (text.size() >= mine.size())
    return fail(Status::kInvalidLength, "the conditions of this machine are too long: use an earlier gdx");
  std::ranges::copy(text, mine.begin());
  const auto all = GDX_TRY(world.allgather_value(mine, kExchangeTimeoutNs));
  Json conditions = Json::array();
  for (const auto& one : all) conditions.push_back(Json::parse(one.data()));
  return conditions;
}

// Ranks of several nodes are started by several command lines. Each may name an HCA of its own.
Result<void> agree_on(World& world, Plan plan) {
  plan.hca.clear();
  const std::uint64_t mine = std::hash<std::string>{}(to_json(plan).dump());
  const auto all = GDX_TRY(world.allgather_value(mine, kExchangeTimeoutNs));
  if (std::ranges::count(all, mine) == std::ssize(all)) return {};
  return fail(Status::kInvalidArgument, "the ranks were started with different options: give all the same");
}

Result<int> measure(const Plan& plan, const Gpus& gpus, const Journal& journal) {
  const auto cases = GDX_TRY(cases_of(plan));
  const auto world_options = GDX_TRY(WorldOptions::from_environment());
  if (world_options.size != plan.ranks) {
    return fail(Status::kInvalidArgument,
                fmt::format("--ranks: '{}': this world has {} ranks: give that number", plan.ranks,
                            world_options.size));
  }
  auto hca = GDX_TRY(Hca::open({.name = plan.hca, .rank = world_options.rank}));
  auto world = GDX_TRY(World::join(world_options));
  GDX_TRY(agree_on(world, plan));
  auto rank = GDX_TRY(Rank::connect(std::move(hca), gpus, world, plan, cases));
  const auto conditions = GDX_TRY(exchange_conditions(world, rank, gpus));
  const bool hidden = rank.hca().is_software() && rank.hca().daemon() != nullptr;
  if (hidden && plan.peers && world.rank() == kReportingRank)
    print_error("gdx bench: --peers: standard benchmarks cannot see gdxd's software HCA, and are left out\n");
  auto peers =
      GDX_TRY(PeerEnds::find(world, "gdx bench", hidden ? std::vector<PeerRun>{} : peer_runs(plan, cases),
                             {rank.hca().name(), rank.hca().gid_index()}));
  GDX_TRY(journal.add({{"begun", fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)))},
                       {"conditions", conditions},
                       {"measured_on", measured_on(rank.hca(), gpus)},
                       {"hca", hca_text(rank.hca())}}));
  const auto verified = GDX_TRY(Rounds(world, rank, peers, plan, cases, journal).run());
  const auto violations = GDX_TRY(world.allgather_value(rank.staging_violations(), kExchangeTimeoutNs));
  const bool audited = std::ranges::all_of(violations, [](const auto& count) { return count.has_value(); });
  std::uint64_t found = 0;
  for (const auto& count : violations) found += count.value_or(0);
  GDX_TRY(journal.add({{"end", true}, {"staging_violations", audited ? Json(found) : Json(nullptr)}}));
  return verified && found == 0 ? 0 : 1;
}

// Faults that all ranks have are told by the reporting one; a rank alone on its node tells its own.
int report(const Error& error, const Journal& journal, bool reports) {
  const bool common = error.status == Status::kInvalidArgument || error.status == Status::kNotFound ||
                      error.status == Status::kNoDevice || error.status == Status::kUnsupported;
  if (reports || !common) print_error("gdx bench: {}\n", error.message);
  (void)journal.add({{"failure", error.message}});
  return error.status == Status::kInvalidArgument ? command_line::kExitUsage : 1;
}

int run(const Options& options) {
  const char* const rank = std::getenv(kRankVariable);
  const bool reports = rank == nullptr || std::string_view(rank) == "0";
  const bool tells = reports || options.alone;
  const Journal journal(reports ? options.journal : -1);
  const auto plan = plan_from_json(options.plan);
  const bool payload_on_gpu = plan && plan->memory == kGpuMemory;
  std::optional<Gpu> gpu;
  if (kernels_run_on_gpu() || payload_on_gpu) {
    const auto opened = open_gpu_or_skip();
    if (!opened) {
      const int status = report(opened.error(), journal, tells);
      return exit_status_without_gpu(opened.error()) == kExitNoGpu ? kExitNoGpu : status;
    }
    gpu = *opened;
  }
  if (!plan) return report(plan.error(), journal, tells);
  const Gpus gpus{.kernels = kernels_run_on_gpu() ? &*gpu : nullptr,
                  .payload = payload_on_gpu ? &*gpu : nullptr};
  const auto done = measure(*plan, gpus, journal);
  return done ? *done : report(done.error(), journal, tells);
}

int run_command_line(int argc, char** argv) {
  Options options;
  command_line::App app("One rank of gdx bench; start it as `gdx bench`");
  app.add_option("--plan", options.plan, "What to measure, as JSON");
  app.add_option("--journal", options.journal, "Descriptor to write results to");
  app.add_flag("--alone", options.alone, "No other rank was started with it, at the same terminal");
  if (const auto ends = app.parse("gdx_bench", argc, argv)) return *ends;
  return run(options);
}

}  // namespace
}  // namespace gdx::bench

int main(int argc, char** argv) {
  return gdx::run_program("gdx_bench", [&] { return gdx::bench::run_command_line(argc, argv); });
}
