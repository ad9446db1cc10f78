// An endpoint towards a peer whose memory may be mapped here. If it is mapped, calls are loads and stores of
// the scope's threads. If not, they are calls of the exclusive endpoint inside. The host decides once for the
// whole endpoint, in the handle. So no operation on one path can overtake an operation on the other.
//
// The queue pair exists in both cases, because a long wait probes the peer's NIC.
#pragma once

#include <cstdint>

#include "device/endpoint.h"
#include "proto/gpu/peer.h"

namespace gdx::device {

template <Scope S = Scope::kThread, Placement P = Placement::kHost>
class PeerEndpoint {
 public:
  // Opens an endpoint; `handle` must outlive it (a kernel parameter does). status() follows Endpoint, and is
  // kVersionMismatch for windows of another layout.
  GDX_DEVICE explicit PeerEndpoint(const PeerHandle& handle) : handle_(handle), nic_(handle.endpoint) {
    if (handle.layout_version == kPeerLayoutVersion && handle.window_count <= kMaxPeerWindows) return;
    refused_ = true;
  }
  explicit PeerEndpoint(PeerHandle&&) = delete;
  GDX_DEVICE ~PeerEndpoint() { close(); }
  PeerEndpoint(const PeerEndpoint&) = delete;
  PeerEndpoint& operator=(const PeerEndpoint&) = delete;

  // Adds the direct operations to the inner endpoint's message count, and closes it.
  GDX_DEVICE void close() {
    if (operations_ != 0 && is_leader()) handle_.endpoint.state->messages += operations_;
    operations_ = 0;
    nic_.close();
  }

  // Returns whether calls are loads and stores. An endpoint that could not be opened counts as direct, so no
  // call reaches the NIC.
  GDX_DEVICE bool is_direct() const { return refused_ || handle_.window_count != 0; }
  // Returns kOk or the endpoint's first error, equal in all threads of the scope after every call.
  GDX_DEVICE Status status() const { return refused_ ? Status::kVersionMismatch : nic_.status(); }
  // Returns Endpoint::fault(). A refused endpoint has no syndrome.
  GDX_DEVICE EndpointFault fault() const {
    return refused_ ? EndpointFault{status(), 0, 0, 0} : nic_.fault();
  }
  GDX_DEVICE bool is_leader() const { return nic_.is_leader(); }

  // Functions below serve device/peer.h.

  GDX_DEVICE Endpoint<S, P>& nic() { return nic_; }
  GDX_DEVICE bool is_refused() const { return refused_; }
  // Returns the mapping of `bytes` of `remote`; null where no window permits `access` to all of them.
  GDX_DEVICE std::byte* find(const RemoteMemory& remote, std::uint64_t bytes, std::uint32_t access) const {
    return handle_.find(remote, bytes, access);
  }
  // All threads of the scope: ends the endpoint with `status`, as an error of the NIC does.
  GDX_DEVICE Status fail(Status status) {
    EndpointFault& fault = handle_.endpoint.state->fault;
    if (is_leader() && fault.status == Status::kOk) fault = {status, 0, 0, 0};
    nic_.latch_status(status);
    return status;
  }
  GDX_DEVICE void count(std::uint32_t operations) { operations_ += operations; }

 private:
  const PeerHandle& handle_;
  Endpoint<S, P> nic_;
  std::uint32_t operations_ = 0;  // direct ones, since this kernel opened the endpoint
  bool refused_ = false;
};

}  // namespace gdx::device
