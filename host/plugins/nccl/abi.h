// NCCL's interface for networks, versions 11 and 12, as its library calls it: own declarations of the layouts
// and numbers that are used. tests/abi/nccl.sh compares each with NCCL's headers, which stay outside.
// Source: docs/nccl.md, "Versions".
#pragma once

#include <cstddef>
#include <cstdint>

namespace gdx::nccl {

enum class Outcome : int {  // ncclResult_t
  kSuccess = 0,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
};

enum class LogLevel : int { kWarn = 2, kInfo = 3 };  // ncclDebugLogLevel
inline constexpr unsigned long kLogInit = 1;         // NCCL_INIT
inline constexpr unsigned long kLogNet = 16;         // NCCL_NET
inline constexpr unsigned long kLogAll = ~0ul;       // NCCL_ALL
inline constexpr int kHostMemory = 1;                // NCCL_PTR_HOST
inline constexpr int kCudaMemory = 2;                // NCCL_PTR_CUDA
inline constexpr int kDmabufMemory = 4;              // NCCL_PTR_DMABUF
inline constexpr std::size_t kHandleBytes = 128;     // NCCL_NET_HANDLE_MAXSIZE
inline constexpr int kHostDevice = 0;                // NCCL_NET_DEVICE_HOST
inline constexpr std::int16_t kNoRail = -1;          // NCCL_NET_ID_UNDEF

using Logger = void (*)(LogLevel level, unsigned long flags, const char* file, int line, const char* format,
                        ...);
using ProfilerCallback = Outcome (*)(void** event, int type, void* phandle, std::int64_t plugin, void* data);

template <int Devices>
struct VirtualDevice {
  int count;
  int devices[Devices];
};

// ncclNetProperties_v11_t. Version 12 appends, and has room for more devices.
struct PropertiesV11 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int pointers;  // kinds of memory
  int registrations_are_global;
  int force_flush;
  int mbit_per_s;
  int port;
  float latency_us;
  int most_communicators;
  int most_receives;  // of a group
  int device_type;
  int device_version;
  VirtualDevice<4> virtual_device;
  std::size_t most_p2p_bytes;
  std::size_t most_collective_bytes;
  int most_multi_request;
};

struct PropertiesV12 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int pointers;
  int registrations_are_global;
  int force_flush;
  int mbit_per_s;
  int port;
  float latency_us;
  int most_communicators;
  int most_receives;
  int device_type;
  int device_version;
  VirtualDevice<8> virtual_device;
  std::size_t most_p2p_bytes;
  std::size_t most_collective_bytes;
  int most_multi_request;
  std::int16_t rail;
  std::int16_t plane;
};

// ncclNet_v11_t and ncclNet_v12_t, which differ in their properties.
template <typename Properties>
struct Net {
  const char* name;
  Outcome (*init)(void** context, std::uint64_t communicator, void* config, Logger logger,
                  ProfilerCallback profiler);
  Outcome (*devices)(int* count);
  Outcome (*get_properties)(int device, Properties* properties);
  Outcome (*listen)(void* context, int device, void* handle, void** listener);
  Outcome (*connect)(void* context, int device, void* handle, void** sender, void** device_handle);
  Outcome (*accept)(void* listener, void** receiver, void** device_handle);
  Outcome (*register_memory)(void* communicator, void* data, std::size_t bytes, int type, void** memory);
  Outcome (*register_dmabuf)(void* communicator, void* data, std::size_t bytes, int type,
                             std::uint64_t offset, int descriptor, void** memory);
  Outcome (*forget_memory)(void* communicator, void* memory);
  Outcome (*send)(void* sender, void* data, std::size_t bytes, int tag, void* memory, void* phandle,
                  void** request);
  Outcome (*receive)(void* receiver, int count, void** data, std::size_t* bytes, int* tags, void** memories,
                     void** phandles, void** request);
  Outcome (*flush)(void* receiver, int count, void** data, int* bytes, void** memories, void** request);
  Outcome (*test)(void* request, int* done, int* bytes);
  Outcome (*close_send)(void* sender);
  Outcome (*close_receive)(void* receiver);
  Outcome (*close_listen)(void* listener);
  Outcome (*get_device_memory)(void* communicator, void* memory, void** device_memory);
  Outcome (*receive_consumed)(void* receiver, int count, void* request);
  Outcome (*make_virtual_device)(int* device, void* properties);
  Outcome (*finalize)(void* context);
  Outcome (*set_attributes)(void* context, void* attributes);
};

using NetV11 = Net<PropertiesV11>;
using NetV12 = Net<PropertiesV12>;

}  // namespace gdx::nccl
