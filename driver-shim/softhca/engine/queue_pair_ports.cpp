// Ports of a queue pair for its transport: bytes of this process, packets on the wire.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "driver-shim/softhca/engine/dma.h"
#include "driver-shim/softhca/engine/paging.h"
#include "driver-shim/softhca/engine/planted_fault.h"
#include "driver-shim/softhca/engine/queue_pair.h"
#include "driver-shim/softhca/wire/streaming.h"
#include "proto/mapping_order.h"

namespace gdx::softhca {
namespace {

using mlx5::Syndrome;

constexpr std::size_t kUdpHeaderBytes = 8;
constexpr std::size_t kIpv4HeaderBytes = 20;
constexpr std::size_t kIpv6HeaderBytes = 40;
constexpr std::size_t kEthernetBytes = 8 + 14 + 4 + 12;  // preamble, header, check sequence, gap

// Calls visit(piece, offset in the piece, offset in the range, bytes) along [offset, offset + length). False:
// the list ends before the range does, or visit returned false.
template <typename Visit>
bool walk(const std::vector<DataPiece>& pieces, std::uint64_t offset_bytes, std::size_t length_bytes,
          Visit visit) {
  std::size_t done = 0;
  for (const DataPiece& piece : pieces) {
    if (done == length_bytes) break;
    if (offset_bytes >= piece.length_bytes) {
      offset_bytes -= piece.length_bytes;
      continue;
    }
    const std::size_t n = std::min<std::size_t>(piece.length_bytes - offset_bytes, length_bytes - done);
    if (!visit(piece, offset_bytes, done, n)) return false;
    done += n;
    offset_bytes = 0;
  }
  return done == length_bytes;
}

// Returns the original value of a 4 B atomic in big-endian, although memory holds host order, which an 8 B
// atomic returns. UCX expects that of devices that return 8 B in host order (ext_atomic_arg_sizes_be).
Be32 original_of(SendWqe::AtomicPart part, std::span<const std::byte> payload) {
  std::uint64_t word = 0;
  std::memcpy(&word, payload.data(), std::min(sizeof word, payload.size()));
  return static_cast<std::uint32_t>(part == SendWqe::AtomicPart::kHighHalf ? word >> 32 : word);
}

}  // namespace

bool QueuePair::crosses_pcie(const std::byte* at) const {
  const std::less<> before;
  return before(at, hca_.device_memory) || !before(at, hca_.device_memory + hca_.config.device_memory_bytes);
}

// Checks only the first extent of a key that lies in pieces, or is paged on demand, because there may be
// millions.
bool QueuePair::permits(std::uint32_t mkey, std::uint64_t address, std::uint64_t length_bytes,
                        std::uint32_t access) const {
  return hca_.memory.first_extent(mkey, key_user(), address, length_bytes, access).at != nullptr;
}

bool QueuePair::can_scatter(const SendSlot& slot) const {
  return std::all_of(slot.body.pieces.begin(), slot.body.pieces.end(), [this](const DataPiece& piece) {
    return permits(piece.lkey, piece.address, piece.length_bytes, kLocalWrite);
  });
}

// Copies payload for the wire; see Wire::streams().
bool QueuePair::load(std::byte* to, const std::byte* from, std::size_t length_bytes) const {
  if (!hca_.foreign.empty()) [[unlikely]]
    return hca_.foreign.load(to, from, length_bytes);
  if (length_bytes >= wire::kStreamedBytes && hca_.wire->streams()) {
    wire::stream_copy(to, from, length_bytes);
  } else {
    dma_load(to, from, length_bytes);
  }
  return true;
}

bool QueuePair::store(std::byte* to, const std::byte* from, std::size_t length_bytes) const {
  if (!hca_.foreign.empty()) [[unlikely]]
    return hca_.foreign.store(to, from, length_bytes);
  acquire_from_mappings(Toward::kPeers);
  dma_store(to, from, length_bytes);
  release_to_mappings(Toward::kHost);
  return true;
}

bool QueuePair::load(std::byte* to, const MemoryTable::Extent& from) const {
  if (from.paged) [[unlikely]]
    return paged_load(to, from.at, from.length_bytes);
  return load(to, from.at, from.length_bytes);
}

bool QueuePair::store(const MemoryTable::Extent& to, const std::byte* from) const {
  if (!to.paged) [[likely]]
    return store(to.at, from, to.length_bytes);
  hca_.foreign.synchronize();
  return paged_store(to.at, from, to.length_bytes);
}

bool QueuePair::load_range(std::byte* to, std::uint32_t mkey, std::uint64_t address,
                           std::uint64_t length_bytes, std::uint32_t access) const {
  const auto take = [this, to](const MemoryTable::Extent& from, std::uint64_t at) {
    if (crosses_pcie(from.at)) ++hca_.counters.pcie.payload_reads;
    if (!load(to + at, from)) return false;
    if (planted_fault == PlantedFault::kDeviceMemoryTail && !crosses_pcie(from.at) &&
        from.length_bytes % sizeof(std::uint32_t) != 0)
      to[at + from.length_bytes - 1] ^= std::byte{0xff};
    return true;
  };
  return hca_.memory.visit_extents(mkey, key_user(), address, length_bytes, access, take);
}

bool QueuePair::store_range(std::uint32_t mkey, std::uint64_t address, std::span<const std::byte> payload,
                            std::uint32_t access) const {
  const auto put = [this, payload](const MemoryTable::Extent& to, std::uint64_t at) {
    if (crosses_pcie(to.at)) ++hca_.counters.pcie.payload_writes;
    return store(to, payload.data() + at);
  };
  return hca_.memory.visit_extents(mkey, key_user(), address, payload.size(), access, put);
}

Syndrome QueuePair::gather(const SendSlot& slot, std::uint32_t offset_bytes, std::span<std::byte> out) const {
  const bool whole =
      walk(slot.body.pieces, offset_bytes, out.size(),
           [&](const DataPiece& piece, std::uint64_t piece_offset, std::size_t at, std::size_t n) {
             const std::uint64_t address = piece.address + piece_offset;
             if (!piece.is_inline) return load_range(out.data() + at, piece.lkey, address, n, 0);
             return load(out.data() + at, slot.body.inline_bytes.data() + address, n);
           });
  return whole ? Syndrome::kNone : Syndrome::kLocalProtection;
}

Syndrome QueuePair::scatter_list(const std::vector<DataPiece>& pieces, std::uint64_t offset_bytes,
                                 std::span<const std::byte> payload) const {
  bool allowed = true;
  const bool whole = walk(
      pieces, offset_bytes, payload.size(),
      [&](const DataPiece& piece, std::uint64_t piece_offset, std::size_t at, std::size_t n) {
        allowed = store_range(piece.lkey, piece.address + piece_offset, payload.subspan(at, n), kLocalWrite);
        return allowed;
      });
  if (!allowed) return Syndrome::kLocalProtection;
  return whole ? Syndrome::kNone : Syndrome::kLocalLength;
}

void QueuePair::commit(const wire::Address& destination, std::size_t header_bytes, std::size_t payload_bytes,
                       std::span<std::byte> packet) {
  const std::size_t unpadded = header_bytes + payload_bytes;
  const std::size_t pad = roce::pad_count_for(payload_bytes);
  std::memset(packet.data() + unpadded, 0, pad);
  // Settles first, because a full batch leaves at once, and the packet may acknowledge earlier stores.
  if (!hca_.foreign.empty()) [[unlikely]]
    hca_.foreign.synchronize();
  hca_.wire->commit_packet(destination, unpadded + pad);
  const std::size_t network = destination.is_ipv4() ? kIpv4HeaderBytes : kIpv6HeaderBytes;
  hca_.link_bytes += unpadded + pad + roce::kIcrcBytes + kUdpHeaderBytes + network + kEthernetBytes;
}

Syndrome QueuePair::send(const roce::Headers& headers, const transport::WorkRequest& request,
                         std::uint32_t offset_bytes, std::uint32_t length_bytes) {
  const SendSlot& slot = sends_[request.cookie];
  if (slot.body.fault != Syndrome::kNone) return slot.body.fault;
  const roce::Operation operation = roce::traits_of(headers.bth.opcode).operation;
  if (wants_response(operation) && !can_scatter(slot)) return Syndrome::kLocalProtection;

  const wire::Address& destination = spec_.type == QpType::kUd ? slot.body.destination : attributes_.remote;
  if (destination.is_ipv4() != hca_.wire->local().is_ipv4()) return Syndrome::kLocalQpOperation;

  roce::Headers padded = headers;
  padded.bth.pad_count = roce::pad_count_for(length_bytes);
  const std::span<std::byte> packet = hca_.wire->begin_packet(destination);
  const std::size_t header_bytes = roce::encode(padded, packet);
  const Syndrome syndrome = gather(slot, offset_bytes, packet.subspan(header_bytes, length_bytes));
  if (syndrome != Syndrome::kNone) return syndrome;
  commit(destination, header_bytes, length_bytes, packet);
  charge(spec_.type == QpType::kUd ? window_to(destination) : window_, header_bytes + length_bytes);
  return Syndrome::kNone;
}

Syndrome QueuePair::scatter(const transport::WorkRequest& request, std::uint32_t offset_bytes,
                            std::span<const std::byte> payload) {
  const SendBody& body = sends_[request.cookie].body;
  if (body.atomic_part == SendWqe::AtomicPart::kWhole)
    return scatter_list(body.pieces, offset_bytes, payload);
  const Be32 original = original_of(body.atomic_part, payload);
  return scatter_list(body.pieces, 0, std::as_bytes(std::span(&original, 1)));
}

// Executes a UMR WQE. Any obstacle is one error, as on a ConnectX.
Syndrome QueuePair::apply(const transport::WorkRequest& request) {
  const SendSlot& slot = sends_[request.cookie];
  const UmrRequest& umr = *slot.body.umr;
  std::vector<mlx5::DataSegment> entries(umr.translation_entries);
  const Syndrome fetched = gather(slot, 0, std::as_writable_bytes(std::span(entries)));
  if (fetched != Syndrome::kNone) return fetched;
  const char* const refusal = hca_.memory.update(request.immediate, key_user(), umr, entries);
  if (refusal == nullptr) return Syndrome::kNone;
  log::debug("{}: QP 0x{:x} WQE {}: {}", hca_.config.name, qpn_, request.wqe_counter, refusal);
  return Syndrome::kMemoryWindowBind;
}

// Releases the staging memory before the completion becomes visible.
void QueuePair::complete(const transport::WorkRequest& request, Syndrome syndrome) {
  SendSlot& slot = sends_.front();  // in the order of the queue
  release_staging(slot);
  completed_ = static_cast<std::uint16_t>(request.wqe_counter + slot.body.blocks);
  const bool failed = syndrome != Syndrome::kNone;
  const bool signaled = (request.fm_ce_se & mlx5::kCompletionMask) >= mlx5::kCompletionAlways;
  if (failed && !failure_) failure_ = Failure{};
  if (failed || signaled) write_send_completion(slot, request.length_bytes, syndrome);
  sends_.pop_front();
}

void QueuePair::send(const roce::Headers& headers) {
  const std::span<std::byte> packet = hca_.wire->begin_packet(attributes_.remote);
  commit(attributes_.remote, roce::encode(headers, packet), 0, packet);
}

bool QueuePair::send_from_memory(const roce::Headers& headers, std::uint32_t rkey, std::uint64_t address,
                                 std::uint32_t length_bytes) {
  roce::Headers padded = headers;
  padded.bth.pad_count = roce::pad_count_for(length_bytes);
  const std::span<std::byte> packet = hca_.wire->begin_packet(attributes_.remote);
  const std::size_t header_bytes = roce::encode(padded, packet);
  if (!load_range(packet.data() + header_bytes, rkey, address, length_bytes, kRemoteRead)) return false;
  commit(attributes_.remote, header_bytes, length_bytes, packet);
  charge(window_, header_bytes + length_bytes);
  return true;
}

// Ignores the key of an empty WRITE or READ (IBA 9.7.4.1.5).
bool QueuePair::check(transport::RemoteOperation operation, std::uint32_t rkey, std::uint64_t address,
                      std::uint32_t length_bytes) {
  switch (operation) {
    case transport::RemoteOperation::kWrite:
      return length_bytes == 0 || permits(rkey, address, length_bytes, kRemoteWrite);
    case transport::RemoteOperation::kRead:
      return length_bytes == 0 || permits(rkey, address, length_bytes, kRemoteRead);
    case transport::RemoteOperation::kAtomic: return atomic_target(rkey, address).at != nullptr;
  }
  return false;
}

// Keeps a WRITE back until the next one comes, which it lets by, as a planted fault says.
struct KeptWrite {
  std::uint32_t rkey = 0;
  std::uint64_t address = 0;
  std::vector<std::byte> payload;
};

bool QueuePair::write(std::uint32_t rkey, std::uint64_t address, std::span<const std::byte> payload) {
  if (planted_fault == PlantedFault::kStalePayload && payload.size() > sizeof(std::uint64_t)) {
    static KeptWrite kept;  // of all queue pairs, under the lock of the only HCA
    const KeptWrite before = std::exchange(kept, {rkey, address, {payload.begin(), payload.end()}});
    static_cast<void>(store_range(before.rkey, before.address, before.payload, kRemoteWrite));
    return true;
  }
  return store_range(rkey, address, payload, kRemoteWrite);
}

MemoryTable::Extent QueuePair::atomic_target(std::uint32_t rkey, std::uint64_t address) const {
  const MemoryTable::Extent target =
      hca_.memory.whole_extent(rkey, key_user(), address, sizeof(std::uint64_t), kRemoteAtomic);
  return is_aligned(target.at, sizeof(std::uint64_t)) ? target : MemoryTable::Extent{};
}

std::optional<std::uint64_t> QueuePair::execute(std::uint32_t rkey, std::uint64_t address,
                                                const transport::AtomicOperation& operation) {
  const MemoryTable::Extent target = atomic_target(rkey, address);
  if (target.at == nullptr) return std::nullopt;
  if (crosses_pcie(target.at)) {
    ++hca_.counters.pcie.payload_reads;
    ++hca_.counters.pcie.payload_writes;
  }
  if (target.paged) [[unlikely]]
    return execute_by_copies(target, operation);
  if (!hca_.foreign.empty()) [[unlikely]] {
    if (hca_.foreign.find(target.at) != nullptr) return execute_by_copies(target, operation);
    hca_.foreign.synchronize();
  }
  acquire_from_mappings(Toward::kPeers);
  const std::atomic_ref word(*reinterpret_cast<std::uint64_t*>(target.at));
  std::uint64_t original = word.load();
  if (planted_fault == PlantedFault::kLostAdd) return original;
  // Reads and writes in two steps with a pause, as a NIC across PCIe does. A processor's atomic change
  // between them is lost.
  if (hca_.config.strict) {
    for (int i = 0; i < 64; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
    word.store(operation.result(original));
  } else {
    while (!word.compare_exchange_weak(original, operation.result(original))) {
    }
  }
  release_to_mappings(Toward::kHost);
  return planted_fault == PlantedFault::kReturnedSum ? operation.result(original) : original;
}

// Atomic towards this HCA's other operations, as the device reports (IBV_ATOMIC_HCA), not towards kernels and
// threads.
std::optional<std::uint64_t> QueuePair::execute_by_copies(const MemoryTable::Extent& target,
                                                          const transport::AtomicOperation& operation) {
  std::uint64_t original = 0;
  if (!load(reinterpret_cast<std::byte*>(&original), target)) return std::nullopt;
  const std::uint64_t result = operation.result(original);
  if (!store(target, reinterpret_cast<const std::byte*>(&result))) return std::nullopt;
  return original;
}

bool QueuePair::take_receive() {
  if (!receives_.take(current_receive_)) return false;
  ++hca_.counters.pcie.receive_wqe_reads;
  taken_receives_.push_back(current_receive_.wqe_counter);
  return true;
}

std::optional<std::uint32_t> QueuePair::posted_receives() const {
  if (shared_receives_ || !hca_.config.receive_credits) return std::nullopt;
  return receives_.posted();
}

Syndrome QueuePair::scatter_receive(std::uint32_t offset_bytes, std::span<const std::byte> payload) {
  if (offset_bytes + std::uint64_t{payload.size()} > current_receive_.capacity_bytes) {
    return Syndrome::kLocalLength;
  }
  return scatter_list(current_receive_.pieces, offset_bytes, payload);
}

void QueuePair::complete_receive(const transport::ReceiveCompletion& received) {
  Completion completion;
  completion.opcode = received.opcode;
  completion.syndrome = received.syndrome;
  completion.solicited = received.solicited;
  completion.wqe_counter = taken_receives_.front();
  completion.qpn = qpn_;
  completion.user_index = spec_.user_index;
  completion.byte_count = received.byte_count;
  completion.immediate = received.immediate_or_rkey;
  completion.source_qpn = received.source_qpn;
  completion.has_grh = received.has_grh;
  if (received.has_grh) {
    const bool ipv4 = hca_.wire->local().is_ipv4();
    completion.roce_type = ipv4 ? mlx5::CqeRoceType::kV2Ipv4 : mlx5::CqeRoceType::kV2Ipv6;
  }
  completion.timestamp_ns = hca_.now_ns;
  taken_receives_.pop_front();
  hca_.arrivals.push_back({this, completion});
}

bool QueuePair::invalidate(std::uint32_t rkey) { return hca_.memory.invalidate(rkey, key_user()); }

void QueuePair::fatal(Syndrome syndrome) {
  const bool access = syndrome == Syndrome::kRemoteAccess || syndrome == Syndrome::kLocalAccess;
  failure_ = Failure{.event_type = access ? kEventQpAccessError : kEventQpRequestError};
}

}  // namespace gdx::softhca
