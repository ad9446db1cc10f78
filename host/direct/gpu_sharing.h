// Sharing of a GPU's memory between processes. Its allocation decides the way:
//   cuMemCreate with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR   open files, which keep it alive
//   cuMemAlloc, cudaMalloc                    CUDA IPC: the owner must keep it until all peers are done
//   stream-ordered pools, other cuMemCreate   none: the refusal names a way that works
// Source: CUDA Driver API reference 13.0, "Virtual Memory Management", cuIpcGetMemHandle, cuIpcOpenMemHandle.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/descriptor.h"
#include "base/result.h"
#include "host/gpu/gpu.h"
#include "proto/bootstrap/peer.h"

namespace gdx {

// Fills in kind, offset and parts of `offer`, and returns the files to send with it. `bytes` at `address` are
// memory of a GPU. Errors: kUnsupported with the remedy, kSystem with the driver's message.
[[nodiscard]] Result<std::vector<Descriptor>> offer_gpu_memory(const void* address, std::size_t bytes,
                                                               peer::Offer& offer);

struct MappedGpuMemory {
  std::byte* first = nullptr;   // address of the region
  std::shared_ptr<void> pages;  // the mapping's lifetime
};

// Maps an offer of kind kGpuParts or kGpuIpc for kernels of `gpu`. Validates the files, because a peer sent
// them.
// Errors: kInvalidArgument (impossible offer), kUnsupported (no reach to that GPU, or not by atomics),
// kNoMemory, kSystem with the driver's message.
[[nodiscard]] Result<MappedGpuMemory> map_gpu_memory(const Gpu& gpu, const peer::Offer& offer,
                                                     std::span<const Descriptor> files);

}  // namespace gdx
