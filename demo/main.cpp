// The demo's rank program: `gdx demo` starts two of it. Rank 0 sends, rank 1 receives and checks.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/command_line.h"
#include "base/output.h"
#include "base/size_text.h"
#include "demo/audit.h"
#include "demo/pingpong.h"
#include "host/gdx.h"

namespace gdx::demo {
namespace {

constexpr std::uint64_t kExchangeTimeoutNs = 120'000'000'000;
// Bound for slow machines; detection of a dead peer takes far less.
constexpr std::uint64_t kWaitTimeoutNs = 60'000'000'000;
constexpr std::uint32_t kSenderRank = 0;
constexpr std::uint32_t kWorldSize = 2;
constexpr int kNobody = -1;
constexpr std::uint64_t kMaxMessageBytes = 1 << 30;
constexpr std::uint64_t kHeapSpareBytes = 1 << 16;  // for signals, results and alignment
// Lends a lone endpoint three quarters of each pool, not half, because no other will come.
constexpr std::uint32_t kThresholdPercent = 300;
constexpr std::uint32_t kMostMessages = 1'000'000;
constexpr std::uint32_t kLeastTimed = 10;  // messages that make a figure

struct Options {
  std::string hca;
  std::uint64_t min_bytes = 8;
  std::uint64_t max_bytes = 16u << 20;
  std::uint32_t slot_count = 32;
  std::uint32_t messages = 0;
  std::vector<std::string> modes = {"pull", "push", "inline", "bounce"};
  std::string direct = "off";
  std::string provider;
  bool adaptive_routing = false;
  bool break_memory = false;
  int kill_rank = kNobody;
  bool json = false;
};

constexpr double kNoFigure = std::numeric_limits<double>::quiet_NaN();

struct Row {
  std::string mode;
  Case shape{};
  Outcome sent{};
  Outcome received{};
  std::uint64_t credit_stalls = 0;
  std::uint64_t retransmissions = 0;

  [[nodiscard]] bool verified() const {
    return received.bad_bytes == 0 && received.messages_done == shape.messages &&
           sent.messages_done == shape.messages;
  }
  [[nodiscard]] std::uint32_t timed() const { return shape.messages - shape.warmup; }
  // Means; NaN, which JSON writes as null, of too few messages.
  [[nodiscard]] double round_trip_us() const {
    if (timed() < kLeastTimed) return kNoFigure;
    return static_cast<double>(sent.round_trip_ns) / timed() / 1e3;
  }
  [[nodiscard]] double gigabytes_per_second() const {
    if (timed() < kLeastTimed || sent.completion_ns == 0) return kNoFigure;
    return static_cast<double>(shape.bytes) * timed() / static_cast<double>(sent.completion_ns);
  }
};

// Rows for peers to whom a put has no mode: it is a copy, or a command to a thread of the host.
constexpr char kDirectRow[] = "direct";
constexpr char kProxiedRow[] = "proxied";

// Returns the longest message that a mode shows.
std::uint64_t most_bytes(const Options& options, Mode mode) {
  return mode == Mode::kInline ? std::min<std::uint64_t>(options.max_bytes, kMaxInlinePutBytes)
                               : options.max_bytes;
}

Result<Mode> parse_mode(const std::string& text) {
  if (text == kDirectRow || text == kProxiedRow) return Mode::kAuto;
  if (text == "pull") return Mode::kPull;
  if (text == "push") return Mode::kPush;
  if (text == "inline") return Mode::kInline;
  if (text == "bounce") return Mode::kBounce;
  if (text == "auto") return Mode::kAuto;
  return fail(Status::kInvalidArgument,
              fmt::format("--modes: '{}': use pull, push, inline, bounce, auto", text));
}

// Returns whether a mode stages payload in the HCA's memory. Others leave that memory to other processes.
bool pushes(const Options& options) {
  const auto may_push = [](const std::string& mode) { return mode == "push" || mode == "auto"; };
  return options.slot_count != 0 && std::ranges::any_of(options.modes, may_push);
}

std::optional<DirectChoice> direct_choice(const Options& options) {
  if (options.direct == "on") return DirectChoice::kOn;
  if (options.direct == "off") return DirectChoice::kOff;
  return std::nullopt;
}

// Enough messages for a steady figure, few enough for a demo of a minute.
std::uint32_t messages_for(std::uint64_t bytes) {
  if (bytes <= 4096) return 200;
  return bytes <= 1u << 20 ? 50 : 20;
}

// Messages ahead of those that are timed; too few to make a figure need none.
std::uint32_t warmup_of(std::uint32_t timed) { return timed < kLeastTimed ? 0 : std::max(2u, timed / 10); }

// Number of steps after which a doomed rank dies, inside its wait, in the middle of a message. A direct
// message is stored without a wait, so its sender waits for the answer alone.
constexpr int kStepsToLive = 20;
constexpr int kDirectStepsToLive = 1;

template <int kLastStep>
int progress_and_die() {
  static int steps = 0;
  if (++steps == kLastStep) raise(SIGKILL);
  return progress();
}

// Returns resent packets if the HCA counts them, otherwise the events that cause resends; 0 without an HCA.
std::uint64_t retransmissions(const Hca* hca) {
  if (hca == nullptr) return 0;
  if (const auto packets = hca->counter("softhca_retransmitted_packets")) return *packets;
  return hca->counter("packet_seq_err").value_or(0) + hca->counter("local_ack_timeout_err").value_or(0);
}

// Options of mode `auto`: the buffers are host memory on either layer.
ModeOptions auto_modes(const Gpu* gpu) {
  ModeOptions modes{.kernels = gpu != nullptr ? Processor::kGpu : Processor::kCpu,
                    .payload = Placement::kHost};
  if (gpu != nullptr) modes.gpu = gpu->pci_bus_id();
  return modes;
}

// One rank's resources, connected to its peer.
class Rank {
 public:
  // `opened`: none where ranks are proxied. `gpu`: runs the kernels; null on the CPU layer.
  static Result<Rank> connect(std::optional<Hca> opened, const Gpu* gpu, World& world,
                              const Options& options);

  Result<Row> run(World& world, const std::string& mode, const Case& shape, bool die);
  // nullopt: this HCA audits nothing, or there is none.
  [[nodiscard]] std::optional<std::uint64_t> staging_violations() const {
    if (!hca_) return std::nullopt;
    const auto count = hca_->counter("softhca_staging_violations");
    return count ? std::optional(*count) : std::nullopt;
  }
  [[nodiscard]] const Hca* hca() const { return hca_.get(); }
  [[nodiscard]] bool can_run(const std::string& mode) const { return mode != "push" || pushes_; }
  [[nodiscard]] bool is_direct() const {
    const PeerWay way = team_.way(peer_rank_);
    return way == PeerWay::kMapped || way == PeerWay::kDirect;
  }
  // Returns whether signals wait for the puts before them, which adds a round trip.
  [[nodiscard]] bool fences_signals() const { return team_.endpoint(0, peer_rank_).signal_fence != 0; }
  // Returns the modes that a put to the peer has.
  [[nodiscard]] std::vector<std::string> modes(const Options& options) const {
    if (is_direct()) return {kDirectRow};
    return team_.way(peer_rank_) == PeerWay::kProxied ? std::vector<std::string>{kProxiedRow} : options.modes;
  }

 private:
  [[nodiscard]] std::string blame(const World& world, Status status) const;
  Rank(std::unique_ptr<Hca> hca, std::unique_ptr<StagingPool> staging, std::unique_ptr<StagingPool> bounce,
       Team team, Exchange exchange, Outcome* outcome)
      : hca_(std::move(hca)),
        staging_(std::move(staging)),
        bounce_(std::move(bounce)),
        team_(std::move(team)),
        exchange_(exchange),
        outcome_(outcome) {}

  std::unique_ptr<Hca> hca_;
  std::unique_ptr<StagingPool> staging_;  // if a mode pushes
  std::unique_ptr<StagingPool> bounce_;
  Team team_;
  Exchange exchange_;
  Outcome* outcome_;
  std::uint32_t peer_rank_ = 0;
  bool pushes_ = true;  // both ranks do
};

// Returns the demo's own value unless a variable is set, because the variable has priority.
template <typename T>
std::optional<T> unless_set(const char* variable, T value) {
  return std::getenv(variable) == nullptr ? std::optional(value) : std::nullopt;
}

// Returns the pool that pushes stage in; none where no mode pushes, or kernels of `gpu` cannot.
Result<std::unique_ptr<StagingPool>> make_staging(const Hca& hca, const Gpu* gpu, const Options& options) {
  if (!pushes(options)) return std::unique_ptr<StagingPool>();
  auto made = GDX_TRY(StagingPool::create(hca, {.threshold_percent = kThresholdPercent}));
  if (options.slot_count > made.slot_count())
    return fail(Status::kInvalidArgument,
                fmt::format("--slots: '{}': the pool has {}", options.slot_count, made.slot_count()));
  if (gpu != nullptr && !made.map_if_allowed(*gpu).empty()) return std::unique_ptr<StagingPool>();
  return std::make_unique<StagingPool>(std::move(made));
}

Result<Rank> Rank::connect(std::optional<Hca> opened, const Gpu* gpu, World& world, const Options& options) {
  std::unique_ptr<Hca> hca;
  std::unique_ptr<StagingPool> staging;
  std::unique_ptr<StagingPool> bounce;
  if (opened) {
    hca = std::make_unique<Hca>(std::move(*opened));
    staging = GDX_TRY(make_staging(*hca, gpu, options));
    StagingOptions in_host = StagingOptions::in_host_memory();
    in_host.threshold_percent = kThresholdPercent;
    auto made = GDX_TRY(StagingPool::create(*hca, in_host));
    bounce = std::make_unique<StagingPool>(std::move(made));
  }
  const TeamOptions team_options{
      .heap_bytes = options.max_bytes + kHeapSpareBytes,
      .endpoint = {.slot_count = staging ? options.slot_count : 0,
                   .bounce_slot_count = bounce ? bounce->slot_count() : 0,
                   .sharing = Sharing::kShared,
                   .auto_modes = auto_modes(gpu),
                   .timeout_ns = unless_set(kCallTimeoutVariable, kWaitTimeoutNs),
                   .retry_count = unless_set<std::uint8_t>(kRetryCountVariable, 7),
                   .adaptive_routing = options.adaptive_routing ? std::optional(true) : std::nullopt},
      .direct = direct_choice(options),
      .timeout_ns = kExchangeTimeoutNs,
      .provider = options.provider.empty() ? std::nullopt : std::optional(options.provider)};
  auto team = GDX_TRY(hca ? Team::create(*hca, world, {staging.get(), bounce.get()}, team_options)
                          : Team::create(world, team_options));
  auto* const buffer = GDX_TRY(team.allocate<std::byte>(options.max_bytes));
  auto* const signals = GDX_TRY(team.allocate<std::uint64_t>(kSignalWords));
  auto* const outcome = GDX_TRY(team.allocate<Outcome>(1));
  const std::uint32_t peer = 1 - world.rank();
  GDX_TRY(team.connect(peer));
  const auto pushing = GDX_TRY(world.allgather_value(std::uint32_t{staging != nullptr}, kExchangeTimeoutNs));

  const Exchange exchange{team.handle(), peer, buffer, signals};
  Rank rank(std::move(hca), std::move(staging), std::move(bounce), std::move(team), exchange, outcome);
  rank.peer_rank_ = peer;
  rank.pushes_ = pushing[0] != 0 && pushing[1] != 0;
  return rank;
}

// Names the failed side: the peer, if the status or its silence shows that, otherwise this rank.
std::string Rank::blame(const World& world, Status status) const {
  const std::string told = team_.describe_fault();
  const std::string what = told == "ok" ? status_name(status) : told;
  const bool peers = status == Status::kTimeout || static_cast<std::uint32_t>(status) >> 8 == 0x03;
  return peers ? fmt::format("rank {} failed rank {}: {}", 1 - world.rank(), world.rank(), what)
               : fmt::format("rank {}: {}", world.rank(), what);
}

Result<Row> Rank::run(World& world, const std::string& mode, const Case& shape, bool die) {
  const std::uint64_t retransmissions_before = retransmissions(hca_.get());
  const auto die_in_time =
      is_direct() ? progress_and_die<kDirectStepsToLive> : progress_and_die<kStepsToLive>;
  const auto on_wait = die ? die_in_time : progress;
  auto& outcome = *outcome_;
  const Status launched = world.rank() == kSenderRank ? run_sender(exchange_, shape, &outcome, on_wait)
                                                      : run_receiver(exchange_, shape, &outcome, on_wait);
  if (launched != Status::kOk) return fail(launched, fmt::format("kernel launch: {}", status_name(launched)));
  if (outcome.status != Status::kOk) {
    return fail(outcome.status,
                fmt::format("{} of {}, message {} of {}: {}", mode, size_text(shape.bytes),
                            outcome.messages_done + 1, shape.messages, blame(world, outcome.status)));
  }
  struct Share {
    Outcome outcome;
    std::uint64_t retransmissions;
  };
  const auto shares = GDX_TRY(world.allgather_value(
      Share{outcome, retransmissions(hca_.get()) - retransmissions_before}, kExchangeTimeoutNs));
  const Share& sent = shares[kSenderRank];
  const Share& received = shares[1 - kSenderRank];
  return Row{mode,
             shape,
             sent.outcome,
             received.outcome,
             sent.outcome.credit_stalls,
             sent.retransmissions + received.retransmissions};
}

// Conditions of the figures.
std::string label(const Rank& rank, const Options& options) {
  const Hca* const hca = rank.hca();
  const std::string kernels =
      fmt::format("kernels on {}, {} cores", kernels_run_on_gpu() ? "the GPU" : "the CPU layer",
                  std::thread::hardware_concurrency());
  if (hca == nullptr)
    return fmt::format("measured: a thread of the host posts by provider {}, {}", options.provider, kernels);
  return fmt::format("measured: {}, {}, three quarters of each staging pool lent at most{}",
                     hca->is_software() ? "software HCA" : fmt::format("HCA {}", hca->name()), kernels,
                     rank.fences_signals() ? ", signals fenced" : "");
}

void print_header(const Rank& rank, const Options& options) {
  print("{}\n", label(rank, options));
  print("{:<7}{:>8}{:>10}{:>14}{:>11}{:>15}{:>17}{:>10}\n", "mode", "size", "messages", "round trip us",
        "GB/s", "credit stalls", "retransmissions", "verified");
}

void print_row(const Row& row) {
  const double time = row.round_trip_us();
  const double rate = row.gigabytes_per_second();
  print("{:<7}{:>8}{:>10}{:>14}{:>11}{:>15}{:>17}{:>10}\n", row.mode, size_text(row.shape.bytes), row.timed(),
        std::isnan(time) ? "-" : fmt::format("{:.1f}", time),
        std::isnan(rate) ? "-" : fmt::format("{:.3g}", rate), row.credit_stalls, row.retransmissions,
        row.verified() ? "yes" : fmt::format("NO ({} B)", row.received.bad_bytes));
  flush_output();
}

nlohmann::json to_json(const Row& row) {
  return {{"mode", row.mode},
          {"bytes", row.shape.bytes},
          {"messages", row.timed()},
          {"round_trip_us", row.round_trip_us()},
          {"gigabytes_per_second", row.gigabytes_per_second()},
          {"credit_stalls", row.credit_stalls},
          {"retransmissions", row.retransmissions},
          {"bad_bytes", row.received.bad_bytes},
          {"verified", row.verified()}};
}

Result<std::vector<Row>> run_cases(World& world, Rank& rank, const Options& options) {
  std::vector<Row> rows;
  std::uint64_t sequence = 1;
  const bool speaks = world.rank() == kSenderRank && !options.json;
  if (speaks) print_header(rank, options);
  for (const std::string& mode_name : rank.modes(options)) {
    if (!rank.can_run(mode_name)) continue;
    const Mode mode = *parse_mode(mode_name);
    const std::uint64_t most = most_bytes(options, mode);
    for (std::uint64_t bytes = options.min_bytes; bytes <= most; bytes *= 8) {
      const std::uint32_t timed = options.messages != 0 ? options.messages : messages_for(bytes);
      const std::uint32_t warmup = warmup_of(timed);
      const Case shape{mode, bytes, timed + warmup, warmup, sequence, options.break_memory};
      const bool largest = bytes * 8 > most;
      const bool die = largest && options.kill_rank == static_cast<int>(world.rank());
      auto row = GDX_TRY(rank.run(world, mode_name, shape, die));
      sequence += shape.messages;
      if (speaks) print_row(row);
      rows.push_back(std::move(row));
    }
    if (speaks && most < options.max_bytes)
      print("{:<7}{:>8} is the longest put; larger messages go by the other modes\n", mode_name,
            size_text(kMaxInlinePutBytes));
  }
  if (rows.empty())
    return fail(Status::kUnsupported, "--modes: 'push': kernels of a GPU cannot; add another");
  return rows;
}

Result<void> check(const Options& options) {
  if (options.min_bytes % 8 != 0 || options.max_bytes < options.min_bytes) {
    return fail(Status::kInvalidArgument,
                fmt::format("--min-bytes: '{}': use a multiple of 8 that is not above --max-bytes, {}",
                            options.min_bytes, options.max_bytes));
  }
  for (const std::string& mode : options.modes) {
    const auto parsed = GDX_TRY(parse_mode(mode));
    if (options.modes.size() == 1 && options.min_bytes > most_bytes(options, parsed)) {
      return fail(Status::kInvalidArgument,
                  fmt::format("--min-bytes: '{}': inline shows messages of up to {} bytes; add another mode",
                              options.min_bytes, kMaxInlinePutBytes));
    }
    if (parsed == Mode::kPush && options.slot_count == 0) {
      return fail(Status::kInvalidArgument,
                  "--slots: '0': leaves nothing to push into; give slots, or leave push out");
    }
  }
  if (kernels_run_on_gpu() && options.kill_rank != kNobody) {
    return fail(Status::kInvalidArgument, "--kill-rank: needs the CPU layer; leave out --gpu");
  }
  return {};
}

// Reports a fault of the options once, from the first rank, because both ranks have it.
int refuse(const Error& error) {
  const char* const rank = std::getenv(kRankVariable);
  if (rank == nullptr || std::string_view(rank) == "0") print_error("gdx demo: {}\n", error.message);
  return command_line::kExitUsage;
}

Result<int> run(const Options& options, const Gpu* gpu) {
  const auto world_options = GDX_TRY(WorldOptions::from_environment());
  if (world_options.size != kWorldSize) {
    return refuse(
        {Status::kInvalidArgument,
         fmt::format("the demo has 2 ranks, this world has {}: start it as `gdx demo`", world_options.size)});
  }
  std::optional<Hca> hca;
  if (options.provider.empty()) {
    // before the other ranks join, so that a fault here is reported at once
    auto opened = Hca::open({.name = options.hca, .rank = world_options.rank});
    if (!opened && opened.error().status == Status::kNotFound) return refuse(opened.error());
    hca = GDX_TRY(std::move(opened));
  }
  auto world = GDX_TRY(World::join(world_options));
  auto rank = Rank::connect(std::move(hca), gpu, world, options);
  if (!rank && rank.error().status == Status::kInvalidArgument) return refuse(rank.error());
  if (!rank) return tl::unexpected(rank.error());

  const auto rows = GDX_TRY(run_cases(world, *rank, options));
  const auto violations = GDX_TRY(world.allgather_value(rank->staging_violations(), kExchangeTimeoutNs));
  const std::uint64_t found = violations[0].value_or(0) + violations[1].value_or(0);
  const bool audited = violations[0] && violations[1];
  const bool verified = std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.verified(); });
  const int exit_status = verified && found == 0 ? 0 : 1;
  if (world.rank() != kSenderRank) return exit_status;

  if (options.json) {
    nlohmann::json out{
        {"label", label(*rank, options)},
        {"hca", rank->hca() == nullptr ? nlohmann::json() : nlohmann::json(rank->hca()->name())},
        {"verified", verified},
        {"staging_violations", audited ? nlohmann::json(found) : nlohmann::json()}};
    for (const Row& row : rows) out["rows"].push_back(to_json(row));
    print("{}\n", out.dump(2));
  } else {
    print(
        "\nround trip: put+signal until the peer's answering signal arrives; GB/s: put+signal until the "
        "local "
        "flush.\nBoth are means, after a tenth more messages that warm up; fewer than {} messages have "
        "none.\n"
        "{}\n{}\n",
        kLeastTimed,
        rank->hca() == nullptr ? "no HCA, and so no audit of staging slots"
                               : audit_text(audited ? std::optional(found) : std::nullopt),
        verified ? "every byte of every message was right" : "DAMAGED: bytes arrived wrong");
  }
  return exit_status;
}

int report(const Error& error, int exit_status = 1) {
  print_error("gdx_demo: {}\n", error.message);
  return exit_status;
}

int run_where_kernels_run(const Options& options) {
  if (const auto checked = check(options); !checked) return refuse(checked.error());
  std::optional<Gpu> gpu;
  if (kernels_run_on_gpu()) {
    const auto opened = open_gpu_or_skip();
    if (!opened) return report(opened.error(), exit_status_without_gpu(opened.error()));
    gpu = *opened;
  }
  const auto done = run(options, gpu ? &*gpu : nullptr);
  return done ? *done : report(done.error());
}

int run_command_line(int argc, char** argv) {
  Options options;
  command_line::App app{"gdx demo, one rank; start it as `gdx demo`"};
  app.add_option("--hca", options.hca, "HCA to use (the first)");
  app.add_option("--min-bytes", options.min_bytes, "Smallest message, a multiple of 8 (8)")
      .check(command_line::whole(8, kMaxMessageBytes));
  app.add_option("--max-bytes", options.max_bytes,
                 "Largest message, inline 4096; sizes grow by a factor of 8 (16777216)")
      .check(command_line::whole(8, kMaxMessageBytes));
  app.add_option("--slots", options.slot_count, "Staging slots that an endpoint may hold at most (32)")
      .check(command_line::whole(0, UINT32_MAX));
  app.add_option("--messages", options.messages, "Messages of each size that are timed (200 small, 20 large)")
      .check(command_line::whole(1, kMostMessages));
  app.add_option("--modes", options.modes, "A list of pull, push, inline, bounce and auto (the first four)")
      .list(',');
  app.add_option(
         "--direct", options.direct,
         "on: loads and stores to the peer's memory, or fail; auto: where they work, by $GDX_DIRECT (off)")
      .check(command_line::one_of({"auto", "on", "off"}));
  app.add_option("--provider", options.provider,
                 "A thread of the host posts by this provider, such as tcp or ibverbs, in place of an HCA");
  app.add_flag("--adaptive-routing", options.adaptive_routing,
               "Data may land in any order, and signals wait for it");
  app.add_flag("--break-memory", options.break_memory, "Damage one byte at the target: the demo must fail");
  app.add_option("--kill-rank", options.kill_rank, "Rank 0 or 1 kills itself in the largest message")
      .check(command_line::whole(0, 1));
  app.add_flag("--json", options.json, "One JSON document instead of the table");
  if (const auto ends = app.parse("gdx_demo", argc, argv)) return *ends;
  return run_where_kernels_run(options);
}

}  // namespace
}  // namespace gdx::demo

int main(int argc, char** argv) {
  return gdx::run_program("gdx_demo", [&] { return gdx::demo::run_command_line(argc, argv); });
}
