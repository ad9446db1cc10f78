#include "driver-shim/softhca/engine/queue_pair.h"

#include <algorithm>
#include <cerrno>

#include "base/counters.h"
#include "base/log.h"
#include "driver-shim/softhca/engine/dma.h"
#include "driver-shim/softhca/engine/planted_fault.h"
#include "driver-shim/softhca/engine/qp_state.h"
#include "driver-shim/softhca/transport/request_opcodes.h"
#include "proto/mapping_order.h"
#include "proto/mlx5/doorbell.h"
#include "proto/roce/ip_header.h"

namespace gdx::softhca {
namespace {

constexpr std::size_t kUdpHeaderBytes = 8;
constexpr double kPortGbps = 100;                    // the port's reported rate
constexpr std::uint64_t kPaceBurstBytes = 32 << 10;  // of a queue pair whose rate is limited
constexpr std::size_t kMinWindowPackets = 32;
constexpr std::size_t kMaxWindowPackets = 512;
constexpr std::uint16_t kPkeyMask = 0x7fff;  // bit 15 is the membership type

roce::Service service_of(QpType type) {
  switch (type) {
    case QpType::kRc: return roce::Service::kRc;
    case QpType::kUc: return roce::Service::kUc;
    case QpType::kUd: return roce::Service::kUd;
  }
  return roce::Service::kOther;
}

// Returns true for a doorbell older than the one that announced the newest of the `fetched` WQEBBs.
bool lags(const DoorbellWrite& ring, std::uint16_t fetched) {
  const auto index = static_cast<std::uint16_t>(byte_swap(static_cast<std::uint32_t>(ring.value())) >> 8);
  return static_cast<std::int16_t>(index - fetched) < -1;
}

// Does to a WQE what a planted fault says.
void spoil(SendWqe& wqe, bool wraps, bool copied) {
  if (planted_fault == PlantedFault::kInlineWrap && wraps && !wqe.inline_bytes.empty())
    wqe.inline_bytes.back() ^= std::byte{0xff};
  if (planted_fault != PlantedFault::kTornBlueFlame || !copied) return;
  wqe.fault = mlx5::Syndrome::kLocalQpOperation;
  wqe.reason = "torn on its way, by a planted fault";
}

}  // namespace

transport::TransportCounters& operator+=(transport::TransportCounters& sum,
                                         const transport::TransportCounters& more) {
  return add_counters(sum, more);
}

QueuePair::QueuePair(std::uint32_t qpn, const QueuePairSpec& spec, HcaParts& hca, CompletionQueue& send_cq,
                     CompletionQueue& receive_cq, ReceiveQueue* shared_receives)
    : qpn_(qpn),
      spec_(spec),
      hca_(hca),
      send_cq_(send_cq),
      receive_cq_(receive_cq),
      own_receives_({.ring = spec.receive_ring,
                     .entries = shared_receives != nullptr ? 0 : spec.receive_entries,
                     .stride_bytes = spec.receive_stride_bytes,
                     .record = &spec.doorbell_record[mlx5::kReceiveRecord]}),
      receives_(shared_receives != nullptr ? *shared_receives : own_receives_),
      shared_receives_(shared_receives != nullptr),
      ring_copy_(hca.foreign.find(spec.send_ring) != nullptr ? spec.send_blocks * mlx5::kWqeBasicBlockBytes
                                                             : 0),
      congestion_({.line_rate_gbps = hca.config.rate_gbps > 0 ? hca.config.rate_gbps : kPortGbps}),
      pace_(0, kPaceBurstBytes) {}

QueuePair::~QueuePair() { forget_sends(); }

void QueuePair::forget_sends() {
  for (; !sends_.empty(); sends_.pop_front()) release_staging(sends_.front());
}

Errno QueuePair::modify(std::uint32_t mask, const QpAttributes& attributes) {
  const QpState from = attributes_.state;
  const Errno refused = check_modify(spec_.type, from, mask, attributes);
  if (refused != 0) return refused;
  if ((mask & kQpPathMtu) && attributes.mtu_bytes > hca_.config.mtu_bytes) return EINVAL;
  if ((mask & kQpAddress) && attributes.remote.is_ipv4() != hca_.wire->local().is_ipv4()) return EINVAL;
  if (mask & kQpAccessFlags) attributes_.access = attributes.access;
  if (mask & kQpPort) attributes_.port = attributes.port;
  if (mask & kQpQkey) set_qkey(attributes.qkey);
  if (mask & kQpAddress) attributes_.remote = attributes.remote;
  if (mask & kQpPathMtu) attributes_.mtu_bytes = attributes.mtu_bytes;
  if (mask & kQpCounterSet) attributes_.counter_set = attributes.counter_set;
  if (mask & kQpMaxMessage) attributes_.max_message_bytes = attributes.max_message_bytes;
  if (mask & kQpTimeout) attributes_.timeout = attributes.timeout;
  if (mask & kQpRetryCount) attributes_.retry_count = attributes.retry_count;
  if (mask & kQpRnrRetry) attributes_.rnr_retry = attributes.rnr_retry;
  if (mask & kQpReceivePsn) attributes_.receive_psn = attributes.receive_psn & roce::kPsnMask;
  if (mask & kQpMaxRdAtomic) attributes_.max_rd_atomic = attributes.max_rd_atomic;
  if (mask & kQpMinRnrTimer) attributes_.min_rnr_timer = attributes.min_rnr_timer;
  if (mask & kQpSendPsn) attributes_.send_psn = attributes.send_psn & roce::kPsnMask;
  if (mask & kQpMaxDestRdAtomic) attributes_.max_dest_rd_atomic = attributes.max_dest_rd_atomic;
  if (mask & kQpDestinationQpn) attributes_.remote_qpn = attributes.remote_qpn;
  if (transport::Responder* responder = receive_side_.rc()) responder->reconfigure(rc_config());
  if (transport::UcResponder* responder = receive_side_.uc()) responder->reconfigure(uc_config());
  constexpr std::uint32_t kRequesterAttributes = kQpTimeout | kQpRetryCount | kQpRnrRetry;
  if (transport::Requester* requester = send_side_.rc();
      requester != nullptr && (mask & kRequesterAttributes)) {
    requester->reconfigure(hca_.now_ns, rc_config());
  }
  if (!(mask & kQpState) || attributes.state == from) return 0;

  attributes_.state = attributes.state;
  switch (attributes.state) {
    case QpState::kReset: reset(); break;
    case QpState::kRtr: start_receiving(); break;
    case QpState::kRts:
      if (from == QpState::kSqe) end_send_error();
      start_sending();
      break;
    case QpState::kError: enter_error(); break;
    case QpState::kInit:
    case QpState::kSqd:
    case QpState::kSqe: break;
  }
  return 0;
}

transport::RcConfig QueuePair::rc_config() const {
  transport::RcConfig config;
  config.local_qpn = qpn_;
  config.remote_qpn = attributes_.remote_qpn;
  config.send_psn = attributes_.send_psn;
  config.receive_psn = attributes_.receive_psn;
  config.mtu_bytes = attributes_.mtu_bytes;
  config.ack_timeout = attributes_.timeout;
  config.retry_count = attributes_.retry_count;
  config.rnr_retry = attributes_.rnr_retry;
  config.min_rnr_timer = attributes_.min_rnr_timer;
  config.max_rd_atomic = attributes_.max_rd_atomic;
  config.max_dest_rd_atomic = attributes_.max_dest_rd_atomic;
  config.remote_write = attributes_.access & kRemoteWrite;
  config.remote_read = attributes_.access & kRemoteRead;
  config.remote_atomic = attributes_.access & kRemoteAtomic;
  config.max_unacked_packets = static_cast<std::uint32_t>(
      std::clamp(hca_.wire->window_bytes() / attributes_.mtu_bytes, kMinWindowPackets, kMaxWindowPackets));
  return config;
}

transport::UcConfig QueuePair::uc_config() const {
  transport::UcConfig config;
  config.remote_qpn = attributes_.remote_qpn;
  config.send_psn = attributes_.send_psn;
  config.receive_psn = attributes_.receive_psn;
  config.mtu_bytes = attributes_.mtu_bytes;
  config.remote_write = attributes_.access & kRemoteWrite;
  return config;
}

// Uses the port's MTU, because a UD queue pair has no path.
transport::UdConfig QueuePair::ud_config() const {
  transport::UdConfig config;
  config.local_qpn = qpn_;
  config.qkey = attributes_.qkey;
  config.send_psn = attributes_.send_psn;
  config.mtu_bytes = hca_.config.mtu_bytes;
  return config;
}

void QueuePair::start_receiving() {
  transport::ResponderPort& port = *this;
  switch (spec_.type) {
    case QpType::kRc: receive_side_.start<transport::Responder>(rc_config(), port); break;
    case QpType::kUc: receive_side_.start<transport::UcResponder>(uc_config(), port); break;
    case QpType::kUd: receive_side_.start<transport::UdResponder>(ud_config(), port); break;
  }
}

void QueuePair::start_sending() {
  transport::RequesterPort& port = *this;
  switch (spec_.type) {
    case QpType::kRc: send_side_.start<transport::Requester>(rc_config(), port); break;
    case QpType::kUc: send_side_.start<transport::UcRequester>(uc_config(), port); break;
    case QpType::kUd: send_side_.start<transport::UdRequester>(ud_config(), port); break;
  }
}

// Leaves SQE. Failed sends stay completed; later posts are sent, under the PSNs that follow.
void QueuePair::end_send_error() {
  attributes_.send_psn = send_side_.next_psn(attributes_.send_psn);
  past_ += send_side_.counters();
}

void QueuePair::set_qkey(std::uint32_t qkey) {
  attributes_.qkey = qkey;
  if (transport::UdRequester* const sender = send_side_.ud()) sender->set_qkey(qkey);
  if (transport::UdResponder* const receiver = receive_side_.ud()) receiver->set_qkey(qkey);
}

void QueuePair::forget_transport() {
  past_ = counters();
  send_side_.stop();
  receive_side_.stop();
}

QpAttributes QueuePair::query() const {
  QpAttributes now = attributes_;
  now.send_psn = send_side_.next_psn(now.send_psn);
  now.receive_psn = receive_side_.expected_psn(now.receive_psn);
  return now;
}

void QueuePair::reset() {
  forget_transport();
  forget_sends();
  fetched_ = 0;
  completed_ = 0;
  taken_receives_.clear();
  failure_.reset();
  established_ = false;
  congestion_.release();
  pace_.set_rate(hca_.now_ns, 0);
  std::erase_if(hca_.arrivals, [this](const HcaParts::Arrival& arrival) { return arrival.qp == this; });
  if (!shared_receives_) own_receives_.reset();
  attributes_ = {};
}

// Acts on a failure that a call of the transport has left behind. Only the first one counts.
void QueuePair::handle_failure() {
  if (!failure_) return;
  const Failure failure = *failure_;
  failure_.reset();
  if (attributes_.state == QpState::kError) return;
  // Ends only sending without a connection (IBA 10.3.1, SQE).
  if (failure.event_type < 0 && spec_.type != QpType::kRc) {
    attributes_.state = QpState::kSqe;
    return;
  }
  attributes_.state = QpState::kError;
  enter_error();
  if (failure.event_type >= 0 && spec_.on_event) spec_.on_event(failure.event_type);
}

void QueuePair::enter_error() {
  send_side_.fail_all(mlx5::Syndrome::kFlushed);
  failure_.reset();
  past_ += receive_side_.counters();
  receive_side_.stop();
  flush_receives();
  if (shared_receives_) hca_.arrivals.push_back({this, {}, kEventQpLastWqeReached});
}

void QueuePair::note_established() {
  if (established_ || attributes_.state != QpState::kRtr || spec_.type == QpType::kUd) return;
  established_ = true;
  if (spec_.on_event) spec_.on_event(kEventCommunicationEstablished);
}

void QueuePair::flush_receives() {
  const auto flush_taken = [this] {
    while (!taken_receives_.empty()) complete_receive({.syndrome = mlx5::Syndrome::kFlushed});
  };
  flush_taken();
  // Flushes a queue of its own only, because WQEs of a shared queue belong to other queue pairs too.
  while (!shared_receives_ && take_receive()) flush_taken();
}

std::span<const std::byte> QueuePair::send_ring() const {
  return {ring_copy_.empty() ? spec_.send_ring : ring_copy_.data(),
          spec_.send_blocks * mlx5::kWqeBasicBlockBytes};
}

// Reads the send record. An unreadable one announces nothing.
std::uint16_t QueuePair::read_send_record() const {
  Be32& record = spec_.doorbell_record[mlx5::kSendRecord];
  const auto* const at = reinterpret_cast<const std::byte*>(&record);
  if (hca_.foreign.empty() || hca_.foreign.find(at) == nullptr)
    return static_cast<std::uint16_t>(load_record(record));
  Be32 value = fetched_;
  static_cast<void>(hca_.foreign.load(reinterpret_cast<std::byte*>(&value), at, sizeof value));
  acquire_from_mappings(Toward::kHca);
  return static_cast<std::uint16_t>(std::uint32_t{value});
}

// Reads all new WQEs of a ring in foreign memory, in one read, or two if they wrap. After a failed read an
// older WQE stays there, which the parser rejects.
void QueuePair::fetch_ring(std::uint16_t posted) {
  const std::size_t ring_bytes = ring_copy_.size();
  const std::size_t new_bytes = static_cast<std::uint16_t>(posted - fetched_) * mlx5::kWqeBasicBlockBytes;
  const std::size_t first = fetched_ * mlx5::kWqeBasicBlockBytes % ring_bytes;
  const std::size_t before_wrap = std::min(new_bytes, ring_bytes - first);
  static_cast<void>(hca_.foreign.load(ring_copy_.data() + first, spec_.send_ring + first, before_wrap));
  if (before_wrap == new_bytes) return;
  static_cast<void>(hca_.foreign.load(ring_copy_.data(), spec_.send_ring, new_bytes - before_wrap));
}

// Returns the one of `rings` that brought the next WQE whole, or null.
const DoorbellWrite* QueuePair::find_copy(std::span<const DoorbellWrite> rings) const {
  const auto found = std::find_if(rings.begin(), rings.end(), [this](const DoorbellWrite& ring) {
    return ring.qpn() == qpn_ && ring.is_copy_of(send_ring(), fetched_);
  });
  return found == rings.end() ? nullptr : &*found;
}

void QueuePair::count_fetches(std::span<const DoorbellWrite> rings, int taken, int from_copies) {
  int named = 0;
  int copies = 0;
  for (const DoorbellWrite& ring : rings) {
    if (ring.qpn() != qpn_) continue;
    ++named;
    copies += ring.has_copy() ? 1 : 0;
  }
  PcieCounters& pcie = hca_.counters.pcie;
  hca_.counters.wqes += static_cast<std::uint64_t>(taken);
  pcie.wqe_reads += static_cast<std::uint64_t>(taken - from_copies);
  pcie.blueflame_wqes += static_cast<std::uint64_t>(from_copies);
  pcie.blueflame_torn += static_cast<std::uint64_t>(copies - from_copies);
  // Counts no record read for a WQE that came with its doorbell, because its own index states the posted
  // count.
  if (taken > from_copies || named > from_copies) ++pcie.record_reads;
}

int QueuePair::fetch_sends(std::span<const DoorbellWrite> rings) {
  const bool ready = attributes_.state == QpState::kRts || attributes_.state == QpState::kSqe ||
                     attributes_.state == QpState::kError;
  if (!ready || spec_.send_blocks == 0) return 0;
  const std::uint16_t posted = read_send_record();
  const auto outstanding = static_cast<std::uint16_t>(fetched_ - completed_);
  // Refuses a backward move too, because it is 2^16 less than it ahead.
  if (static_cast<std::uint16_t>(posted - fetched_) > spec_.send_blocks - outstanding) {
    if (attributes_.state == QpState::kError) return 0;
    log::warn("{}: QP 0x{:x} announced more WQEs than its send queue holds; it is in error", hca_.config.name,
              qpn_);
    failure_ = Failure{.event_type = kEventQpFatal};
    handle_failure();
    return 0;
  }
  const auto is_old = [this](const DoorbellWrite& ring) {
    return ring.qpn() == qpn_ && lags(ring, fetched_);
  };
  if (planted_fault == PlantedFault::kBackwardDoorbell && std::ranges::any_of(rings, is_old)) {
    // Goes on, so that what a newer doorbell beside the old one announces is flushed.
    failure_ = Failure{.event_type = kEventQpFatal};
    handle_failure();
  }
  if (!ring_copy_.empty() && fetched_ != posted) fetch_ring(posted);
  int taken = 0;
  int from_copies = 0;
  while (fetched_ != posted) {
    const DoorbellWrite* const copy = find_copy(rings);
    // Stops at the last copy if each write to the page brought its WQE, because the copies state the posted
    // count. Any WQE beyond has a write of its own still to come.
    const bool all_brought = from_copies != 0 && from_copies == static_cast<int>(rings.size());
    if (copy == nullptr && all_brought) break;
    post_next(static_cast<std::uint16_t>(posted - fetched_), copy);
    ++taken;
    from_copies += copy != nullptr ? 1 : 0;
  }
  count_fetches(rings, taken, from_copies);
  handle_failure();
  return taken;
}

void QueuePair::post_next(std::uint16_t available_blocks, const DoorbellWrite* copy) {
  SendWqe& wqe = hca_.taken;
  const auto vectors = spec_.type == QpType::kUd ? AddressVectorUse::kPerWqe : AddressVectorUse::kNone;
  if (copy != nullptr) {
    parse_linear_wqe(copy->wqe(), fetched_, available_blocks, qpn_, vectors, wqe);
  } else {
    parse_send_wqe(send_ring(), fetched_, available_blocks, qpn_, vectors, wqe);
  }
  if (wqe.request.length_bytes > attributes_.max_message_bytes) {
    wqe.fault = mlx5::Syndrome::kLocalLength;
    wqe.reason = "longer than its connection's messages may be";
  }
  spoil(wqe, fetched_ % spec_.send_blocks + wqe.blocks > spec_.send_blocks, copy != nullptr);
  fetched_ = static_cast<std::uint16_t>(fetched_ + wqe.blocks);
  transport::WorkRequest request = wqe.request;
  request.cookie = sends_.end();
  SendSlot& slot = sends_.extend();
  slot.opcode = request.opcode;
  slot.wqe_counter = request.wqe_counter;
  std::swap(slot.body, static_cast<SendBody&>(wqe));
  if (slot.body.fault == mlx5::Syndrome::kNone) {
    if (transport::traits_of(request.opcode).has(roce::kHasPayload)) hold_staging(slot);
  } else {
    log::debug("{}: QP 0x{:x} WQE {}: {}", hca_.config.name, qpn_, request.wqe_counter, wqe.reason);
    // Takes its turn as an empty message, which send() then refuses with the fault.
    request.opcode = spec_.type == QpType::kUd ? mlx5::WqeOpcode::kSend : mlx5::WqeOpcode::kRdmaWrite;
    request.length_bytes = 0;
  }
  if (send_side_.started()) {
    send_side_.post(request);
  } else {
    complete(request, mlx5::Syndrome::kFlushed);
  }
}

bool QueuePair::accepts(const wire::Address& source, const roce::Bth& bth) const {
  if ((bth.pkey & kPkeyMask) != kPkeyMask || roce::traits_of(bth.opcode).service != service_of(spec_.type))
    return false;
  return spec_.type == QpType::kUd || source == attributes_.remote;
}

bool QueuePair::on_packet(std::uint64_t now_ns, const wire::Address& source, const roce::Decoded& packet) {
  if (packet.headers.bth.opcode == roce::Opcode::kCongestionNotification) {
    return on_notification(now_ns, source, packet);
  }
  if (!accepts(source, packet.headers.bth) || !dispatch(now_ns, source, packet)) return false;
  note_established();
  handle_failure();
  return true;
}

// Gives a packet to the transport. False: this queue pair's state has no use for it.
bool QueuePair::dispatch(std::uint64_t now_ns, const wire::Address& source, const roce::Decoded& packet) {
  if (is_response(roce::traits_of(packet.headers.bth.opcode).operation)) {
    transport::Requester* const requester = send_side_.rc();
    if (requester == nullptr || attributes_.state != QpState::kRts) return false;
    requester->on_packet(now_ns, packet.headers, packet.payload);
    return true;
  }
  if (transport::Responder* const rc = receive_side_.rc()) {
    rc->on_packet(now_ns, packet.headers, packet.payload);
  } else if (transport::UcResponder* const uc = receive_side_.uc()) {
    uc->on_packet(packet.headers, packet.payload);
  } else if (transport::UdResponder* const ud = receive_side_.ud()) {
    const wire::Address& local = hca_.wire->local();
    const std::size_t ip_payload_bytes = kUdpHeaderBytes + roce::header_bytes(packet.headers.bth.opcode) +
                                         packet.payload.size() + packet.headers.bth.pad_count +
                                         roce::kIcrcBytes;
    const auto grh = roce::grh(source.gid, local.gid, local.is_ipv4(), ip_payload_bytes);
    ud->on_packet(packet.headers, grh, packet.payload);
  } else {
    return false;
  }
  return true;
}

transport::TransportCounters QueuePair::counters() const {
  transport::TransportCounters sum = past_;
  sum += send_side_.counters();
  sum += receive_side_.counters();
  if (hca_.config.strict && attributes_.counter_set != kPortCounterSet) {
    // Those that a ConnectX counts by set.
    sum.timeouts = sum.naks_received = sum.out_of_sequence = 0;
    sum.duplicate_requests = sum.rnr_naks_received = 0;
  }
  return sum;
}

void QueuePair::hold_staging(SendSlot& slot) {
  bool overlaps = false;
  for (const DataPiece& piece : slot.body.pieces) {
    const MemoryRegionSpec* region = piece.is_inline ? nullptr : hca_.memory.find(piece.lkey);
    if (region == nullptr || !region->device_memory) continue;
    const std::byte* at = hca_.memory.resolve(piece.lkey, key_user(), piece.address, piece.length_bytes, 0);
    if (at == nullptr) continue;
    const auto offset = static_cast<std::size_t>(at - hca_.device_memory);
    slot.holds.push_back({.offset_bytes = offset, .length_bytes = piece.length_bytes});
    overlaps = overlaps || hca_.staging.held(offset, piece.length_bytes);
  }
  if (slot.holds.empty()) return;
  ++hca_.counters.staging_sends;
  for (StagingHold& hold : slot.holds) hold = hca_.staging.acquire(hold.offset_bytes, hold.length_bytes);
  if (!overlaps) return;
  report_violation("gathers from device memory that another WQE holds", slot.wqe_counter);
}

void QueuePair::release_staging(SendSlot& slot) {
  bool changed = false;
  for (const StagingHold& hold : slot.holds) changed = !hca_.staging.release(hold) || changed;
  slot.holds.clear();
  if (!changed) return;
  report_violation("had its device memory overwritten before it completed", slot.wqe_counter);
}

void QueuePair::report_violation(const char* what, std::uint16_t wqe_counter) {
  ++hca_.counters.staging_violations;
  if (violation_reported_) return;
  violation_reported_ = true;
  log::warn("{}: QP 0x{:x} WQE {} {}: a slot was used without its credit", hca_.config.name, qpn_,
            wqe_counter, what);
}

void QueuePair::write_send_completion(const SendSlot& slot, std::uint32_t length_bytes,
                                      mlx5::Syndrome syndrome) {
  Completion completion;
  completion.syndrome = syndrome;
  if (planted_fault == PlantedFault::kSyndrome && syndrome == mlx5::Syndrome::kRemoteAccess)
    completion.syndrome = mlx5::Syndrome::kRemoteOperation;
  completion.send_opcode = static_cast<std::uint8_t>(slot.opcode);
  completion.wqe_counter = slot.wqe_counter;
  if (planted_fault == PlantedFault::kCqeCounter) ++completion.wqe_counter;
  completion.qpn = qpn_;
  completion.user_index = spec_.user_index;
  completion.byte_count = length_bytes;
  completion.timestamp_ns = hca_.now_ns;
  write_completion(send_cq_, completion);
}

void QueuePair::deliver(const HcaParts::Arrival& arrival) {
  if (arrival.event_type >= 0) {
    if (spec_.on_event) spec_.on_event(arrival.event_type);
    return;
  }
  write_completion(receive_cq_, arrival.completion);
  handle_failure();
}

void QueuePair::write_completion(CompletionQueue& cq, const Completion& completion) {
  if (cq.write(completion)) {
    ++hca_.counters.cqes;
    return;
  }
  log::debug("{}: QP 0x{:x} has nowhere to put a completion", hca_.config.name, qpn_);
  failure_ = Failure{.event_type = kEventQpFatal};
}

}  // namespace gdx::softhca
