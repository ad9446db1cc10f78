// NCCL's interface for one-sided transfers, RMA versions 13 to 16, as its library calls it: own declarations
// of the layouts and numbers that are used, in parts that several versions share. tests/abi/nccl.sh compares
// each with NCCL's headers, which stay outside. Source: docs/nccl.md, "Versions".
#pragma once

#include <cstddef>
#include <cstdint>

#include "host/plugins/nccl/abi.h"

namespace gdx::nccl {

inline constexpr int kGinProxyDevice = 2;             // NCCL_NET_DEVICE_GIN_PROXY
inline constexpr std::uint32_t kSignalIncrement = 1;  // NCCL_GIN_SIGNAL_OP_INC
inline constexpr std::uint32_t kSignalAdd = 2;        // NCCL_GIN_SIGNAL_OP_ADD
inline constexpr std::uint32_t kMoreFollow = 1;       // ncclRmaOptFlagsAggregateRequests

struct RmaConfig {  // ncclRmaConfig_v14_t to _v16_t
  int contexts;
  int traffic_class;
  int rank_stride;
};

struct RmaConfigV13 {  // ncclGinConfig_v13_t
  int signals;
  int counters;
  int contexts;
  int queue_depth;
  int traffic_class;
};

struct DeviceHandle {  // ncclNetDeviceHandle_v11_t
  int device_type;
  int device_version;
  void* handle;
  std::size_t bytes;
  int needs_progress;
};

struct RmaProperties {  // ncclRmaProperties_v16_t
  bool signals_flush_all_puts;
};

struct RmaBegin {
  const char* name;
  Outcome (*init)(void** context, std::uint64_t communicator, Logger logger);
  Outcome (*devices)(int* count);
};

struct RmaMeeting {
  Outcome (*get_properties)(int device, PropertiesV12* properties);
  Outcome (*listen)(void* context, int device, void* handle, void** listener);
  Outcome (*connect)(void* context, void** handles, int ranks, int rank, void* listener, void** group);
};

struct RmaMemory {
  Outcome (*create_context)(void* group, RmaConfig* config, void** rma_context);
  Outcome (*register_memory)(void* group, void* data, std::size_t bytes, int type, std::uint64_t flags,
                             void** memory);
  Outcome (*register_dmabuf)(void* group, void* data, std::size_t bytes, int type, std::uint64_t offset,
                             int descriptor, std::uint64_t flags, void** memory);
};

struct RmaMemoryV13 {
  Outcome (*create_context)(void* group, RmaConfigV13* config, void** rma_context, DeviceHandle** handle);
  Outcome (*register_memory)(void* group, void* data, std::size_t bytes, int type, std::uint64_t flags,
                             void** memory, void** device_memory);
  Outcome (*register_dmabuf)(void* group, void* data, std::size_t bytes, int type, std::uint64_t offset,
                             int descriptor, std::uint64_t flags, void** memory, void** device_memory);
};

struct RmaEnd {
  Outcome (*forget_memory)(void* group, void* memory);
  Outcome (*destroy_context)(void* rma_context);
  Outcome (*close_group)(void* group);
  Outcome (*close_listen)(void* listener);
};

// From version 15 on; flags: kMoreFollow.
struct RmaTransfer {
  Outcome (*put)(void* rma_context, int context, std::uint64_t from_offset, void* from, std::size_t bytes,
                 std::uint64_t to_offset, void* to, std::uint32_t rank, std::uint32_t flags, void** request);
  Outcome (*put_signal)(void* rma_context, int context, std::uint64_t from_offset, void* from,
                        std::size_t bytes, std::uint64_t to_offset, void* to, std::uint32_t rank,
                        std::uint64_t word_offset, void* word, std::uint64_t value, std::uint32_t operation,
                        bool is_strong, std::uint32_t flags, void** request);
  Outcome (*get)(void* rma_context, int context, std::uint64_t from_offset, void* from, std::size_t bytes,
                 std::uint64_t to_offset, void* to, std::uint32_t rank, std::uint32_t flags, void** request);
};

// IsStrong: bool, or nothing in version 13.
template <typename... IsStrong>
struct RmaTransferWithoutFlags {
  Outcome (*put)(void* rma_context, int context, std::uint64_t from_offset, void* from, std::size_t bytes,
                 std::uint64_t to_offset, void* to, std::uint32_t rank, void** request);
  Outcome (*put_signal)(void* rma_context, int context, std::uint64_t from_offset, void* from,
                        std::size_t bytes, std::uint64_t to_offset, void* to, std::uint32_t rank,
                        std::uint64_t word_offset, void* word, std::uint64_t value, std::uint32_t operation,
                        IsStrong... is_strong, void** request);
  Outcome (*get)(void* rma_context, int context, std::uint64_t from_offset, void* from, std::size_t bytes,
                 std::uint64_t to_offset, void* to, std::uint32_t rank, void** request);
};

struct RmaCompletion {
  Outcome (*flush)(void* rma_context, int context, void* memory, std::uint32_t rank, void** request);
  Outcome (*test)(void* group, void* request, int* done);
  Outcome (*progress)(void* rma_context);
  Outcome (*query_last_error)(void* rma_context, bool* has_error);
  Outcome (*finalize)(void* context);
};

template <typename Memory, typename Transfer>
struct Rma {
  RmaBegin begin;
  RmaMeeting meeting;
  Memory memory;
  RmaEnd end;
  Transfer transfer;
  RmaCompletion completion;
};

using RmaV13 = Rma<RmaMemoryV13, RmaTransferWithoutFlags<>>;  // ncclRma_v13_t, which is ncclGin_v13_t
using RmaV14 = Rma<RmaMemory, RmaTransferWithoutFlags<bool>>;
using RmaV15 = Rma<RmaMemory, RmaTransfer>;

struct RmaV16 {
  RmaBegin begin;
  Outcome (*get_rma_properties)(void* group, RmaProperties* properties);
  RmaMeeting meeting;
  RmaMemory memory;
  RmaEnd end;
  RmaTransfer transfer;
  RmaCompletion completion;
};

}  // namespace gdx::nccl
