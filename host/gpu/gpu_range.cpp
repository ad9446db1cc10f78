#include "host/gpu/gpu_range.h"

#include <utility>

namespace gdx {

GpuRange::GpuRange(Gpu gpu, const cuda::SharingFunctions& call) : gpu_(std::move(gpu)), call_(call) {}

GpuRange::~GpuRange() {
  gpu_.run([&] {
    for (CUdeviceptr at = first_; const std::size_t bytes : parts_) {
      call_.mem_unmap(at, bytes);
      at += bytes;
    }
    return first_ != 0 ? call_.mem_address_free(first_, reserved_bytes_) : CUDA_SUCCESS;
  });
}

CUresult GpuRange::reserve(std::size_t bytes, std::size_t alignment) {
  reserved_bytes_ = bytes;
  return gpu_.run([&] { return call_.mem_address_reserve(&first_, bytes, alignment, 0, 0); });
}

CUresult GpuRange::add(const GpuAllocation& allocation, std::size_t bytes) {
  const CUresult result =
      gpu_.run([&] { return call_.mem_map(first_ + mapped_bytes_, bytes, 0, allocation.handle(), 0); });
  if (result != CUDA_SUCCESS) return result;
  parts_.push_back(bytes);
  mapped_bytes_ += bytes;
  return CUDA_SUCCESS;
}

CUresult GpuRange::open_to_kernels() {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = gpu_.ordinal();
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return gpu_.run([&] { return call_.mem_set_access(first_, mapped_bytes_, &access, 1); });
}

}  // namespace gdx
