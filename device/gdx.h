// gdx device API: one-sided RDMA from inside a kernel.
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
//    with it is sent alone. Device code compares no length with LocalMemory::bytes or RemoteMemory::bytes.
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
// Build: C++17 or later; nvcc with --expt-relaxed-constexpr, for sm_80 and later. Endpoints that many threads
// share: device/shared.h. Source of the order of publication: docs/device.md, "Ordering".
#pragma once

#include <cstdint>

#include "device/endpoint.h"
#include "device/impl/access.h"
#include "device/impl/post.h"
#include "device/impl/put.h"
#include "device/options.h"
#include "proto/gpu/memory.h"

namespace gdx {

// Writes `bytes` of `from` to the peer's `to`.
// Errors: kInvalidLength for more than 1 GiB in pull mode; kUnsupported for push or bounce on an
// endpoint without such memory; kTimeout, kAborted, and the endpoint's fault. An error in a chunked message
// leaves the earlier chunks sent.
template <Mode M = Mode::kAuto, Copy C = Copy::kStores, Scope S, Placement P>
GDX_DEVICE Status gdx_put(device::Endpoint<S, P>& endpoint, RemoteMemory to, LocalMemory from,
                          std::uint64_t bytes, Doorbell doorbell = Doorbell::kRing) {
  auto& open = device::impl::start_call(endpoint);
  return device::impl::put<M, C>(open, to, from, bytes, device::impl::NoSignal{}, doorbell);
}

// Posts one gdx_put<Mode::kPull> from every lane of a warp, in lane order, each with its own arguments. All
// lanes share one reservation and one doorbell. A lane of 0 B posts nothing.
// Errors: gdx_put's in pull mode, equal in all lanes. A bad length in one lane posts nothing at all.
// kUnsupported when the send queue has fewer blocks than lanes post.
template <Placement P>
GDX_DEVICE Status gdx_put_warp(device::Endpoint<Scope::kWarp, P>& endpoint, RemoteMemory to, LocalMemory from,
                               std::uint64_t bytes, Doorbell doorbell = Doorbell::kRing) {
  auto& open = device::impl::start_call(endpoint);
  return device::impl::put_warp(open, to, from, bytes, doorbell);
}

// Writes a value of 1, 2, 4, 8 or 16 B, which travels in the work request itself. Its type is one that may be
// copied as bytes. A reader may see parts of 16 B before the rest. Errors: the endpoint's.
template <typename T, Scope S, Placement P>
GDX_DEVICE Status gdx_put_value(device::Endpoint<S, P>& endpoint, RemoteMemory to, T value,
                                Doorbell doorbell = Doorbell::kRing) {
  const device::impl::ValueBits bits = device::impl::bits_of(value);
  auto& open = device::impl::start_call(endpoint);
  return device::impl::post_one(open, doorbell, [&] {
    if constexpr (sizeof(T) > 8) return device::impl::wide_value_wqe(open, to, bits);
    return device::impl::value_wqe(open, to, bits.low, sizeof(T), 0);
  });
}

// Sets, or atomically adds to, the peer's signal word of 8 B, which is 8-byte aligned. Rings for deferred
// calls too. Errors: the endpoint's; kRemoteInvalid for an add to an unaligned word. A set of an unaligned
// word is not refused, but its bytes may become visible separately.
template <Scope S, Placement P>
GDX_DEVICE Status gdx_signal(device::Endpoint<S, P>& endpoint, RemoteMemory signal, std::uint64_t value,
                             SignalOp op = SignalOp::kSet, Doorbell doorbell = Doorbell::kRing) {
  auto& open = device::impl::start_call(endpoint);
  return device::impl::post_one(open, doorbell, [&] {
    return device::impl::signal_wqe(open, device::impl::Signal{signal, value, op});
  });
}

// Posts gdx_put and gdx_signal under one doorbell. Errors: those of both calls; after an error of the put no
// signal is sent.
template <Mode M = Mode::kAuto, Copy C = Copy::kStores, Scope S, Placement P>
GDX_DEVICE Status gdx_put_signal(device::Endpoint<S, P>& endpoint, RemoteMemory to, LocalMemory from,
                                 std::uint64_t bytes, RemoteMemory signal, std::uint64_t value,
                                 SignalOp op = SignalOp::kSet) {
  auto& open = device::impl::start_call(endpoint);
  return device::impl::put<M, C>(open, to, from, bytes, device::impl::Signal{signal, value, op},
                                 Doorbell::kRing);
}

// Reads `bytes` of the peer's `from` into `to`. Errors: those of gdx_put in pull mode.
template <Scope S, Placement P>
GDX_DEVICE Status gdx_get(device::Endpoint<S, P>& endpoint, LocalMemory to, RemoteMemory from,
                          std::uint64_t bytes, Doorbell doorbell = Doorbell::kRing) {
  auto& open = device::impl::start_call(endpoint);
  if (!device::impl::is_message_length(bytes))
    return bytes == 0 ? device::impl::transfer_nothing(open, doorbell) : Status::kInvalidLength;
  return device::impl::post_one(open, doorbell, [&] {
    return device::impl::transfer_wqe(open, mlx5::WqeOpcode::kRdmaRead, from,
                                      reinterpret_cast<std::uint64_t>(to.address), to.lkey,
                                      static_cast<std::uint32_t>(bytes));
  });
}

// Atomically adds to the peer's 8-byte aligned word. The original value lands in the first 8 B of `original`,
// which is 8-byte aligned too. Errors: the endpoint's; kRemoteInvalid for an unaligned word.
template <Scope S, Placement P>
GDX_DEVICE Status gdx_fetch_add(device::Endpoint<S, P>& endpoint, LocalMemory original, RemoteMemory target,
                                std::uint64_t add) {
  auto& open = device::impl::start_call(endpoint);
  return device::impl::post_one(open, Doorbell::kRing, [&] {
    return device::impl::atomic_wqe(open, mlx5::WqeOpcode::kAtomicFetchAdd, target, add, 0,
                                    reinterpret_cast<std::uint64_t>(original.address), original.lkey, 0);
  });
}

// Atomically replaces the peer's 8-byte aligned word by `swap` if it equals `compare`. The original value
// lands in the first 8 B of `original` either way, which is 8-byte aligned too. Errors: those of
// gdx_fetch_add.
template <Scope S, Placement P>
GDX_DEVICE Status gdx_compare_swap(device::Endpoint<S, P>& endpoint, LocalMemory original,
                                   RemoteMemory target, std::uint64_t compare, std::uint64_t swap) {
  auto& open = device::impl::start_call(endpoint);
  return device::impl::post_one(open, Doorbell::kRing, [&] {
    return device::impl::atomic_wqe(open, mlx5::WqeOpcode::kAtomicCompareSwap, target, swap, compare,
                                    reinterpret_cast<std::uint64_t>(original.address), original.lkey, 0);
  });
}

// Makes this kernel's later posts start only after every earlier gdx_get and atomic is answered. Posts
// nothing. Closing the endpoint drops the fence, so the next kernel needs its own.
template <Scope S, Placement P>
GDX_DEVICE void gdx_fence(device::Endpoint<S, P>& endpoint) {
  device::impl::Access::state_of(endpoint).fence_next();
}

// Waits until everything posted on the endpoint is complete. Then sources may be reused, results have landed,
// and the peer's NIC has acknowledged (RC). Completion is local: the peer's kernel may not have read anything
// yet. Errors: the endpoint's; after kTimeout and kAborted part of the work may be complete.
template <Scope S, Placement P>
GDX_DEVICE Status gdx_flush(device::Endpoint<S, P>& endpoint) {
  auto& open = device::impl::start_call(endpoint);
  return device::impl::by_leader(open, [&] {
    if (open.status() != Status::kOk) return open.status();
    open.ring_if_deferred();
    return open.wait_all_completed();
  });
}

// Returns whether the local signal word compares true. After true, payload sent before that signal may be
// read. Never waits, so the caller bounds a loop around it; gdx_wait is bounded.
GDX_DEVICE bool gdx_test(const std::uint64_t* signal, Compare how, std::uint64_t value) {
  if (device::impl::holds(signal, how, value)) return true;
  exec::yield();
  return false;
}

// Waits until the local signal word compares true. `endpoint` leads to the peer that will signal. Probes that
// peer's NIC by a zero-length WRITE after each probe_after_ns without a signal. So a dead peer ends the wait
// with kPeerUnreachable instead of kTimeout. Errors: the endpoint's; after kTimeout and kAborted the signal
// may still arrive.
template <Scope S, Placement P>
GDX_DEVICE Status gdx_wait(device::Endpoint<S, P>& endpoint, const std::uint64_t* signal, Compare how,
                           std::uint64_t value) {
  auto& open = device::impl::start_call(endpoint);
  return device::impl::by_leader(open, [&] {
    const auto holds = [&] { return device::impl::holds(signal, how, value); };
    if (holds()) return Status::kOk;
    if (open.status() != Status::kOk) return open.status();
    open.ring_if_deferred();
    std::uint64_t probe_at = exec::now_ns() + open.handle().probe_after_ns;
    return open.wait_until([&] {
      if (holds()) return true;
      if (exec::now_ns() >= probe_at && open.all_completed()) {
        device::impl::post_probe(open);
        probe_at = exec::now_ns() + open.handle().probe_after_ns;
      }
      return false;
    });
  });
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
using gdx::gdx_test;
using gdx::gdx_wait;
