// Staging memory and its credits as host and device agree on them: what a kernel is told, and the memory
// through which the scheduler of a pool and one endpoint of it pass slots to each other.
// Source: papers/design.md, "Staging credits" and "Sharing the staging pool".
#pragma once

#include <cstddef>
#include <cstdint>

namespace gdx {

inline constexpr std::uint32_t kDefaultSlotBytes = 4096;
inline constexpr std::uint32_t kMinSlotBytes = 64;

// All counters are cumulative modulo 2^32: looking twice, or late, does no harm.

// How long a kernel pauses between two looks at a word that only the host changes, since a GPU reads it
// across PCIe. The scheduler's thread pauses at least as long, so more often there is little new.
inline constexpr std::uint64_t kHostLookNs = 20'000;

// Scheduler to endpoint, one word, so that one load tells all: how many slots it has granted since the
// endpoint was made, and how many the endpoint may hold. Who holds more gives back.
constexpr std::uint64_t pack_grants(std::uint32_t granted, std::uint32_t limit) {
  return std::uint64_t{limit} << 32 | granted;
}
constexpr std::uint32_t granted_of(std::uint64_t grants) { return static_cast<std::uint32_t>(grants); }
constexpr std::uint32_t limit_of(std::uint64_t grants) { return static_cast<std::uint32_t>(grants >> 32); }

// Endpoint to scheduler. Each word stands for itself; the scheduler believes none of them.
struct CreditRequests {
  std::uint32_t returned;  // slots put into the queue of returns
  std::uint32_t wanted;    // grants wanted, counted as `granted` is: ahead of it by what is still wanted
  std::uint32_t failed;    // nonzero: the queue is in error and takes no grant beyond `wanted` any more
  std::uint32_t reserved;
};

// A slot that an endpoint holds, and the index of the WQE that sends it. A shared endpoint marks the upper
// bits of `slot`: device/impl/shared_credits.h.
struct HeldSlot {
  std::uint32_t slot;
  std::uint32_t wqe_index;
};

// All rings have `slot_count` entries, which no counter can outrun: nobody holds more than the pool.
struct StagingHandle {
  std::byte* base;                     // the pool as the kernel may store to it
  std::uint64_t nic_offset;            // the same place as the NIC addresses it under `lkey`
  const std::uint64_t* grants;         // pack_grants; in host memory, as all that both sides use
  const std::uint32_t* granted_slots;  // ring, beside `grants`
  CreditRequests* requests;
  std::uint32_t* returned_slots;  // ring, beside `requests`
  HeldSlot* held;                 // ring of the endpoint's own
  std::uint32_t lkey;
  std::uint32_t slot_bytes;     // a power of two, at least kMinSlotBytes
  std::uint32_t slot_count;     // of the pool; a power of two. 0: the endpoint has none
  std::uint32_t minimum_slots;  // what the endpoint keeps when its kernel ends
};

// Positions in the ring of held slots, cumulative: [returned, filled) are with the NIC, [filled, ready) are
// credits to use.
struct StagingState {
  std::uint32_t filled;
  std::uint32_t returned;
  std::uint32_t ready;
  std::uint32_t taken;      // grants taken
  std::uint32_t wanted;     // grants asked for, counted as `taken` is
  std::uint32_t limit;      // slots that the endpoint may hold, when it looked last
  std::uint64_t stalls;     // pushes that found no free credit and waited
  std::uint64_t looked_ns;  // when it looked last at what the scheduler says
};

static_assert(sizeof(StagingHandle) == 72 && sizeof(StagingState) == 40 && sizeof(CreditRequests) == 16);

}  // namespace gdx
