// gdx device API: one-sided RDMA from inside a kernel, on endpoints. Each endpoint is one queue pair to one
// peer. device/team.h names peers by ranks, and memory by pointers. Both share the options of
// device/options.h.
//
// Rules for every call on an endpoint:
//  - All threads of the endpoint's scope call together, with the same arguments, and get the same Status.
//  - A call begins with a barrier over the scope, so it sends payload that any thread stored before the call.
//  - The endpoint's timeout bounds the sum of a call's waits.
//  - Errors 0x01xx of proto/status.h, kTimeout and kAborted among them, leave the queue intact. All other
//    errors are sticky; Endpoint::fault() returns their CQE syndrome.
//  - kOk means posted. Pull: the source may be reused after gdx_flush. Other modes: at once.
//  - A kernel that ends without a flush keeps the staging slots that the NIC still reads: Endpoint::close().
//  - Lengths and offsets are in bytes. A put or get of 0 B changes nothing, whatever its memory, and a signal
//    with it is sent. Device code compares no length with LocalMemory::bytes or RemoteMemory::bytes.
//    The NIC refuses an access beyond a region with kLocalProtection or kRemoteAccess, and the queue is lost.
//  - Local memory is registered memory of this rank, or a part of it, that the kernel can load and store.
//  - A queue in GPU memory that pulls from host memory needs a system-scope fence of the kernel first, after
//    the stores to that memory.
//  - "Errors: the endpoint's" means kTimeout, kAborted, and the endpoint's fault.
//
// Ordering: a signal takes effect at the peer after all puts and signals before it on the endpoint. All else
// may take effect in any order, because many HCAs let the data of two puts land as it comes.
//
//   gdx_put(A); gdx_signal(s)               a peer that reads s also reads A
//   gdx_put(A); gdx_put_value(v)            v announces nothing: a peer that reads it may read the old A
//   gdx_get(B); gdx_put(B)                  the put may change B while the get reads it
//   gdx_get(B); gdx_fence(); gdx_put(B)     the get reads the old B
//   gdx_put(B); gdx_flush(); gdx_get(B)     the get reads the new B
//
// Results of gdx_get and the atomics are in local memory after gdx_flush.
//
// Differences of a SharedEndpoint:
//  - Any number of scopes may call at a time, each on an object of its own.
//  - A signal takes effect after what its scope has called before. It also takes effect after those calls of
//    other scopes whose return that scope observed.
//
//      thread 1: gdx_put(A); flag = 1            (release)
//      thread 2: while (flag == 0) {}            (acquire)
//                gdx_signal(s)                   a peer that reads s also reads A
//
//  - A reservation cannot be given back. So a timeout or an abort while a call waits for room or for its turn
//    ends the endpoint. Every later call of any thread returns the first failure; the host's
//    Endpoint::fault() has it. gdx_flush may time out and leave the queue intact.
//  - A call waits up to twice the endpoint's timeout: for room, then for its turn. A chunk of a push
//    or bounce waits three times, first for a credit. Threads get credits in the order in which they began to
//    wait.
//  - A wait for a credit holds no block. So its timeout or abort leaves the queue intact, with the earlier
//    chunks sent.
//  - A call that finds the endpoint failed returns the endpoint's credits to the pool. Slots whose work
//    requests the NIC has yet to flush cannot be returned yet, so it waits for those, up to the endpoint's
//    timeout once more.
//  - A put inline takes one work request for every 28 B, and so kAuto takes at most one inline.
//  - There is no Doorbell::kDefer, no gdx_fence and no Copy::kBulk.
//  - Doorbells are plain, because a BlueFlame register has one writer.
//  - There is no close. Slots above the scheduler's limit are returned by gdx_flush, and by a push that
//    looks for credits. Slots held at the kernel's end stay held; EndpointOptions::slot_count bounds them.
//  - "Errors: the endpoint's" means the endpoint's failure, of which a timeout or an abort may be the cause.
//
// Build: C++17 or later; nvcc with --expt-relaxed-constexpr, for sm_80 and later. Source of the order of
// publication: docs/device.md, "Ordering".
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/exec/exec.h"
#include "device/impl/access.h"
#include "device/impl/flush.h"
#include "device/impl/noted_call.h"
#include "device/impl/open_endpoint.h"
#include "device/impl/open_shared_endpoint.h"
#include "device/impl/put.h"
#include "device/options.h"
#include "device/test.h"
#include "proto/gpu/memory.h"
#include "proto/gpu/queue.h"
#include "proto/status.h"

namespace gdx::device {

// An endpoint opened by a kernel.
// Ownership: exactly one thread, warp or block (the Scope) owns an exclusive endpoint from construction to
// close(), so posting needs no atomics. All threads of the scope hold the object and make the same calls. The
// leader, the thread of rank 0, posts and waits.
template <Scope S = Scope::kThread, Placement P = Placement::kHost, Sharing Q = Sharing::kExclusive>
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

// An endpoint on which any threads of a GPU post at once. Each scope opens it for itself and needs nothing
// from others.
template <Scope S, Placement P>
class Endpoint<S, P, Sharing::kShared> : private impl::OpenSharedEndpoint<S, P> {
  friend struct impl::Access;
  using Open = impl::OpenSharedEndpoint<S, P>;

 public:
  // Opens an endpoint; `from` must outlive it (a kernel parameter does). status() then is
  //   kVersionMismatch   the layouts of host and device code differ
  //   kInvalidArgument   P is kGpu and the queue is in host memory, or the queue is exclusive or too short
  //   kNotConnected      the host has not connected it, or has destroyed it
  GDX_DEVICE explicit Endpoint(const EndpointHandle& from) : Open(from) {}
  explicit Endpoint(EndpointHandle&&) = delete;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // Returns kOk, or the reason why this thread could not open the endpoint. Calls return later failures
  // themselves.
  using Open::status;
  // Returns the handle that opened the endpoint.
  using Open::handle;
  // Returns whether this thread is the leader, of rank 0 in its scope.
  using Open::is_leader;
};
template <Scope S = Scope::kThread, Placement P = Placement::kHost>
using SharedEndpoint = Endpoint<S, P, Sharing::kShared>;

// The doorbell option of a call on a shared endpoint: none, because a post of others may wait behind it.
struct RingsAlways {
  constexpr operator Doorbell() const { return Doorbell::kRing; }  // NOLINT(google-explicit-constructor)
};
template <Sharing Q>
using DoorbellOption = std::conditional_t<Q == Sharing::kExclusive, Doorbell, RingsAlways>;

}  // namespace gdx::device

namespace gdx {

// Writes `bytes` of `from` to the peer's `to`.
// Errors: kInvalidLength for more than 1 GiB in pull mode, or kMaxInlinePutBytes inline; kUnsupported for
// push or bounce on an endpoint without such memory; kTimeout, kAborted, and the endpoint's fault. An error
// in a chunked message leaves the earlier chunks sent.
template <Mode M = Mode::kAuto, Copy C = Copy::kStores, Scope S, Placement P, Sharing Q>
GDX_DEVICE Status gdx_put(device::Endpoint<S, P, Q>& endpoint, RemoteMemory to, LocalMemory from,
                          std::uint64_t bytes, device::DoorbellOption<Q> doorbell = {}) {
  device::impl::note_call<S>("gdx_put", to, from, bytes);
  auto& queue = device::impl::start_call(endpoint);
  return device::impl::put<M, C>(queue, to, from, bytes, device::impl::NoSignal{}, doorbell);
}

// Posts one gdx_put<Mode::kPull> from every lane of a warp, in lane order, each with its own arguments. All
// lanes share one reservation and one doorbell. A lane of 0 B posts nothing.
// Errors: gdx_put's in pull mode, equal in all lanes. A bad length in one lane posts nothing at all.
// kUnsupported when the send queue has fewer blocks than lanes post.
template <Placement P, Sharing Q>
GDX_DEVICE Status gdx_put_warp(device::Endpoint<Scope::kWarp, P, Q>& endpoint, RemoteMemory to,
                               LocalMemory from, std::uint64_t bytes,
                               device::DoorbellOption<Q> doorbell = {}) {
  auto& queue = device::impl::start_call(endpoint);
  return device::impl::put_warp(queue, to, from, bytes, doorbell);
}

// Writes a value of 1, 2, 4, 8 or 16 B, which travels in the work request itself. Its type is one that may be
// copied as bytes. A reader may see parts of 16 B before the rest. Errors: the endpoint's.
template <typename T, Scope S, Placement P, Sharing Q>
GDX_DEVICE Status gdx_put_value(device::Endpoint<S, P, Q>& endpoint, RemoteMemory to, T value,
                                device::DoorbellOption<Q> doorbell = {}) {
  device::impl::note_call<S>("gdx_put_value", to, value);
  const device::impl::ValueBits bits = device::impl::bits_of(value);
  auto& queue = device::impl::start_call(endpoint);
  return device::impl::post_one(queue, doorbell, [&](std::uint32_t index) {
    return device::impl::value_wqe<sizeof(T)>(queue, index, to, bits);
  });
}

// Sets, or atomically adds to, the peer's signal word of 8 B, which is 8-byte aligned. Rings for deferred
// calls too. Errors: the endpoint's; kRemoteInvalid for an add to an unaligned word. A set of an unaligned
// word is not refused, but its bytes may become visible separately.
template <Scope S, Placement P, Sharing Q>
GDX_DEVICE Status gdx_signal(device::Endpoint<S, P, Q>& endpoint, RemoteMemory signal, std::uint64_t value,
                             SignalOp op = SignalOp::kSet, device::DoorbellOption<Q> doorbell = {}) {
  device::impl::note_call<S>("gdx_signal", signal, value, op);
  auto& queue = device::impl::start_call(endpoint);
  return device::impl::post_one(queue, doorbell, [&](std::uint32_t index) {
    return device::impl::signal_wqe(queue, index, device::impl::Signal{signal, value, op});
  });
}

// Posts gdx_put and gdx_signal under one doorbell. Errors: those of both calls; after an error of the put no
// signal is sent.
template <Mode M = Mode::kAuto, Copy C = Copy::kStores, Scope S, Placement P, Sharing Q>
GDX_DEVICE Status gdx_put_signal(device::Endpoint<S, P, Q>& endpoint, RemoteMemory to, LocalMemory from,
                                 std::uint64_t bytes, RemoteMemory signal, std::uint64_t value,
                                 SignalOp op = SignalOp::kSet) {
  device::impl::note_call<S>("gdx_put_signal", to, from, bytes, signal, value, op);
  auto& queue = device::impl::start_call(endpoint);
  return device::impl::put<M, C>(queue, to, from, bytes, device::impl::Signal{signal, value, op},
                                 Doorbell::kRing);
}

// Reads `bytes` of the peer's `from` into `to`. Errors: those of gdx_put in pull mode.
template <Scope S, Placement P, Sharing Q>
GDX_DEVICE Status gdx_get(device::Endpoint<S, P, Q>& endpoint, LocalMemory to, RemoteMemory from,
                          std::uint64_t bytes, device::DoorbellOption<Q> doorbell = {}) {
  device::impl::note_call<S>("gdx_get", to, from, bytes);
  auto& queue = device::impl::start_call(endpoint);
  if (!device::impl::is_message_length(bytes))
    return bytes == 0 ? device::impl::transfer_nothing(queue, doorbell) : Status::kInvalidLength;
  return device::impl::post_one(queue, doorbell, [&](std::uint32_t index) {
    return device::impl::transfer_wqe(queue, index, mlx5::WqeOpcode::kRdmaRead, from, to,
                                      static_cast<std::uint32_t>(bytes));
  });
}

// Atomically adds to the peer's 8-byte aligned word. The original value lands in the first 8 B of `original`,
// which is 8-byte aligned too. Errors: the endpoint's; kRemoteInvalid for an unaligned word.
template <Scope S, Placement P, Sharing Q>
GDX_DEVICE Status gdx_fetch_add(device::Endpoint<S, P, Q>& endpoint, LocalMemory original,
                                RemoteMemory target, std::uint64_t add) {
  device::impl::note_call<S>("gdx_fetch_add", original, target, add);
  auto& queue = device::impl::start_call(endpoint);
  return device::impl::post_one(queue, Doorbell::kRing, [&](std::uint32_t index) {
    return device::impl::atomic_wqe(queue, index, {mlx5::WqeOpcode::kAtomicFetchAdd, add, 0}, target,
                                    original.address, original.lkey);
  });
}

// Atomically replaces the peer's 8-byte aligned word by `swap` if it equals `compare`. The original value
// lands in the first 8 B of `original` either way, which is 8-byte aligned too. Errors: those of
// gdx_fetch_add.
template <Scope S, Placement P, Sharing Q>
GDX_DEVICE Status gdx_compare_swap(device::Endpoint<S, P, Q>& endpoint, LocalMemory original,
                                   RemoteMemory target, std::uint64_t compare, std::uint64_t swap) {
  device::impl::note_call<S>("gdx_compare_swap", original, target, compare, swap);
  auto& queue = device::impl::start_call(endpoint);
  return device::impl::post_one(queue, Doorbell::kRing, [&](std::uint32_t index) {
    return device::impl::atomic_wqe(queue, index, {mlx5::WqeOpcode::kAtomicCompareSwap, swap, compare},
                                    target, original.address, original.lkey);
  });
}

// Makes this kernel's later posts start only after every earlier gdx_get and atomic is answered. Posts
// nothing. Closing the endpoint drops the fence, so the next kernel needs its own.
template <Scope S, Placement P>
GDX_DEVICE void gdx_fence(device::Endpoint<S, P>& endpoint) {
  device::impl::Access::state_of(endpoint).fence_next();
}

// Waits until everything posted on the endpoint is complete, on a shared one what any thread published
// before. Then sources may be reused, results have landed, and the peer's NIC has acknowledged (RC).
// Completion is local: the peer's kernel may not have read anything yet. Errors: the endpoint's; after
// kTimeout and kAborted part of the work may be complete, and the queue is intact.
template <Scope S, Placement P, Sharing Q>
GDX_DEVICE Status gdx_flush(device::Endpoint<S, P, Q>& endpoint) {
  return device::impl::flush(device::impl::start_call(endpoint));
}

// Waits until the local signal word compares true. `endpoint` leads to the peer that will signal. Probes that
// peer's NIC by a zero-length WRITE after each probe_after_ns without a signal; scopes that wait on a shared
// endpoint share the probes. So a dead peer ends the wait with kPeerUnreachable instead of kTimeout. Errors:
// the endpoint's; after kTimeout and kAborted the signal may still arrive, and the queue is intact.
template <Scope S, Placement P, Sharing Q>
GDX_DEVICE Status gdx_wait(device::Endpoint<S, P, Q>& endpoint, const std::uint64_t* signal, Compare how,
                           std::uint64_t value) {
  device::impl::note_call<S>("gdx_wait", signal, how, value);
  return device::impl::wait_signal(device::impl::start_call(endpoint), signal, how, value);
}

}  // namespace gdx

// Exports the calls, because their prefix is namespace enough for kernel authors.
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
