// How the host describes an endpoint's share of staging memory to device code.
// Source: papers/design.md, "Staging credits".
#pragma once

#include <cstddef>
#include <cstdint>

namespace gdx {

inline constexpr std::uint32_t kDefaultSlotBytes = 4096;
inline constexpr std::uint32_t kMinSlotBytes = 64;

// `slot_count` slots of `slot_bytes` each, filled in ring order. A slot count of 0 means that the
// endpoint has no staging memory and cannot push.
struct StagingHandle {
  std::byte* base;            // on-NIC memory as the kernel may store to it
  std::uint64_t nic_offset;   // the same place as the NIC addresses it under `lkey`
  std::uint32_t* slot_owner;  // [slot_count]: index of the WQE that last sent from the slot
  std::uint32_t lkey;
  std::uint32_t slot_bytes;  // a power of two, at least kMinSlotBytes
  std::uint32_t slot_count;  // a power of two, or 0
  std::uint32_t reserved;
};

// Credit counters, cumulative modulo 2^32: `filled - returned` credits are held, the rest are free.
struct StagingState {
  std::uint32_t filled;
  std::uint32_t returned;
  std::uint64_t stalls;  // pushes that found no free credit and waited
};

static_assert(sizeof(StagingHandle) == 40 && sizeof(StagingState) == 16);

}  // namespace gdx
