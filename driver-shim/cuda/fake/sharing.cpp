// Virtual memory management and stream-ordered memory of the fake driver. Physical allocations are files, so
// that other processes can map them; addresses are ranges that the host may not access. Each call refuses the
// calls that the CUDA Driver API reference, 13.0, forbids.
#include "driver-shim/cuda/fake/sharing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "driver-shim/cuda/fake/state.h"
#include "driver-shim/cuda/sharing.h"

namespace gdx::fake_cuda {
namespace {

std::size_t granularity() { return static_cast<std::size_t>(setting("GDX_FAKE_CUDA_GRANULARITY", 2 << 20)); }

// Facts of an allocation that follow its bytes in its file, so that a process that imports the file knows
// them.
struct Label {
  std::uint64_t magic;
  std::uint64_t bytes;
  CUmemAllocationProp properties;
};
constexpr std::uint64_t kMagic = 0x6664782d766d6d31;

struct Physical {
  Label label;
  std::unique_ptr<DeviceBytes> content;
};

struct Handle {
  std::shared_ptr<Physical> memory;
  int references;
};
struct Mapped {
  std::size_t bytes;
  CUmemGenericAllocationHandle handle;
  std::shared_ptr<Physical> memory;
  std::set<CUdevice> open_to{};
};

struct Sharing {
  std::mutex lock;
  CUmemGenericAllocationHandle next_handle = 0x5000;
  std::map<CUmemGenericAllocationHandle, Handle> handles;
  std::map<CUdeviceptr, std::size_t> reserved;
  std::map<CUdeviceptr, Mapped> mapped;
  std::map<CUdeviceptr, std::size_t> pooled;  // allocations of the device's default pool
};
Sharing& sharing_state() {
  static Sharing instance;
  return instance;
}

// Holds the lock during a call.
struct SharingCall {
  std::lock_guard<std::mutex> guard{sharing_state().lock};
};
bool initialized() {
  int count = 0;
  return cuDeviceGetCount(&count) == CUDA_SUCCESS;
}
bool is_device(int ordinal) {
  CUdevice device = 0;
  return cuDeviceGet(&device, ordinal) == CUDA_SUCCESS;
}
// Queries no attribute, which is refused with another error if a context exists.
CUresult context_refusal() {
  const CUresult result = cuPointerGetAttributes(0, nullptr, nullptr, 0);
  return result == CUDA_ERROR_INVALID_VALUE ? CUDA_SUCCESS : result;
}

// Returns the entry of `ranges` that holds `at`.
template <typename Ranges, typename Bytes>
auto holding(Ranges& ranges, CUdeviceptr at, Bytes bytes_of) {
  auto next = ranges.upper_bound(at);
  if (next == ranges.begin()) return ranges.end();
  --next;
  return at - next->first < bytes_of(next->second) ? next : ranges.end();
}
auto mapping_at(CUdeviceptr at) {
  return holding(sharing_state().mapped, at, [](const Mapped& m) { return m.bytes; });
}
auto pooled_at(CUdeviceptr at) {
  return holding(sharing_state().pooled, at, [](std::size_t bytes) { return bytes; });
}

// All allocations are pinned memory of a device.
bool alike(const CUmemAllocationProp& a, const CUmemAllocationProp& b) {
  return a.requestedHandleTypes == b.requestedHandleTypes && a.location.id == b.location.id;
}

void drop_reference(std::map<CUmemGenericAllocationHandle, Handle>::iterator handle) {
  if (--handle->second.references == 0 && handle->second.memory.use_count() == 1)
    sharing_state().handles.erase(handle);
}

// An address range that exists, and that the host may not touch.
CUdeviceptr reserve_addresses(std::size_t bytes, std::size_t alignment) {
  void* const pages =
      mmap(nullptr, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return 0;
  const auto from = reinterpret_cast<std::uintptr_t>(pages);
  const std::uintptr_t first = (from + alignment - 1) / alignment * alignment;
  if (first != from) munmap(pages, first - from);
  munmap(reinterpret_cast<void*>(first + bytes), from + alignment - first);
  return first;
}

bool describes_memory(const CUmemAllocationProp* properties) {
  return properties != nullptr && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         properties->win32HandleMetaData == nullptr;
}

}  // namespace

bool find_mapped(CUdeviceptr at, CUdeviceptr* base, std::size_t* bytes) {
  const SharingCall call;
  const auto found = mapping_at(at);
  if (found == sharing_state().mapped.end()) return false;
  *base = found->first;
  *bytes = found->second.bytes;
  return true;
}

std::byte* mapped_for_copies(CUdeviceptr at, std::size_t bytes, CUdevice by) {
  const SharingCall call;
  const auto found = mapping_at(at);
  if (found == sharing_state().mapped.end() || !found->second.open_to.contains(by)) return nullptr;
  const std::size_t offset = at - found->first;
  if (bytes > found->second.bytes - offset) return nullptr;
  return found->second.memory->content->seen_by_copies() + offset;
}

std::byte* mapped_for_kernels(CUdeviceptr at) {
  const SharingCall call;
  const auto found = mapping_at(at);
  if (found == sharing_state().mapped.end() || found->second.open_to.empty()) return nullptr;
  return found->second.memory->content->seen_by_kernels() + (at - found->first);
}

bool answer_attribute(CUpointer_attribute which, void* value, CUdeviceptr address, bool allocated) {
  CUdevice device = 0;
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  const bool opened = find_opened(address, &base, &bytes, &device);
  const SharingCall call;
  Sharing& sharing = sharing_state();
  const auto mapping = mapping_at(address);
  const bool virtually = mapping != sharing.mapped.end();
  const auto pool = pooled_at(address);
  const bool pooled = pool != sharing.pooled.end();
  if (virtually) {
    device = mapping->second.memory->label.properties.location.id;
    base = mapping->first;
    bytes = mapping->second.bytes;
  }
  if (pooled) {
    base = pool->first;
    bytes = pool->second;
  }
  switch (static_cast<int>(which)) {
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *static_cast<bool*>(value) = allocated; return true;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      *static_cast<bool*>(value) =
          virtually ? mapping->second.memory->label.properties.allocFlags.gpuDirectRDMACapable != 0
                    : (allocated || pooled || opened) && setting("GDX_FAKE_CUDA_ONLY_VMM_RDMA", 0) == 0;
      return true;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *static_cast<void**>(value) = pooled ? &sharing.pooled : nullptr;
      return true;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      if (!virtually && !pooled && !opened) return false;
      *static_cast<unsigned*>(value) = CU_MEMORYTYPE_DEVICE;
      return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      if (!virtually && !pooled && !opened) return false;
      *static_cast<int*>(value) = device;
      return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      if (!virtually && !pooled && !opened) return false;
      *static_cast<CUdeviceptr*>(value) = base;
      return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      if (!virtually && !pooled && !opened) return false;
      *static_cast<std::size_t*>(value) = bytes;
      return true;
    default: return false;
  }
}

CUresult share_mapped_range(CUdeviceptr address, std::size_t bytes, int* descriptor) {
  const SharingCall call;
  Sharing& sharing = sharing_state();
  if (address % kPageBytes != 0 || bytes % kPageBytes != 0 || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto first = mapping_at(address);
  if (first == sharing.mapped.end()) return CUDA_ERROR_INVALID_VALUE;
  CUdeviceptr end = first->first + first->second.bytes;
  const bool single = bytes <= end - address;
  for (auto next = std::next(first); end - address < bytes; ++next) {
    if (next == sharing.mapped.end() || next->first != end) return CUDA_ERROR_INVALID_VALUE;
    if (!alike(next->second.memory->label.properties, first->second.memory->label.properties))
      return CUDA_ERROR_INVALID_VALUE;
    end += next->second.bytes;
  }
  if (single) {
    *descriptor = first->second.memory->content->share(address - first->first);
  } else {
    *descriptor = memfd_create("dmabuf", MFD_CLOEXEC);
    if (*descriptor >= 0 && ftruncate(*descriptor, static_cast<off_t>(bytes)) != 0)
      return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return *descriptor >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace gdx::fake_cuda

using namespace gdx::fake_cuda;

extern "C" {

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  if (!initialized()) return CUDA_ERROR_NOT_INITIALIZED;
  if (handle == nullptr || !describes_memory(properties) || flags != 0 || bytes == 0 ||
      bytes % granularity() != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!is_device(properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  const SharingCall call;
  Label label{kMagic, bytes, *properties};
  // A wish, which a driver may leave unfulfilled. Source: UCX pull request 10007.
  if (setting("GDX_FAKE_CUDA_VMM", 1) == 0) label.properties.allocFlags.gpuDirectRDMACapable = 0;
  auto content = DeviceBytes::make(bytes);
  if (!content || pwrite(content->file(), &label, sizeof label, static_cast<off_t>(bytes)) != sizeof label)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = sharing_state().next_handle++;
  sharing_state().handles[*handle] = {std::make_shared<Physical>(Physical{label, std::move(content)}), 1};
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags option) {
  if (!initialized()) return CUDA_ERROR_NOT_INITIALIZED;
  if (bytes == nullptr || !describes_memory(properties) || option != CU_MEM_ALLOC_GRANULARITY_MINIMUM)
    return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = granularity();
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const SharingCall call;
  const auto found = sharing_state().handles.find(handle);
  if (found == sharing_state().handles.end() || found->second.references == 0)
    return CUDA_ERROR_INVALID_VALUE;
  drop_reference(found);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
  if (!initialized()) return CUDA_ERROR_NOT_INITIALIZED;
  const bool power = (alignment & (alignment - 1)) == 0;
  if (address == nullptr || bytes == 0 || bytes % granularity() != 0 || !power || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const SharingCall call;
  *address = reserve_addresses(bytes, std::max(alignment, granularity()));
  if (*address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  sharing_state().reserved[*address] = bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  const SharingCall call;
  Sharing& sharing = sharing_state();
  const auto found = sharing.reserved.find(address);
  if (found == sharing.reserved.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = sharing.mapped.lower_bound(address);
  if (mapped != sharing.mapped.end() && mapped->first - address < bytes) return CUDA_ERROR_INVALID_VALUE;
  munmap(reinterpret_cast<void*>(address), bytes);
  sharing.reserved.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  const SharingCall call;
  Sharing& sharing = sharing_state();
  const auto memory = sharing.handles.find(handle);
  if (memory == sharing.handles.end() || memory->second.references == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0 || bytes % granularity() != 0 || offset != 0 || flags != 0 ||
      bytes > memory->second.memory->label.bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto range = holding(sharing.reserved, address, [](std::size_t n) { return n; });
  if (range == sharing.reserved.end() || bytes > range->second - (address - range->first))
    return CUDA_ERROR_INVALID_VALUE;
  const auto next = sharing.mapped.lower_bound(address);
  const bool taken = next != sharing.mapped.end() && next->first - address < bytes;
  if (taken || mapping_at(address) != sharing.mapped.end()) return CUDA_ERROR_INVALID_VALUE;
  sharing.mapped[address] = {bytes, handle, memory->second.memory};
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  const SharingCall call;
  Sharing& sharing = sharing_state();
  const auto found = sharing.mapped.find(address);
  if (found == sharing.mapped.end() || found->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto handle = sharing.handles.find(found->second.handle);
  sharing.mapped.erase(found);
  if (handle != sharing.handles.end() && handle->second.references == 0 &&
      handle->second.memory.use_count() == 1)
    sharing.handles.erase(handle);
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* descriptions,
                        size_t count) {
  if (descriptions == nullptr || count == 0 || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (descriptions[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(descriptions[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
  }
  const SharingCall call;
  std::vector<Mapped*> parts;
  for (CUdeviceptr at = address; at - address < bytes;) {
    const auto found = sharing_state().mapped.find(at);
    if (found == sharing_state().mapped.end()) return CUDA_ERROR_INVALID_VALUE;
    parts.push_back(&found->second);
    at += found->second.bytes;
    if (at - address > bytes) return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < count; ++i) {
    if (descriptions[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) continue;
    for (Mapped* const part : parts) part->open_to.insert(descriptions[i].location.id);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  const SharingCall call;
  const auto found = mapping_at(reinterpret_cast<CUdeviceptr>(address));
  if (handle == nullptr || found == sharing_state().mapped.end()) return CUDA_ERROR_INVALID_VALUE;
  *handle = found->second.handle;
  ++sharing_state().handles[*handle].references;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
  const SharingCall call;
  const auto found = sharing_state().handles.find(handle);
  if (properties == nullptr || found == sharing_state().handles.end()) return CUDA_ERROR_INVALID_VALUE;
  *properties = found->second.memory->label.properties;
  return CUDA_SUCCESS;
}

// Leaves the descriptor open on exec, because the reference does not state otherwise. Its position is the
// file's end, so that an HCA finds no dmabuf there, and an import no dmabuf's.
CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  const SharingCall call;
  const auto found = sharing_state().handles.find(handle);
  if (shareable == nullptr || found == sharing_state().handles.end() || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const Physical& memory = *found->second.memory;
  const bool asked_for = (memory.label.properties.requestedHandleTypes & type) != 0;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !asked_for) return CUDA_ERROR_INVALID_VALUE;
  const std::string path = "/proc/self/fd/" + std::to_string(memory.content->file());
  const int descriptor = open(path.c_str(), O_RDWR);
  if (descriptor < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  lseek(descriptor, 0, SEEK_END);
  *static_cast<int*>(shareable) = descriptor;
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  if (!initialized()) return CUDA_ERROR_NOT_INITIALIZED;
  const SharingCall call;
  if (handle == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const int file = static_cast<int>(reinterpret_cast<std::uintptr_t>(shareable));
  struct stat found {};
  Label label{};
  if (fstat(file, &found) != 0 || found.st_size < static_cast<off_t>(sizeof label) ||
      lseek(file, 0, SEEK_CUR) != found.st_size ||
      pread(file, &label, sizeof label, found.st_size - static_cast<off_t>(sizeof label)) != sizeof label ||
      label.magic != kMagic || label.bytes + sizeof label != static_cast<std::uint64_t>(found.st_size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto content = DeviceBytes::adopt(fcntl(file, F_DUPFD_CLOEXEC, 0), label.bytes);
  if (!content) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = sharing_state().next_handle++;
  sharing_state().handles[*handle] = {std::make_shared<Physical>(Physical{label, std::move(content)}), 1};
  return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream) {
  if (const CUresult refusal = context_refusal(); refusal != CUDA_SUCCESS) return refusal;
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const SharingCall call;
  const std::size_t whole = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  *address = reserve_addresses(whole, kPageBytes);
  if (*address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  sharing_state().pooled[*address] = whole;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream) {
  if (const CUresult refusal = context_refusal(); refusal != CUDA_SUCCESS) return refusal;
  const SharingCall call;
  const auto found = sharing_state().pooled.find(address);
  if (found == sharing_state().pooled.end()) return CUDA_ERROR_INVALID_VALUE;
  munmap(reinterpret_cast<void*>(address), found->second);
  sharing_state().pooled.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to) {
  if (!is_device(from) || !is_device(to)) return CUDA_ERROR_INVALID_DEVICE;
  if (value == nullptr || from == to || attribute != CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)
    return CUDA_ERROR_INVALID_VALUE;
  *value = setting("GDX_FAKE_CUDA_PEER_ATOMICS", 1);
  return CUDA_SUCCESS;
}

// Not CUDA's: how many address ranges are reserved, which shows leaks.
size_t gdx_fake_cuda_reserved_ranges() {
  const SharingCall call;
  return sharing_state().reserved.size();
}

}  // extern "C"
