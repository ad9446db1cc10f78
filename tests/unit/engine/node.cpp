#include "tests/unit/engine/node.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <utility>

#include "proto/mlx5/doorbell.h"

namespace gdx::softhca::test {
namespace {

constexpr std::uint32_t kReceiveStride = 2 * sizeof(mlx5::DataSegment);
constexpr std::uint64_t kHangNs = 60'000'000'000;

template <typename... Segments>
std::vector<std::byte> pack(const Segments&... segments) {
  std::vector<std::byte> bytes;
  const auto add = [&bytes](const auto& segment) {
    const auto* at = reinterpret_cast<const std::byte*>(&segment);
    bytes.insert(bytes.end(), at, at + sizeof segment);
  };
  (add(segments), ...);
  return bytes;
}

mlx5::DataSegment data(const Local& local) { return {local.length_bytes, local.lkey, local.address}; }
mlx5::RemoteAddressSegment raddr(const Remote& remote) { return {remote.address, remote.rkey, 0}; }

template <typename T>
T unwrap(const ErrnoOr<T>& answer) {
  EXPECT_TRUE(answer) << "errno " << (answer ? 0 : answer.error());
  return answer ? *answer : T{};
}

}  // namespace

Node::Node(const wire::FaultConfig& faults, std::size_t memory_bytes, wire::Carrier carrier, QpType type)
    : Node(
          memory_bytes,
          [&](HcaConfig config, std::byte* staging) {
            config.udp.faults = faults;
            config.carrier = carrier;
            config.udp.token_secret = kTokenSecret;
            return open_hca(config, staging);
          },
          type) {}

Node::Node(std::unique_ptr<wire::Wire> wire, std::size_t memory_bytes, const HcaConfig& config,
           const Clock& clock, QpType type)
    : Node(
          memory_bytes,
          [&](const HcaConfig& common, std::byte* staging) -> Result<std::unique_ptr<Hca>> {
            HcaConfig own = config;
            own.device_memory_bytes = common.device_memory_bytes;
            const auto random = std::make_shared<std::mt19937>(1);
            return std::make_unique<Engine>(
                own, std::move(wire), staging, [random] { return (*random)(); }, clock);
          },
          type) {}

Node::Node(std::size_t memory_bytes, const OpenHca& open, QpType type)
    : memory(memory_bytes),
      device_memory(kDeviceMemoryBytes / 8),
      uar_page(mlx5::kUarPageBytes / 8),
      send_queue(kSendBlocks),
      receive_queue(kReceives * 2) {
  HcaConfig config;
  config.device_memory_bytes = kDeviceMemoryBytes;
  auto* staging_base = reinterpret_cast<std::byte*>(device_memory.data());
  Result<std::unique_ptr<Hca>> opened = open(config, staging_base);
  if (!opened) {
    ADD_FAILURE() << opened.error().message;
    std::abort();
  }
  hca = std::move(*opened);
  pd = unwrap(hca->alloc_pd());
  mkey = unwrap(hca->register_memory({.pd = pd,
                                      .base = memory.data(),
                                      .iova = reinterpret_cast<std::uint64_t>(memory.data()),
                                      .length_bytes = memory.size(),
                                      .access = kAllAccess}));
  staging_key = unwrap(hca->register_memory({.pd = pd,
                                             .base = staging_base,
                                             .iova = 0,
                                             .length_bytes = kDeviceMemoryBytes,
                                             .access = kAllAccess,
                                             .device_memory = true}));
  QueuePairSpec spec;
  spec.type = type;
  spec.pd = pd;
  spec.uar = unwrap(hca->add_uar({reinterpret_cast<std::byte*>(uar_page.data())}));
  spec.send_cqn = send_cqn = make_cq(send_ring_, send_record_);
  spec.receive_cqn = receive_cqn = make_cq(receive_cq_ring_, receive_cq_record_);
  spec.user_index = 0x55;
  spec.send_ring = send_queue[0].bytes;
  spec.send_blocks = kSendBlocks;
  spec.receive_ring = reinterpret_cast<std::byte*>(receive_queue.data());
  spec.receive_entries = kReceives;
  spec.receive_stride_bytes = kReceiveStride;
  spec.doorbell_record = record_;
  spec.on_event = [this](int event_type) { events.push_back(event_type); };
  qpn = unwrap(hca->create_qp(spec));
}

std::uint32_t Node::make_cq(std::vector<mlx5::Cqe64>& ring, Be32* record) {
  ring.resize(std::size_t{1} << kLogCqEntries);
  for (mlx5::Cqe64& cqe : ring) cqe.op_own = 0xf0;
  CompletionQueueSpec spec;
  spec.ring = reinterpret_cast<std::byte*>(ring.data());
  spec.doorbell_record = record;
  spec.log_entries = kLogCqEntries;
  spec.on_event = [this] { ++completion_events; };
  return unwrap(hca->create_cq(spec));
}

void Node::connect_to_rtr(const Node& peer) {
  QpAttributes attributes;
  attributes.state = QpState::kInit;
  attributes.access = kAllAccess;
  attributes.qkey = kQkey;
  ASSERT_EQ(hca->modify_qp(qpn, kQpState | kQpAccessFlags | kQpPkeyIndex | kQpPort | kQpQkey, attributes), 0);
  attributes.state = QpState::kRtr;
  attributes.remote = peer.hca->address();
  attributes.remote_qpn = peer.qpn;
  attributes.mtu_bytes = 4096;
  attributes.receive_psn = 0xfffff0;  // wraps soon
  attributes.max_dest_rd_atomic = 16;
  attributes.min_rnr_timer = 1;
  ASSERT_EQ(hca->modify_qp(qpn,
                           kQpState | kQpAddress | kQpPathMtu | kQpDestinationQpn | kQpReceivePsn |
                               kQpMaxDestRdAtomic | kQpMinRnrTimer,
                           attributes),
            0);
}

void Node::connect(const Node& peer, std::uint8_t timeout, std::uint8_t retry_count) {
  ASSERT_NO_FATAL_FAILURE(connect_to_rtr(peer));
  QpAttributes attributes;
  attributes.state = QpState::kRts;
  attributes.timeout = timeout;
  attributes.retry_count = retry_count;
  attributes.send_psn = 0xfffff0;
  attributes.max_rd_atomic = 16;
  ASSERT_EQ(
      hca->modify_qp(qpn, kQpState | kQpTimeout | kQpRetryCount | kQpRnrRetry | kQpSendPsn | kQpMaxRdAtomic,
                     attributes),
      0);
}

Errno Node::modify_to_error() {
  QpAttributes attributes;
  attributes.state = QpState::kError;
  return hca->modify_qp(qpn, kQpState, attributes);
}

Errno Node::modify_to_reset() {
  produced_ = receives_posted_ = 0;
  record_[0] = record_[1] = Be32{};
  QpAttributes attributes;
  attributes.state = QpState::kReset;
  return hca->modify_qp(qpn, kQpState, attributes);
}

std::uint16_t Node::post_raw(mlx5::WqeOpcode opcode, std::span<const std::byte> segments,
                             std::uint8_t fm_ce_se, std::uint32_t immediate, std::uint32_t opmod) {
  const std::uint16_t index = produced_;
  const std::size_t total = sizeof(mlx5::ControlSegment) + segments.size();
  const auto ds = static_cast<std::uint32_t>(total / mlx5::kSegmentBytes);
  mlx5::ControlSegment control{};
  control.opmod_index_opcode = opmod << 24 | std::uint32_t{index} << 8 | static_cast<std::uint32_t>(opcode);
  control.qpn_ds = qpn << 8 | ds;
  control.fm_ce_se = fm_ce_se;
  control.immediate = immediate;
  std::byte* const ring = send_queue[0].bytes;
  const std::size_t ring_bytes = kSendBlocks * mlx5::kWqeBasicBlockBytes;
  const std::size_t start = index % kSendBlocks * mlx5::kWqeBasicBlockBytes;
  std::memcpy(ring + start, &control, sizeof control);
  for (std::size_t i = 0; i < segments.size(); ++i) {
    ring[(start + sizeof control + i) % ring_bytes] = segments[i];
  }
  produced_ = static_cast<std::uint16_t>(produced_ + (ds + 3) / 4);
  return index;
}

std::uint16_t Node::post_write(const Local& from, const Remote& to, bool signaled) {
  return post_raw(mlx5::WqeOpcode::kRdmaWrite, pack(raddr(to), data(from)),
                  signaled ? mlx5::kCompletionAlways : mlx5::kCompletionOnError);
}

std::uint16_t Node::post_write_immediate(const Local& from, const Remote& to, std::uint32_t immediate) {
  return post_raw(mlx5::WqeOpcode::kRdmaWriteImmediate, pack(raddr(to), data(from)), mlx5::kCompletionAlways,
                  immediate);
}

std::uint16_t Node::post_read(const Local& to, const Remote& from) {
  return post_raw(mlx5::WqeOpcode::kRdmaRead, pack(raddr(from), data(to)), mlx5::kCompletionAlways);
}

std::uint16_t Node::post_send(const Local& from) {
  return post_raw(mlx5::WqeOpcode::kSend, pack(data(from)), mlx5::kCompletionAlways);
}

std::uint16_t Node::post_send_inline(std::span<const char> text, std::uint32_t immediate) {
  std::vector<std::byte> segments = pack(Be32(mlx5::kInlineFlag | static_cast<std::uint32_t>(text.size())));
  for (const char c : text) segments.push_back(static_cast<std::byte>(c));
  segments.resize((segments.size() + 15) / 16 * 16);
  return post_raw(mlx5::WqeOpcode::kSendImmediate, segments, mlx5::kCompletionAlways, immediate);
}

std::uint16_t Node::post_fetch_add(const Local& result, const Remote& target, std::uint64_t add) {
  return post_raw(mlx5::WqeOpcode::kAtomicFetchAdd,
                  pack(raddr(target), mlx5::AtomicSegment{add, 0}, data(result)), mlx5::kCompletionAlways);
}

std::uint16_t Node::post_compare_swap(const Local& result, const Remote& target, std::uint64_t compare,
                                      std::uint64_t swap) {
  return post_raw(mlx5::WqeOpcode::kAtomicCompareSwap,
                  pack(raddr(target), mlx5::AtomicSegment{swap, compare}, data(result)),
                  mlx5::kCompletionAlways);
}

std::uint16_t Node::post_masked_fetch_add(const Local& result, const Remote& target, std::uint64_t add,
                                          std::uint64_t boundaries) {
  const bool whole = result.length_bytes == sizeof(std::uint64_t);
  const auto low = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
  return post_raw(
      mlx5::WqeOpcode::kAtomicMaskedFetchAdd,
      whole ? pack(raddr(target), mlx5::AtomicSegment{add, boundaries}, data(result))
            : pack(raddr(target), mlx5::AtomicSegment32{low(add), low(boundaries), 0, 0}, data(result)),
      mlx5::kCompletionAlways, 0, mlx5::kExtendedAtomic + (whole ? 1 : 0));
}

std::uint16_t Node::post_masked_compare_swap(const Local& result, const Remote& target,
                                             const transport::AtomicOperation& operation) {
  const bool whole = result.length_bytes == sizeof(std::uint64_t);
  const auto low = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
  const mlx5::AtomicSegment operands{operation.swap_or_add, operation.compare};
  const mlx5::AtomicMaskSegment masks{operation.swap_mask_or_boundaries, operation.compare_mask};
  const mlx5::AtomicSegment32 half{low(operation.swap_or_add), low(operation.compare),
                                   low(operation.swap_mask_or_boundaries), low(operation.compare_mask)};
  return post_raw(
      mlx5::WqeOpcode::kAtomicMaskedCompareSwap,
      whole ? pack(raddr(target), operands, masks, data(result)) : pack(raddr(target), half, data(result)),
      mlx5::kCompletionAlways, 0, mlx5::kExtendedAtomic + (whole ? 1 : 0));
}

void Node::write_record() { write_record_as(produced_); }

void Node::write_record_as(std::uint16_t produced) {
  std::atomic_ref(record_[mlx5::kSendRecord].raw)
      .store(byte_swap(std::uint32_t{produced}), std::memory_order_release);
}

void Node::ring() {
  write_record();
  ring_for(qpn);
}

void Node::ring_for(std::uint32_t named_qpn) {
  mlx5::ControlSegment control{};
  control.qpn_ds = named_qpn << mlx5::kQpnShift | 1;
  std::uint64_t value = 0;
  std::memcpy(&value, &control, sizeof value);
  std::atomic_ref(uar_page[mlx5::kUarBlueFlame / 8]).store(value, std::memory_order_release);
}

void Node::ring_blueflame(std::uint16_t index, std::size_t offset, std::size_t blocks,
                          const std::function<void(std::span<std::uint64_t>)>& spoil) {
  constexpr std::size_t kBlockWords = mlx5::kWqeBasicBlockBytes / sizeof(std::uint64_t);
  std::vector<std::uint64_t> words(blocks * kBlockWords);
  for (std::size_t block = 0; block < blocks; ++block) {
    std::memcpy(&words[block * kBlockWords], send_queue[(index + block) % kSendBlocks].bytes,
                mlx5::kWqeBasicBlockBytes);
  }
  if (spoil) spoil(words);
  write_record();
  std::uint64_t* const half = &uar_page[offset / sizeof(std::uint64_t)];
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::atomic_ref(half[i]).store(words[i], i == 0 ? std::memory_order_release : std::memory_order_relaxed);
  }
}

void Node::post_receive(const Local& to) {
  const std::size_t entry = receives_posted_ % kReceives;
  receive_queue[entry * 2] = data(to);
  receive_queue[entry * 2 + 1] = {0, mlx5::kInvalidLkey, 0};
  ++receives_posted_;
  std::atomic_ref(record_[mlx5::kReceiveRecord].raw)
      .store(byte_swap(std::uint32_t{receives_posted_}), std::memory_order_release);
}

void Node::arm(std::uint32_t cqn) {
  Be32* const record = cqn == send_cqn ? send_record_ : receive_cq_record_;
  const std::uint32_t consumer = cqn == send_cqn ? send_consumer_ : receive_consumer_;
  record[mlx5::kArmRecord] = consumer;
  uar_page[mlx5::kUarCqDoorbell / 8] = std::uint64_t{byte_swap(cqn)} << 32 | byte_swap(consumer);
}

std::optional<Polled> Node::poll(std::vector<mlx5::Cqe64>& ring, Be32* record, std::uint32_t& consumer) {
  mlx5::Cqe64& cqe = ring[consumer % ring.size()];
  // The word that the HCA writes last, whole: ThreadSanitizer orders by the address of an atomic.
  std::uint64_t& last = reinterpret_cast<std::uint64_t*>(&cqe)[7];
  const auto op_own = static_cast<std::uint8_t>(std::atomic_ref(last).load(std::memory_order_acquire) >> 56);
  const bool owner = (consumer >> kLogCqEntries) & 1;
  const auto opcode = static_cast<mlx5::CqeOpcode>(op_own >> mlx5::kCqeOpcodeShift);
  if (opcode == mlx5::CqeOpcode::kInvalid || (op_own & mlx5::kCqeOwnerMask) != owner) return std::nullopt;
  mlx5::ErrorCqe error;
  std::memcpy(&error, &cqe, sizeof error);
  const bool failed =
      opcode == mlx5::CqeOpcode::kRequesterError || opcode == mlx5::CqeOpcode::kResponderError;
  EXPECT_EQ(cqe.srqn_user_index, 0x55u);
  EXPECT_EQ(cqe.send_opcode_qpn & 0xffffff, qpn);
  ++consumer;
  std::atomic_ref(record[mlx5::kConsumerRecord].raw).store(byte_swap(consumer), std::memory_order_release);
  return Polled{opcode,
                failed ? static_cast<mlx5::Syndrome>(error.syndrome) : mlx5::Syndrome::kNone,
                cqe.wqe_counter,
                cqe.byte_count,
                cqe.immediate_or_invalidated_rkey,
                cqe};
}

Local Node::local(std::size_t offset, std::uint32_t length_bytes) const {
  return {reinterpret_cast<std::uint64_t>(memory.data() + offset), length_bytes, mkey};
}

Remote Node::remote(std::size_t offset) const {
  return {reinterpret_cast<std::uint64_t>(memory.data() + offset), mkey};
}

Local Node::staging(std::size_t offset, std::uint32_t length_bytes) const {
  return {offset, length_bytes, staging_key};
}

void introduce(Node& a, Node& b) {
  for (int i = 0; i < 4; ++i) {
    a.hca->progress();
    b.hca->progress();
  }
}

bool drive(Node& a, Node& b, const std::function<bool()>& done, int limit) {
  const std::uint64_t end_ns = monotonic_ns() + kHangNs;
  for (int i = 0; i < limit && monotonic_ns() < end_ns; ++i) {
    if (done()) return true;
    a.hca->progress();
    b.hca->progress();
  }
  return done();
}

std::optional<Polled> await_send(Node& a, Node& b) {
  std::optional<Polled> polled;
  drive(a, b, [&] { return (polled = a.poll_send()).has_value(); });
  return polled;
}

std::optional<Polled> await_receive(Node& a, Node& b) {
  std::optional<Polled> polled;
  drive(a, b, [&] { return (polled = a.poll_receive()).has_value(); });
  return polled;
}

std::optional<Polled> await_alone(Node& node) {
  const std::uint64_t end_ns = monotonic_ns() + kHangNs;
  std::optional<Polled> polled;
  while (!(polled = node.poll_send()) && monotonic_ns() < end_ns) node.hca->progress();
  return polled;
}

}  // namespace gdx::softhca::test
