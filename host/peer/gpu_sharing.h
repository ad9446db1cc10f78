// A GPU's memory between processes. What can be shared depends on how it was allocated:
//   cuMemCreate with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR   as open files, which keep it alive
//   cuMemAlloc, cudaMalloc                                      by CUDA IPC: its owner must keep it until all
//   are done stream-ordered pools, cuMemCreate without that type         not at all: the refusal says what to
//   use
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
// memory of a GPU. Errors: kUnsupported with what to do, kSystem with what the driver said.
[[nodiscard]] Result<std::vector<Descriptor>> offer_gpu_memory(const void* address, std::size_t bytes,
                                                               peer::Offer& offer);

struct MappedGpuMemory {
  std::byte* first = nullptr;   // of the region
  std::shared_ptr<void> pages;  // mapped as long as this
};

// Maps an offer of kind kGpuParts or kGpuIpc for kernels of `gpu`. The files may be anything.
// Errors: kInvalidArgument (no such offer can be), kUnsupported (this GPU does not reach that one, or not by
// atomics), kNoMemory, kSystem with what the driver said.
[[nodiscard]] Result<MappedGpuMemory> map_gpu_memory(const Gpu& gpu, const peer::Offer& offer,
                                                     std::span<const Descriptor> files);

}  // namespace gdx
