#include "host/gpu/gpu_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "host/gpu/gpu_range.h"

namespace gdx {
namespace {

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

// An allocation of the driver, handed out in pieces from its start. A piece that ends is not used again, so
// nothing need wait for kernels that still use it.
class GpuMemory::Block {
 public:
  // Allocates `bytes` or more, a multiple of kGpuPageBytes. Errors: those of GpuMemory::allocate.
  static Result<std::shared_ptr<Block>> make(const Gpu& gpu, std::size_t bytes, GpuUse use);
  explicit Block(const Gpu& gpu) : gpu_(gpu) {}
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Returns the address of the next piece; 0: no room. Threads: one at a time.
  CUdeviceptr take(std::size_t bytes);

 private:
  CUresult allocate(std::size_t bytes);
  CUresult create(const cuda::SharingFunctions& call, std::size_t bytes, GpuUse use);

  Gpu gpu_;
  CUdeviceptr allocation_ = 0;     // allocation of cuMemAlloc; 0: range_ has the memory
  std::optional<GpuRange> range_;  // of cuMemCreate's
  CUdeviceptr next_ = 0;
  CUdeviceptr end_ = 0;
};

// cuMemUnmap waits for no kernel, unlike cuMemFree. Source: PyTorch c10/cuda/CUDACachingAllocator.cpp,
// ExpandableSegment::unmapHandles.
GpuMemory::Block::~Block() {
  gpu_.run([this] {
    const cuda::Functions& call = gpu_.driver().call;
    if (range_) return call.ctx_synchronize();
    return allocation_ != 0 ? call.mem_free(allocation_) : CUDA_SUCCESS;
  });
}

// Allocates more, because cuMemAlloc does not guarantee the alignment.
CUresult GpuMemory::Block::allocate(std::size_t bytes) {
  const CUresult result =
      gpu_.run([&] { return gpu_.driver().call.mem_alloc(&allocation_, bytes + kGpuPageBytes - 1); });
  next_ = round_up(allocation_, kGpuPageBytes);
  end_ = next_ + bytes;
  return result;
}

// Sources: NCCL src/include/alloc.h, ncclCuMemAlloc; torchcomms pull request 1354.
CUresult GpuMemory::Block::create(const cuda::SharingFunctions& call, std::size_t bytes, GpuUse use) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = gpu_.ordinal();
  properties.allocFlags.gpuDirectRDMACapable = 1;
  if (use == GpuUse::kShared) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  std::size_t unit = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = gpu_.run([&] {
    return call.mem_get_allocation_granularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  });
  if (result != CUDA_SUCCESS) return result;
  const std::size_t whole = round_up(bytes, unit);
  result = gpu_.run([&] { return call.mem_create(&handle, whole, &properties, 0); });
  if (result != CUDA_SUCCESS) return result;
  const GpuAllocation allocation(call, handle);  // the mapping keeps it
  range_.emplace(gpu_, call);
  result = range_->reserve(whole, std::max(unit, kGpuPageBytes));
  if (result == CUDA_SUCCESS) result = range_->add(allocation, whole);
  if (result == CUDA_SUCCESS) result = range_->open_to_kernels();
  next_ = range_->first();
  end_ = next_ + whole;
  return result;
}

Result<std::shared_ptr<GpuMemory::Block>> GpuMemory::Block::make(const Gpu& gpu, std::size_t bytes,
                                                                 GpuUse use) {
  auto block = std::make_shared<Block>(gpu);
  const CUresult result =
      gpu.creates_rdma_memory() ? block->create(**cuda::sharing(), bytes, use) : block->allocate(bytes);
  if (result == CUDA_SUCCESS) return block;
  return tl::unexpected(gpu.driver().error(
      result, fmt::format("cannot allocate {} bytes of GPU {}'s memory", bytes, gpu.ordinal())));
}

CUdeviceptr GpuMemory::Block::take(std::size_t bytes) {
  if (bytes > end_ - next_) return 0;
  return std::exchange(next_, next_ + bytes);
}

struct GpuMemory::Impl {
  explicit Impl(const Gpu& of) : gpu(of) {}
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Takes a piece of `bytes`. Errors: those of Block::make.
  Result<void> take(GpuUse use);
  // Runs `enqueue(call, address, stream)` on [offset, offset + length), and waits until it is done.
  template <typename Enqueue>
  Result<void> transfer(const char* what, std::size_t offset, std::size_t length, Enqueue enqueue) const;

  Gpu gpu;
  std::shared_ptr<Block> block;
  CUstream stream = nullptr;
  CUdeviceptr first = 0;
  std::size_t bytes = 0;
};

GpuMemory::Impl::~Impl() {
  if (stream != nullptr) gpu.run([this] { return gpu.driver().call.stream_destroy(stream); });
}

Result<void> GpuMemory::Impl::take(GpuUse use) {
  static auto& lock = *new std::mutex;
  static auto& newest = *new std::map<int, std::weak_ptr<Block>>;  // by the GPU's ordinal, with room or not
  std::shared_ptr<Block> known;  // let go of behind the lock, because the end of a block waits for kernels
  const std::lock_guard guard(lock);
  if (use == GpuUse::kPrivate) {
    known = newest[gpu.ordinal()].lock();
    if (known != nullptr && (first = known->take(bytes)) != 0) {
      block = known;
      return {};
    }
  }
  block = GDX_TRY(Block::make(gpu, bytes, use));
  first = block->take(bytes);
  if (use == GpuUse::kPrivate) newest[gpu.ordinal()] = block;
  return {};
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

Result<GpuMemory> GpuMemory::allocate(const Gpu& gpu, std::size_t bytes, GpuUse use) {
  constexpr std::size_t kLargest = std::numeric_limits<std::size_t>::max() / 2;
  if (bytes == 0 || bytes > kLargest) {
    return fail(Status::kInvalidArgument, fmt::format("cannot allocate {} bytes of GPU memory", bytes));
  }
  auto impl = std::make_unique<Impl>(gpu);
  impl->bytes = round_up(bytes, kGpuPageBytes);
  GDX_TRY(impl->take(use));
  const CUresult result =
      gpu.run([&] { return gpu.driver().call.stream_create(&impl->stream, CU_STREAM_NON_BLOCKING); });
  if (result == CUDA_SUCCESS) return GpuMemory(std::move(impl));
  return tl::unexpected(
      gpu.driver().error(result, fmt::format("GPU {} gives no stream for copies", gpu.ordinal())));
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
