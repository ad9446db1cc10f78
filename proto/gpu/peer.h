// Memory of a peer that this process has mapped, so that kernels load and store it without the NIC.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/byte_order.h"
#include "proto/gpu/memory.h"
#include "proto/gpu/queue.h"

namespace gdx {

// Must rise on every change of a struct here, because kernels refuse a handle of another version.
inline constexpr std::uint32_t kPeerLayoutVersion = 1;

// Bounds the windows, because a kernel tests all of them in every call, and they travel as kernel parameters.
inline constexpr std::uint32_t kMaxPeerWindows = 8;

// Rights that the peer's registration grants. Values of enum ibv_access_flags.
inline constexpr std::uint32_t kPeerWrite = 2;
inline constexpr std::uint32_t kPeerRead = 4;
inline constexpr std::uint32_t kPeerAtomic = 8;

// One registered region of the peer.
struct PeerWindow {
  std::uint64_t address;  // the address in RemoteMemory
  std::uint64_t bytes;
  std::byte* mapped;  // the address in this process
  Be32 rkey;
  std::uint32_t access;  // kPeerWrite and others
};

// An endpoint towards a peer, and the mapped regions of the peer. Without a window everything goes through
// the NIC.
struct PeerHandle {
  EndpointHandle endpoint;
  std::uint32_t layout_version;
  std::uint32_t window_count;
  PeerWindow windows[kMaxPeerWindows];

  // Returns the mapping of [remote.address, remote.address + bytes). Null unless a window has the key,
  // contains the range and permits all of `access`.
  [[nodiscard]] constexpr std::byte* find(const RemoteMemory& remote, std::uint64_t bytes,
                                          std::uint32_t access) const {
    std::byte* found = nullptr;
    for (std::uint32_t i = 0; i < kMaxPeerWindows; ++i) {
      const PeerWindow& window = windows[i];
      const std::uint64_t offset = remote.address - window.address;
      const bool within = offset <= window.bytes && bytes <= window.bytes - offset;
      const bool permitted = (window.access & access) == access;
      if (i < window_count && window.rkey.raw == remote.rkey.raw && within && permitted) {
        found = window.mapped + offset;
      }
    }
    return found;
  }
};

static_assert(sizeof(PeerWindow) == 32);
static_assert(sizeof(PeerHandle) == sizeof(EndpointHandle) + 8 + kMaxPeerWindows * sizeof(PeerWindow));

}  // namespace gdx
