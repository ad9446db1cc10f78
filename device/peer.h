// The device API on endpoints towards peers whose memory may be mapped (device/peer_endpoint.h). Without a
// mapping each call is the call of device/endpoint.h, mode included. With a mapping:
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

#include "device/endpoint.h"
#include "device/impl/access.h"
#include "device/impl/open_peer.h"
#include "device/peer_endpoint.h"

namespace gdx {

// Writes `bytes` of `from` to the peer's `to`. Errors: those of gdx_put in device/endpoint.h; kRemoteAccess.
template <Mode M = Mode::kAuto, Scope S, Placement P>
GDX_DEVICE Status gdx_put(device::PeerEndpoint<S, P>& endpoint, RemoteMemory to, LocalMemory from,
                          std::uint64_t bytes, Doorbell doorbell = Doorbell::kRing) {
  auto& open = device::impl::Access::state_of(endpoint);
  if (!open.is_direct()) return gdx_put<M>(open.nic(), to, from, bytes, doorbell);
  return device::impl::put_direct(open, to, from, bytes);
}

// Copies each lane's own range; a lane of 0 B copies nothing. A bad length or address in one lane stores
// nothing at all. Errors, equal in all lanes: those of gdx_put_warp in device/endpoint.h; kRemoteAccess.
template <Placement P>
GDX_DEVICE Status gdx_put_warp(device::PeerEndpoint<Scope::kWarp, P>& endpoint, RemoteMemory to,
                               LocalMemory from, std::uint64_t bytes, Doorbell doorbell = Doorbell::kRing) {
  constexpr Scope kWarp = Scope::kWarp;
  auto& open = device::impl::Access::state_of(endpoint);
  if (!open.is_direct()) return gdx_put_warp(open.nic(), to, from, bytes, doorbell);
  if (open.status() != Status::kOk) return open.status();
  const bool copies = bytes != 0;
  if (exec::any<kWarp>(copies && !device::impl::is_message_length(bytes))) return Status::kInvalidLength;
  std::byte* const at = copies ? open.find(to, bytes, kPeerWrite) : nullptr;
  if (exec::any<kWarp>(copies && at == nullptr)) return open.fail(Status::kRemoteAccess);
  open.count(exec::lanes_with(copies).count);
  exec::sync<kWarp>();
  if (copies) exec::copy<Scope::kThread>(at, from.address, bytes);
  exec::sync<kWarp>();
  return Status::kOk;
}

// Writes a value of 1, 2, 4, 8 or 16 B. Errors: those of gdx_put_value in device/endpoint.h; kRemoteAccess.
template <typename T, Scope S, Placement P>
GDX_DEVICE Status gdx_put_value(device::PeerEndpoint<S, P>& endpoint, RemoteMemory to, T value,
                                Doorbell doorbell = Doorbell::kRing) {
  auto& open = device::impl::Access::state_of(endpoint);
  if (!open.is_direct()) return gdx_put_value(open.nic(), to, value, doorbell);
  if (open.status() != Status::kOk) return open.status();
  std::byte* const at = open.find(to, sizeof(T), kPeerWrite);
  if (at == nullptr) return open.fail(Status::kRemoteAccess);
  open.count(1);
  device::impl::put_value_direct<S, sizeof(T)>(at, device::impl::bits_of(value));
  return Status::kOk;
}

// Sets, or atomically adds to, the peer's 8-byte aligned signal word. Errors: those of gdx_signal in
// device/endpoint.h; kRemoteAccess; kRemoteInvalid for an unaligned word, a set too.
template <Scope S, Placement P>
GDX_DEVICE Status gdx_signal(device::PeerEndpoint<S, P>& endpoint, RemoteMemory signal, std::uint64_t value,
                             SignalOp op = SignalOp::kSet, Doorbell doorbell = Doorbell::kRing) {
  auto& open = device::impl::Access::state_of(endpoint);
  if (!open.is_direct()) return gdx_signal(open.nic(), signal, value, op, doorbell);
  return device::impl::signal_direct(open, signal, value, op);
}

// Stores payload, then the signal. Errors: those of gdx_put and gdx_signal; after an error of the put no
// signal is sent.
template <Mode M = Mode::kAuto, Scope S, Placement P>
GDX_DEVICE Status gdx_put_signal(device::PeerEndpoint<S, P>& endpoint, RemoteMemory to, LocalMemory from,
                                 std::uint64_t bytes, RemoteMemory signal, std::uint64_t value,
                                 SignalOp op = SignalOp::kSet) {
  auto& open = device::impl::Access::state_of(endpoint);
  if (!open.is_direct()) return gdx_put_signal<M>(open.nic(), to, from, bytes, signal, value, op);
  const Status status = device::impl::put_direct(open, to, from, bytes);
  return status != Status::kOk ? status : device::impl::signal_direct(open, signal, value, op);
}

// Reads `bytes` of the peer's `from` into `to`. Errors: those of gdx_get in device/endpoint.h; kRemoteAccess.
template <Scope S, Placement P>
GDX_DEVICE Status gdx_get(device::PeerEndpoint<S, P>& endpoint, LocalMemory to, RemoteMemory from,
                          std::uint64_t bytes, Doorbell doorbell = Doorbell::kRing) {
  auto& open = device::impl::Access::state_of(endpoint);
  if (!open.is_direct()) return gdx_get(open.nic(), to, from, bytes, doorbell);
  if (!device::impl::is_message_length(bytes) && bytes != 0) return Status::kInvalidLength;
  if (open.status() != Status::kOk || bytes == 0) return open.status();
  const std::byte* const at = open.find(from, bytes, kPeerRead);
  if (at == nullptr) return open.fail(Status::kRemoteAccess);
  open.count(1);
  device::impl::copy_direct<S>(to.address, at, bytes);
  return Status::kOk;
}

// Atomically adds to the peer's 8-byte aligned word. The original value lands in the first 8 B of `original`.
// Errors: those of gdx_fetch_add in device/endpoint.h; kRemoteAccess, kRemoteInvalid.
template <Scope S, Placement P>
GDX_DEVICE Status gdx_fetch_add(device::PeerEndpoint<S, P>& endpoint, LocalMemory original,
                                RemoteMemory target, std::uint64_t add) {
  auto& open = device::impl::Access::state_of(endpoint);
  if (!open.is_direct()) return gdx_fetch_add(open.nic(), original, target, add);
  return device::impl::change_word(open, original.address, target, [add](std::uint64_t* word) {
    return exec::fetch_add_in_system(word, add);
  });
}

// Atomically replaces the peer's 8-byte aligned word by `swap` if it equals `compare`. The original value
// lands in the first 8 B of `original` either way. Errors: those of gdx_fetch_add.
template <Scope S, Placement P>
GDX_DEVICE Status gdx_compare_swap(device::PeerEndpoint<S, P>& endpoint, LocalMemory original,
                                   RemoteMemory target, std::uint64_t compare, std::uint64_t swap) {
  auto& open = device::impl::Access::state_of(endpoint);
  if (!open.is_direct()) return gdx_compare_swap(open.nic(), original, target, compare, swap);
  return device::impl::change_word(open, original.address, target, [=](std::uint64_t* word) {
    return exec::compare_swap_in_system(word, compare, swap);
  });
}

// Orders all loads and stores of the scope before its later stores.
template <Scope S, Placement P>
GDX_DEVICE void gdx_fence(device::PeerEndpoint<S, P>& endpoint) {
  auto& open = device::impl::Access::state_of(endpoint);
  if (!open.is_direct()) return gdx_fence(open.nic());
  exec::fence_release<Placement::kHost>();
}

// Waits for nothing with a mapping: all stores of the scope are in the peer's memory at return. Errors: those
// of gdx_flush in device/endpoint.h; with a mapping the endpoint's first error.
template <Scope S, Placement P>
GDX_DEVICE Status gdx_flush(device::PeerEndpoint<S, P>& endpoint) {
  auto& open = device::impl::Access::state_of(endpoint);
  if (!open.is_direct()) return gdx_flush(open.nic());
  if (open.status() != Status::kOk) return open.status();
  exec::fence_release<Placement::kHost>();
  exec::sync<S>();
  return Status::kOk;
}

// Waits until the local signal word compares true, and probes the peer's NIC meanwhile. Errors: those of
// gdx_wait in device/endpoint.h.
template <Scope S, Placement P>
GDX_DEVICE Status gdx_wait(device::PeerEndpoint<S, P>& endpoint, const std::uint64_t* signal, Compare how,
                           std::uint64_t value) {
  auto& open = device::impl::Access::state_of(endpoint);
  if (open.is_refused()) return open.status();
  return gdx_wait(open.nic(), signal, how, value);
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
