// Virtual memory management of the CUDA driver: physical allocations, and addresses that kernels reach them
// at. Source: CUDA Driver API reference 13.0, "Virtual Memory Management".
#pragma once

#include <cstddef>
#include <vector>

#include "driver-shim/cuda/sharing.h"
#include "host/gpu/gpu.h"

namespace gdx {

// A reference to an allocation. It exists until the last reference, mapping and exported file is gone.
class GpuAllocation {
 public:
  GpuAllocation(const cuda::SharingFunctions& call, CUmemGenericAllocationHandle handle)
      : call_(call), handle_(handle) {}
  ~GpuAllocation() { call_.mem_release(handle_); }
  GpuAllocation(const GpuAllocation&) = delete;
  GpuAllocation& operator=(const GpuAllocation&) = delete;
  [[nodiscard]] CUmemGenericAllocationHandle handle() const { return handle_; }

 private:
  const cuda::SharingFunctions& call_;
  CUmemGenericAllocationHandle handle_;
};

// Addresses with allocations mapped one after another. Its end unmaps them and then frees the addresses; it
// waits for no kernel. Threads: one at a time.
class GpuRange {
 public:
  GpuRange(Gpu gpu, const cuda::SharingFunctions& call);
  ~GpuRange();
  GpuRange(const GpuRange&) = delete;
  GpuRange& operator=(const GpuRange&) = delete;

  [[nodiscard]] CUdeviceptr first() const { return first_; }
  // Reserves the addresses, once. `alignment`: 0, or a power of two.
  [[nodiscard]] CUresult reserve(std::size_t bytes, std::size_t alignment = 0);
  // Maps `bytes` of an allocation from its start, behind what is mapped already.
  [[nodiscard]] CUresult add(const GpuAllocation& allocation, std::size_t bytes);
  // Lets kernels of the GPU load from and store to all that is mapped. A mapping has no access without it.
  [[nodiscard]] CUresult open_to_kernels();

 private:
  Gpu gpu_;
  const cuda::SharingFunctions& call_;
  CUdeviceptr first_ = 0;
  std::size_t reserved_bytes_ = 0;
  std::size_t mapped_bytes_ = 0;
  std::vector<std::size_t> parts_;
};

}  // namespace gdx
