// The state of an endpoint towards a peer whose memory may be mapped, for device/peer_endpoint.h. Contains
// the calls on mapped memory, too. All threads of the scope call.
#pragma once

#include <cstdint>

#include "device/exec/exec.h"
#include "device/impl/access.h"
#include "device/impl/direct.h"
#include "device/options.h"
#include "proto/gpu/memory.h"
#include "proto/gpu/peer.h"
#include "proto/status.h"

namespace gdx::device::impl {

// `Nic` is the endpoint of the NIC inside, a device::Endpoint of the scope.
template <Scope S, typename Nic>
class OpenPeer {
 public:
  // The comments of device::PeerEndpoint describe these.
  GDX_DEVICE explicit OpenPeer(const PeerHandle& handle) : handle_(handle), nic_(handle.endpoint) {
    if (handle.layout_version == kPeerLayoutVersion && handle.window_count <= kMaxPeerWindows) return;
    refused_ = true;
  }
  GDX_DEVICE void close() {
    if (operations_ != 0 && is_leader()) handle_.endpoint.state->messages += operations_;
    operations_ = 0;
    nic_.close();
  }
  GDX_DEVICE bool is_direct() const { return refused_ || handle_.window_count != 0; }
  GDX_DEVICE Status status() const { return refused_ ? Status::kVersionMismatch : nic_.status(); }
  GDX_DEVICE EndpointFault fault() const {
    return refused_ ? EndpointFault{status(), 0, 0, 0} : nic_.fault();
  }
  GDX_DEVICE bool is_leader() const { return nic_.is_leader(); }

  GDX_DEVICE Nic& nic() { return nic_; }
  GDX_DEVICE bool is_refused() const { return refused_; }
  // Returns the mapping of `bytes` of `remote`; null where no window permits `access` to all of them.
  GDX_DEVICE std::byte* find(const RemoteMemory& remote, std::uint64_t bytes, std::uint32_t access) const {
    return handle_.find(remote, bytes, access);
  }
  // Ends the endpoint with `status`, as an error of the NIC does.
  GDX_DEVICE Status fail(Status status) {
    EndpointFault& fault = handle_.endpoint.state->fault;
    if (is_leader() && fault.status == Status::kOk) fault = {status, 0, 0, 0};
    Access::state_of(nic_).latch_status(status);
    return status;
  }
  GDX_DEVICE void count(std::uint32_t operations) { operations_ += operations; }

 private:
  const PeerHandle& handle_;
  Nic nic_;
  std::uint32_t operations_ = 0;  // direct ones, since this kernel opened the endpoint
  bool refused_ = false;
};

// Returns the mapping of the peer's word of 8 B; null, and a failed endpoint, where no aligned mapping
// exists.
template <Scope S, typename Nic>
GDX_DEVICE std::uint64_t* find_word(OpenPeer<S, Nic>& endpoint, const RemoteMemory& word,
                                    std::uint32_t access, Status* status) {
  *status = endpoint.status();
  if (*status != Status::kOk) return nullptr;
  std::byte* const at = endpoint.find(word, sizeof(std::uint64_t), access);
  if (at == nullptr) {
    *status = endpoint.fail(Status::kRemoteAccess);
  } else if (reinterpret_cast<std::uint64_t>(at) % sizeof(std::uint64_t) != 0) {
    *status = endpoint.fail(Status::kRemoteInvalid);
  }
  return *status == Status::kOk ? reinterpret_cast<std::uint64_t*>(at) : nullptr;
}

// Runs one atomic in the leader. `change(word)` returns the old value, which goes to `original`.
template <Scope S, typename Nic, typename Change>
GDX_DEVICE Status change_word(OpenPeer<S, Nic>& endpoint, std::byte* original, const RemoteMemory& target,
                              Change change) {
  Status status;
  std::uint64_t* const word = find_word(endpoint, target, kPeerAtomic, &status);
  if (word == nullptr) return status;
  endpoint.count(1);
  change_direct<S>(word, original, change);
  return Status::kOk;
}

template <Scope S, typename Nic>
GDX_DEVICE Status put_direct(OpenPeer<S, Nic>& endpoint, const RemoteMemory& to, const LocalMemory& from,
                             std::uint64_t bytes) {
  if (endpoint.status() != Status::kOk) return endpoint.status();
  if (bytes == 0) return Status::kOk;
  std::byte* const at = endpoint.find(to, bytes, kPeerWrite);
  if (at == nullptr) return endpoint.fail(Status::kRemoteAccess);
  endpoint.count(1);
  copy_direct<S>(at, from.address, bytes);
  return Status::kOk;
}

// Stores the signal. The barrier and the leader's release cover the stores of every thread of the scope.
template <Scope S, typename Nic>
GDX_DEVICE Status signal_direct(OpenPeer<S, Nic>& endpoint, const RemoteMemory& signal, std::uint64_t value,
                                SignalOp op) {
  if (op == SignalOp::kAdd) {
    return change_word(endpoint, nullptr, signal,
                       [value](std::uint64_t* word) { return exec::fetch_add_in_system(word, value); });
  }
  Status status;
  std::uint64_t* const word = find_word(endpoint, signal, kPeerWrite, &status);
  if (word == nullptr) return status;
  endpoint.count(1);
  set_direct<S>(word, value);
  return Status::kOk;
}

}  // namespace gdx::device::impl
