#include "driver-shim/softhca/uverbs/gpu_copies.h"

#include <array>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "driver-shim/cuda/driver.h"

namespace gdx::softhca::uverbs {
namespace {

// The primary context of one GPU, which the program's runtime uses too, for one call at a time.
class Context {
 public:
  Context(const cuda::Driver& driver, int gpu) : driver_(driver), gpu_(gpu) {
    result_ = driver.call.primary_ctx_retain(&handle_, gpu);
  }
  ~Context() {
    if (result_ == CUDA_SUCCESS) driver_.call.primary_ctx_release(gpu_);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  template <typename Call>
  CUresult run(Call call) const {
    if (result_ != CUDA_SUCCESS) return result_;
    if (const CUresult pushed = driver_.call.ctx_push_current(handle_); pushed != CUDA_SUCCESS) return pushed;
    const CUresult result = call(driver_.call);
    driver_.call.ctx_pop_current(nullptr);
    return result;
  }

 private:
  const cuda::Driver& driver_;
  int gpu_;
  CUcontext handle_ = nullptr;
  CUresult result_;
};

// Below OWNER a GPU may show a running kernel the HCA's writes out of order, a completion before its data.
// Source: GPUDirect RDMA guide, "Synchronization and Memory Ordering".
bool orders_writes(const cuda::Driver& driver, int gpu) {
  int ordering = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE;
  return driver.call.device_get_attribute(&ordering, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
                                          gpu) == CUDA_SUCCESS &&
         ordering >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
}

class GpuCopyEngine final : public CopyEngine {
 public:
  GpuCopyEngine(const cuda::Driver& driver, int gpu, bool strict)
      : driver_(driver), gpu_(gpu), context_(driver, gpu), ordered_(!strict || orders_writes(driver, gpu)) {
    result_ = context_.run(
        [this](const auto& call) { return call.stream_create(&stream_, CU_STREAM_NON_BLOCKING); });
  }
  ~GpuCopyEngine() override {
    if (stream_ != nullptr) context_.run([this](const auto& call) { return call.stream_destroy(stream_); });
  }
  [[nodiscard]] bool usable() const { return result_ == CUDA_SUCCESS; }

  [[nodiscard]] bool ordered() const override { return ordered_; }
  bool write(std::byte* to, const std::byte* from, std::size_t length_bytes) override {
    return done("write", context_.run([=, this](const auto& call) {
      return call.memcpy_htod_async(reinterpret_cast<std::uintptr_t>(to), from, length_bytes, stream_);
    }));
  }
  bool read(std::byte* to, const std::byte* from, std::size_t length_bytes) override {
    return done("read", context_.run([=, this](const auto& call) {
      const CUresult begun =
          call.memcpy_dtoh_async(to, reinterpret_cast<std::uintptr_t>(from), length_bytes, stream_);
      return begun == CUDA_SUCCESS ? call.stream_synchronize(stream_) : begun;
    }));
  }
  void synchronize() override {
    static_cast<void>(done(
        "wait for", context_.run([this](const auto& call) { return call.stream_synchronize(stream_); })));
  }

 private:
  bool done(const char* what, CUresult result) {
    if (result == CUDA_SUCCESS) return true;
    if (!std::exchange(reported_, true)) {
      log::warn("the software HCA cannot {} memory of GPU {}: {}; free it only when nothing uses it", what,
                gpu_, driver_.describe(result));
    }
    return false;
  }

  const cuda::Driver& driver_;
  int gpu_;
  Context context_;
  CUstream stream_ = nullptr;
  bool ordered_;
  CUresult result_;
  bool reported_ = false;
};

struct Allocation {
  unsigned type = 0;
  unsigned managed = 0;
  int gpu = 0;
  CUdeviceptr first = 0;
  std::size_t length_bytes = 0;
};

CUresult find_allocation(const cuda::Driver& driver, std::uint64_t address, Allocation& out) {
  std::array<CUpointer_attribute, 5> attributes{
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  std::array<void*, 5> values{&out.type, &out.managed, &out.gpu, &out.first, &out.length_bytes};
  const auto ask = [&](const cuda::Functions& call) {
    return call.pointer_get_attributes(static_cast<unsigned>(attributes.size()), attributes.data(),
                                       values.data(), address);
  };
  const CUresult result = ask(driver.call);
  // Any context does, since all of a process share its addresses.
  return result == CUDA_ERROR_INVALID_CONTEXT ? Context(driver, 0).run(ask) : result;
}

// Returns whether the kernel module would pin the memory for an HCA. Drivers before the attribute pin all.
bool serves_hcas(const cuda::Driver& driver, const Allocation& allocation) {
  unsigned capable = 0;
  CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE;
  void* value = &capable;
  const CUresult result = Context(driver, allocation.gpu).run([&](const cuda::Functions& call) {
    return call.pointer_get_attributes(1, &asked, &value, allocation.first);
  });
  return result != CUDA_SUCCESS || capable != 0;
}

}  // namespace

ForeignRange::ForeignRange(Hca& hca, std::uint64_t address, std::uint64_t length_bytes,
                           std::shared_ptr<CopyEngine> copies)
    : hca_(hca), first_(reinterpret_cast<const std::byte*>(address)), length_bytes_(length_bytes) {
  hca_.add_foreign(first_, length_bytes_, std::move(copies));
}

ForeignRange::~ForeignRange() { hca_.remove_foreign(first_, length_bytes_); }

ErrnoOr<std::unique_ptr<ForeignRange>> GpuCopies::claim(std::uint64_t address, std::uint64_t length_bytes) {
  const cuda::Driver* const driver = cuda::loaded_driver();
  Allocation found;
  const bool known = driver != nullptr && find_allocation(*driver, address, found) == CUDA_SUCCESS;
  // Managed memory is this process's as well, wherever it is just now.
  if (!known || found.type != CU_MEMORYTYPE_DEVICE || found.managed != 0) return nullptr;
  const std::uint64_t offset = address - found.first;
  if (offset > found.length_bytes || length_bytes > found.length_bytes - offset) return refuse(EFAULT);
  if (!serves_hcas(*driver, found)) return refuse(EFAULT);
  std::shared_ptr<CopyEngine> copies = engines_[found.gpu].lock();
  if (!copies) {
    auto made = std::make_shared<GpuCopyEngine>(*driver, found.gpu, hca_.config().strict);
    if (!made->usable()) return refuse(ENODEV);
    copies = std::move(made);
    engines_[found.gpu] = copies;
  }
  return std::make_unique<ForeignRange>(hca_, address, length_bytes, std::move(copies));
}

}  // namespace gdx::softhca::uverbs
