// Registered memory as kernels name it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/byte_order.h"

namespace gdx {

// Keys are kept as work requests carry them, big-endian, so that a kernel never swaps one.

// `bytes` says how long the region is from `address` on, for whoever wants to know: device calls do not look
// at it. An offset beyond it is not refused and leaves a count that has wrapped; the NIC refuses the access
// itself.

// Memory of this rank: an address that the kernel can load from, and the key that the NIC knows it by.
struct LocalMemory {
  std::byte* address;
  std::uint64_t bytes;
  Be32 lkey;
  std::uint32_t reserved;

  constexpr LocalMemory operator+(std::uint64_t offset_bytes) const {
    return {address + offset_bytes, bytes - offset_bytes, lkey, 0};
  }
};

// Memory of a peer. Trivially copyable: ranks exchange it as it is.
struct RemoteMemory {
  std::uint64_t address;
  std::uint64_t bytes;
  Be32 rkey;
  std::uint32_t reserved;

  constexpr RemoteMemory operator+(std::uint64_t offset_bytes) const {
    return {address + offset_bytes, bytes - offset_bytes, rkey, 0};
  }
};

static_assert(sizeof(LocalMemory) == 24 && sizeof(RemoteMemory) == 24);

}  // namespace gdx
