#include "tests/ranks/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "device/options.h"
#include "tests/ranks/host_words.h"
#include "tests/ranks/kernels.h"
#include "tests/sim/random.h"

namespace gdx::ranks {
namespace {

constexpr unsigned kQuietRounds = 4;               // a kernel may poll twice before it acts on what it saw
constexpr std::uint64_t kLongestJumpNs = 100'000;  // of time in which nothing is known to happen
// A fiber's stack and its guard page are two mappings, of which Linux allows a process 65,530.
constexpr std::uint64_t kMaxEndpoints = 1 << 14;
constexpr std::uint64_t kMaxMemoryBytes = std::uint64_t{4} << 30;
// Bounds for all endpoints together: some minutes. A traced message takes some 200 B in memory and in a file.
constexpr std::uint64_t kMaxMessages = 1 << 24;
constexpr std::uint64_t kMaxTracedMessages = 1 << 20;
constexpr std::uint64_t kMaxMovedBytes = std::uint64_t{64} << 30;

thread_local Simulation* running = nullptr;

bool bounces(const SimulationConfig& config) { return config.mode == pcie::Mode::kBounce; }
bool stages(const SimulationConfig& config) { return config.mode == pcie::Mode::kPush || bounces(config); }

RankConfig rank_config(const SimulationConfig& config) {
  RankConfig rank;
  rank.endpoints = config.endpoints_per_rank;
  rank.log_send_queue = config.log_send_queue;
  rank.buffer_bytes = 2 * config.message_bytes;
  // Without a bus a doorbell is memory that endpoints share.
  rank.blueflame = config.bus && config.doorbell == pcie::DoorbellKind::kBlueFlame;
  rank.pulls = config.mode == pcie::Mode::kPull;
  rank.bounces = bounces(config);
  if (stages(config)) rank.slots = config.slots;
  if (bounces(config)) rank.slot_bytes = pcie::Bounce{}.chunk_bytes;
  rank.bus = config.bus;
  if (config.bus) rank.order_ns = order_ns(config);
  rank.odd_endpoints_push = config.pattern == Pattern::kExchange;
  return rank;
}

Result<void> check_work(const SimulationConfig& config) {
  const auto refuse = [](const std::string& why) { return fail(Status::kInvalidArgument, why); };
  if (config.messages == 0) return refuse("no messages: use at least 1");
  const std::uint64_t endpoints = std::uint64_t{config.ranks} * config.endpoints_per_rank;
  const std::uint64_t most = config.trace ? kMaxTracedMessages : kMaxMessages;
  if (endpoints * config.messages > most) {
    return refuse(fmt::format("{} messages of each of {} endpoints: use fewer, for at most {} in all{}",
                              config.messages, endpoints, most, config.trace ? " with a trace" : ""));
  }
  if (endpoints * config.messages > kMaxMovedBytes / config.message_bytes) {
    return refuse(
        fmt::format("{} messages of {} B of each of {} endpoints: use fewer, for at most {} GiB in all",
                    config.messages, config.message_bytes, endpoints, kMaxMovedBytes >> 30));
  }
  return {};
}

using Kernel = void (*)(const Flow*, Shape, Outcome*);

Kernel kernel_of(const SimulationConfig& config) {
  const bool exchanges = config.pattern == Pattern::kExchange;
  switch (config.mode) {
    case pcie::Mode::kPush: return exchanges ? exchange<Mode::kPush> : stream<Mode::kPush>;
    case pcie::Mode::kBounce: return exchanges ? exchange<Mode::kBounce> : stream<Mode::kBounce>;
    case pcie::Mode::kInline: return exchanges ? exchange<Mode::kInline> : stream<Mode::kInline>;
    default: return exchanges ? exchange<Mode::kPull> : stream<Mode::kPull>;
  }
}

}  // namespace

std::uint64_t order_ns(const SimulationConfig& config) {
  return pcie::order_ns(config.ordering, config.mode,
                        config.bus ? config.bus->queues : pcie::QueuePlacement::kGpu);
}

Result<void> Simulation::check(const SimulationConfig& config) {
  const auto refuse = [](const std::string& why) { return fail(Status::kInvalidArgument, why); };
  if (config.endpoints_per_rank == 0 || config.endpoints_per_rank % 2 != 0)
    return refuse(fmt::format("{} endpoints a rank: use an even number", config.endpoints_per_rank));
  if (config.ranks < 2) return refuse("one rank has nobody to talk to: use at least 2");
  if (std::uint64_t{config.ranks} * config.endpoints_per_rank > kMaxEndpoints) {
    return refuse(fmt::format("{} ranks of {} endpoints are more than {} endpoints: use fewer", config.ranks,
                              config.endpoints_per_rank, kMaxEndpoints));
  }
  if (config.message_bytes == 0 || config.message_bytes % 8 != 0 || config.message_bytes > kMaxMessageBytes) {
    return refuse(fmt::format("messages of {} bytes: use a multiple of 8, at most {}", config.message_bytes,
                              kMaxMessageBytes));
  }
  if (config.mode == pcie::Mode::kInline && config.message_bytes > kMaxInlinePutBytes) {
    return refuse(fmt::format("messages of {} bytes inline: use at most {}, or another mode",
                              config.message_bytes, kMaxInlinePutBytes));
  }
  const std::uint64_t buffers =
      std::uint64_t{config.ranks} * config.endpoints_per_rank * 2 * config.message_bytes;
  const std::uint64_t slot_bytes = rank_config(config).slot_bytes;
  const std::uint64_t staging = stages(config) ? config.ranks * slot_bytes * config.slots : 0;
  if (buffers > kMaxMemoryBytes || staging > kMaxMemoryBytes) {
    return refuse(
        fmt::format("{} MiB of buffers and {} MiB of slots: use fewer, or smaller messages, for {} each",
                    buffers >> 20, staging >> 20, kMaxMemoryBytes >> 20));
  }
  if (auto checked = check_work(config); !checked) return checked;
  if (config.mode == pcie::Mode::kProxy)
    return refuse("proxy: a CPU posts it, so no device code runs; use bounce, or gdx model");
  if (!std::has_single_bit(config.slots) || (stages(config) && config.slots < config.endpoints_per_rank)) {
    return refuse(fmt::format("{} staging slots for {} endpoints: use a power of two, and a slot for each",
                              config.slots, config.endpoints_per_rank));
  }
  if (config.bus) {
    if (auto checked = pcie::check(config.bus->platform); !checked) return checked;
    if (crosses_root_complex(config.bus->path) && !config.bus->platform.root.peer_reads)
      return refuse(
          "this platform's root complex refuses peer reads: choose another platform, or a path below it");
  }
  if (config.step_ns == 0) return refuse("steps of 0 ns: time would stand still");
  if (config.dead_rank && *config.dead_rank >= config.ranks)
    return refuse(fmt::format("rank {} cannot be dead: there are {}", *config.dead_rank, config.ranks));
  return {};
}

Simulation::Peer Simulation::peer_of(const SimulationConfig& config, std::uint32_t index) {
  const std::uint32_t rank = index / config.endpoints_per_rank;
  const std::uint32_t endpoint = index % config.endpoints_per_rank;
  const std::uint32_t distance = endpoint / 2 % (config.ranks - 1) + 1;
  const bool up = endpoint % 2 == 0;
  return {(rank + (up ? distance : config.ranks - distance)) % config.ranks, endpoint ^ 1};
}

Simulation::Simulation(const SimulationConfig& config)
    : config_(config), network_(config.network, config.ranks) {
  sim::Random random(config.seed);
  for (std::uint32_t r = 0; r < config.ranks; ++r)
    ranks_.push_back(std::make_unique<Rank>(watched(r), network_, r, random.next()));
  for (std::uint32_t r = 0; r < config.ranks; ++r) {
    if (config.dead_rank != r) alive_.push_back(ranks_[r].get());
  }
  for (std::uint32_t i = 0; i < config.ranks * config.endpoints_per_rank; ++i) {
    const Peer peer = peer_of(config, i);
    ranks_[i / config.endpoints_per_rank]->connect(i % config.endpoints_per_rank, *ranks_[peer.rank],
                                                   peer.endpoint);
  }
}

Simulation::~Simulation() = default;

RankConfig Simulation::watched(std::uint32_t rank) {
  RankConfig config = rank_config(config_);
  if (packets_are_all_news())
    config.taken = [this, rank](std::uint32_t endpoint) { note_arrival(rank, endpoint); };
  return config;
}

int Simulation::progress() {
  running->round();
  return 1;
}

void Simulation::stored(std::uint32_t block, std::uint64_t bytes) {
  running->ranks_[block / running->config_.endpoints_per_rank]->note_store(bytes);
}

void Simulation::posted(std::uint32_t block) {
  const std::uint32_t per_rank = running->config_.endpoints_per_rank;
  running->ranks_[block / per_rank]->carry_doorbells(block % per_rank);
}

void Simulation::busy_until(std::uint32_t block, std::uint64_t until_ns) {
  running->attention_[block].busy_until_ns = until_ns;
}

// Without a bus, and where the HCA reads a kernel's memory and no scheduler writes to it, all that a waiting
// kernel can see comes with a packet.
bool Simulation::packets_are_all_news() const { return !config_.bus && !stages(config_); }

void Simulation::note_arrival(std::uint32_t rank, std::uint32_t endpoint) {
  const std::uint32_t block = rank * config_.endpoints_per_rank + endpoint;
  if (block < attention_.size()) attention_[block].until_round = rounds_ + kQuietRounds;
}

// Time grows with the messages, and not with the looks of kernels that have nothing to see. Otherwise
// endpoints that share a link would cost the square of their number.
bool Simulation::may_find_news(unsigned block) {
  Attention& attention = running->attention_[block];
  const std::uint64_t now_ns = clock();
  const std::uint64_t due_ns = std::min(attention.busy_until_ns, attention.look_again_ns);
  if (running->rounds_ > attention.until_round && now_ns < due_ns) return false;
  attention.busy_until_ns = softhca::transport::kNever;
  attention.look_again_ns = now_ns + kLongestJumpNs;
  ++running->looks_;
  return true;
}

// The thread of the kernel's block waits.
void carry_load(const void* from, std::uint64_t bytes) {
  if (running == nullptr) return;
  const std::uint32_t per_rank = running->config_.endpoints_per_rank;
  Rank& rank = *running->ranks_[blockIdx.x / per_rank];
  if (!rank.is_host_word(blockIdx.x % per_rank, from)) return;
  bool there = false;
  rank.carry_load(bytes, [&there] { there = true; });
  while (!there) exec::relax();
}

void Simulation::sent(std::uint32_t block, std::uint64_t bytes, std::uint64_t begun_ns) {
  if (running->config_.trace) running->actions_[block].push_back({Action::Kind::kSend, bytes, begun_ns});
}

void Simulation::received(std::uint32_t block, std::uint64_t bytes) {
  if (running->config_.trace) running->actions_[block].push_back({Action::Kind::kReceive, bytes, clock()});
}

std::uint64_t Simulation::clock() { return running->network_.now_ns(); }

// Ends a round: every rank has looked and waits. Time advances by a step; after quiet rounds it advances to
// the next event, if that is later.
void Simulation::round() {
  ++rounds_;
  int done = 0;
  for (Rank* const rank : alive_) done += rank->progress();
  const std::uint64_t next_ns = network_.now_ns() + config_.step_ns;
  quiet_rounds_ = done > 0 ? 0 : quiet_rounds_ + 1;
  network_.run_until(quiet_rounds_ < kQuietRounds ? next_ns : std::max(next_ns, next_event_ns()));
}

std::uint64_t Simulation::next_event_ns() {
  std::uint64_t next_ns = network_.now_ns() + kLongestJumpNs;
  next_ns = std::min(next_ns, network_.next_event_ns());
  for (const Attention& attention : attention_) {
    if (attention.busy_until_ns > network_.now_ns()) next_ns = std::min(next_ns, attention.busy_until_ns);
  }
  for (Rank* const rank : alive_) next_ns = std::min(next_ns, network_.now_ns() + rank->hca().idle_ns());
  return next_ns;
}

std::vector<Flow> Simulation::make_flows() {
  const std::uint32_t per_rank = config_.endpoints_per_rank;
  std::vector<Flow> flows;
  for (std::uint32_t i = 0; i < config_.ranks * per_rank; ++i) {
    const Peer peer = peer_of(config_, i);
    Rank& own = *ranks_[i / per_rank];
    Rank& other = *ranks_[peer.rank];
    const std::uint32_t endpoint = i % per_rank;
    flows.push_back({.endpoint = own.handle(endpoint),
                     .source = own.source(endpoint),
                     .inbox = own.inbox(endpoint),
                     .peer_inbox = other.remote_inbox(peer.endpoint),
                     .peer_signal = other.remote_signal(peer.endpoint),
                     .signal = own.signal(endpoint),
                     .own_salt = std::uint64_t{i} << 32,
                     .peer_salt = std::uint64_t{peer.rank * per_rank + peer.endpoint} << 32,
                     .sends = endpoint % 2 == 0 && (!config_.one_way || i < per_rank)});
  }
  return flows;
}

Report Simulation::run() {
  const std::vector<Flow> flows = make_flows();
  outcomes_.assign(flows.size(), {});
  actions_.assign(config_.trace ? flows.size() : 0, {});
  attention_.assign(flows.size(), {.busy_until_ns = softhca::transport::kNever});
  const Shape shape{config_.message_bytes,
                    config_.messages,
                    config_.post_ns + (config_.bus ? 0 : order_ns(config_)),
                    config_.jitter_ns,
                    config_.bus ? order_ns(config_) : 0,
                    stored,
                    posted,
                    busy_until,
                    sent,
                    received};
  const exec::LaunchConfig launch{.grid = {static_cast<unsigned>(flows.size())},
                                  .progress = progress,
                                  .clock = clock,
                                  .may_find_news = packets_are_all_news() ? may_find_news : nullptr};
  running = this;
  const Status launched = exec::launch(launch, kernel_of(config_), flows.data(), shape, outcomes_.data());
  running = nullptr;

  Report report;
  report.endpoints = flows.size();
  report.first_failure = launched;
  for (const Outcome& outcome : outcomes_) {
    report.messages += outcome.messages;
    report.wrong_words += outcome.wrong_words;
    report.seen_ns = std::max(report.seen_ns, outcome.seen_ns);
    if (outcome.status == Status::kOk) continue;
    if (report.failed_endpoints++ == 0) report.first_failure = outcome.status;
  }
  report.virtual_ns = network_.now_ns();
  report.rounds = rounds_;
  report.looks = packets_are_all_news() ? looks_ : rounds_ * flows.size();
  report.network = network_.counters();
  report.hcas.reserve(ranks_.size());
  for (const auto& rank : ranks_) {
    const softhca::HcaCounters counters = rank->hca().counters();
    const auto& transport = counters.transport;
    report.retransmitted_packets += transport.retransmitted_packets;
    report.recoveries += transport.timeouts + transport.naks_received + transport.rnr_naks_received +
                         transport.naks_sent + transport.duplicate_requests + transport.out_of_sequence +
                         transport.key_faults + counters.wire.icrc_errors + counters.dropped_packets;
    report.staging_violations += counters.staging_violations;
    report.hcas.push_back(counters);
    report.delivered_ns = std::max(report.delivered_ns, rank->delivered_ns());
  }
  if (ranks_[0]->bus() != nullptr) report.pcie = ranks_[0]->bus()->counters();
  return report;
}

}  // namespace gdx::ranks
