// The CUDA driver API as gdx calls it: a table of functions, filled at run time (driver.h). Types come from
// the toolkit's cuda.h where the build found one.
#pragma once

#if defined(GDX_HAVE_CUDA_H)
#include <cuda.h>
#else
#include "driver-shim/cuda/declarations.h"
#endif

namespace gdx::cuda {

// member of Functions, exported name. The names carry their versions: libcuda keeps the old ones for old
// programs, and what cuda.h calls cuMemAlloc is cuMemAlloc_v2.
#define GDX_CUDA_FUNCTIONS(X)                                  \
  X(init, cuInit)                                              \
  X(driver_get_version, cuDriverGetVersion)                    \
  X(get_error_name, cuGetErrorName)                            \
  X(get_error_string, cuGetErrorString)                        \
  X(device_get_count, cuDeviceGetCount)                        \
  X(device_get, cuDeviceGet)                                   \
  X(device_get_name, cuDeviceGetName)                          \
  X(device_get_pci_bus_id, cuDeviceGetPCIBusId)                \
  X(device_get_attribute, cuDeviceGetAttribute)                \
  X(primary_ctx_retain, cuDevicePrimaryCtxRetain)              \
  X(primary_ctx_release, cuDevicePrimaryCtxRelease_v2)         \
  X(ctx_push_current, cuCtxPushCurrent_v2)                     \
  X(ctx_pop_current, cuCtxPopCurrent_v2)                       \
  X(ctx_get_device, cuCtxGetDevice)                            \
  X(ctx_synchronize, cuCtxSynchronize)                         \
  X(mem_alloc, cuMemAlloc_v2)                                  \
  X(mem_free, cuMemFree_v2)                                    \
  X(mem_host_register, cuMemHostRegister_v2)                   \
  X(mem_host_unregister, cuMemHostUnregister)                  \
  X(mem_host_get_device_pointer, cuMemHostGetDevicePointer_v2) \
  X(pointer_get_attributes, cuPointerGetAttributes)            \
  X(stream_create, cuStreamCreate)                             \
  X(stream_destroy, cuStreamDestroy_v2)                        \
  X(stream_query, cuStreamQuery)                               \
  X(stream_synchronize, cuStreamSynchronize)                   \
  X(memcpy_htod_async, cuMemcpyHtoDAsync_v2)                   \
  X(memcpy_dtoh_async, cuMemcpyDtoHAsync_v2)

// Null where the driver is older than the function.
#define GDX_CUDA_OPTIONAL_FUNCTIONS(X) X(mem_get_handle_for_address_range, cuMemGetHandleForAddressRange)

// CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE, which cuda.h has since 12.8.
inline constexpr unsigned long long kDmabufAcrossPcie = 1;

struct Functions {
#define GDX_CUDA_MEMBER(member, symbol) decltype(&::symbol) member = nullptr;
  GDX_CUDA_FUNCTIONS(GDX_CUDA_MEMBER)
  GDX_CUDA_OPTIONAL_FUNCTIONS(GDX_CUDA_MEMBER)
#undef GDX_CUDA_MEMBER
};

}  // namespace gdx::cuda
