// The device API on endpoints towards peers whose memory may be mapped (device/peer_endpoint.h). Without a
// mapping each call is the call of device/gdx.h, mode included. With a mapping:
//  - The threads of the scope copy; Mode and Doorbell have no effect. Only gdx_wait waits.
//  - kOk means stored. Sources may be reused at once. The scope may read results of gdx_get and the atomics.
//  - kRemoteAccess: the range lies in no mapped region, or its region does not permit the access.
//    kRemoteInvalid: a signal (a set too) or an atomic names a word that is not 8-byte aligned. Both end the
//    endpoint, as an error of the NIC does.
//  - Signals, gdx_put_value and atomics become visible only after all earlier puts on the endpoint.
//  - Two gdx_put without a signal, value or atomic between them may become visible in either order. Where
//    they overlap the later one wins.
//
//      gdx_put(A); gdx_put(B); gdx_signal(s)     A and B in any order, then s
//
//  - gdx_flush returns kOk once the peer's memory has everything, even after the peer's process has died or
//    withdrawn that memory. The stores then change pages that only this side still maps. gdx_wait detects a
//    dead peer.
//  - Atomics are atomic among CPUs, or among GPUs that map a GPU's word. On a word in host memory a GPU's are
//    atomic with others' only where Gpu::has_host_atomics. They are not atomic with a NIC's atomics on that
//    word, from another peer or an endpoint that is not direct. Use separate words for the two paths.
// Source of the order: docs/device.md, "Direct peers".
#pragma once

#include <cstdint>

#include "device/gdx.h"
#include "device/impl/direct.h"
#include "device/peer_endpoint.h"

namespace gdx {

namespace device::impl {

// Returns the mapping of the peer's word of 8 B; null, and a failed endpoint, where no aligned mapping
// exists.
template <Scope S, Placement P>
GDX_DEVICE std::uint64_t* find_word(PeerEndpoint<S, P>& endpoint, const RemoteMemory& word,
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
template <Scope S, Placement P, typename Change>
GDX_DEVICE Status change_word(PeerEndpoint<S, P>& endpoint, std::byte* original, const RemoteMemory& target,
                              Change change) {
  Status status;
  std::uint64_t* const word = find_word(endpoint, target, kPeerAtomic, &status);
  if (word == nullptr) return status;
  endpoint.count(1);
  change_direct<S>(word, original, change);
  return Status::kOk;
}

template <Scope S, Placement P>
GDX_DEVICE Status put_direct(PeerEndpoint<S, P>& endpoint, const RemoteMemory& to, const LocalMemory& from,
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
template <Scope S, Placement P>
GDX_DEVICE Status signal_direct(PeerEndpoint<S, P>& endpoint, const RemoteMemory& signal, std::uint64_t value,
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

}  // namespace device::impl

// Errors of all calls below: those of the call in device/gdx.h, and kRemoteAccess and kRemoteInvalid.

template <Mode M = Mode::kAuto, Scope S, Placement P>
GDX_DEVICE Status gdx_put(device::PeerEndpoint<S, P>& endpoint, RemoteMemory to, LocalMemory from,
                          std::uint64_t bytes, Doorbell doorbell = Doorbell::kRing) {
  if (!endpoint.is_direct()) return gdx_put<M>(endpoint.nic(), to, from, bytes, doorbell);
  return device::impl::put_direct(endpoint, to, from, bytes);
}

// Copies each lane's own range; a lane without bytes copies nothing. A bad length or address in one lane
// stores nothing. A bad address ends the endpoint.
template <Placement P>
GDX_DEVICE Status gdx_put_warp(device::PeerEndpoint<Scope::kWarp, P>& endpoint, RemoteMemory to,
                               LocalMemory from, std::uint64_t bytes, Doorbell doorbell = Doorbell::kRing) {
  constexpr Scope kWarp = Scope::kWarp;
  if (!endpoint.is_direct()) return gdx_put_warp(endpoint.nic(), to, from, bytes, doorbell);
  if (endpoint.status() != Status::kOk) return endpoint.status();
  const bool copies = bytes != 0;
  if (exec::any<kWarp>(copies && !device::impl::is_message_length(bytes))) return Status::kInvalidLength;
  std::byte* const at = copies ? endpoint.find(to, bytes, kPeerWrite) : nullptr;
  if (exec::any<kWarp>(copies && at == nullptr)) return endpoint.fail(Status::kRemoteAccess);
  endpoint.count(exec::lanes_with(copies).count);
  exec::sync<kWarp>();
  if (copies) exec::copy<Scope::kThread>(at, from.address, bytes);
  exec::sync<kWarp>();
  return Status::kOk;
}

template <typename T, Scope S, Placement P>
GDX_DEVICE Status gdx_put_value(device::PeerEndpoint<S, P>& endpoint, RemoteMemory to, T value,
                                Doorbell doorbell = Doorbell::kRing) {
  if (!endpoint.is_direct()) return gdx_put_value(endpoint.nic(), to, value, doorbell);
  if (endpoint.status() != Status::kOk) return endpoint.status();
  std::byte* const at = endpoint.find(to, sizeof(T), kPeerWrite);
  if (at == nullptr) return endpoint.fail(Status::kRemoteAccess);
  endpoint.count(1);
  device::impl::put_value_direct<S, sizeof(T)>(at, device::impl::bits_of(value));
  return Status::kOk;
}

template <Scope S, Placement P>
GDX_DEVICE Status gdx_signal(device::PeerEndpoint<S, P>& endpoint, RemoteMemory signal, std::uint64_t value,
                             SignalOp op = SignalOp::kSet, Doorbell doorbell = Doorbell::kRing) {
  if (!endpoint.is_direct()) return gdx_signal(endpoint.nic(), signal, value, op, doorbell);
  return device::impl::signal_direct(endpoint, signal, value, op);
}

// Stores payload, then the signal; after an error of the put no signal is sent.
template <Mode M = Mode::kAuto, Scope S, Placement P>
GDX_DEVICE Status gdx_put_signal(device::PeerEndpoint<S, P>& endpoint, RemoteMemory to, LocalMemory from,
                                 std::uint64_t bytes, RemoteMemory signal, std::uint64_t value,
                                 SignalOp op = SignalOp::kSet) {
  if (!endpoint.is_direct()) return gdx_put_signal<M>(endpoint.nic(), to, from, bytes, signal, value, op);
  const Status status = device::impl::put_direct(endpoint, to, from, bytes);
  return status != Status::kOk ? status : device::impl::signal_direct(endpoint, signal, value, op);
}

template <Scope S, Placement P>
GDX_DEVICE Status gdx_get(device::PeerEndpoint<S, P>& endpoint, LocalMemory to, RemoteMemory from,
                          std::uint64_t bytes, Doorbell doorbell = Doorbell::kRing) {
  if (!endpoint.is_direct()) return gdx_get(endpoint.nic(), to, from, bytes, doorbell);
  if (!device::impl::is_message_length(bytes) && bytes != 0) return Status::kInvalidLength;
  if (endpoint.status() != Status::kOk || bytes == 0) return endpoint.status();
  const std::byte* const at = endpoint.find(from, bytes, kPeerRead);
  if (at == nullptr) return endpoint.fail(Status::kRemoteAccess);
  endpoint.count(1);
  device::impl::copy_direct<S>(to.address, at, bytes);
  return Status::kOk;
}

template <Scope S, Placement P>
GDX_DEVICE Status gdx_fetch_add(device::PeerEndpoint<S, P>& endpoint, LocalMemory original,
                                RemoteMemory target, std::uint64_t add) {
  if (!endpoint.is_direct()) return gdx_fetch_add(endpoint.nic(), original, target, add);
  return device::impl::change_word(endpoint, original.address, target, [add](std::uint64_t* word) {
    return exec::fetch_add_in_system(word, add);
  });
}

template <Scope S, Placement P>
GDX_DEVICE Status gdx_compare_swap(device::PeerEndpoint<S, P>& endpoint, LocalMemory original,
                                   RemoteMemory target, std::uint64_t compare, std::uint64_t swap) {
  if (!endpoint.is_direct()) return gdx_compare_swap(endpoint.nic(), original, target, compare, swap);
  return device::impl::change_word(endpoint, original.address, target, [=](std::uint64_t* word) {
    return exec::compare_swap_in_system(word, compare, swap);
  });
}

// Orders all loads and stores of the scope before its later stores.
template <Scope S, Placement P>
GDX_DEVICE void gdx_fence(device::PeerEndpoint<S, P>& endpoint) {
  if (!endpoint.is_direct()) return gdx_fence(endpoint.nic());
  exec::fence_release<Placement::kHost>();
}

template <Scope S, Placement P>
GDX_DEVICE Status gdx_flush(device::PeerEndpoint<S, P>& endpoint) {
  if (!endpoint.is_direct()) return gdx_flush(endpoint.nic());
  if (endpoint.status() != Status::kOk) return endpoint.status();
  exec::fence_release<Placement::kHost>();
  exec::sync<S>();
  return Status::kOk;
}

// Waits as gdx_wait on an endpoint of the NIC does, which also probes the peer.
template <Scope S, Placement P>
GDX_DEVICE Status gdx_wait(device::PeerEndpoint<S, P>& endpoint, const std::uint64_t* signal, Compare how,
                           std::uint64_t value) {
  if (endpoint.is_refused()) return endpoint.status();
  return gdx_wait(endpoint.nic(), signal, how, value);
}

}  // namespace gdx

using gdx::gdx_compare_swap;
using gdx::gdx_fence;
using gdx::gdx_fetch_add;
using gdx::gdx_flush;
using gdx::gdx_get;
using gdx::gdx_put;
using gdx::gdx_put_signal;
using gdx::gdx_put_value;
using gdx::gdx_put_warp;
using gdx::gdx_signal;
using gdx::gdx_wait;
