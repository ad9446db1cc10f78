// An endpoint on which any threads of a GPU post at once. Each thread opens it for itself and needs nothing
// from other threads. Only the lanes of gdx_put_warp make a call together.
#pragma once

#include "device/exec/exec.h"
#include "device/impl/access.h"
#include "device/impl/open_shared_endpoint.h"
#include "proto/gpu/memory.h"
#include "proto/gpu/queue.h"
#include "proto/status.h"

namespace gdx::device {

template <Placement P = Placement::kHost>
class SharedEndpoint {
 public:
  // Opens an endpoint; `from` must outlive it (a kernel parameter does). status() then is
  //   kVersionMismatch   the layouts of host and device code differ
  //   kInvalidArgument   P is kGpu and the queue is in host memory, or the queue is exclusive or too short
  //   kNotConnected      the host has not connected it, or has destroyed it
  GDX_DEVICE explicit SharedEndpoint(const EndpointHandle& from) : open_(from) {}
  explicit SharedEndpoint(EndpointHandle&&) = delete;
  SharedEndpoint(const SharedEndpoint&) = delete;
  SharedEndpoint& operator=(const SharedEndpoint&) = delete;

  // Returns kOk, or the reason why this thread could not open the endpoint. Calls return later failures
  // themselves.
  GDX_DEVICE Status status() const { return open_.status(); }
  // Returns the handle that opened the endpoint.
  GDX_DEVICE const EndpointHandle& handle() const { return open_.handle(); }

 private:
  friend struct impl::Access;
  impl::OpenSharedEndpoint<P> open_;
};

}  // namespace gdx::device
