// Interface for the rest of the fake driver to memory that is mapped (VMM) or comes from a pool. Its lock is
// separate, below the driver's.
#pragma once

#include <cstddef>

#include "driver-shim/cuda/api.h"

namespace gdx::fake_cuda {

// Answers an attribute of a pointer into such memory, or an attribute of sharing. `allocated`: cuMemAlloc
// made the address. False: another part must answer.
[[nodiscard]] bool answer_attribute(CUpointer_attribute which, void* value, CUdeviceptr address,
                                    bool allocated);

// The mapping that holds `at`; the allocation that another process shares.
[[nodiscard]] bool find_mapped(CUdeviceptr at, CUdeviceptr* base, std::size_t* bytes);
[[nodiscard]] bool find_opened(CUdeviceptr at, CUdeviceptr* base, std::size_t* bytes, CUdevice* device);

// Returns the address of the byte at `at` in mapped memory: for copies of device `by`, of `bytes` from there
// on; for kernels of the CPU layer. Null where nothing is mapped, or cuMemSetAccess has not opened it.
[[nodiscard]] std::byte* mapped_for_copies(CUdeviceptr at, std::size_t bytes, CUdevice by);
[[nodiscard]] std::byte* mapped_for_kernels(CUdeviceptr at);

// A descriptor of whole pages that allocations of one device and alike are mapped to, without a gap. That of
// more than one allocation has the length, not the bytes.
[[nodiscard]] CUresult share_mapped_range(CUdeviceptr address, std::size_t bytes, int* descriptor);

}  // namespace gdx::fake_cuda
