// The fake driver's exported functions. Each refuses the calls that the CUDA Driver API reference, 13.0,
// forbids.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "driver-shim/cuda/fake/sharing.h"
#include "driver-shim/cuda/fake/state.h"

namespace gdx::fake_cuda {

#if defined(GDX_FAKE_CUDA_OLD)
constexpr int kDefaultVersion = 11040;
#else
constexpr int kDefaultVersion = 13000;
#endif

int setting(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : otherwise;
}

State& state() {
  static State instance;
  return instance;
}

namespace {

// The context of device N is kContexts + N, whatever it points to.
CUctx_st* const kContexts = reinterpret_cast<CUctx_st*>(0x1000);
thread_local std::vector<std::uintptr_t> current_contexts;

std::uintptr_t context_number(CUcontext context) {
  return reinterpret_cast<std::uintptr_t>(context) - reinterpret_cast<std::uintptr_t>(kContexts);
}

struct ResultText {
  CUresult result;
  const char* name;
  const char* text;
};
constexpr ResultText kTexts[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_STUB_LIBRARY, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

// The registration that holds [at, at + bytes), or overlaps it.
std::map<std::uintptr_t, HostRegistration>::iterator overlapping(std::uintptr_t at, std::size_t bytes) {
  auto& all = state().registrations;
  for (auto it = all.begin(); it != all.end(); ++it) {
    if (it->first < at + bytes && at < it->first + it->second.bytes) return it;
  }
  return all.end();
}

#if !defined(GDX_FAKE_CUDA_OLD)
// On Grace the IOMMU shows an HCA only memory that was made for it. Source: torchcomms pull request 1354.
bool may_be_shared(CUdeviceptr address) {
  bool made_for_it = false;
  const auto answered = answer_attribute(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, &made_for_it,
                                         address, device_memory_at(address) != nullptr);
  return setting("GDX_FAKE_CUDA_ONLY_VMM_RDMA", 0) == 0 || (answered && made_for_it);
}

// Returns a dmabuf of another kind in place of `descriptor`, for the one verb that takes it; -1 without one.
int of_pcie_pages(int descriptor) {
  struct stat file {};
  int other = memfd_create("dmabuf across PCIe", MFD_CLOEXEC);
  if (fstat(descriptor, &file) != 0 || ftruncate(other, file.st_size) != 0) {
    close(other);
    other = -1;
  }
  close(descriptor);
  return other;
}
#endif

}  // namespace

const DeviceMemory* device_memory_at(std::uintptr_t at) {
  for (const auto& [address, memory] : state().allocations) {
    if (memory->holds(at)) return memory.get();
  }
  return nullptr;
}

bool is_pinned(std::uintptr_t at, std::size_t bytes) {
  const auto found = overlapping(at, bytes);
  return found != state().registrations.end() && at >= found->first &&
         at + bytes <= found->first + found->second.bytes;
}

CUdevice current_device() { return static_cast<CUdevice>(current_contexts.back()); }

CUresult Call::refusal() const { return state().initialized ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }
CUresult Call::refusal_in_context() const {
  if (!state().initialized) return CUDA_ERROR_NOT_INITIALIZED;
  if (current_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  return state().retained[current_contexts.back()] > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult Call::refusal_of_device(CUdevice device) const {
  if (!state().initialized) return CUDA_ERROR_NOT_INITIALIZED;
  return device >= 0 && device < state().devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace gdx::fake_cuda

using namespace gdx::fake_cuda;

extern "C" {

CUresult cuInit(unsigned int flags) {
  const Call call;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const int forced = setting("GDX_FAKE_CUDA_INIT", 0); forced != 0) return static_cast<CUresult>(forced);
  const int devices = setting("GDX_FAKE_CUDA_DEVICES", 1);
  if (devices <= 0) return CUDA_ERROR_NO_DEVICE;
  state().devices = devices;
  state().retained.resize(static_cast<std::size_t>(devices));
  state().initialized = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = setting("GDX_FAKE_CUDA_VERSION", kDefaultVersion);
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  for (const ResultText& known : kTexts) {
    if (known.result != error) continue;
    *name = known.name;
    return CUDA_SUCCESS;
  }
  *name = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  for (const ResultText& known : kTexts) {
    if (known.result != error) continue;
    *text = known.text;
    return CUDA_SUCCESS;
  }
  *text = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int* count) {
  const Call call;
  if (const CUresult refusal = call.refusal(); refusal != CUDA_SUCCESS) return refusal;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = state().devices;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  const Call call;
  if (const CUresult refusal = call.refusal_of_device(ordinal); refusal != CUDA_SUCCESS) return refusal;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  const Call call;
  if (const CUresult refusal = call.refusal_of_device(device); refusal != CUDA_SUCCESS) return refusal;
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(name, static_cast<std::size_t>(length), "Fake GPU");
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* bus_id, int length, CUdevice device) {
  const Call call;
  if (const CUresult refusal = call.refusal_of_device(device); refusal != CUDA_SUCCESS) return refusal;
  constexpr int kBusIdBytes = 13;
  if (bus_id == nullptr || length < kBusIdBytes) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(bus_id, static_cast<std::size_t>(length), "0000:%02X:00.0", 0xf0 + device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  const Call call;
  if (const CUresult refusal = call.refusal_of_device(device); refusal != CUDA_SUCCESS) return refusal;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (static_cast<int>(attribute)) {
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = 1'000'000; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = setting("GDX_FAKE_CUDA_MAJOR", 9);
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED:
      *value = setting("GDX_FAKE_CUDA_HOST_ATOMICS", 0);
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: *value = 1; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
      *value = setting("GDX_FAKE_CUDA_VMM", 1);
      return CUDA_SUCCESS;
#if !defined(GDX_FAKE_CUDA_OLD)
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
      *value = setting("GDX_FAKE_CUDA_DMABUF", 1) != 0 ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
      *value = setting("GDX_FAKE_CUDA_WRITES_ORDERING", CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
      return CUDA_SUCCESS;
#endif
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  const Call call;
  if (const CUresult refusal = call.refusal_of_device(device); refusal != CUDA_SUCCESS) return refusal;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ++state().retained[static_cast<std::size_t>(device)];
  *context = reinterpret_cast<CUcontext>(reinterpret_cast<std::uintptr_t>(kContexts) +
                                         static_cast<std::uintptr_t>(device));
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  const Call call;
  if (const CUresult refusal = call.refusal_of_device(device); refusal != CUDA_SUCCESS) return refusal;
  int& retained = state().retained[static_cast<std::size_t>(device)];
  if (retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  // The last one out takes with it all that was allocated and registered in the context.
  if (--retained == 0) {
    finish_streams(device);
    std::erase_if(state().streams, [device](const auto& entry) { return entry.second.device == device; });
    std::erase_if(state().allocations,
                  [device](const auto& entry) { return entry.second->device() == device; });
    std::erase_if(state().registrations,
                  [device](const auto& entry) { return entry.second.device == device; });
  }
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  const Call call;
  if (const CUresult refusal = call.refusal(); refusal != CUDA_SUCCESS) return refusal;
  const std::uintptr_t number = context_number(context);
  if (number >= state().retained.size() || state().retained[number] == 0) return CUDA_ERROR_INVALID_CONTEXT;
  current_contexts.push_back(number);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  const Call call;
  if (const CUresult refusal = call.refusal(); refusal != CUDA_SUCCESS) return refusal;
  if (current_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) {
    *context =
        reinterpret_cast<CUcontext>(reinterpret_cast<std::uintptr_t>(kContexts) + current_contexts.back());
  }
  current_contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  const Call call;
  if (const CUresult refusal = call.refusal_in_context(); refusal != CUDA_SUCCESS) return refusal;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = current_device();
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  const Call call;
  if (const CUresult refusal = call.refusal_in_context(); refusal != CUDA_SUCCESS) return refusal;
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  auto memory = DeviceMemory::allocate(current_device(), bytes);
  if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = memory->address();
  state().allocations.emplace(memory->address(), std::move(memory));
  return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  const Call call;
  if (const CUresult refusal = call.refusal_in_context(); refusal != CUDA_SUCCESS) return refusal;
  finish_streams(current_device());
  return state().allocations.erase(address) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostRegister_v2(void* address, size_t bytes, unsigned int flags) {
  const Call call;
  if (const CUresult refusal = call.refusal_in_context(); refusal != CUDA_SUCCESS) return refusal;
  constexpr unsigned kKnownFlags =
      CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY;
  if (address == nullptr || bytes == 0 || (flags & ~kKnownFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  if (overlapping(first, bytes) != state().registrations.end())
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  const bool as_io = (flags & CU_MEMHOSTREGISTER_IOMEMORY) != 0;
  const HostPages wanted = as_io ? HostPages::kIo : HostPages::kOrdinary;
  if (host_pages(first, bytes) != wanted) return CUDA_ERROR_INVALID_VALUE;
  const bool permitted = setting("GDX_FAKE_CUDA_PEER_MAPPING", 1) != 0;
  if (!permitted && (as_io || of_software_hca(first))) return CUDA_ERROR_NOT_PERMITTED;
  state().registrations[first] = {current_device(), bytes, flags};
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* address) {
  const Call call;
  if (const CUresult refusal = call.refusal_in_context(); refusal != CUDA_SUCCESS) return refusal;
  const bool was = state().registrations.erase(reinterpret_cast<std::uintptr_t>(address)) == 1;
  return was ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device_address, void* address, unsigned int flags) {
  const Call call;
  if (const CUresult refusal = call.refusal_in_context(); refusal != CUDA_SUCCESS) return refusal;
  if (device_address == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const auto found = overlapping(at, 1);
  if (found == state().registrations.end()) return CUDA_ERROR_INVALID_VALUE;
  if ((found->second.flags & CU_MEMHOSTREGISTER_DEVICEMAP) == 0) return CUDA_ERROR_INVALID_VALUE;
  const bool is_portable = (found->second.flags & CU_MEMHOSTREGISTER_PORTABLE) != 0;
  if (!is_portable && found->second.device != current_device()) return CUDA_ERROR_INVALID_VALUE;
  *device_address = at + static_cast<CUdeviceptr>(setting("GDX_FAKE_CUDA_HOST_OFFSET", 0));
  return CUDA_SUCCESS;
}

#if !defined(GDX_FAKE_CUDA_OLD)
CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, size_t bytes,
                                       CUmemRangeHandleType type, unsigned long long flags) {
  const Call call;
  if (const CUresult refusal = call.refusal_in_context(); refusal != CUDA_SUCCESS) return refusal;
  if (handle == nullptr || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD ||
      (flags & ~gdx::cuda::kDmabufAcrossPcie) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const bool across_pcie = flags != 0;
  if (setting("GDX_FAKE_CUDA_DMABUF", 1) == 0 || !may_be_shared(address) ||
      (across_pcie && setting("GDX_FAKE_CUDA_DMABUF_PCIE", 0) == 0)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  state().exported_bytes = bytes;
  int descriptor = -1;
  for (const auto& [start, memory] : state().allocations) {
    if (descriptor < 0) descriptor = memory->share_pages(address, bytes);
  }
  if (descriptor < 0) {
    const CUresult shared = share_mapped_range(address, bytes, &descriptor);
    if (shared != CUDA_SUCCESS) return shared;
  }
  if (across_pcie) descriptor = of_pcie_pages(descriptor);
  *static_cast<int*>(handle) = descriptor;
  return descriptor >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// Not CUDA's: how long the newest dmabuf was to be. A memfd that stands for one goes on to its allocation's
// end.
size_t gdx_fake_cuda_exported_bytes() {
  const Call call;
  return state().exported_bytes;
}
#endif

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr address) {
  const Call call;
  if (const CUresult refusal = call.refusal_in_context(); refusal != CUDA_SUCCESS) return refusal;
  if (count == 0 || attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const DeviceMemory* const device = device_memory_at(address);
  const auto registered = overlapping(address, 1);
  const bool host = registered != state().registrations.end();
  for (unsigned i = 0; i < count; ++i) {
    if (answer_attribute(attributes[i], data[i], address, device != nullptr)) continue;
    switch (static_cast<int>(attributes[i])) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *static_cast<unsigned*>(data[i]) = device != nullptr ? CU_MEMORYTYPE_DEVICE
                                           : host            ? CU_MEMORYTYPE_HOST
                                                             : 0;
        break;
      case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<unsigned*>(data[i]) = 0; break;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *static_cast<int*>(data[i]) = device != nullptr ? device->device()
                                      : host            ? registered->second.device
                                                        : 0;
        break;
      case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *static_cast<CUdeviceptr*>(data[i]) = device != nullptr ? device->address()
                                              : host            ? registered->first
                                                                : 0;
        break;
      case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *static_cast<std::size_t*>(data[i]) = device != nullptr ? device->bytes()
                                              : host            ? registered->second.bytes
                                                                : 0;
        break;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
