#include "host/gpu/gpu_memory.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

namespace gdx {

struct GpuMemory::Impl {
  explicit Impl(const Gpu& of) : gpu(of) {}
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Runs `enqueue(call, address, stream)` on [offset, offset + length), and waits until it is done.
  template <typename Enqueue>
  Result<void> transfer(const char* what, std::size_t offset, std::size_t length, Enqueue enqueue) const;

  Gpu gpu;
  CUstream stream = nullptr;
  CUdeviceptr allocation = 0;
  CUdeviceptr first = 0;  // of the pages that are its own
  std::size_t bytes = 0;
};

GpuMemory::Impl::~Impl() {
  gpu.run([this] {
    const cuda::Functions& call = gpu.driver().call;
    if (allocation != 0) call.mem_free(allocation);
    return stream != nullptr ? call.stream_destroy(stream) : CUDA_SUCCESS;
  });
}

template <typename Enqueue>
Result<void> GpuMemory::Impl::transfer(const char* what, std::size_t offset, std::size_t length,
                                       Enqueue enqueue) const {
  if (offset > bytes || length > bytes - offset) {
    return fail(Status::kInvalidArgument,
                fmt::format("cannot {} {} bytes at {} of {} of GPU memory", what, length, offset, bytes));
  }
  const CUresult result = gpu.run([&] {
    const cuda::Functions& call = gpu.driver().call;
    const CUresult enqueued = enqueue(call, first + offset, stream);
    return enqueued == CUDA_SUCCESS ? call.stream_synchronize(stream) : enqueued;
  });
  if (result == CUDA_SUCCESS) return {};
  return tl::unexpected(gpu.driver().error(
      result, fmt::format("cannot {} {} bytes of GPU {}'s memory", what, length, gpu.ordinal())));
}

GpuMemory::GpuMemory(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GpuMemory::GpuMemory(GpuMemory&&) noexcept = default;
GpuMemory& GpuMemory::operator=(GpuMemory&&) noexcept = default;
GpuMemory::~GpuMemory() = default;

Result<GpuMemory> GpuMemory::allocate(const Gpu& gpu, std::size_t bytes) {
  constexpr std::size_t kLargest = std::numeric_limits<std::size_t>::max() - 2 * kGpuPageBytes;
  if (bytes == 0 || bytes > kLargest) {
    return fail(Status::kInvalidArgument, fmt::format("cannot allocate {} bytes of GPU memory", bytes));
  }
  auto impl = std::make_unique<Impl>(gpu);
  impl->bytes = (bytes + kGpuPageBytes - 1) / kGpuPageBytes * kGpuPageBytes;
  // Allocates more, because cuMemAlloc does not guarantee this alignment.
  const CUresult result = gpu.run([&] {
    const cuda::Functions& call = gpu.driver().call;
    const CUresult created = call.stream_create(&impl->stream, CU_STREAM_NON_BLOCKING);
    return created == CUDA_SUCCESS ? call.mem_alloc(&impl->allocation, impl->bytes + kGpuPageBytes - 1)
                                   : created;
  });
  if (result != CUDA_SUCCESS) {
    return tl::unexpected(gpu.driver().error(
        result, fmt::format("cannot allocate {} bytes of GPU {}'s memory", impl->bytes, gpu.ordinal())));
  }
  impl->first = (impl->allocation + kGpuPageBytes - 1) / kGpuPageBytes * kGpuPageBytes;
  return GpuMemory(std::move(impl));
}

std::byte* GpuMemory::address() const { return reinterpret_cast<std::byte*>(impl_->first); }
std::size_t GpuMemory::bytes() const { return impl_->bytes; }
const Gpu& GpuMemory::gpu() const { return impl_->gpu; }

Result<void> GpuMemory::write(std::size_t offset, std::span<const std::byte> from) {
  return impl_->transfer("write", offset, from.size(),
                         [=](const auto& call, CUdeviceptr at, CUstream stream) {
                           return call.memcpy_htod_async(at, from.data(), from.size(), stream);
                         });
}

Result<void> GpuMemory::read(std::size_t offset, std::span<std::byte> to) const {
  return impl_->transfer("read", offset, to.size(), [=](const auto& call, CUdeviceptr at, CUstream stream) {
    return call.memcpy_dtoh_async(to.data(), at, to.size(), stream);
  });
}

}  // namespace gdx
