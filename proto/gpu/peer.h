// Memory of a peer that this process has mapped, so that kernels load and store it without the NIC.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/byte_order.h"

namespace gdx {

// Regions that a rank may offer at once.
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

static_assert(sizeof(PeerWindow) == 32);

}  // namespace gdx
