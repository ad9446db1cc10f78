// Launches of kernels, in namespace gdx::exec, and streams and events, which are CUDA's own under nvcc.
//
//   gdx::exec::LaunchConfig config;
//   config.grid = {8};
//   config.block = {256};
//   Status status = gdx::exec::launch(config, my_kernel, team.handle(), x, n);      // waits for its end
//
// A program includes device/team.h or device/endpoint.h, which include this. Compiled by the C++ compiler it
// gets calls of the same names from the CPU layer instead (device/exec/cpu.h, device/exec/cpu_scheduler.h),
// and streams of that layer (device/exec/cpu_stream.h).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/exec/scope.h"
#include "proto/status.h"

namespace gdx::exec {

using Stream = cudaStream_t;
using Event = cudaEvent_t;

// Describes a launch, as CUDA's triple angle brackets do. `progress`, `workers` and `clock` are for the CPU
// layer, and here too so that one source compiles for both.
struct LaunchConfig {
  dim3 grid{1};
  dim3 block{1};
  std::uint32_t shared_bytes = 0;  // of gdx_dynamic_shared(), for each block
  Stream stream = nullptr;         // earlier work of it comes first
  bool cooperative = false;        // all blocks at once, or kInvalidArgument: they may wait for each other
  int (*progress)() = nullptr;     // a GPU makes progress beside the host: not used
  unsigned workers = 1;            // not used
  std::uint64_t (*clock)() = nullptr;  // not used: a GPU has its own
};

// Returns what a call of CUDA's that waits, or makes an object, came to.
inline Status status_of(cudaError_t ended) {
  if (ended == cudaSuccess) return Status::kOk;
  (void)cudaGetLastError();  // or the next launch would report it
  switch (ended) {
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary: return Status::kNoDevice;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidResourceHandle: return Status::kInvalidArgument;
    case cudaErrorNotReady: return Status::kPending;
    case cudaErrorMemoryAllocation: return Status::kNoMemory;
    default: return Status::kSystem;
  }
}

// Makes a stream, which does not wait for the default one. Errors: kNoDevice, kNoMemory, kSystem.
[[nodiscard]] inline Status create_stream(Stream* stream) {
  return status_of(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
}
// Ends a stream once its work has ended. Null: nothing.
inline void destroy_stream(Stream stream) {
  if (stream != nullptr) (void)status_of(cudaStreamDestroy(stream));
}
// Waits until all that was launched on the stream has ended; for nothing while a CUDA graph captures it.
// Errors: kSystem when a kernel faulted, after which CUDA runs nothing more in the process.
[[nodiscard]] inline Status synchronize(Stream stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaError_t ended = cudaSuccess;
  if (stream != nullptr) ended = cudaStreamIsCapturing(stream, &capture);
  if (ended == cudaSuccess && capture == cudaStreamCaptureStatusNone) ended = cudaStreamSynchronize(stream);
  if (ended == cudaSuccess) return Status::kOk;
  (void)cudaGetLastError();
  return Status::kSystem;
}
// Returns kPending while a launch of the stream has not ended, else kOk. Errors: kInvalidArgument, kSystem.
[[nodiscard]] inline Status query(Stream stream) { return status_of(cudaStreamQuery(stream)); }

// Makes an event, a point in the order of a stream. Errors: kNoDevice, kNoMemory, kSystem.
[[nodiscard]] inline Status create_event(Event* event) {
  return status_of(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
}
// Ends an event. Waits that were enqueued before go on. Null: nothing.
inline void destroy_event(Event event) {
  if (event != nullptr) (void)status_of(cudaEventDestroy(event));
}
// Marks the end of what was launched on the stream before. Errors: kInvalidArgument.
[[nodiscard]] inline Status record(Event event, Stream stream) {
  return status_of(cudaEventRecord(event, stream));
}
// Lets later launches of the stream wait for the event's newest record. Errors: kInvalidArgument.
[[nodiscard]] inline Status wait_for(Stream stream, Event event) {
  return status_of(cudaStreamWaitEvent(stream, event, 0));
}
// Waits for the event's newest record on this thread. Errors: kInvalidArgument, kSystem.
[[nodiscard]] inline Status synchronize(Event event) { return status_of(cudaEventSynchronize(event)); }

// Makes a word of 8 B, zero, that the host and kernels reach. Errors: kNoDevice, kNoMemory.
[[nodiscard]] inline Status make_word(std::uint64_t** word) {
  void* memory = nullptr;
  const Status made = status_of(cudaHostAlloc(&memory, sizeof **word, cudaHostAllocPortable));
  if (made != Status::kOk) return made;
  *word = static_cast<std::uint64_t*>(memory);
  **word = 0;
  return made;
}
// Frees a word of make_word. Null: nothing.
inline void free_word(std::uint64_t* word) {
  if (word != nullptr) (void)status_of(cudaFreeHost(word));
}

// Launches a kernel on the current device, and returns before it has run. While a CUDA graph captures the
// stream, the kernel becomes a part of the graph, and nothing runs. Errors: kNoDevice without a driver or a
// GPU. kUnsupported when this binary has no code for the GPU. kInvalidArgument when CUDA refuses the launch
// otherwise. The kernel's own are told by synchronize().
template <typename... Parameters, typename... Args>
[[nodiscard]] Status launch_async(const LaunchConfig& config, void (*kernel)(Parameters...),
                                  const Args&... args) {
  cudaError_t refused = cudaSuccess;
  // Permits more than 48 KiB. Source: CUDA C++ Programming Guide, "Compute Capabilities", sm_8x.
  if (config.shared_bytes != 0) {
    refused = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(config.shared_bytes));
  }
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = config.grid;
  launch.blockDim = config.block;
  launch.dynamicSmemBytes = config.shared_bytes;
  launch.stream = config.stream;
  launch.attrs = &cooperative;
  launch.numAttrs = config.cooperative ? 1 : 0;
  if (refused == cudaSuccess) refused = cudaLaunchKernelEx(&launch, kernel, args...);
  const cudaError_t last = cudaGetLastError();  // clears the error of either call
  switch (refused == cudaSuccess ? last : refused) {
    case cudaSuccess: return Status::kOk;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary: return Status::kNoDevice;
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorNoKernelImageForDevice: return Status::kUnsupported;
    default: return Status::kInvalidArgument;
  }
}

// Launches a kernel as launch_async does, and waits for its end. Errors: those of launch_async and
// synchronize.
template <typename... Parameters, typename... Args>
[[nodiscard]] Status launch(const LaunchConfig& config, void (*kernel)(Parameters...), const Args&... args) {
  const Status launched = launch_async(config, kernel, args...);
  return launched == Status::kOk ? synchronize(config.stream) : launched;
}

}  // namespace gdx::exec
