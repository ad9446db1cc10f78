// Kernels whose releases scopes.sh looks at; nothing runs them.
#include "device/endpoint.h"

using ThreadGpu = gdx::device::Endpoint<gdx::Scope::kThread, gdx::Placement::kGpu>;

// The doorbell is another call's, at GPU scope.
extern "C" __global__ void push_deferred(gdx::EndpointHandle handle, gdx::RemoteMemory to,
                                         gdx::LocalMemory from, std::uint64_t bytes) {
  ThreadGpu endpoint(handle);
  (void)gdx_put<gdx::Mode::kPush>(endpoint, to, from, bytes, gdx::Doorbell::kDefer);
  (void)gdx_put_value(endpoint, to, bytes);
}

// One doorbell of another call covers them all.
extern "C" __global__ void push_batch(gdx::EndpointHandle handle, gdx::RemoteMemory to, gdx::LocalMemory from,
                                      std::uint64_t bytes) {
  ThreadGpu endpoint(handle);
  for (std::uint64_t i = 0; i < bytes; i += 64)
    (void)gdx_put<gdx::Mode::kPush>(endpoint, to + i, from + i, 64, gdx::Doorbell::kDefer);
  (void)gdx_put_value(endpoint, to, bytes);
}

extern "C" __global__ void push(gdx::EndpointHandle handle, gdx::RemoteMemory to, gdx::LocalMemory from,
                                std::uint64_t bytes) {
  ThreadGpu endpoint(handle);
  (void)gdx_put<gdx::Mode::kPush>(endpoint, to, from, bytes);
}

extern "C" __global__ void pull(gdx::EndpointHandle handle, gdx::RemoteMemory to, gdx::LocalMemory from,
                                std::uint64_t bytes) {
  ThreadGpu endpoint(handle);
  (void)gdx_put<gdx::Mode::kPull>(endpoint, to, from, bytes);
}

// The signal's doorbell is the payload's too.
extern "C" __global__ void push_signal(gdx::EndpointHandle handle, gdx::RemoteMemory to,
                                       gdx::LocalMemory from, gdx::RemoteMemory signal, std::uint64_t bytes) {
  ThreadGpu endpoint(handle);
  (void)gdx_put_signal<gdx::Mode::kPush>(endpoint, to, from, bytes, signal, 1);
}

// Stored by TMA.
extern "C" __global__ void push_in_bulk(gdx::EndpointHandle handle, gdx::RemoteMemory to,
                                        gdx::LocalMemory from, std::uint64_t bytes) {
  gdx::device::Endpoint<gdx::Scope::kBlock, gdx::Placement::kGpu> endpoint(handle);
  (void)gdx_put<gdx::Mode::kPush, gdx::Copy::kBulk>(endpoint, to, from, bytes);
}

// By BlueFlame: a WQE for each doorbell.
extern "C" __global__ void pull_signal_warp(gdx::EndpointHandle handle, gdx::RemoteMemory to,
                                            gdx::LocalMemory from, gdx::RemoteMemory signal,
                                            std::uint64_t bytes) {
  gdx::device::Endpoint<gdx::Scope::kWarp, gdx::Placement::kGpu> endpoint(handle);
  (void)gdx_put_signal<gdx::Mode::kPull>(endpoint, to, from, bytes, signal, 1);
}

// The doorbell of one thread covers what others have published.
using SharedGpu = gdx::device::SharedEndpoint<gdx::Scope::kThread, gdx::Placement::kGpu>;

extern "C" __global__ void push_shared(gdx::EndpointHandle handle, gdx::RemoteMemory to,
                                       gdx::LocalMemory from, std::uint64_t bytes) {
  SharedGpu endpoint(handle);
  (void)gdx_put<gdx::Mode::kPush>(endpoint, to, from, bytes);
}

extern "C" __global__ void bounce_shared(gdx::EndpointHandle handle, gdx::RemoteMemory to,
                                         gdx::LocalMemory from, std::uint64_t bytes) {
  SharedGpu endpoint(handle);
  (void)gdx_put<gdx::Mode::kBounce>(endpoint, to, from, bytes);
}

extern "C" __global__ void push_shared_signal(gdx::EndpointHandle handle, gdx::RemoteMemory to,
                                              gdx::LocalMemory from, gdx::RemoteMemory signal,
                                              std::uint64_t bytes) {
  gdx::device::SharedEndpoint<gdx::Scope::kWarp, gdx::Placement::kGpu> endpoint(handle);
  (void)gdx_put_signal<gdx::Mode::kPush>(endpoint, to, from, bytes, signal, 1);
}

extern "C" __global__ void pull_shared(gdx::EndpointHandle handle, gdx::RemoteMemory to,
                                       gdx::LocalMemory from, std::uint64_t bytes) {
  SharedGpu endpoint(handle);
  (void)gdx_put<gdx::Mode::kPull>(endpoint, to, from, bytes);
}
