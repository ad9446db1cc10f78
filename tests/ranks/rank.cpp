#include "tests/ranks/rank.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <utility>

#include "proto/mlx5/doorbell.h"
#include "tests/sim/random.h"

namespace gdx::ranks {
namespace {

constexpr std::size_t kBlockBytes = 64;
constexpr std::uint32_t kAllAccess =
    softhca::kLocalWrite | softhca::kRemoteWrite | softhca::kRemoteRead | softhca::kRemoteAtomic;

constexpr std::size_t blocks_for(std::size_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes; }

[[noreturn]] void give_up(const char* what, int error) {
  fmt::print(stderr, "a simulated rank cannot {}: errno {}\n", what, error);
  std::abort();
}

std::uint32_t need(const char* what, const softhca::Answer<std::uint32_t>& answer) {
  if (!answer) give_up(what, answer.error());
  return *answer;
}

}  // namespace

Rank::Rank(const RankConfig& config, Network& network, std::uint32_t number, std::uint64_t seed)
    : config_(config),
      memory_(config.endpoints * endpoint_blocks()),
      uar_page_(mlx5::kUarPageBytes / kBlockBytes),
      endpoints_(config.endpoints) {
  softhca::HcaConfig hca;
  hca.name = fmt::format("rank{}", number);
  hca.device_memory_bytes = 0;
  hca_ = std::make_unique<softhca::Engine>(
      hca, network.attach(number), nullptr,
      [random = sim::Random(seed)]() mutable { return static_cast<std::uint32_t>(random.next()); },
      [&network] { return network.now_ns(); });
  pd_ = need("make a protection domain", hca_->alloc_pd());
  uar_ = need("make a doorbell page", hca_->add_uar({uar_page_.data()->bytes}));
  mkey_ = need("register its memory",
               hca_->register_memory({.pd = pd_,
                                      .base = memory_.data()->bytes,
                                      .iova = reinterpret_cast<std::uint64_t>(memory_.data()),
                                      .length_bytes = memory_.size() * kBlockBytes,
                                      .access = kAllAccess}));
  for (std::uint32_t e = 0; e < config.endpoints; ++e) {
    lay_out(e);
    create_queues(endpoints_[e]);
  }
}

std::size_t Rank::endpoint_blocks() const {
  const std::size_t queue = std::size_t{1} << config_.log_send_queue;
  return blocks_for(sizeof(Control)) + 2 * queue + 2 * blocks_for(config_.buffer_bytes);
}

void Rank::lay_out(std::uint32_t endpoint) {
  Block* at = &memory_[endpoint * endpoint_blocks()];
  const auto take = [&at](std::size_t bytes) { return std::exchange(at, at + blocks_for(bytes))->bytes; };
  const std::size_t queue = std::size_t{1} << config_.log_send_queue;
  EndpointMemory& memory = endpoints_[endpoint];
  memory.control = new (take(sizeof(Control))) Control{};
  memory.send_queue = reinterpret_cast<mlx5::WqeBasicBlock*>(take(queue * sizeof(mlx5::WqeBasicBlock)));
  memory.completion_queue = reinterpret_cast<mlx5::Cqe64*>(take(queue * sizeof(mlx5::Cqe64)));
  for (std::size_t i = 0; i < queue; ++i) {
    memory.completion_queue[i].op_own = static_cast<unsigned>(mlx5::CqeOpcode::kInvalid)
                                        << mlx5::kCqeOpcodeShift;
  }
  memory.source = take(config_.buffer_bytes);
  memory.inbox = take(config_.buffer_bytes);
}

void Rank::create_queues(EndpointMemory& memory) {
  softhca::CompletionQueueSpec cq;
  cq.ring = reinterpret_cast<std::byte*>(memory.completion_queue);
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
  qp.doorbell_record = memory.control->queue_pair_record;
  memory.qpn = need("make a queue pair", hca_->create_qp(qp));
}

void Rank::connect(std::uint32_t endpoint, const Rank& peer, std::uint32_t peer_endpoint) {
  using softhca::QpState;
  softhca::QpAttributes attributes;
  const auto to = [&](QpState state, std::uint32_t mask) {
    attributes.state = state;
    const int error = hca_->modify_qp(endpoints_[endpoint].qpn, softhca::kQpState | mask, attributes);
    if (error != 0) give_up("connect a queue pair", error);
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
  handle.doorbell = reinterpret_cast<std::uint64_t*>(uar_page_.data()->bytes + mlx5::kUarBlueFlame);
  handle.scratch = &memory.control->scratch;
  handle.state = &memory.control->state;
  handle.abort = &memory.control->abort;
  handle.timeout_ns = config_.timeout_ns;
  handle.probe_after_ns = config_.timeout_ns / 2;
  handle.scratch_lkey = mkey_;
  handle.log_send_queue = config_.log_send_queue;
  handle.log_completion_queue = config_.log_send_queue;
  handle.placement = Placement::kHost;
  return handle;
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
