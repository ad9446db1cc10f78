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

// Threads: any. Every copy uses a stream of its own, which waits for no kernel, and is complete when the call
// returns.
class GpuMemory {
 public:
  // Allocates whole pages of its own, so that an HCA reaches nothing else. Contents are uninitialised.
  // Errors: kNoMemory; those of Gpu::run with the driver's message.
  [[nodiscard]] static Result<GpuMemory> allocate(const Gpu& gpu, std::size_t bytes);

  GpuMemory(GpuMemory&&) noexcept;
  GpuMemory& operator=(GpuMemory&&) noexcept;
  // Frees after the GPU's kernels have ended, as cuMemFree does.
  ~GpuMemory();

  // Multiple of kGpuPageBytes; bytes() is one too.
  [[nodiscard]] std::byte* address() const;
  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] const Gpu& gpu() const;

  // Errors: kInvalidArgument for a range beyond the end; kSystem with the driver's message.
  [[nodiscard]] Result<void> write(std::size_t offset, std::span<const std::byte> from);
  [[nodiscard]] Result<void> read(std::size_t offset, std::span<std::byte> to) const;

 private:
  struct Impl;
  explicit GpuMemory(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gdx
