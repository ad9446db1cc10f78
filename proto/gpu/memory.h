// Registered memory in the form that kernels take.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/byte_order.h"

namespace gdx {

// Keys are kept as work requests carry them, big-endian, so that a kernel never swaps one.

// `bytes` is the length of the region from `address` on, for the caller's use; device calls do not read it.
// An offset beyond it is not refused and wraps the count. The NIC refuses the access itself.

// Memory of this rank: an address that the kernel can load from, and its key at the NIC.
struct LocalMemory {
  std::byte* address;
  std::uint64_t bytes;
  Be32 lkey;
  std::uint32_t reserved;

  constexpr LocalMemory operator+(std::uint64_t offset_bytes) const {
    return {address + offset_bytes, bytes - offset_bytes, lkey, 0};
  }
};

// Memory of a peer. Trivially copyable, because ranks exchange it as bytes.
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
