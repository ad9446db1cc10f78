#include "driver-shim/softhca/engine/send_queue.h"

#include <algorithm>
#include <utility>

#include "driver-shim/softhca/engine/dma.h"
#include "driver-shim/softhca/engine/planted_fault.h"
#include "proto/mapping_order.h"

namespace gdx::softhca {
namespace {

// Does to a WQE what a planted fault says.
void spoil(SendWqe& wqe, bool wraps, bool copied) {
  if (planted_fault == PlantedFault::kInlineWrap && wraps && !wqe.inline_bytes.empty())
    wqe.inline_bytes.back() ^= std::byte{0xff};
  if (planted_fault != PlantedFault::kTornBlueFlame || !copied) return;
  wqe.fault = mlx5::Syndrome::kLocalQpOperation;
  wqe.reason = "torn on its way, by a planted fault";
}

}  // namespace

SendQueue::SendQueue(const Layout& layout, ForeignMemory& foreign, StagingAudit& staging)
    : layout_(layout),
      foreign_(foreign),
      staging_(staging),
      ring_copy_(foreign.find(layout.ring) != nullptr ? layout.blocks * mlx5::kWqeBasicBlockBytes : 0) {}

// Returns the record's count. An unreadable record announces nothing.
std::uint16_t SendQueue::load_posted() const {
  Be32& record = *layout_.record;
  const auto* const at = reinterpret_cast<const std::byte*>(&record);
  if (foreign_.empty() || foreign_.find(at) == nullptr)
    return static_cast<std::uint16_t>(load_record(record, fetched_));
  Be32 value = fetched_;
  static_cast<void>(foreign_.load(reinterpret_cast<std::byte*>(&value), at, sizeof value));
  acquire_from_mappings(Toward::kHca);
  return static_cast<std::uint16_t>(std::uint32_t{value});
}

std::optional<std::uint16_t> SendQueue::read_announced(std::span<const DoorbellWrite> rings) {
  std::uint16_t posted = load_posted();
  if (layout_.record_use == RecordUse::kUnread) {
    const auto advance = [&posted](std::uint16_t to) {
      if (static_cast<std::int16_t>(to - posted) > 0) posted = to;
    };
    advance(announced_);  // by doorbells that came before their record
    for (const DoorbellWrite& ring : rings) {
      if (ring.qpn() == layout_.qpn) advance(ring.end());
    }
  }
  const auto outstanding = static_cast<std::uint16_t>(fetched_ - completed_);
  // Refuses a backward move too, because it is 2^16 less than it ahead.
  if (static_cast<std::uint16_t>(posted - fetched_) > layout_.blocks - outstanding) return std::nullopt;
  return static_cast<std::uint16_t>(posted - std::exchange(announced_, posted));
}

bool SendQueue::is_late(const DoorbellWrite& ring) const {
  const auto index = static_cast<std::uint16_t>(byte_swap(static_cast<std::uint32_t>(ring.value())) >> 8);
  return ring.qpn() == layout_.qpn && static_cast<std::int16_t>(index - fetched_) < -1;
}

// Reads all new WQEs of a ring in foreign memory, in one read, or two if they wrap. After a failed read an
// older WQE stays there, which the parser rejects.
void SendQueue::copy_ring() {
  const std::size_t ring_bytes = ring_copy_.size();
  const std::size_t new_bytes = static_cast<std::uint16_t>(announced_ - fetched_) * mlx5::kWqeBasicBlockBytes;
  const std::size_t first = fetched_ * mlx5::kWqeBasicBlockBytes % ring_bytes;
  const std::size_t before_wrap = std::min(new_bytes, ring_bytes - first);
  static_cast<void>(foreign_.load(ring_copy_.data() + first, layout_.ring + first, before_wrap));
  if (before_wrap == new_bytes) return;
  static_cast<void>(foreign_.load(ring_copy_.data(), layout_.ring, new_bytes - before_wrap));
}

// Returns the one of `rings` that brought the next WQE whole, or null.
const DoorbellWrite* SendQueue::find_copy(std::span<const DoorbellWrite> rings) const {
  const auto found = std::find_if(rings.begin(), rings.end(), [this](const DoorbellWrite& write) {
    return write.qpn() == layout_.qpn && write.is_copy_of(ring(), fetched_);
  });
  return found == rings.end() ? nullptr : &*found;
}

bool SendQueue::fetch(std::span<const DoorbellWrite> rings, Fetched& fetched, SendWqe& wqe) {
  if (fetched_ == announced_) return false;
  if (fetched.taken == 0 && !ring_copy_.empty()) copy_ring();
  const DoorbellWrite* const copy = find_copy(rings);
  // Stops at the last copy if each write brought its WQE, because the copies then state the posted count.
  // The write of any further WQE is still to come.
  const bool all_brought = fetched.copied != 0 && fetched.copied == static_cast<int>(rings.size());
  if (copy == nullptr && all_brought) return false;
  const auto available = static_cast<std::uint16_t>(announced_ - fetched_);
  if (copy != nullptr) {
    parse_linear_wqe(copy->wqe(), fetched_, available, layout_.qpn, layout_.vectors, wqe);
  } else {
    parse_send_wqe(ring(), fetched_, available, layout_.qpn, layout_.vectors, wqe);
  }
  spoil(wqe, fetched_ % layout_.blocks + wqe.blocks > layout_.blocks, copy != nullptr);
  fetched_ = static_cast<std::uint16_t>(fetched_ + wqe.blocks);
  ++fetched.taken;
  fetched.copied += copy != nullptr ? 1 : 0;
  fetched.newest_is_copy = copy != nullptr;
  return true;
}

void SendQueue::count(std::span<const DoorbellWrite> rings, const Fetched& fetched,
                      PcieCounters& pcie) const {
  int named = 0;
  int copies = 0;
  for (const DoorbellWrite& write : rings) {
    if (write.qpn() != layout_.qpn) continue;
    ++named;
    copies += write.has_copy() ? 1 : 0;
  }
  pcie.wqe_reads += static_cast<std::uint64_t>(fetched.taken - fetched.copied);
  pcie.blueflame_wqes += static_cast<std::uint64_t>(fetched.copied);
  pcie.blueflame_torn += static_cast<std::uint64_t>(copies - fetched.copied);
  // Counts no record read for a WQE that came with its doorbell, because its index states the posted count.
  const bool asks = fetched.taken > fetched.copied || named > fetched.copied;
  if (asks && layout_.record_use == RecordUse::kRead) ++pcie.record_reads;
}

bool SendQueue::hold(SendSlot& slot, const MemoryAccess& memory) {
  bool free = true;
  for (const DataPiece& piece : slot.body.pieces) {
    const std::optional<std::size_t> offset = memory.device_offset(piece);
    if (!offset) continue;
    slot.holds.push_back({.offset_bytes = *offset, .length_bytes = piece.length_bytes});
    free = free && !staging_.held(*offset, piece.length_bytes);
  }
  for (StagingHold& hold : slot.holds) hold = staging_.acquire(hold.offset_bytes, hold.length_bytes);
  return free;
}

bool SendQueue::release(SendSlot& slot) {
  bool unchanged = true;
  for (const StagingHold& hold : slot.holds) unchanged = staging_.release(hold) && unchanged;
  slot.holds.clear();
  return unchanged;
}

void SendQueue::pop() {
  const SendSlot& slot = slots_.front();
  completed_ = static_cast<std::uint16_t>(slot.wqe_counter + slot.body.blocks);
  slots_.pop_front();
}

const char* SendQueue::check_invariants() const {
  std::uint16_t next = completed_;
  for (std::uint64_t i = slots_.first(); i != slots_.end(); ++i) {
    const SendSlot& slot = slots_[i];
    if (slot.wqe_counter != next) return "slots leave out a WQE, or hold one twice";
    next = static_cast<std::uint16_t>(next + slot.body.blocks);
    for (const StagingHold& hold : slot.holds) {
      if (hold.length_bytes > 0 && !staging_.held(hold.offset_bytes, hold.length_bytes))
        return "a slot holds device memory that its audit counts as free";
    }
  }
  if (next != fetched_) return "the slots are not the WQEs fetched and not completed";
  const auto fetched = static_cast<std::uint16_t>(fetched_ - completed_);
  const auto announced = static_cast<std::uint16_t>(announced_ - completed_);
  if (fetched > announced) return "a WQE was fetched that no record announced";
  return announced > layout_.blocks ? "more WQEs are under way than the send queue holds" : nullptr;
}

}  // namespace gdx::softhca
