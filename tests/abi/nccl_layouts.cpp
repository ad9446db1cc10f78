// Own declarations of NCCL's interfaces against NCCL's headers: compiled by nccl.sh, never run. With
// GDX_HAS_V12 the headers have net version 12, with GDX_RMA the RMA versions from 13 to GDX_RMA.
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "net.h"

#include "host/plugins/nccl/abi.h"
#include "host/plugins/nccl/rma_abi.h"
#ifdef GDX_RMA
#include "rma/rma_v13.h"
#include "rma/rma_v14.h"
#endif
#if GDX_RMA >= 15
#include "rma/rma_v15.h"
#endif
#if GDX_RMA >= 16
#include "rma/rma_v16.h"
#endif

namespace gdx::nccl {

#define GDX_SAME(theirs, their_field, own, own_field)                                     \
  static_assert(offsetof(theirs, their_field) == offsetof(own, own_field) &&              \
                    sizeof(theirs::their_field) == sizeof(std::declval<own>().own_field), \
                #theirs "." #their_field)

#define GDX_SAME_PROPERTIES(theirs, own)                        \
  static_assert(sizeof(theirs) == sizeof(own));                 \
  GDX_SAME(theirs, name, own, name);                            \
  GDX_SAME(theirs, pciPath, own, pci_path);                     \
  GDX_SAME(theirs, guid, own, guid);                            \
  GDX_SAME(theirs, ptrSupport, own, pointers);                  \
  GDX_SAME(theirs, regIsGlobal, own, registrations_are_global); \
  GDX_SAME(theirs, forceFlush, own, force_flush);               \
  GDX_SAME(theirs, speed, own, mbit_per_s);                     \
  GDX_SAME(theirs, port, own, port);                            \
  GDX_SAME(theirs, latency, own, latency_us);                   \
  GDX_SAME(theirs, maxComms, own, most_communicators);          \
  GDX_SAME(theirs, maxRecvs, own, most_receives);               \
  GDX_SAME(theirs, netDeviceType, own, device_type);            \
  GDX_SAME(theirs, netDeviceVersion, own, device_version);      \
  GDX_SAME(theirs, vProps, own, virtual_device);                \
  GDX_SAME(theirs, maxP2pBytes, own, most_p2p_bytes);           \
  GDX_SAME(theirs, maxCollBytes, own, most_collective_bytes);   \
  GDX_SAME(theirs, maxMultiRequestSize, own, most_multi_request)

// A call has NCCL's parameters, apart from the kinds of its enumerations and pointers.
template <typename T>
using Plain = std::conditional_t<
    std::is_pointer_v<T>, void*,
    typename std::conditional_t<std::is_enum_v<T>, std::underlying_type<T>, std::type_identity<T>>::type>;
template <typename T>
struct Normal;
template <typename Result, typename... Parameters>
struct Normal<Result (*)(Parameters...)> {
  static_assert(sizeof(Result) == sizeof(int));
  using type = void (*)(Plain<Parameters>...);
};

#define GDX_SAME_CALL(theirs, their_call, own, own_call)                                                     \
  GDX_SAME(theirs, their_call, own, own_call);                                                               \
  static_assert(std::is_same_v<Normal<decltype(theirs::their_call)>::type,                                   \
                               Normal<std::remove_cvref_t<decltype((std::declval<own>().own_call))>>::type>, \
                #theirs "." #their_call)

#define GDX_SAME_NET(theirs, own)                               \
  static_assert(sizeof(theirs) == sizeof(own));                 \
  GDX_SAME(theirs, name, own, name);                            \
  GDX_SAME_CALL(theirs, init, own, init);                       \
  GDX_SAME_CALL(theirs, devices, own, devices);                 \
  GDX_SAME_CALL(theirs, getProperties, own, get_properties);    \
  GDX_SAME_CALL(theirs, listen, own, listen);                   \
  GDX_SAME_CALL(theirs, connect, own, connect);                 \
  GDX_SAME_CALL(theirs, accept, own, accept);                   \
  GDX_SAME_CALL(theirs, regMr, own, register_memory);           \
  GDX_SAME_CALL(theirs, regMrDmaBuf, own, register_dmabuf);     \
  GDX_SAME_CALL(theirs, deregMr, own, forget_memory);           \
  GDX_SAME_CALL(theirs, isend, own, send);                      \
  GDX_SAME_CALL(theirs, irecv, own, receive);                   \
  GDX_SAME_CALL(theirs, iflush, own, flush);                    \
  GDX_SAME_CALL(theirs, test, own, test);                       \
  GDX_SAME_CALL(theirs, closeSend, own, close_send);            \
  GDX_SAME_CALL(theirs, closeRecv, own, close_receive);         \
  GDX_SAME_CALL(theirs, closeListen, own, close_listen);        \
  GDX_SAME_CALL(theirs, getDeviceMr, own, get_device_memory);   \
  GDX_SAME_CALL(theirs, irecvConsumed, own, receive_consumed);  \
  GDX_SAME_CALL(theirs, makeVDevice, own, make_virtual_device); \
  GDX_SAME_CALL(theirs, finalize, own, finalize);               \
  GDX_SAME_CALL(theirs, setNetAttr, own, set_attributes)

GDX_SAME_PROPERTIES(ncclNetProperties_v11_t, PropertiesV11);
GDX_SAME_NET(ncclNet_v11_t, NetV11);
#ifdef GDX_HAS_V12
GDX_SAME_PROPERTIES(ncclNetProperties_v12_t, PropertiesV12);
GDX_SAME(ncclNetProperties_v12_t, railId, PropertiesV12, rail);
GDX_SAME(ncclNetProperties_v12_t, planeId, PropertiesV12, plane);
GDX_SAME_NET(ncclNet_v12_t, NetV12);
#endif

#ifdef GDX_RMA
#define GDX_SAME_RMA(theirs, own)                                          \
  static_assert(sizeof(theirs) == sizeof(own));                            \
  GDX_SAME(theirs, name, own, begin.name);                                 \
  GDX_SAME_CALL(theirs, init, own, begin.init);                            \
  GDX_SAME_CALL(theirs, devices, own, begin.devices);                      \
  GDX_SAME_CALL(theirs, getProperties, own, meeting.get_properties);       \
  GDX_SAME_CALL(theirs, listen, own, meeting.listen);                      \
  GDX_SAME_CALL(theirs, connect, own, meeting.connect);                    \
  GDX_SAME_CALL(theirs, createContext, own, memory.create_context);        \
  GDX_SAME_CALL(theirs, regMrSym, own, memory.register_memory);            \
  GDX_SAME_CALL(theirs, regMrSymDmaBuf, own, memory.register_dmabuf);      \
  GDX_SAME_CALL(theirs, deregMrSym, own, end.forget_memory);               \
  GDX_SAME_CALL(theirs, destroyContext, own, end.destroy_context);         \
  GDX_SAME_CALL(theirs, closeColl, own, end.close_group);                  \
  GDX_SAME_CALL(theirs, closeListen, own, end.close_listen);               \
  GDX_SAME_CALL(theirs, iput, own, transfer.put);                          \
  GDX_SAME_CALL(theirs, iputSignal, own, transfer.put_signal);             \
  GDX_SAME_CALL(theirs, iget, own, transfer.get);                          \
  GDX_SAME_CALL(theirs, iflush, own, completion.flush);                    \
  GDX_SAME_CALL(theirs, test, own, completion.test);                       \
  GDX_SAME_CALL(theirs, queryLastError, own, completion.query_last_error); \
  GDX_SAME_CALL(theirs, finalize, own, completion.finalize)

GDX_SAME_RMA(ncclRma_v13_t, RmaV13);
GDX_SAME_CALL(ncclRma_v13_t, ginProgress, RmaV13, completion.progress);
static_assert(sizeof(ncclGinConfig_v13_t) == sizeof(RmaConfigV13));
GDX_SAME(ncclGinConfig_v13_t, nContexts, RmaConfigV13, contexts);
static_assert(sizeof(ncclNetDeviceHandle_v11_t) == sizeof(DeviceHandle));
GDX_SAME(ncclNetDeviceHandle_v11_t, netDeviceType, DeviceHandle, device_type);
GDX_SAME(ncclNetDeviceHandle_v11_t, netDeviceVersion, DeviceHandle, device_version);
GDX_SAME(ncclNetDeviceHandle_v11_t, handle, DeviceHandle, handle);
GDX_SAME(ncclNetDeviceHandle_v11_t, size, DeviceHandle, bytes);
GDX_SAME(ncclNetDeviceHandle_v11_t, needsProxyProgress, DeviceHandle, needs_progress);
static_assert(NCCL_NET_DEVICE_GIN_PROXY == kGinProxyDevice);
static_assert(NCCL_GIN_SIGNAL_OP_INC == kSignalIncrement && NCCL_GIN_SIGNAL_OP_ADD == kSignalAdd);

GDX_SAME_RMA(ncclRma_v14_t, RmaV14);
GDX_SAME_CALL(ncclRma_v14_t, rmaProgress, RmaV14, completion.progress);
static_assert(sizeof(ncclRmaConfig_v14_t) == sizeof(RmaConfig));
GDX_SAME(ncclRmaConfig_v14_t, nContexts, RmaConfig, contexts);
GDX_SAME(ncclRmaConfig_v14_t, trafficClass, RmaConfig, traffic_class);
GDX_SAME(ncclRmaConfig_v14_t, rankStride, RmaConfig, rank_stride);
#endif
#if GDX_RMA >= 15
GDX_SAME_RMA(ncclRma_v15_t, RmaV15);
GDX_SAME_CALL(ncclRma_v15_t, rmaProgress, RmaV15, completion.progress);
static_assert(ncclRmaOptFlagsAggregateRequests == kMoreFollow);
static_assert(std::is_same_v<ncclRmaConfig_v15_t, ncclRmaConfig_v14_t>);
#endif
#if GDX_RMA >= 16
GDX_SAME_RMA(ncclRma_v16_t, RmaV16);
GDX_SAME_CALL(ncclRma_v16_t, rmaProgress, RmaV16, completion.progress);
GDX_SAME_CALL(ncclRma_v16_t, getRmaProperties, RmaV16, get_rma_properties);
static_assert(sizeof(ncclRmaProperties_v16_t) == sizeof(RmaProperties));
GDX_SAME(ncclRmaProperties_v16_t, flushesAllPutsOnAnySignal, RmaProperties, signals_flush_all_puts);
static_assert(std::is_same_v<ncclRmaConfig_v16_t, ncclRmaConfig_v14_t>);
#endif

static_assert(ncclSuccess == static_cast<int>(Outcome::kSuccess));
static_assert(ncclSystemError == static_cast<int>(Outcome::kSystemError));
static_assert(ncclInternalError == static_cast<int>(Outcome::kInternalError));
static_assert(ncclInvalidArgument == static_cast<int>(Outcome::kInvalidArgument));
static_assert(ncclInvalidUsage == static_cast<int>(Outcome::kInvalidUsage));
static_assert(ncclRemoteError == static_cast<int>(Outcome::kRemoteError));
static_assert(NCCL_LOG_WARN == static_cast<int>(LogLevel::kWarn) &&
              NCCL_LOG_INFO == static_cast<int>(LogLevel::kInfo));
static_assert(NCCL_INIT == kLogInit && NCCL_NET == kLogNet && NCCL_ALL == static_cast<int>(kLogAll));
static_assert(NCCL_PTR_HOST == kHostMemory && NCCL_PTR_CUDA == kCudaMemory &&
              NCCL_PTR_DMABUF == kDmabufMemory);
static_assert(NCCL_NET_HANDLE_MAXSIZE == kHandleBytes && NCCL_NET_DEVICE_HOST == kHostDevice);

}  // namespace gdx::nccl
