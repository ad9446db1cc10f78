// Memory of GPUs that a program registers by its address, as it does where nvidia_peermem is loaded: copy
// engines, through the CUDA driver that the program has loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "driver-shim/softhca/engine/foreign_memory.h"
#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca::uverbs {

// A part of foreign memory, assigned to an HCA during the object's lifetime.
class ForeignRange {
 public:
  ForeignRange(Hca& hca, std::uint64_t address, std::uint64_t length_bytes,
               std::shared_ptr<CopyEngine> copies);
  ~ForeignRange();
  ForeignRange(const ForeignRange&) = delete;
  ForeignRange& operator=(const ForeignRange&) = delete;

 private:
  Hca& hca_;
  const std::byte* first_;
  std::size_t length_bytes_;
};

// One HCA's engines, one for a GPU. Threads: the device lock; the engines, the HCA's.
class GpuCopies {
 public:
  explicit GpuCopies(Hca& hca) : hca_(hca) {}
  // Null where no GPU has [address, address + length). Errors: EFAULT for a range that leaves its allocation,
  // or one that GPUDirect RDMA cannot use; ENODEV for a GPU that gives no stream.
  ErrnoOr<std::unique_ptr<ForeignRange>> claim(std::uint64_t address, std::uint64_t length_bytes);

 private:
  Hca& hca_;
  std::map<int, std::weak_ptr<CopyEngine>> engines_;  // by the GPU's ordinal
};

}  // namespace gdx::softhca::uverbs
