// One region in its offered form, and in its mapped form at the other end.
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
  peer::Offer offer{};     // kNone with the reason if it cannot be shared
  std::vector<int> files;  // to send along, open as long as the Memory is or as `owned`
  std::vector<Descriptor> owned = {};
};

// Never fails, because the peer must count a region that no process can map.
[[nodiscard]] OfferedRegion offer_region(const Memory& memory);

struct MappedRegion {
  PeerWindow window{};
  std::shared_ptr<void> pages;  // the mapping's lifetime
  bool is_host_memory = true;
};

// Maps a peer's offer with the files that it sent, which may be of any kind. GPU memory is mapped for kernels
// of this process's GPU `gpu`. Errors: kUnsupported (it cannot be shared: the reason), kInvalidArgument (an
// impossible offer), kNoMemory, kSystem; those of Gpu::open and map_gpu_memory.
[[nodiscard]] Result<MappedRegion> map_region(const peer::Offer& offer, std::span<const Descriptor> files,
                                              int gpu);

// Returns the window of a region of this process itself.
[[nodiscard]] MappedRegion own_region(const Memory& memory);

}  // namespace gdx
