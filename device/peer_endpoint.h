// An endpoint towards a peer whose memory may be mapped here. If it is mapped, calls are loads and stores of
// the scope's threads. If not, they are calls of the exclusive endpoint inside. The host decides once for the
// whole endpoint, in the handle. So no operation on one path can overtake an operation on the other.
//
// The queue pair exists in both cases, because a long wait probes the peer's NIC.
#pragma once

#include "device/endpoint.h"
#include "device/impl/open_peer.h"
#include "proto/gpu/peer.h"

namespace gdx::device {

template <Scope S = Scope::kThread, Placement P = Placement::kHost>
class PeerEndpoint : private impl::OpenPeer<S, Endpoint<S, P>> {
  friend struct impl::Access;
  using Open = impl::OpenPeer<S, Endpoint<S, P>>;

 public:
  // Opens an endpoint; `from` must outlive it (a kernel parameter does). status() follows Endpoint, and is
  // kVersionMismatch for windows of another layout.
  GDX_DEVICE explicit PeerEndpoint(const PeerHandle& from) : Open(from) {}
  explicit PeerEndpoint(PeerHandle&&) = delete;
  GDX_DEVICE ~PeerEndpoint() { Open::close(); }
  PeerEndpoint(const PeerEndpoint&) = delete;
  PeerEndpoint& operator=(const PeerEndpoint&) = delete;

  // Adds the direct operations to the inner endpoint's message count, and closes it.
  using Open::close;

  // Returns whether calls are loads and stores. An endpoint that could not be opened counts as direct, so no
  // call reaches the NIC.
  using Open::is_direct;
  // Returns kOk or the endpoint's first error, equal in all threads of the scope after every call.
  using Open::status;
  // Returns Endpoint::fault(). A refused endpoint has no syndrome.
  using Open::fault;
  // Returns whether this thread is the leader, of rank 0 in its scope.
  using Open::is_leader;
};

}  // namespace gdx::device
