// Memory of a peer that this process has mapped, as kernels reach it: by loads and stores instead of the NIC.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/byte_order.h"
#include "proto/gpu/memory.h"
#include "proto/gpu/queue.h"

namespace gdx {

// Raise on every change of a struct here; kernels refuse a handle of another version.
inline constexpr std::uint32_t kPeerLayoutVersion = 1;

// A kernel looks through all of them in every call, and they travel as kernel parameters.
inline constexpr std::uint32_t kMaxPeerWindows = 8;

// What the peer's registration permits. Values of enum ibv_access_flags.
inline constexpr std::uint32_t kPeerWrite = 2;
inline constexpr std::uint32_t kPeerRead = 4;
inline constexpr std::uint32_t kPeerAtomic = 8;

// One registered region of the peer.
struct PeerWindow {
  std::uint64_t address;  // as RemoteMemory names it
  std::uint64_t bytes;
  std::byte* mapped;  // where this process has it
  Be32 rkey;
  std::uint32_t access;  // kPeerWrite and others
};

// An endpoint towards a peer, and what of the peer is mapped. No window: everything goes through the NIC.
struct PeerHandle {
  EndpointHandle endpoint;
  std::uint32_t layout_version;
  std::uint32_t window_count;
  PeerWindow windows[kMaxPeerWindows];

  // Where [remote.address, remote.address + bytes) is mapped, if the key is a window's, the range lies within
  // it and the window permits all of `access`; null otherwise.
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
