// An endpoint opened by a kernel.
// Ownership: exactly one thread, warp or block (the Scope) owns the endpoint from construction to close(), so
// posting needs no atomics. All threads of the scope hold the object and make the same calls. The leader, the
// thread of rank 0, posts and waits.
#pragma once

#include "device/exec/exec.h"
#include "device/impl/access.h"
#include "device/impl/open_endpoint.h"
#include "proto/gpu/memory.h"
#include "proto/gpu/queue.h"
#include "proto/status.h"

namespace gdx::device {

template <Scope S = Scope::kThread, Placement P = Placement::kHost>
class Endpoint : private impl::OpenEndpoint<S, P> {
  friend struct impl::Access;
  using Open = impl::OpenEndpoint<S, P>;

 public:
  // Opens an endpoint; `from` must outlive it (a kernel parameter does). status() then is
  //   kVersionMismatch   the layouts of host and device code differ
  //   kInvalidArgument   P is kGpu and the queue is in host memory, or the queue is shared
  //   kBusy              it is open elsewhere, or a kernel ended without close(): host's Endpoint::reopen()
  //   kNotConnected      the host has not connected it, or has destroyed it
  //   another error      the fault of an earlier kernel
  // In the first four cases the endpoint touches nothing.
  GDX_DEVICE explicit Endpoint(const EndpointHandle& from) : Open(from) {}
  explicit Endpoint(EndpointHandle&&) = delete;
  GDX_DEVICE ~Endpoint() { Open::close(); }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // Writes the counters back for the next owner, of this kernel or a later one. Idempotent. Outstanding work
  // continues and keeps its staging slots, beyond the minimum too, until the next kernel or the endpoint's
  // end. Flush first where other endpoints need the slots.
  using Open::close;

  // Returns kOk or the endpoint's first error, equal in all threads of the scope after every call.
  using Open::status;
  // Returns the failure's status, CQE syndrome and WQE. Valid only in the leader.
  using Open::fault;
  // Returns the handle that opened the endpoint.
  using Open::handle;
  // Returns whether this thread is the leader, of rank 0 in its scope.
  using Open::is_leader;
};

}  // namespace gdx::device
