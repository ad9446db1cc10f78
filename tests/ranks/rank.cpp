#include "tests/ranks/rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "device/impl/credits.h"
#include "proto/roce/codec.h"
#include "tests/sim/random.h"

namespace gdx::ranks {
namespace {

constexpr std::size_t kBlockBytes = 64;
constexpr std::size_t kUarBlocks = mlx5::kUarPageBytes / kBlockBytes;
constexpr std::uint32_t kAllAccess =
    softhca::kLocalWrite | softhca::kRemoteWrite | softhca::kRemoteRead | softhca::kRemoteAtomic;

constexpr std::size_t blocks_for(std::size_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes; }

[[noreturn]] void give_up(const char* what, const std::string& why) {
  fmt::print(stderr, "a simulated rank cannot {}: {}\n", what, why);
  std::abort();
}

// Returns the index of a doorbell's WQE.
std::uint16_t index_of(std::uint64_t doorbell) {
  return static_cast<std::uint16_t>(byte_swap(static_cast<std::uint32_t>(doorbell)) >> 8);
}

std::uint32_t need(const char* what, const softhca::ErrnoOr<std::uint32_t>& answer) {
  if (!answer) give_up(what, std::strerror(answer.error()));
  return *answer;
}

}  // namespace

Rank::Rank(const RankConfig& config, Network& network, std::uint32_t number, std::uint64_t seed)
    : config_(config),
      events_(network.events()),
      memory_(config.endpoints * endpoint_blocks()),
      uar_pages_((config.bus ? config.endpoints : 1) * kUarBlocks),
      staging_(blocks_for(std::size_t{config.slots} * config.slot_bytes)),
      endpoints_(config.endpoints) {
  open_hca(network, number, seed);
  if (config.slots != 0)
    credits_.emplace(CreditRules{.slot_count = config.slots, .minimum_slots = lease_slots()},
                     fmt::format("rank{}", number));
  for (std::uint32_t e = 0; e < config.endpoints; ++e) {
    lay_out(e);
    create_queues(endpoints_[e]);
    endpoint_of_[endpoints_[e].qpn] = e;
    if (credits_ && (config.odd_endpoints_push || e % 2 == 0)) share_staging(endpoints_[e]);
  }
}

// Returns each endpoint's slots under the dynamic threshold when all push.
std::uint32_t Rank::lease_slots() const {
  const std::uint32_t pushing = config_.odd_endpoints_push ? config_.endpoints : config_.endpoints / 2;
  return std::max(1u, config_.slots / (pushing + 1));
}

Network::Nic Rank::make_nic(Network& network) {
  Network::Nic nic;
  if (config_.taken) nic.taken = [this](std::uint32_t qpn) { config_.taken(endpoint_of_.at(qpn)); };
  if (!config_.bus) return nic;
  bus_ = std::make_unique<Bus>(network.events(), *config_.bus);
  nic.before_sending = [this](std::span<const std::byte> datagram, Bus::Done done) {
    if (!is_fetched(datagram)) return done();
    bus_->nic_fetches_payload(config_.bounces, roce::decode(datagram)->payload.size(), std::move(done));
  };
  nic.before_delivery = [this, &network](std::span<const std::byte> datagram, Bus::Done done) {
    const std::uint64_t bytes = roce::decode(datagram)->payload.size();
    bus_->nic_works([this, &network, bytes, done = std::move(done)] {
      if (bytes == 0) return done();
      bus_->nic_delivers_payload(bytes, [this, &network, done] {
        delivered_ns_ = network.now_ns();
        done();
      });
    });
  };
  return nic;
}

void Rank::open_hca(Network& network, std::uint32_t number, std::uint64_t seed) {
  softhca::HcaConfig hca;
  hca.name = fmt::format("rank{}", number);
  hca.device_memory_bytes = config_.bounces ? 0 : staging_.size() * kBlockBytes;
  auto* const staging = reinterpret_cast<std::byte*>(staging_.data());
  hca_ = std::make_unique<softhca::Engine>(
      hca, network.attach(number, make_nic(network)), staging,
      [random = sim::Random(seed)]() mutable { return static_cast<std::uint32_t>(random.next()); },
      [&network] { return network.now_ns(); });
  pd_ = need("make a protection domain", hca_->alloc_pd());
  mkey_ = need("register its memory",
               hca_->register_memory({.pd = pd_,
                                      .base = memory_.data()->bytes,
                                      .iova = reinterpret_cast<std::uint64_t>(memory_.data()),
                                      .length_bytes = memory_.size() * kBlockBytes,
                                      .access = kAllAccess}));
  if (staging_.empty()) return;
  staging_key_ = need("register its staging memory",
                      hca_->register_memory({.pd = pd_,
                                             .base = staging,
                                             .iova = 0,
                                             .length_bytes = staging_.size() * kBlockBytes,
                                             .access = 0,
                                             .device_memory = !config_.bounces}));
}

// Returns whether the NIC fetches the payload: a signal's value is in the WQE, a push's payload is on the
// NIC.
bool Rank::is_fetched(std::span<const std::byte> datagram) const {
  const std::optional<roce::Decoded> packet = roce::decode(datagram);
  const roce::OpcodeTraits& traits = roce::traits_of(packet->headers.bth.opcode);
  if (traits.operation != roce::Operation::kWrite || !(config_.pulls || config_.bounces)) return false;
  if (!traits.first || !traits.last) return true;
  // A probe has no payload.
  return !packet->payload.empty() && !peer_signals_.contains(packet->headers.reth.address);
}

std::uint16_t Rank::posted_blocks(const EndpointMemory& memory) {
  return static_cast<std::uint16_t>(std::uint32_t{memory.control->queue_pair_record[mlx5::kSendRecord]});
}

std::size_t Rank::endpoint_blocks() const {
  const std::size_t queue = std::size_t{1} << config_.log_send_queue;
  const std::size_t rings = config_.bus ? 3 : 2;
  const std::size_t credits =
      2 * blocks_for(config_.slots * sizeof(std::uint32_t)) + blocks_for(config_.slots * sizeof(HeldSlot));
  return blocks_for(sizeof(Control)) + rings * queue + credits + 2 * blocks_for(config_.buffer_bytes);
}

void Rank::lay_out(std::uint32_t endpoint) {
  Block* at = &memory_[endpoint * endpoint_blocks()];
  const auto take = [&at](std::size_t bytes) { return std::exchange(at, at + blocks_for(bytes))->bytes; };
  const std::size_t queue = std::size_t{1} << config_.log_send_queue;
  EndpointMemory& memory = endpoints_[endpoint];
  memory.control = new (take(sizeof(Control))) Control{};
  memory.send_queue = reinterpret_cast<mlx5::WqeBasicBlock*>(take(queue * sizeof(mlx5::WqeBasicBlock)));
  memory.completion_queue = reinterpret_cast<mlx5::Cqe64*>(take(queue * sizeof(mlx5::Cqe64)));
  memory.written_completions = memory.completion_queue;
  memory.uar_page = uar_pages_.data()->bytes;
  if (bus_) {
    memory.written_completions = reinterpret_cast<mlx5::Cqe64*>(take(queue * sizeof(mlx5::Cqe64)));
    memory.uar_page = uar_pages_[endpoint * kUarBlocks].bytes;
  }
  for (std::size_t i = 0; i < queue; ++i) {
    memory.completion_queue[i].op_own = memory.written_completions[i].op_own =
        static_cast<unsigned>(mlx5::CqeOpcode::kInvalid) << mlx5::kCqeOpcodeShift;
  }
  memory.granted_slots = reinterpret_cast<std::uint32_t*>(take(config_.slots * sizeof(std::uint32_t)));
  memory.returned_slots = reinterpret_cast<std::uint32_t*>(take(config_.slots * sizeof(std::uint32_t)));
  memory.held = reinterpret_cast<HeldSlot*>(take(config_.slots * sizeof(HeldSlot)));
  memory.source = take(config_.buffer_bytes);
  memory.inbox = take(config_.buffer_bytes);
}

void Rank::create_queues(EndpointMemory& memory) {
  if (bus_ || uar_ == 0) uar_ = need("make a doorbell page", hca_->add_uar({memory.uar_page}));
  softhca::CompletionQueueSpec cq;
  cq.ring = reinterpret_cast<std::byte*>(memory.written_completions);
  cq.doorbell_record = memory.control->completion_record;
  cq.log_entries = config_.log_send_queue;
  // The endpoint never writes a consumer index: its queue is as long as the send queue and cannot overrun.
  cq.ignore_overrun = true;
  softhca::QueuePairSpec qp;
  qp.pd = pd_;
  qp.uar = uar_;
  qp.send_cqn = qp.receive_cqn = need("make a completion queue", hca_->create_cq(cq));
  qp.send_ring = memory.send_queue->bytes;
  qp.send_blocks = 1u << config_.log_send_queue;
  qp.doorbell_record = bus_ ? memory.control->fetched_record : memory.control->queue_pair_record;
  memory.qpn = need("make a queue pair", hca_->create_qp(qp));
}

void Rank::share_staging(EndpointMemory& memory) {
  const CreditChannel channel{.grants = &memory.control->grants,
                              .granted_slots = memory.granted_slots,
                              .requests = &memory.control->requests,
                              .returned_slots = memory.returned_slots};
  const auto opened = credits_->open(channel, config_.slots);
  if (!opened) give_up("share its staging memory", opened.error().message);
}

void Rank::connect(std::uint32_t endpoint, Rank& peer, std::uint32_t peer_endpoint) {
  using softhca::QpState;
  peer_signals_.insert(peer.remote_signal(peer_endpoint).address);
  softhca::QpAttributes attributes;
  const auto to = [&](QpState state, std::uint32_t mask) {
    attributes.state = state;
    const int error = hca_->modify_qp(endpoints_[endpoint].qpn, softhca::kQpState | mask, attributes);
    if (error != 0) give_up("connect a queue pair", std::strerror(error));
  };
  attributes.access = kAllAccess;
  to(QpState::kInit, softhca::kQpAccessFlags | softhca::kQpPkeyIndex | softhca::kQpPort);
  attributes.remote = peer.hca_->address();
  attributes.remote_qpn = peer.endpoints_[peer_endpoint].qpn;
  attributes.mtu_bytes = 4096;
  attributes.max_dest_rd_atomic = 16;
  to(QpState::kRtr, softhca::kQpAddress | softhca::kQpPathMtu | softhca::kQpDestinationQpn |
                        softhca::kQpReceivePsn | softhca::kQpMaxDestRdAtomic | softhca::kQpMinRnrTimer);
  attributes.timeout = config_.ack_timeout;
  attributes.retry_count = config_.retry_count;
  attributes.max_rd_atomic = 16;
  to(QpState::kRts, softhca::kQpTimeout | softhca::kQpRetryCount | softhca::kQpRnrRetry |
                        softhca::kQpSendPsn | softhca::kQpMaxRdAtomic);
}

EndpointHandle Rank::handle(std::uint32_t endpoint) {
  const EndpointMemory& memory = endpoints_[endpoint];
  EndpointHandle handle{};
  handle.layout_version = kQueueLayoutVersion;
  handle.qpn = memory.qpn;
  handle.send_queue = memory.send_queue;
  handle.completion_queue = memory.completion_queue;
  handle.send_record = &memory.control->queue_pair_record[mlx5::kSendRecord];
  handle.doorbell = reinterpret_cast<std::uint64_t*>(bus_ ? memory.control->doorbell
                                                          : memory.uar_page + mlx5::kUarBlueFlame);
  handle.blueflame_half_bytes = config_.blueflame ? mlx5::kBlueFlameBufferBytes : 0;
  handle.scratch = &memory.control->scratch;
  handle.state = &memory.control->state;
  handle.owner = &memory.control->owner;
  handle.abort = &memory.control->abort;
  handle.timeout_ns = config_.timeout_ns;
  handle.probe_after_ns = config_.timeout_ns / 2;
  handle.scratch_lkey = mkey_;
  handle.log_send_queue = config_.log_send_queue;
  handle.log_completion_queue = config_.log_send_queue;
  handle.placement = Placement::kHost;
  QueueState& state = memory.control->state;
  if (config_.slots != 0) {
    StagingHandle& staging = config_.bounces ? handle.bounce : handle.staging;
    describe_staging(memory, staging);
    (void)credits_->poll();
    take_minimum(staging, config_.bounces ? state.bounce : state.staging);
  }
  state.handle = handle;
  return handle;
}

void Rank::describe_staging(const EndpointMemory& memory, StagingHandle& staging) {
  staging = {.base = reinterpret_cast<std::byte*>(staging_.data()),
             .nic_offset = 0,
             .grants = &memory.control->grants,
             .granted_slots = memory.granted_slots,
             .requests = &memory.control->requests,
             .returned_slots = memory.returned_slots,
             .held = memory.held,
             .lkey = staging_key_,
             .slot_bytes = config_.slot_bytes,
             .slot_count = config_.slots,
             .minimum_slots = lease_slots()};
}

// The endpoint's first poll is made before the clock starts: figures are of endpoints at work.
void Rank::take_minimum(const StagingHandle& staging, StagingState& state) {
  device::impl::Credits credits(staging);
  credits.open(state);
  credits.poll(true);
  state = credits.state();
  state.polled_ns = 0;
}

bool Rank::is_host_word(std::uint32_t endpoint, const void* word) const {
  if (!bus_) return false;
  const EndpointMemory& memory = endpoints_[endpoint];
  const auto* const slot = static_cast<const std::uint32_t*>(word);
  return word == &memory.control->grants || word == &memory.control->abort ||
         (slot >= memory.granted_slots && slot < memory.granted_slots + config_.slots);
}

int Rank::progress() {
  int done = 0;
  for (std::uint32_t e = 0; e < config_.endpoints; ++e) done += carry_doorbells(e);
  done += hca_->progress();
  if (credits_) done += credits_->poll();
  if (bus_) {
    for (EndpointMemory& memory : endpoints_) done += carry_completions(memory);
  }
  return done;
}

int Rank::carry_doorbells(std::uint32_t endpoint) {
  if (!bus_) return 0;
  EndpointMemory& memory = endpoints_[endpoint];
  std::array<std::size_t, 2> halves{0, mlx5::kBlueFlameBufferBytes};
  const auto word_at = [&memory](std::size_t half, std::size_t i) {
    return std::atomic_ref(reinterpret_cast<std::uint64_t*>(memory.control->doorbell + half)[i]);
  };
  // Takes the older of two halves first.
  if (static_cast<std::int16_t>(index_of(word_at(halves[1], 0)) - index_of(word_at(halves[0], 0))) < 0)
    std::swap(halves[0], halves[1]);
  int carried = 0;
  for (const std::size_t half : halves) {
    CarriedDoorbell doorbell;
    doorbell.half = half;
    doorbell.words[0] = word_at(half, 0).exchange(0, std::memory_order_acquire);
    if (doorbell.words[0] == 0) continue;
    ++carried;
    for (std::size_t i = 1; i < doorbell.words.size(); ++i) {
      doorbell.words[i] = word_at(half, i).exchange(0, std::memory_order_relaxed);
      doorbell.with_wqe |= doorbell.words[i] != 0;
    }
    const std::uint16_t posted = posted_blocks(memory);
    bus_->gpu_posts(static_cast<std::uint16_t>(posted - memory.stored_blocks) * mlx5::kWqeBasicBlockBytes);
    memory.stored_blocks = posted;
    if (config_.order_ns == 0) {
      ring_ordered(memory, doorbell, posted);
      continue;
    }
    events_.at(
        events_.now() + pcie::from_ns(config_.order_ns),
        [this, &memory, doorbell, posted](pcie::TimePs /*now*/) { ring_ordered(memory, doorbell, posted); });
  }
  return carried;
}

void Rank::ring_ordered(EndpointMemory& memory, CarriedDoorbell doorbell, std::uint16_t posted) {
  memory.ordered_blocks = posted;
  bus_->gpu_rings(doorbell.with_wqe ? sizeof doorbell.words : sizeof doorbell.words[0],
                  [this, &memory, doorbell] {
                    bus_->nic_works([this, &memory, doorbell] { doorbell_arrives(memory, doorbell); });
                  });
}

// Delays the NIC's record, because the engine takes WQEs from the ring as soon as the record names them. The
// record advances once record and WQEs would have been fetched, in order, or the doorbell brought the next
// WQE.
void Rank::doorbell_arrives(EndpointMemory& memory, CarriedDoorbell doorbell) {
  const bool brought = doorbell.with_wqe && index_of(doorbell.words[0]) == memory.asked_blocks;
  // Uses the record's value at the time of the NIC's read.
  doorbell.produced = brought ? static_cast<std::uint16_t>(memory.asked_blocks + 1) : memory.ordered_blocks;
  const auto blocks = static_cast<std::uint16_t>(doorbell.produced - memory.asked_blocks);
  memory.asked_blocks = doorbell.produced;
  CarriedDoorbell& waiting = memory.doorbells.emplace_back(doorbell);
  const auto fetched = [&memory, &waiting] {
    waiting.fetched = true;
    ring_fetched(memory);
  };
  if (brought) return fetched();
  bus_->nic_fetches_record([this, blocks, fetched] {
    bus_->nic_fetches_wqes(std::uint64_t{blocks} * mlx5::kWqeBasicBlockBytes, fetched);
  });
}

void Rank::ring_fetched(EndpointMemory& memory) {
  for (; !memory.doorbells.empty() && memory.doorbells.front().fetched; memory.doorbells.pop_front()) {
    const CarriedDoorbell& doorbell = memory.doorbells.front();
    memory.control->fetched_record[mlx5::kSendRecord] = std::uint32_t{doorbell.produced};
    auto* const at = reinterpret_cast<std::uint64_t*>(memory.uar_page + mlx5::kUarBlueFlame + doorbell.half);
    for (std::size_t i = 1; i < doorbell.words.size(); ++i) at[i] = doorbell.words[i];
    std::atomic_ref(at[0]).store(doorbell.words[0], std::memory_order_release);
  }
}

int Rank::carry_completions(EndpointMemory& memory) {
  const std::uint32_t entries = 1u << config_.log_send_queue;
  int carried = 0;
  for (;; ++memory.completions, ++carried) {
    const std::uint32_t index = memory.completions % entries;
    const mlx5::Cqe64& cqe = memory.written_completions[index];
    const unsigned pass = memory.completions / entries & 1;
    const bool invalid =
        cqe.op_own >> mlx5::kCqeOpcodeShift == static_cast<unsigned>(mlx5::CqeOpcode::kInvalid);
    if (invalid || (cqe.op_own & mlx5::kCqeOwnerMask) != pass) return carried;
    bus_->nic_completes([&memory, index, cqe] {
      mlx5::Cqe64& seen = memory.completion_queue[index];
      auto* const to = reinterpret_cast<std::uint64_t*>(&seen);
      const auto* const from = reinterpret_cast<const std::uint64_t*>(&cqe);
      for (int word = 0; word < 7; ++word) to[word] = from[word];
      std::atomic_ref(to[7]).store(from[7], std::memory_order_release);
    });
  }
}

LocalMemory Rank::source(std::uint32_t endpoint) {
  return {endpoints_[endpoint].source, config_.buffer_bytes, mkey_, 0};
}
LocalMemory Rank::inbox(std::uint32_t endpoint) {
  return {endpoints_[endpoint].inbox, config_.buffer_bytes, mkey_, 0};
}
std::uint64_t* Rank::signal(std::uint32_t endpoint) { return &endpoints_[endpoint].control->signal; }
RemoteMemory Rank::remote_inbox(std::uint32_t endpoint) {
  return remote(endpoints_[endpoint].inbox, config_.buffer_bytes);
}
RemoteMemory Rank::remote_signal(std::uint32_t endpoint) {
  return remote(signal(endpoint), sizeof(std::uint64_t));
}
RemoteMemory Rank::remote(const void* at, std::uint64_t bytes) const {
  return {reinterpret_cast<std::uint64_t>(at), bytes, mkey_, 0};
}

}  // namespace gdx::ranks
