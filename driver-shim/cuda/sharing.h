// Part of the CUDA driver API for memory that HCAs and other processes use: VMM allocations and CUDA IPC. A
// driver may lack any of it: then memory comes from cuMemAlloc, and is shared with no process.
#pragma once

#include "base/result.h"
#include "driver-shim/cuda/api.h"

#if !defined(GDX_HAVE_CUDA_H)
#include "driver-shim/cuda/sharing_declarations.h"
#endif

namespace gdx::cuda {

#define GDX_CUDA_SHARING_FUNCTIONS(X)                                                  \
  X(mem_create, cuMemCreate)                                                           \
  X(mem_get_allocation_granularity, cuMemGetAllocationGranularity)                     \
  X(mem_release, cuMemRelease)                                                         \
  X(mem_address_reserve, cuMemAddressReserve)                                          \
  X(mem_address_free, cuMemAddressFree)                                                \
  X(mem_map, cuMemMap)                                                                 \
  X(mem_unmap, cuMemUnmap)                                                             \
  X(mem_set_access, cuMemSetAccess)                                                    \
  X(mem_retain_allocation_handle, cuMemRetainAllocationHandle)                         \
  X(mem_get_allocation_properties_from_handle, cuMemGetAllocationPropertiesFromHandle) \
  X(mem_export_to_shareable_handle, cuMemExportToShareableHandle)                      \
  X(mem_import_from_shareable_handle, cuMemImportFromShareableHandle)                  \
  X(mem_get_address_range, cuMemGetAddressRange_v2)                                    \
  X(mem_alloc_async, cuMemAllocAsync)                                                  \
  X(mem_free_async, cuMemFreeAsync)                                                    \
  X(ipc_get_mem_handle, cuIpcGetMemHandle)                                             \
  X(ipc_open_mem_handle, cuIpcOpenMemHandle_v2)                                        \
  X(ipc_close_mem_handle, cuIpcCloseMemHandle)                                         \
  X(device_get_p2p_attribute, cuDeviceGetP2PAttribute)

struct SharingFunctions {
#define GDX_CUDA_MEMBER(member, symbol) decltype(&::symbol) member = nullptr;
  GDX_CUDA_SHARING_FUNCTIONS(GDX_CUDA_MEMBER)
#undef GDX_CUDA_MEMBER
};

// Loads the functions of `library`, which stays loaded. Errors: kNoDevice (no such library), kUnsupported
// naming the missing functions.
[[nodiscard]] Result<SharingFunctions> load_sharing(const char* library);

// Returns the functions of the process's driver, loaded by the first call. Errors: those of load_sharing,
// repeated by every later call. Threads: any.
[[nodiscard]] Result<const SharingFunctions*> sharing();

}  // namespace gdx::cuda
