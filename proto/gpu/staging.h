// Staging memory and its credits, in the layout that host and device share. Holds a kernel's handle, and the
// words by which a pool's scheduler and one endpoint exchange slots.
//
//   scheduler   grants, granted_slots ------------> endpoint
//   scheduler   <---- CreditRequests, returned_slots endpoint
//
// Each word and ring has one writer: the side that its arrow leaves. Source: docs/staging.md,
// "Staging credits" and "Sharing the staging pool".
#pragma once

#include <cstddef>
#include <cstdint>

namespace gdx {

inline constexpr std::uint32_t kDefaultSlotBytes = 4096;
inline constexpr std::uint32_t kMinSlotBytes = 64;

// Counters are cumulative modulo 2^32, so a repeated or late read does no harm.

// Pause between a kernel's reads of a word that only the host changes, because they cross PCIe. More frequent
// reads bring little, because the scheduler's thread pauses at least as long.
inline constexpr std::uint64_t kHostPollNs = 20'000;

// Packs the scheduler's word to the endpoint, so that one load reads all of it. `granted`: slots granted
// since the endpoint was made. `limit`: slots that the endpoint may hold; above it the endpoint returns
// slots.
constexpr std::uint64_t pack_grants(std::uint32_t granted, std::uint32_t limit) {
  return std::uint64_t{limit} << 32 | granted;
}
constexpr std::uint32_t granted_of(std::uint64_t grants) { return static_cast<std::uint32_t>(grants); }
constexpr std::uint32_t limit_of(std::uint64_t grants) { return static_cast<std::uint32_t>(grants >> 32); }

// Words from endpoint to scheduler. Each is independent; the scheduler validates all of them.
struct CreditRequests {
  std::uint32_t returned;  // slots put into the queue of returns
  std::uint32_t wanted;    // total of grants requested; exceeds `granted` by the slots still requested
  std::uint32_t failed;    // nonzero: the queue is in error and takes no grant beyond `wanted`
  std::uint32_t reserved;
};

// A slot that an endpoint holds, and the index of the WQE that sends it. A shared endpoint marks the upper
// bits of `slot`: device/impl/shared_credits.h.
struct HeldSlot {
  std::uint32_t slot;
  std::uint32_t wqe_index;
};

// Rings have `slot_count` entries. No counter can outrun them, because no endpoint holds more than the pool.
struct StagingHandle {
  std::byte* base;                     // the pool's address for the kernel's stores
  std::uint64_t nic_offset;            // the pool's address for the NIC, under `lkey`
  const std::uint64_t* grants;         // pack_grants; in host memory, as all words that both sides use
  const std::uint32_t* granted_slots;  // ring, beside `grants`
  CreditRequests* requests;
  std::uint32_t* returned_slots;  // ring, beside `requests`
  HeldSlot* held;                 // ring of the endpoint's own
  std::uint32_t lkey;
  std::uint32_t slot_bytes;     // a power of two, at least kMinSlotBytes
  std::uint32_t slot_count;     // of the pool; a power of two. 0: the endpoint has none
  std::uint32_t minimum_slots;  // slots that the endpoint keeps when its kernel ends
};

// Positions in the ring of held slots, cumulative:
//
//   returned ... with the NIC ... filled ... free credits ... ready
struct StagingState {
  std::uint32_t filled;
  std::uint32_t returned;
  std::uint32_t ready;
  std::uint32_t taken;      // grants taken
  std::uint32_t wanted;     // total of grants requested, comparable with `taken`
  std::uint32_t limit;      // slots that the endpoint may hold, at its last read
  std::uint64_t stalls;     // pushes that found no free credit and waited
  std::uint64_t polled_ns;  // time of the last read of the scheduler's words
};

static_assert(sizeof(StagingHandle) == 72 && sizeof(StagingState) == 40 && sizeof(CreditRequests) == 16);

}  // namespace gdx
