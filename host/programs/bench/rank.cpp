#include "host/programs/bench/rank.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <thread>
#include <utility>

#include "host/programs/bench/counters.h"
#include "host/programs/bench/experts.h"
#include "host/programs/bench/kernels.h"
#include "host/programs/bench/payload.h"
#include "host/programs/bench/proxy.h"
#include "host/programs/bench/shares.h"

namespace gdx::bench {
namespace {

constexpr std::uint64_t kWaitTimeoutNs = 60'000'000'000;
constexpr std::uint64_t kAlignment = 64;
// Messages take turns in places of this size together, so that a window does not write one place.
constexpr std::uint64_t kPlacesBytes = 1 << 20;
constexpr std::uint32_t kSlotCount = 32;
constexpr int kStepsToLive = 20;                   // inside a wait, in the middle of the sample
constexpr std::uint64_t kTeamHeapBytes = 4 << 20;  // for words, and the scratch of most teams
constexpr std::uint64_t kWordsBytes = kSignalWords * sizeof(std::uint64_t);

std::uint64_t stride_of(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::uint64_t places_of(const Case& item) {
  if (is_of_experts(item.operation)) return most_messages_between(item.ranks);
  return std::clamp<std::uint64_t>(kPlacesBytes / stride_of(item.bytes), 1, item.depth);
}

// Returns the bytes that a case needs of a source, and of a sink.
std::uint64_t bytes_of(const Case& item) {
  if (item.operation == Operation::kAllReduce) return stride_of(item.bytes);
  if (is_of_experts(item.operation)) return item.ranks * places_of(item) * stride_of(item.bytes);
  if (is_collective(item.operation)) return stride_of(item.ranks * item.bytes);
  return places_of(item) * stride_of(item.bytes);
}

int progress_and_die() {
  static std::atomic<int> steps = 0;
  if (++steps == kStepsToLive) raise(SIGKILL);
  return progress();
}

// A lane's memory, for the peer's lane.
struct Introduction {
  RemoteMemory source;
  RemoteMemory sink;
  RemoteMemory signals;
};

// Differences of cases that an endpoint has for its life.
struct EndpointKind {
  std::optional<DoorbellKind> doorbell;
  std::optional<Placement> queues;
  bool of_proxy;  // a thread of the host posts: to queues in host memory
  bool shared;
  friend bool operator==(const EndpointKind&, const EndpointKind&) = default;
};

EndpointKind kind_of(const Case& item) {
  return {item.doorbell, item.queues, item.way == Way::kProxy, shares(item)};
}

// Kinds of endpoints, each once. Those of collectives are their team's.
std::vector<EndpointKind> kinds_of(const std::vector<Case>& cases) {
  std::vector<EndpointKind> kinds;
  for (const Case& item : cases) {
    if (!is_collective(item.operation) && std::ranges::count(kinds, kind_of(item)) == 0)
      kinds.push_back(kind_of(item));
  }
  return kinds;
}

bool uses(const std::vector<Case>& cases, Way way) {
  return std::ranges::any_of(cases, [way](const Case& item) { return item.way == way; });
}

// Kernels on the CPU layer read no payload in a GPU's memory, so none of them puts by `auto`.
ModeOptions auto_modes(const Gpus& gpus) {
  if (gpus.kernels == nullptr) return {.kernels = Processor::kCpu, .payload = Placement::kHost};
  return {.kernels = Processor::kGpu,
          .gpu = gpus.kernels->pci_bus_id(),
          .payload = gpus.payload == nullptr ? Placement::kHost : Placement::kGpu};
}

}  // namespace

struct Rank::Impl {
  std::unique_ptr<Hca> hca;
  std::optional<StagingPool> staging;  // if a way pushes
  std::optional<StagingPool> bounce;
  std::optional<Payload> payload;  // of each lane the source, then the sink; of collectives the first lane's
  std::optional<Region> words;     // of each lane the signals, then the result of atomics
  std::optional<Region> launched;  // lanes, outcomes, proxies' words, latencies
  std::vector<EndpointKind> kinds;
  std::vector<std::uint32_t> firsts;  // of each kind the number of its first endpoint, then the number of all
  std::uint32_t lane_count = 1;
  std::vector<Endpoint> endpoints;   // kind after kind, of each as many as a case has
  std::uint32_t first_endpoint = 0;  // of the first lane, for the case that runs
  std::optional<Team> team;          // of collectives
  std::uint64_t* team_words = nullptr;
  Lane* lanes = nullptr;
  LaneOutcome* outcomes = nullptr;
  std::uint64_t lane_bytes = 0;
  std::uint64_t sample = 0;
  std::uint64_t sequence = 1;
  std::uint32_t rank = 0;
  std::uint32_t ranks = 2;
  std::uint32_t workers = 1;
  bool break_memory = false;
  std::string push_refusal;  // of this rank's GPU or another's; empty: pushes run

  [[nodiscard]] std::uint32_t peer() const { return 1 - rank; }  // of a pair
  // Lanes take turns at endpoints that they share.
  [[nodiscard]] const Endpoint& endpoint_of(const Load& load, std::uint32_t lane) const {
    return endpoints[first_endpoint + lane % load.endpoints];
  }
  [[nodiscard]] bool can_run(const Case& item) const {
    return item.way != Way::kPush || push_refusal.empty();
  }
  Result<void> make_memory(const Gpus& gpus, const Plan& plan, const std::vector<Case>& cases);
  Result<void> make_staging(World& world, const Gpu* gpu, const std::vector<Case>& cases);
  [[nodiscard]] EndpointOptions endpoint_options(const Gpus& gpus, const Plan& plan,
                                                 const std::vector<Case>& cases) const;
  Result<void> make_endpoints(const Gpu* gpu, const EndpointOptions& options, const std::vector<Case>& cases);
  Result<void> add_endpoints(const Gpu* gpu, const EndpointKind& kind, std::uint32_t count,
                             EndpointOptions options);
  Result<void> make_team(World& world, const Gpu* gpu, const EndpointOptions& options);
  Result<void> introduce(World& world);
  [[nodiscard]] Load load_of(const Case& item, std::uint64_t messages) const;
  Result<void> prepare(const Load& load);
  Status launch(const Load& load, bool die);
  Result<Share> pass(World& world, const Case& item, Load load, bool die,
                     std::vector<Occupancy>* occupancy = nullptr);
  [[nodiscard]] Result<void> check_outcomes(const Case& item, const Load& load) const;
  Result<void> check(std::uint64_t sink, std::uint64_t places, const Load& load, Sent sent, Share& share);
  Result<void> verify(const Load& load, Share& share);
  [[nodiscard]] Counters counters() const;
  // Pools whose scheduler runs in this process: gdxd counts each question as a request.
  [[nodiscard]] std::vector<const StagingPool*> watched_pools() const {
    std::vector<const StagingPool*> pools;
    for (const auto* const pool : {&staging, &bounce}) {
      if (*pool && (*pool)->daemon_number() == 0) pools.push_back(&**pool);
    }
    return pools;
  }
  // Endpoints whose words a processor reads: a GPU's kernels have theirs in the GPU's memory, and shared
  // endpoints have others.
  [[nodiscard]] std::vector<EndpointHandle> readable_handles(const Load& load) const {
    const bool shared = load.posters > load.endpoints;
    if (shared || (kernels_run_on_gpu() && load.way != Way::kProxy)) return {};
    const std::uint32_t count = load.endpoints;
    std::vector<EndpointHandle> first(count);
    for (std::uint32_t i = 0; i < count; ++i) first[i] = lanes[i].endpoint;
    return first;
  }
};

Result<void> Rank::Impl::make_memory(const Gpus& gpus, const Plan& plan, const std::vector<Case>& cases) {
  for (const Case& item : cases) {
    lane_bytes = std::max(lane_bytes, bytes_of(item));
    lane_count = std::max(lane_count, item.posters);
  }
  const std::uint32_t count = lane_count;
  const std::uint64_t timed = std::max(plan.messages, kMostTimedMessages);
  const std::uint64_t of_lane =
      sizeof(Lane) + sizeof(LaneOutcome) + kAlignment + timed * sizeof(std::uint32_t) + 2 * kAlignment;
  const std::uint64_t bytes = 2 * count * lane_bytes;
  auto made = GDX_TRY(gpus.payload == nullptr ? Payload::in_host_memory(*hca, gpus.kernels, bytes)
                                              : Payload::in_gpu_memory(*hca, *gpus.payload, bytes));
  payload.emplace(std::move(made));
  words = GDX_TRY(allocate_region(*hca, gpus.kernels, 2 * count * kWordsBytes));
  launched = GDX_TRY(allocate_region(*hca, gpus.kernels, count * of_lane));
  std::byte* at = launched->memory.data();
  lanes = reinterpret_cast<Lane*>(at);
  outcomes = reinterpret_cast<LaneOutcome*>(at + stride_of(count * sizeof(Lane)));
  std::byte* const proxies = reinterpret_cast<std::byte*>(outcomes) + stride_of(count * sizeof(LaneOutcome));
  std::byte* const latencies = proxies + count * kAlignment;
  for (std::uint32_t i = 0; i < count; ++i) {
    Lane& lane = lanes[i];
    lane.source = payload->memory().local() + 2 * i * lane_bytes;
    lane.sink = lane.source + lane_bytes;
    lane.signals = reinterpret_cast<std::uint64_t*>(words->memory.data() + 2 * i * kWordsBytes);
    lane.original = words->memory.local() + (2 * i + 1) * kWordsBytes;
    lane.proxy = reinterpret_cast<ProxyWords*>(proxies + i * kAlignment);
    lane.latencies = reinterpret_cast<std::uint32_t*>(latencies + i * timed * sizeof(std::uint32_t));
  }
  return {};
}

// A refused push is left out at all ranks, so that they measure the same.
Result<void> Rank::Impl::make_staging(World& world, const Gpu* gpu, const std::vector<Case>& cases) {
  if (uses(cases, Way::kPush) || uses(cases, Way::kAuto)) {
    auto made = GDX_TRY(StagingPool::create(*hca, {}));
    staging.emplace(std::move(made));
    if (gpu != nullptr) push_refusal = staging->map_if_allowed(*gpu);
    const auto refused = GDX_TRY(world.allgather_value<int>(!push_refusal.empty(), kExchangeTimeoutNs));
    const auto other = std::ranges::find(refused, 1) - refused.begin();
    if (push_refusal.empty() && other != std::ssize(refused))
      push_refusal = fmt::format("the kernels of rank {} cannot push", other);
    if (!push_refusal.empty()) staging.reset();
    if (std::ranges::none_of(cases, [this](const Case& item) { return can_run(item); }))
      return fail(Status::kUnsupported, "nothing is left to measure: " + push_refusal);
  }
  auto made = GDX_TRY(StagingPool::create(*hca, StagingOptions::in_host_memory()));
  bounce.emplace(std::move(made));
  return gpu != nullptr ? bounce->map_to(*gpu) : Result<void>{};
}

EndpointOptions Rank::Impl::endpoint_options(const Gpus& gpus, const Plan& plan,
                                             const std::vector<Case>& cases) const {
  std::uint32_t depth = 64;
  for (const Case& item : cases) depth = std::max(depth, item.depth);
  return {.send_queue_blocks = std::min(std::bit_ceil(2 * depth), kMaxSendQueueBlocks),
          .slot_count = staging ? std::min(kSlotCount, staging->slot_count()) : 0,
          .bounce_slot_count = bounce->slot_count(),
          .auto_modes = auto_modes(gpus),
          .timeout_ns =
              std::getenv(kCallTimeoutVariable) == nullptr ? std::optional(kWaitTimeoutNs) : std::nullopt,
          .adaptive_routing = plan.adaptive_routing ? std::optional(true) : std::nullopt};
}

Result<void> Rank::Impl::make_endpoints(const Gpu* gpu, const EndpointOptions& options,
                                        const std::vector<Case>& cases) {
  kinds = kinds_of(cases);
  for (const EndpointKind& kind : kinds) {
    firsts.push_back(static_cast<std::uint32_t>(endpoints.size()));
    std::uint32_t count = 0;
    for (const Case& item : cases) {
      if (!is_collective(item.operation) && kind_of(item) == kind) count = std::max(count, item.endpoints);
    }
    GDX_TRY(add_endpoints(gpu, kind, count, options));
  }
  firsts.push_back(static_cast<std::uint32_t>(endpoints.size()));
  return {};
}

Result<void> Rank::Impl::add_endpoints(const Gpu* gpu, const EndpointKind& kind, std::uint32_t count,
                                       EndpointOptions options) {
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool in_host = kind.of_proxy || kind.queues == Placement::kHost;
    options.doorbell = kind.doorbell;
    options.sharing = kind.shared ? Sharing::kShared : Sharing::kExclusive;
    options.placement = in_host ? Placement::kHost : kind.queues;
    options.gpu = gpu != nullptr && !in_host ? std::optional(*gpu) : std::nullopt;
    auto endpoint = GDX_TRY(Endpoint::create(*hca, {staging ? &*staging : nullptr, &*bounce}, options));
    if (options.doorbell == DoorbellKind::kBlueFlame && endpoint.handle().blueflame_half_bytes == 0) {
      return fail(Status::kBusy,
                  fmt::format("HCA {} has no BlueFlame register left for endpoint {}: use fewer "
                              "endpoints, or --doorbells plain",
                              hca->name(), i));
    }
    if (gpu != nullptr && !kind.of_proxy) GDX_TRY(endpoint.map_to(*gpu));
    endpoints.push_back(std::move(endpoint));
  }
  return {};
}

Result<void> Rank::Impl::introduce(World& world) {
  if (endpoints.empty()) return {};
  const RemoteMemory memory = payload->memory().remote();
  std::vector<EndpointAddress> addresses;
  addresses.reserve(endpoints.size());
  for (const Endpoint& endpoint : endpoints) addresses.push_back(endpoint.address());
  const auto all_addresses = GDX_TRY(world.allgather_values(addresses, kExchangeTimeoutNs));
  for (std::size_t i = 0; i < endpoints.size(); ++i)
    GDX_TRY(endpoints[i].connect(all_addresses[peer() * endpoints.size() + i]));
  std::vector<Introduction> mine(lane_count);
  for (std::size_t lane = 0; lane < lane_count; ++lane) {
    const std::uint64_t at = 2 * lane * lane_bytes;
    mine[lane] = {memory + at, memory + at + lane_bytes, words->memory.remote() + 2 * lane * kWordsBytes};
  }
  const auto all = GDX_TRY(world.allgather_values(mine, kExchangeTimeoutNs));
  for (std::size_t lane = 0; lane < lane_count; ++lane) {
    const Introduction& of_peer = all[peer() * lane_count + lane];
    lanes[lane].peer_source = of_peer.source;
    lanes[lane].peer_sink = of_peer.sink;
    lanes[lane].peer_signals = of_peer.signals;
  }
  return world.barrier(kExchangeTimeoutNs);
}

Load Rank::Impl::load_of(const Case& item, std::uint64_t messages) const {
  Load load{.operation = item.operation,
            .way = item.way,
            .scope = item.scope,
            .latency = item.measure == Measure::kLatency,
            .sends = item.both_ways || rank == kReportingRank,
            .awaits_peer = item.both_ways,
            .endpoints = item.endpoints,
            .posters = item.posters,
            .workers = std::min(workers, item.posters),
            .depth = item.depth,
            .batch = item.batch,
            .bytes = item.bytes,
            .messages = messages,
            .rank = rank,
            .ranks = item.ranks,
            .slots = places_of(item),
            .stride_bytes = stride_of(item.bytes),
            .first_sequence = 0,
            .round = {team ? team->handle() : TeamHandle{},
                      lanes[0].sink.address,
                      lanes[0].source.address,
                      team_words,
                      {}}};
  for (std::uint32_t to = 0; is_of_experts(item.operation) && to < ranks; ++to)
    load.round.messages[to] = messages_between(item.operation, rank, to, ranks);
  return load;
}

// Makes the team by which collectives go through the NIC, as between nodes.
Result<void> Rank::Impl::make_team(World& world, const Gpu* gpu, const EndpointOptions& options) {
  TeamOptions of_team{.heap_bytes = kTeamHeapBytes,
                      .gpu = kernels_run_on_gpu() ? std::optional(gpu->ordinal()) : std::nullopt,
                      .endpoint = options,
                      .direct = DirectChoice::kOff,
                      .timeout_ns = kWaitTimeoutNs,
                      .connect_all = true,
                      .provider = ""};
  auto made = GDX_TRY(Team::create(*hca, world, {staging ? &*staging : nullptr, &*bounce}, of_team));
  team.emplace(std::move(made));
  GDX_TRY(team->register_window(payload->memory().data(), payload->memory().bytes()));
  team_words = GDX_TRY(team->allocate<std::uint64_t>(ranks));
  return {};
}

// Payload of this sample in every source, and its inverse in every place to which the peer's comes.
Result<void> Rank::Impl::prepare(const Load& load) {
  outcomes[0] = {};
  if (is_collective(load.operation)) {
    for (const Piece& piece : pieces_from(load, sample))
      GDX_TRY(payload->fill(piece.at, length_of(load, piece), piece.sent, false));
    for (const Piece& piece : pieces_to(load, sample))
      GDX_TRY(payload->fill(lane_bytes + piece.at, length_of(load, piece), piece.sent, true));
    return {};
  }
  const std::uint64_t bytes = load.slots * load.stride_bytes;
  for (std::uint32_t i = 0; i < load.posters; ++i) {
    const std::uint64_t source = 2 * i * lane_bytes;
    GDX_TRY(payload->fill(source, bytes, {sample, rank, peer()}, false));
    GDX_TRY(payload->fill(source + lane_bytes, bytes, {sample, peer(), rank}, true));
    lanes[i].endpoint = endpoint_of(load, i).handle();
    lanes[i].signals[kCounter] = 0;
    *lanes[i].proxy = {};
    outcomes[i] = {};
  }
  return {};
}

Status Rank::Impl::launch(const Load& load, bool die) {
  const auto on_wait = die ? progress_and_die : progress;
  std::vector<std::thread> proxies;
  if (load.way == Way::kProxy) {
    proxies.reserve(load.posters);
    for (std::uint32_t i = 0; i < load.posters; ++i) {
      // The kernel reports a failure.
      proxies.emplace_back([this, i, load] { (void)post_for_kernel(lanes[i], load, progress); });
    }
  }
  const Status status = run_lanes(lanes, load, outcomes, on_wait);
  for (std::uint32_t i = 0; i < load.posters; ++i)
    std::atomic_ref(lanes[i].proxy->over).store(1, std::memory_order_release);
  for (std::thread& proxy : proxies) proxy.join();
  return status;
}

// Names the failed side: the peer, if the status or its silence shows that, otherwise this rank.
Result<void> Rank::Impl::check_outcomes(const Case& item, const Load& load) const {
  for (std::uint32_t i = 0; i < load.posters; ++i) {
    const Status status = outcomes[i].status;
    if (status == Status::kOk) continue;
    const std::string begun = fmt::format("{}, message {} of {}: ", key_of(item),
                                          std::min(outcomes[i].messages + 1, load.messages), load.messages);
    if (is_collective(load.operation))
      return fail(status, fmt::format("{}rank {}: {}", begun, rank, team->describe_fault()));
    const bool peers = status == Status::kTimeout || static_cast<std::uint32_t>(status) >> 8 == 0x03;
    const Endpoint& endpoint = endpoint_of(load, i);
    const std::string what =
        endpoint.fault().status == Status::kOk ? std::string(status_name(status)) : endpoint.describe_fault();
    return fail(status, fmt::format("{}{}: {}", begun,
                                    peers ? fmt::format("rank {} failed rank {}", peer(), rank)
                                          : fmt::format("rank {}", rank),
                                    what));
  }
  return {};
}

// Checks every place of a sink that a message went to.
Result<void> Rank::Impl::check(std::uint64_t sink, std::uint64_t places, const Load& load, Sent sent,
                               Share& share) {
  if (break_memory && share.checked_bytes == 0) {
    GDX_TRY(payload->damage(sink + load.bytes / 2));
  }
  share.checked_bytes += places * load.bytes;
  const auto bad = GDX_TRY(payload->count_bad(sink, places, load.bytes, load.stride_bytes, sent));
  share.bad_bytes += bad;
  return {};
}

// Checks what has come to this rank, or the count of all adds.
Result<void> Rank::Impl::verify(const Load& load, Share& share) {
  if (is_collective(load.operation)) {
    for (const Piece& piece : pieces_to(load, sample))
      GDX_TRY(check(lane_bytes + piece.at, piece.places, load, piece.sent, share));
    return {};
  }
  const bool gets = load.operation == Operation::kGet;
  const bool receives = gets ? load.sends : !load.sends || load.awaits_peer;
  const bool answered = load.operation == Operation::kPutSignal && load.latency;
  if (!receives && !answered) return {};
  for (std::uint32_t i = 0; i < load.posters; ++i) {
    if (load.operation == Operation::kFetchAdd) {
      auto& count = lanes[i].signals[kCounter];
      if (break_memory && i == 0) ++count;
      share.checked_bytes += sizeof count;
      share.bad_bytes += count == load.messages ? 0 : sizeof count;
      continue;
    }
    GDX_TRY(check((2 * i + 1) * lane_bytes, std::min(load.slots, load.messages), load, {sample, peer(), rank},
                  share));
  }
  return {};
}

// Reads this rank's, with the stalls of all endpoints. A team's queues are in memory of the host.
Counters Rank::Impl::counters() const {
  Counters now = read_counters(*hca);
  now.cpu_ns = process_cpu_ns();
  for (const Endpoint& endpoint : endpoints) now.stalls += stalls_of(endpoint.state());
  for (std::uint32_t to = 0; team && to < ranks; ++to) {
    const QueueState* const state = team->endpoint(0, to).state;  // null: this rank's own, or gone
    if (state != nullptr) now.stalls += stalls_of(*state);
  }
  return now;
}

Rank::Rank(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Rank::Rank(Rank&&) noexcept = default;
Rank& Rank::operator=(Rank&&) noexcept = default;
Rank::~Rank() = default;

Result<Rank> Rank::connect(Hca hca, const Gpus& gpus, World& world, const Plan& plan,
                           const std::vector<Case>& cases) {
  auto impl = std::make_unique<Impl>();
  impl->hca = std::make_unique<Hca>(std::move(hca));
  impl->rank = world.rank();
  impl->ranks = plan.ranks;
  impl->workers = workers_of(plan, std::thread::hardware_concurrency());
  impl->break_memory = plan.break_memory;
  GDX_TRY(impl->make_memory(gpus, plan, cases));
  GDX_TRY(impl->make_staging(world, gpus.kernels, cases));
  const EndpointOptions options = impl->endpoint_options(gpus, plan, cases);
  GDX_TRY(impl->make_endpoints(gpus.kernels, options, cases));
  if (std::ranges::any_of(cases, [](const Case& item) { return is_collective(item.operation); }))
    GDX_TRY(impl->make_team(world, gpus.kernels, options));
  GDX_TRY(impl->introduce(world));
  return Rank(std::move(impl));
}

std::string Rank::queues_place() const {
  std::string text = impl_->team ? "kernels' in host memory" : "";
  for (std::size_t i = 0; i < impl_->kinds.size(); ++i) {
    const Placement place = impl_->endpoints[impl_->firsts[i]].handle().placement;
    const char* const poster = impl_->kinds[i].of_proxy ? "proxies'" : "kernels'";
    const std::string part = fmt::format("{} in {} memory", poster, gdx::name(place));
    if (text.find(part) == std::string::npos) text += fmt::format("{}{}", text.empty() ? "" : ", ", part);
  }
  return text;
}

std::string Rank::signals() const {
  if (impl_->endpoints.empty()) return "";
  return impl_->endpoints.front().handle().signal_fence != 0 ? "fenced" : "unfenced";
}

const Hca& Rank::hca() const { return *impl_->hca; }
std::uint32_t Rank::workers() const { return impl_->workers; }
bool Rank::can_run(const Case& item) const { return impl_->can_run(item); }
const std::string& Rank::push_refusal() const { return impl_->push_refusal; }
std::string Rank::payload_place() const { return impl_->payload->place(); }

std::optional<std::uint64_t> Rank::staging_violations() const {
  const auto count = impl_->hca->counter("softhca_staging_violations");
  return count ? std::optional(*count) : std::nullopt;
}

// Posts and checks the messages of one load, from sources and into places that hold what no load before left.
Result<Share> Rank::Impl::pass(World& world, const Case& item, Load load, bool die,
                               std::vector<Occupancy>* occupancy) {
  ++sample;
  load.first_sequence = sequence;
  sequence += load.messages;
  GDX_TRY(prepare(load));
  // Before the barrier: the peer's messages may come as soon as the peer has left it.
  Counters before = counters();
  GDX_TRY(world.barrier(kExchangeTimeoutNs));
  before.cpu_ns = process_cpu_ns();
  std::optional<OccupancySampler> sampler;
  if (occupancy != nullptr) sampler.emplace(watched_pools(), readable_handles(load));
  const Status status = launch(load, die);
  if (sampler) *occupancy = sampler->stop();
  if (status != Status::kOk) return fail(status, fmt::format("kernel launch: {}", status_name(status)));
  GDX_TRY(check_outcomes(item, load));
  Share share = share_of(load, outcomes, counters() - before);
  GDX_TRY(verify(load, share));
  return share;
}

Result<Sample> Rank::run(World& world, const Case& item, std::uint64_t counted, bool die) {
  if (counted == 0) return Sample{};
  // Of a payload of its own: what it leaves at the target is wrong for those that count.
  const std::uint64_t warmup = warmup_of(counted, item.depth);
  const auto kind = std::ranges::find(impl_->kinds, kind_of(item)) - impl_->kinds.begin();
  impl_->first_endpoint = impl_->firsts[static_cast<std::size_t>(kind)];
  const Load load = impl_->load_of(item, counted);
  std::vector<Occupancy> occupancy;
  const Share dropped = GDX_TRY(impl_->pass(world, item, impl_->load_of(item, warmup), false,
                                            load.sends && !load.latency ? &occupancy : nullptr));
  Share mine = GDX_TRY(impl_->pass(world, item, load, die));
  mine.dropped_bad_bytes = dropped.bad_bytes;
  const auto shares = GDX_TRY(world.allgather_value(mine, kExchangeTimeoutNs));

  Sample sample;
  sample.occupancy = std::move(occupancy);
  sample.elapsed_ns = mine.elapsed_ns;
  add_shares(shares, sample);
  if (!load.latency || !load.sends) return sample;
  add_latencies(load, impl_->lanes, impl_->outcomes, sample);
  return sample;
}

}  // namespace gdx::bench
