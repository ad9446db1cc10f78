// Streams, the copies on them, and functions of the host.
#include <cstring>
#include <thread>

#include "driver-shim/cuda/fake/sharing.h"
#include "driver-shim/cuda/fake/state.h"

namespace gdx::fake_cuda {
namespace {

void finish(Stream& stream) {
  if (stream.lost) return;
  while (!stream.work.empty()) {
    stream.work.front()();
    stream.work.pop_front();
  }
}

// Null for the default stream as well: it waits for kernels, which none of gdx's copies may do.
Stream* find_stream(CUstream handle) {
  const auto found = state().streams.find(handle);
  return found == state().streams.end() ? nullptr : &found->second;
}

// Returns the address of [address, address + bytes) for copies; null unless one allocation holds all of it.
std::byte* device_bytes(CUdeviceptr address, std::size_t bytes) {
  const DeviceMemory* const memory = device_memory_at(address);
  if (memory == nullptr) return mapped_for_copies(address, bytes, current_device());
  return memory->holds(address, bytes) ? memory->seen_by_copies(address) : nullptr;
}

// Puts `work` on the stream, once stream, device memory and length have been looked at.
template <typename Work>
CUresult enqueue(CUstream handle, const std::byte* device, std::size_t bytes, Work work) {
  Stream* const stream = find_stream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (bytes == 0) return CUDA_SUCCESS;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  stream->work.emplace_back(std::move(work));
  return CUDA_SUCCESS;
}

}  // namespace

void finish_streams(CUdevice device) {
  for (auto& [handle, stream] : state().streams) {
    if (stream.device == device) finish(stream);
  }
}

}  // namespace gdx::fake_cuda

using namespace gdx::fake_cuda;

extern "C" {

CUresult cuCtxSynchronize() {
  const Call call;
  if (const CUresult refusal = call.refusal_in_context(); refusal != CUDA_SUCCESS) return refusal;
  finish_streams(current_device());
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  const Call call;
  if (const CUresult refusal = call.refusal_in_context(); refusal != CUDA_SUCCESS) return refusal;
  if (stream == nullptr || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  *stream = reinterpret_cast<CUstream>(++state().next_stream << 8);
  state().streams[*stream] = {.device = current_device(), .work = {}};
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  const Call call;
  if (const CUresult refusal = call.refusal_in_context(); refusal != CUDA_SUCCESS) return refusal;
  Stream* const stream = find_stream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  finish(*stream);
  state().streams.erase(handle);
  return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream handle) {
  const Call call;
  if (const CUresult refusal = call.refusal_in_context(); refusal != CUDA_SUCCESS) return refusal;
  Stream* const stream = find_stream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->work.empty()) return CUDA_SUCCESS;
  stream->work.front()();
  stream->work.pop_front();
  return CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream handle) {
  const Call call;
  if (const CUresult refusal = call.refusal_in_context(); refusal != CUDA_SUCCESS) return refusal;
  Stream* const stream = find_stream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->lost) return CUDA_ERROR_LAUNCH_FAILED;
  finish(*stream);
  return CUDA_SUCCESS;
}

// Memory that is not pinned is read at once, other memory when the copy runs.
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  const Call call;
  if (const CUresult refusal = call.refusal_in_context(); refusal != CUDA_SUCCESS) return refusal;
  if (from == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::byte* const device = device_bytes(to, bytes);
  const auto* const first = static_cast<const std::byte*>(from);
  if (is_pinned(reinterpret_cast<std::uintptr_t>(from), bytes)) {
    return enqueue(stream, device, bytes, [=] { std::memcpy(device, first, bytes); });
  }
  std::vector<std::byte> staged(first, first + bytes);
  return enqueue(stream, device, bytes,
                 [device, staged] { std::memcpy(device, staged.data(), staged.size()); });
}

CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  const Call call;
  if (const CUresult refusal = call.refusal_in_context(); refusal != CUDA_SUCCESS) return refusal;
  if (to == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::byte* const device = device_bytes(from, bytes);
  return enqueue(stream, device, bytes, [=] { std::memcpy(to, device, bytes); });
}

// On a thread that is neither the caller's nor the one that waits, as the driver's.
CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  const Call call;
  if (const CUresult refusal = call.refusal_in_context(); refusal != CUDA_SUCCESS) return refusal;
  Stream* const stream = find_stream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  stream->work.emplace_back([function, data] { std::thread(function, data).join(); });
  return CUDA_SUCCESS;
}

// Without a graph: what a stream gets meanwhile goes on it as before.
CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode) {
  const Call call;
  Stream* const stream = find_stream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  stream->capturing = true;
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  const Call call;
  const Stream* const stream = find_stream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *status = stream->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

// Extension of the fake: the stream's work never runs, as after a kernel's failure.
CUresult gdx_fake_cuda_lose(CUstream handle) {
  const Call call;
  Stream* const stream = find_stream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  stream->lost = true;
  return CUDA_SUCCESS;
}

// Extension of the fake: returns the address at which a kernel of the CPU layer finds GPU memory at
// `address`. Null without such memory. It is another mapping, so that other accesses of the process to device
// memory still fault.
void* gdx_fake_cuda_seen_by_kernels(CUdeviceptr address) {
  const Call call;
  const DeviceMemory* const memory = device_memory_at(address);
  return memory != nullptr ? memory->seen_by_kernels(address) : mapped_for_kernels(address);
}

}  // extern "C"
