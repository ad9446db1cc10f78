// One region as it is offered to a peer, and as it is mapped at the other end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/descriptor.h"
#include "base/result.h"
#include "host/memory/memory.h"
#include "proto/bootstrap/peer.h"
#include "proto/gpu/peer.h"

namespace gdx {

struct OfferedRegion {
  peer::Offer offer{};     // kNone with the reason where it cannot be shared
  std::vector<int> files;  // to send along, open as long as the Memory is or as `owned`
  std::vector<Descriptor> owned = {};
};

// Never fails: a region that nobody can map is still one that the peer must know of.
[[nodiscard]] OfferedRegion offer_region(const Memory& memory);

struct MappedRegion {
  PeerWindow window{};
  std::shared_ptr<void> pages;  // mapped as long as this
  bool is_host_memory = true;
};

// Maps what a peer offers, with files that it sent along and that may be anything; memory of a GPU for
// kernels of the GPU of that ordinal here. Errors: kUnsupported (it cannot be shared: the reason),
// kInvalidArgument (no such offer can be), kNoMemory, kSystem; as Gpu::open and map_gpu_memory.
[[nodiscard]] Result<MappedRegion> map_region(const peer::Offer& offer, std::span<const Descriptor> files,
                                              int gpu);

// The window of a region of this process itself.
[[nodiscard]] MappedRegion own_region(const Memory& memory);

}  // namespace gdx
