// Memory of a GPU that an HCA reads and writes beside the kernels. The host must not load or store it; it
// fills and reads it by copies.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/result.h"
#include "host/gpu/gpu.h"

namespace gdx {

// Alignment of GPU memory for other devices: nvidia_peermem pins whole pages of this size.
inline constexpr std::size_t kGpuPageBytes = 64 * 1024;

// Users of memory beside this process's kernels and its HCA.
enum class GpuUse {
  kShared,   // direct peers, which map the whole allocation: the memory is alone in one
  kPrivate,  // none: small pieces share an allocation, because the driver makes none below 2 MiB
};

// Threads: any. Every copy uses a stream of its own, which waits for no kernel, and is complete when the call
// returns.
class GpuMemory {
 public:
  // Allocates whole pages of its own, so that an HCA reaches nothing else. Contents are uninitialised. Made
  // by cuMemCreate if gpu.creates_rdma_memory(), else by cuMemAlloc.
  // Errors: kNoMemory; those of Gpu::run with the driver's message.
  [[nodiscard]] static Result<GpuMemory> allocate(const Gpu& gpu, std::size_t bytes,
                                                  GpuUse use = GpuUse::kShared);

  GpuMemory(GpuMemory&&) noexcept;
  GpuMemory& operator=(GpuMemory&&) noexcept;
  // Frees an allocation with its last piece, after the GPU's kernels have ended.
  ~GpuMemory();

  // Multiple of kGpuPageBytes; bytes() is one too.
  [[nodiscard]] std::byte* address() const;
  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] const Gpu& gpu() const;

  // Errors: kInvalidArgument for a range beyond the end; kSystem with the driver's message.
  [[nodiscard]] Result<void> write(std::size_t offset, std::span<const std::byte> from);
  [[nodiscard]] Result<void> read(std::size_t offset, std::span<std::byte> to) const;

 private:
  class Block;
  struct Impl;
  explicit GpuMemory(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gdx
