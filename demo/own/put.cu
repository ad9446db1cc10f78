// The kernels of a program of one's own: that of rank 0 puts a message, that of rank 1 waits for it. One
// source for a GPU and for the CPU layer.
#include "put.h"

#include "device/endpoint.h"

namespace {

using gdx::Compare;
using gdx::EndpointHandle;
using gdx::gdx_flush;
using gdx::gdx_put_signal;
using gdx::gdx_wait;
using gdx::kWarpThreads;
using gdx::LocalMemory;
using gdx::Mode;
using gdx::RemoteMemory;
using gdx::Scope;
using gdx::Status;

__global__ void send(EndpointHandle handle, LocalMemory from, RemoteMemory to, Status* result) {
  gdx::device::Endpoint<Scope::kWarp> peer(handle);
  Status status = gdx_put_signal<Mode::kAuto>(peer, to, from, sizeof kMessage, to + kSignalAt, 1);
  if (status == Status::kOk) status = gdx_flush(peer);
  if (peer.is_leader()) *result = status;
}

__global__ void receive(EndpointHandle handle, const std::uint64_t* signal, Status* result) {
  gdx::device::Endpoint<Scope::kWarp> peer(handle);
  const Status status = gdx_wait(peer, signal, Compare::kGreaterEqual, 1);
  if (peer.is_leader()) *result = status;
}

gdx::exec::LaunchConfig one_warp(int (*progress)()) {
  gdx::exec::LaunchConfig config;
  config.block = {kWarpThreads};
  config.progress = progress;
  return config;
}

}  // namespace

bool kernels_run_on_gpu() { return gdx::exec::kOnGpu; }

Status run_send(const EndpointHandle& handle, LocalMemory from, RemoteMemory to, Status* result,
                int (*progress)()) {
  return gdx::exec::launch(one_warp(progress), send, handle, from, to, result);
}

Status run_receive(const EndpointHandle& handle, const std::uint64_t* signal, Status* result,
                   int (*progress)()) {
  return gdx::exec::launch(one_warp(progress), receive, handle, signal, result);
}
