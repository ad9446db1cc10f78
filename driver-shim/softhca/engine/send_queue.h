// The send queue of a queue pair: ring, record, doorbells that bring WQEs, and slots. Each slot is of a WQE
// that was fetched and has not completed.
//
//   ring   ... completed | one slot for each WQE | announced, still to fetch | free ...
//                     completed_              fetched_                  announced_
//
// Counts are of WQEBBs, cumulative, of 16 bits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "driver-shim/softhca/engine/blueflame.h"
#include "driver-shim/softhca/engine/foreign_memory.h"
#include "driver-shim/softhca/engine/hca.h"
#include "driver-shim/softhca/engine/memory_access.h"
#include "driver-shim/softhca/engine/staging_audit.h"
#include "driver-shim/softhca/engine/wqe_parser.h"
#include "driver-shim/softhca/transport/ring.h"

namespace gdx::softhca {

struct SendSlot {
  SendBody body;
  std::vector<StagingHold> holds;
  mlx5::WqeOpcode opcode = mlx5::WqeOpcode::kNop;  // as posted: an invalid one travels as another opcode
  std::uint16_t wqe_counter = 0;
  bool sent = false;  // at least one packet of it is sent
};

class SendQueue {
 public:
  struct Layout {
    std::uint32_t qpn = 0;
    AddressVectorUse vectors = AddressVectorUse::kNone;
    const std::byte* ring = nullptr;
    std::uint32_t blocks = 0;  // WQEBBs, a power of two, or 0: no queue
    Be32* record = nullptr;
    RecordUse record_use = RecordUse::kRead;
  };
  SendQueue(const Layout& layout, ForeignMemory& foreign, StagingAudit& staging);

  // Returns the number of WQEBBs announced since the last call, by the record; where records are unread also
  // by those of `rings` that name this queue. The record counts there too, because an older doorbell may have
  // overwritten a newer one. nullopt: more are announced than the ring holds, or the record has moved
  // backwards.
  [[nodiscard]] std::optional<std::uint16_t> read_announced(std::span<const DoorbellWrite> rings);
  [[nodiscard]] std::uint16_t announced() const { return announced_; }
  // Returns whether `ring` is this queue's, and older than the doorbell of the newest fetched WQE.
  [[nodiscard]] bool is_late(const DoorbellWrite& ring) const;

  // WQEs fetched for some doorbells.
  struct Fetched {
    int taken = 0;
    int copied = 0;  // WQEs among them that came with their doorbell
    bool newest_is_copy = false;
  };
  // Fetches the next announced WQE: from one of `rings`, which may include other queues', or from the ring.
  // False: no more is announced, or the next WQE's own doorbell is still to come.
  bool fetch(std::span<const DoorbellWrite> rings, Fetched& fetched, SendWqe& wqe);
  void count(std::span<const DoorbellWrite> rings, const Fetched& fetched, PcieCounters& pcie) const;

  // Appends a slot with the body of `wqe`, which gets that of an earlier one.
  SendSlot& push(SendWqe& wqe) {
    SendSlot& slot = slots_.extend();
    slot.opcode = wqe.request.opcode;
    slot.wqe_counter = wqe.request.wqe_counter;
    slot.sent = false;
    std::swap(slot.body, static_cast<SendBody&>(wqe));
    return slot;
  }
  // Returns the number of the newest slot.
  [[nodiscard]] std::uint64_t newest() const { return slots_.end() - 1; }
  [[nodiscard]] bool empty() const { return slots_.empty(); }
  SendSlot& operator[](std::uint64_t number) { return slots_[number]; }
  SendSlot& front() { return slots_.front(); }
  [[nodiscard]] const SendSlot& front() const { return slots_.front(); }
  // Holds the device memory that the slot gathers from. False: another WQE holds some of it.
  [[nodiscard]] bool hold(SendSlot& slot, const MemoryAccess& memory);
  // Ends the oldest slot's holds. False: the bytes have changed. Call it before the completion is visible,
  // and pop() after it.
  [[nodiscard]] bool release_front() { return slots_.front().holds.empty() || release(slots_.front()); }
  void pop();
  // Forgets what was fetched. Requires that all slots are popped.
  void reset() { fetched_ = announced_ = completed_ = 0; }

  // Returns the first broken invariant; nullptr: all hold.
  [[nodiscard]] const char* check_invariants() const;

 private:
  [[nodiscard]] std::span<const std::byte> ring() const {
    return {ring_copy_.empty() ? layout_.ring : ring_copy_.data(),
            layout_.blocks * mlx5::kWqeBasicBlockBytes};
  }
  [[nodiscard]] std::uint16_t load_posted() const;
  bool release(SendSlot& slot);
  void copy_ring();
  [[nodiscard]] const DoorbellWrite* find_copy(std::span<const DoorbellWrite> rings) const;

  Layout layout_;
  ForeignMemory& foreign_;
  StagingAudit& staging_;
  std::vector<std::byte> ring_copy_;  // copy of fetched WQEs, of a ring in foreign memory
  transport::Ring<SendSlot> slots_;
  std::uint16_t fetched_ = 0;
  std::uint16_t announced_ = 0;
  std::uint16_t completed_ = 0;
};

}  // namespace gdx::softhca
