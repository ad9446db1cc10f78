// An endpoint towards a peer whose memory may be mapped here. Where it is, calls are loads and stores of the
// scope's threads; where not, they are those of the exclusive endpoint inside. Which of the two, the host has
// decided for the whole endpoint, in the handle: nothing that was sent one way can overtake what went the
// other.
//
// The queue pair is there in both cases: a wait that hears nothing asks the peer's NIC for life.
#pragma once

#include <cstdint>

#include "device/endpoint.h"
#include "proto/gpu/peer.h"

namespace gdx::device {

template <Scope S = Scope::kThread, Placement P = Placement::kHost>
class PeerEndpoint {
 public:
  // Opens an endpoint; `handle` must outlive it (a kernel parameter does). status() is as Endpoint's, and
  // kVersionMismatch for windows of another layout.
  GDX_DEVICE explicit PeerEndpoint(const PeerHandle& handle) : handle_(handle), nic_(handle.endpoint) {
    if (handle.layout_version == kPeerLayoutVersion && handle.window_count <= kMaxPeerWindows) return;
    refused_ = true;
  }
  explicit PeerEndpoint(PeerHandle&&) = delete;
  GDX_DEVICE ~PeerEndpoint() { close(); }
  PeerEndpoint(const PeerEndpoint&) = delete;
  PeerEndpoint& operator=(const PeerEndpoint&) = delete;

  // As Endpoint::close().
  GDX_DEVICE void close() {
    nic_.close();
    if (operations_ != 0 && is_leader()) handle_.endpoint.state->messages += operations_;
    operations_ = 0;
  }

  // Loads and stores, or the NIC? What could not be opened reaches no NIC.
  GDX_DEVICE bool is_direct() const { return refused_ || handle_.window_count != 0; }
  // kOk, or the first error of this endpoint: the same in all threads of the scope after every call.
  GDX_DEVICE Status status() const { return refused_ ? Status::kVersionMismatch : nic_.status(); }
  // As Endpoint::fault(). A call that was refused here has no syndrome.
  GDX_DEVICE EndpointFault fault() const {
    return refused_ ? EndpointFault{status(), 0, 0, 0} : nic_.fault();
  }
  GDX_DEVICE bool is_leader() const { return nic_.is_leader(); }

  // Everything below is for device/peer.h.

  GDX_DEVICE Endpoint<S, P>& nic() { return nic_; }
  GDX_DEVICE bool is_refused() const { return refused_; }
  // Where the kernel reaches `bytes` of `remote`; null where the peer has not lent them so.
  GDX_DEVICE std::byte* find(const RemoteMemory& remote, std::uint64_t bytes, std::uint32_t access) const {
    return handle_.find(remote, bytes, access);
  }
  // All threads of the scope: the endpoint ends with `status`, as with an error of the NIC.
  GDX_DEVICE Status fail(Status status) {
    EndpointFault& fault = handle_.endpoint.state->fault;
    if (is_leader() && fault.status == Status::kOk) fault = {status, 0, 0, 0};
    nic_.learn(status);
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
