#include "host/direct/gpu_sharing.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <utility>

#include "driver-shim/cuda/sharing.h"
#include "host/gpu/gpu_range.h"
#include "host/memory/gpu_registration.h"

namespace gdx {
namespace {

using cuda::SharingFunctions;

constexpr auto kFile = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr char kPoolAdvice[] =
    "memory of a stream-ordered pool is not shared: use cudaMalloc, or cuMemCreate with "
    "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR";
constexpr char kNoFileAdvice[] =
    "this memory was made by cuMemCreate without CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: ask for it";

tl::unexpected<Error> impossible(const char* what) {
  return fail(Status::kInvalidArgument, fmt::format("it offers GPU memory that cannot be: {}", what));
}

// Returns one attribute of a pointer; `otherwise` if this driver lacks the attribute.
template <typename T>
T attribute(const Gpu& gpu, CUdeviceptr address, CUpointer_attribute which, T otherwise) {
  T value{};
  void* values[] = {&value};
  const CUresult result =
      gpu.run([&] { return gpu.driver().call.pointer_get_attributes(1, &which, values, address); });
  return result == CUDA_SUCCESS ? value : otherwise;
}

Result<Descriptor> export_allocation(const Gpu& gpu, const SharingFunctions& call,
                                     CUmemGenericAllocationHandle handle) {
  CUmemAllocationProp properties{};
  CUresult result = call.mem_get_allocation_properties_from_handle(&properties, handle);
  if (result == CUDA_SUCCESS && (properties.requestedHandleTypes & kFile) == 0)
    return fail(Status::kUnsupported, kNoFileAdvice);
  int file = -1;
  if (result == CUDA_SUCCESS) result = call.mem_export_to_shareable_handle(&file, handle, kFile, 0);
  if (result != CUDA_SUCCESS)
    return tl::unexpected(gpu.driver().error(result, "the driver does not share this memory"));
  Descriptor exported(file);
  fcntl(file, F_SETFD, FD_CLOEXEC);
  return exported;
}

// The range may be backed by several allocations, one after another.
Result<std::vector<Descriptor>> offer_parts(const Gpu& gpu, const SharingFunctions& call, CUdeviceptr address,
                                            std::size_t bytes, peer::Offer& offer) {
  std::vector<Descriptor> files;
  for (CUdeviceptr at = address; at - address < bytes;) {
    if (files.size() == peer::kMaxParts) {
      return fail(
          Status::kUnsupported,
          fmt::format("the region spans more than {} allocations: share it in pieces", peer::kMaxParts));
    }
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = call.mem_retain_allocation_handle(&handle, reinterpret_cast<void*>(at));
    if (result != CUDA_SUCCESS)
      return tl::unexpected(gpu.driver().error(result, fmt::format("nothing is mapped at {:#x}", at)));
    const GpuAllocation allocation(call, handle);  // another thread may unmap it meanwhile
    CUdeviceptr base = 0;
    std::size_t size = 0;
    result = gpu.run([&] { return call.mem_get_address_range(&base, &size, at); });
    if (result != CUDA_SUCCESS)
      return tl::unexpected(
          gpu.driver().error(result, fmt::format("the driver does not know what is at {:#x}", at)));
    if (base > at || at - base >= size)
      return fail(Status::kSystem, "the driver knows an allocation elsewhere");
    auto file = GDX_TRY(export_allocation(gpu, call, handle));
    if (files.empty()) offer.offset = at - base;
    offer.part_bytes[files.size()] = size;
    files.push_back(std::move(file));
    at = base + size;
  }
  offer.kind = peer::OfferKind::kGpuParts;
  offer.part_count = static_cast<std::uint32_t>(files.size());
  return files;
}

Result<std::vector<Descriptor>> offer_ipc(const Gpu& gpu, const SharingFunctions& call, CUdeviceptr address,
                                          peer::Offer& offer) {
  CUdeviceptr base = 0;
  std::size_t size = 0;
  CUipcMemHandle handle{};
  const CUresult result = gpu.run([&] {
    const CUresult found = call.mem_get_address_range(&base, &size, address);
    return found == CUDA_SUCCESS ? call.ipc_get_mem_handle(&handle, base) : found;
  });
  if (result != CUDA_SUCCESS)
    return tl::unexpected(gpu.driver().error(result, "the driver gives no CUDA IPC handle of this memory"));
  static_assert(sizeof handle == sizeof offer.ipc_handle);
  std::memcpy(offer.ipc_handle, &handle, sizeof handle);
  offer.offset = address - base;
  offer.kind = peer::OfferKind::kGpuIpc;
  return std::vector<Descriptor>{};
}

// Checks that GPUs can do atomics on each other's memory, because kernels of both may add to one signal.
Result<void> check_atomics(const Gpu& gpu, const SharingFunctions& call, CUdevice owner) {
  if (owner == gpu.ordinal()) return {};
  int atomics = 0;
  const CUresult result = call.device_get_p2p_attribute(
      &atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, gpu.ordinal(), owner);
  if (result == CUDA_SUCCESS && atomics != 0) return {};
  return fail(Status::kUnsupported,
              fmt::format("GPUs {} and {} have no atomics between them", gpu.ordinal(), owner));
}

// Maps a peer's allocation behind those that are mapped already.
Result<void> add_file(const Gpu& gpu, const SharingFunctions& call, int file, std::size_t bytes,
                      GpuRange& range) {
  CUmemGenericAllocationHandle handle = 0;
  void* const os_handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(file));
  CUresult result = gpu.run([&] { return call.mem_import_from_shareable_handle(&handle, os_handle, kFile); });
  if (result != CUDA_SUCCESS)
    return tl::unexpected(gpu.driver().error(result, "the driver does not take its memory"));
  const GpuAllocation allocation(call, handle);  // a mapping keeps it as well
  CUmemAllocationProp properties{};
  result = call.mem_get_allocation_properties_from_handle(&properties, handle);
  if (result == CUDA_SUCCESS) {
    if (auto checked = check_atomics(gpu, call, properties.location.id); !checked) return checked;
    result = range.add(allocation, bytes);
  }
  if (result == CUDA_SUCCESS) return {};
  return tl::unexpected(gpu.driver().error(result, fmt::format("cannot map {} bytes of its memory", bytes)));
}

Result<MappedGpuMemory> map_parts(const Gpu& gpu, const SharingFunctions& call, const peer::Offer& offer,
                                  std::span<const Descriptor> files) {
  if (files.empty() || files.size() > peer::kMaxParts) return impossible("a number of parts");
  std::size_t total = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (offer.part_bytes[i] == 0 || total + offer.part_bytes[i] < total) return impossible("a part's length");
    total += offer.part_bytes[i];
  }
  if (offer.offset > total || offer.region.bytes > total - offer.offset)
    return impossible("a region longer than its parts");
  const auto range = std::make_shared<GpuRange>(gpu, call);
  if (const CUresult result = range->reserve(total); result != CUDA_SUCCESS)
    return tl::unexpected(gpu.driver().error(result, fmt::format("no addresses for {} bytes of it", total)));
  for (std::size_t i = 0; i < files.size(); ++i) {
    GDX_TRY(add_file(gpu, call, files[i].value(), offer.part_bytes[i], *range));
  }
  if (const CUresult result = range->open_to_kernels(); result != CUDA_SUCCESS) {
    return tl::unexpected(
        gpu.driver().error(result, fmt::format("GPU {} does not reach its memory", gpu.ordinal())));
  }
  return MappedGpuMemory{reinterpret_cast<std::byte*>(range->first() + offer.offset), range};
}

Result<MappedGpuMemory> map_ipc(const Gpu& gpu, const SharingFunctions& call, const peer::Offer& offer,
                                std::span<const Descriptor> files) {
  if (!files.empty()) return impossible("CUDA IPC with files");
  CUipcMemHandle handle{};
  std::memcpy(&handle, offer.ipc_handle, sizeof handle);
  CUdeviceptr base = 0;
  CUresult result =
      gpu.run([&] { return call.ipc_open_mem_handle(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS); });
  if (result != CUDA_SUCCESS)
    return tl::unexpected(gpu.driver().error(result, "the driver does not open its CUDA IPC handle"));
  MappedGpuMemory mapped;
  mapped.pages = std::shared_ptr<void>(reinterpret_cast<void*>(base), [gpu, &call](void* opened) {
    gpu.run([&] { return call.ipc_close_mem_handle(reinterpret_cast<CUdeviceptr>(opened)); });
  });
  // The range may begin before the allocation, because small ones share the driver's pages.
  CUdeviceptr range = 0;
  std::size_t range_bytes = 0;
  result = gpu.run([&] { return call.mem_get_address_range(&range, &range_bytes, base); });
  if (result != CUDA_SUCCESS)
    return tl::unexpected(gpu.driver().error(result, "the driver does not tell how long its memory is"));
  const std::size_t size = range_bytes - (base - range);
  if (offer.offset > size || offer.region.bytes > size - offer.offset)
    return impossible("a region longer than its allocation");
  const auto owner = attribute<int>(gpu, base, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, -1);
  GDX_TRY(check_atomics(gpu, call, owner));
  mapped.first = reinterpret_cast<std::byte*>(base + offer.offset);
  return mapped;
}

}  // namespace

Result<std::vector<Descriptor>> offer_gpu_memory(const void* address, std::size_t bytes, peer::Offer& offer) {
  const auto call = GDX_TRY(cuda::sharing());
  const auto driver = GDX_TRY(cuda::driver());
  const auto pointer = GDX_TRY(describe_pointer(*driver, address));
  const auto gpu = GDX_TRY(Gpu::open(pointer.gpu));
  const auto at = reinterpret_cast<CUdeviceptr>(address);
  if (attribute<void*>(gpu, at, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, nullptr) != nullptr)
    return fail(Status::kUnsupported, kPoolAdvice);
  if (attribute<int>(gpu, at, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, 0) != 0)
    return offer_ipc(gpu, *call, at, offer);
  return offer_parts(gpu, *call, at, bytes, offer);
}

Result<MappedGpuMemory> map_gpu_memory(const Gpu& gpu, const peer::Offer& offer,
                                       std::span<const Descriptor> files) {
  const auto call = GDX_TRY(cuda::sharing());
  return offer.kind == peer::OfferKind::kGpuParts ? map_parts(gpu, *call, offer, files)
                                                  : map_ipc(gpu, *call, offer, files);
}

}  // namespace gdx
