// Memory of a GPU that an HCA reads and writes beside the kernels. The host may not touch it: it fills and
// reads it by copies.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/result.h"
#include "host/gpu/gpu.h"

namespace gdx {

// What GPUs show to other devices in: nvidia_peermem pins whole pages of so much.
inline constexpr std::size_t kGpuPageBytes = 64 * 1024;

// Threads: any. Every copy goes by a stream of its own, which waits for no kernel, and has been made when the
// call returns.
class GpuMemory {
 public:
  // Pages of its own, all of them: what is shown to an HCA holds nothing else. As CUDA leaves them, not
  // cleared. Errors: kNoMemory; as Gpu::run with what the driver said.
  [[nodiscard]] static Result<GpuMemory> allocate(const Gpu& gpu, std::size_t bytes);

  GpuMemory(GpuMemory&&) noexcept;
  GpuMemory& operator=(GpuMemory&&) noexcept;
  // Waits for the GPU's kernels, as cuMemFree does.
  ~GpuMemory();

  // A multiple of kGpuPageBytes, as is bytes().
  [[nodiscard]] std::byte* address() const;
  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] const Gpu& gpu() const;

  // Errors: kInvalidArgument for a range beyond the end; kSystem with what the driver said.
  [[nodiscard]] Result<void> write(std::size_t offset, std::span<const std::byte> from);
  [[nodiscard]] Result<void> read(std::size_t offset, std::span<std::byte> to) const;

 private:
  struct Impl;
  explicit GpuMemory(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gdx
