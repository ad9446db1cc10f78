// gdx device API: one-sided RDMA from inside a kernel.
//
// Common to every call on an endpoint:
//  - All threads of the endpoint's scope call it together, with the same arguments, and all get the
//    same Status. It begins with a barrier over the scope, so payload that any of them stored before
//    the call is sent.
//  - All its waits together last no longer than the endpoint's timeout. Errors of the operation (0x01xx in
//    proto/status.h, kTimeout and kAborted among them) leave the queue intact; all others are sticky and
//    Endpoint::fault() tells the CQE syndrome behind them.
//  - kOk means posted. The source may be reused after gdx_flush (all but pull: at once). A kernel that
//    ends without a flush withholds the staging slots that the NIC still reads: see Endpoint::close().
//  - Lengths and offsets are in bytes. A length of 0 is kInvalidLength. Nobody compares a length with
//    LocalMemory::bytes or RemoteMemory::bytes: what leaves its region the NIC refuses, as kLocalProtection
//    or kRemoteAccess, and the queue is lost.
//  - Local memory is registered memory of this rank, or a part of it, that the kernel can load and store.
//    Where the queue is in GPU memory and local memory is the host's, what the kernel has stored there needs
//    a fence of system scope before a put that pulls it.
//  - Where Errors only says "the endpoint's": kTimeout, kAborted, and its fault.
// Puts and signals on one endpoint take effect at the peer in the order they were made: the signal of a
// put+signal, or of a later gdx_signal, is visible only after the payload before it. A gdx_get or an atomic
// may still be reading when a later put arrives: put gdx_fence between them where that matters. Results of
// gdx_get and the atomics are in local memory after gdx_flush.
// To compile: C++20; by nvcc with --expt-relaxed-constexpr, for sm_80 and later. Endpoints that many threads
// share: device/shared.h. Source of the order of publication: papers/design.md, "Ordering".
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/endpoint.h"
#include "device/impl/post.h"
#include "device/impl/put.h"
#include "device/options.h"
#include "proto/gpu/memory.h"

namespace gdx {

// Writes `bytes` of `from` to the peer's `to`.
// Errors: kInvalidLength for 0 bytes, or more than 1 GiB in pull mode; kUnsupported for push or bounce on an
// endpoint without such memory; kTimeout, kAborted, and the endpoint's fault. An error in the middle of a
// chunked message leaves the chunks before it sent.
template <Mode M = Mode::kAuto, Copy C = Copy::kStores, Scope S, Placement P>
GDX_DEVICE Status gdx_put(device::Endpoint<S, P>& endpoint, RemoteMemory to, LocalMemory from,
                          std::uint64_t bytes, Doorbell doorbell = Doorbell::kRing) {
  endpoint.start_call();
  return device::impl::put<M, C>(endpoint, to, from, bytes, device::impl::NoSignal{}, doorbell);
}

// One gdx_put<Mode::kPull> from every lane of a warp, each with its own arguments, in the order of lanes,
// with one reservation and one doorbell for all. Errors: as gdx_put in pull mode, and for all lanes alike:
// a bad length in one lane posts nothing; kUnsupported where the whole queue has fewer blocks than the warp
// lanes.
template <Placement P>
GDX_DEVICE Status gdx_put_warp(device::Endpoint<Scope::kWarp, P>& endpoint, RemoteMemory to, LocalMemory from,
                               std::uint64_t bytes, Doorbell doorbell = Doorbell::kRing) {
  endpoint.start_call();
  return device::impl::put_warp(endpoint, to, from, bytes, doorbell);
}

// Writes a value of 1, 2, 4 or 8 B that travels in the work request itself. Errors: the endpoint's.
template <typename T, Scope S, Placement P>
GDX_DEVICE Status gdx_put_value(device::Endpoint<S, P>& endpoint, RemoteMemory to, T value,
                                Doorbell doorbell = Doorbell::kRing) {
  static_assert(std::is_integral_v<T> && sizeof(T) <= 8);
  endpoint.start_call();
  return device::impl::post_one(endpoint, doorbell, [&] {
    return device::impl::value_wqe(endpoint, to, static_cast<std::uint64_t>(value), sizeof(T), 0);
  });
}

// Sets, or atomically adds to, the peer's signal word of 8 B, which is 8-byte aligned. Rings for deferred
// calls too. Errors: the endpoint's; kRemoteInvalid for an add to a word that is not aligned. A set of one is
// not refused, but its bytes may be seen apart.
template <Scope S, Placement P>
GDX_DEVICE Status gdx_signal(device::Endpoint<S, P>& endpoint, RemoteMemory signal, std::uint64_t value,
                             SignalOp op = SignalOp::kSet, Doorbell doorbell = Doorbell::kRing) {
  endpoint.start_call();
  return device::impl::post_one(endpoint, doorbell, [&] {
    return device::impl::signal_wqe(endpoint, device::impl::Signal{signal, value, op});
  });
}

// gdx_put and gdx_signal, published at once. Errors: of both; after one of the put nothing is signalled.
template <Mode M = Mode::kAuto, Copy C = Copy::kStores, Scope S, Placement P>
GDX_DEVICE Status gdx_put_signal(device::Endpoint<S, P>& endpoint, RemoteMemory to, LocalMemory from,
                                 std::uint64_t bytes, RemoteMemory signal, std::uint64_t value,
                                 SignalOp op = SignalOp::kSet) {
  endpoint.start_call();
  return device::impl::put<M, C>(endpoint, to, from, bytes, device::impl::Signal{signal, value, op},
                                 Doorbell::kRing);
}

// Reads `bytes` of the peer's `from` into `to`. Errors: as gdx_put in pull mode.
template <Scope S, Placement P>
GDX_DEVICE Status gdx_get(device::Endpoint<S, P>& endpoint, LocalMemory to, RemoteMemory from,
                          std::uint64_t bytes, Doorbell doorbell = Doorbell::kRing) {
  if (!device::impl::is_message_length(bytes)) return Status::kInvalidLength;
  endpoint.start_call();
  return device::impl::post_one(endpoint, doorbell, [&] {
    return device::impl::transfer_wqe(endpoint, mlx5::WqeOpcode::kRdmaRead, from,
                                      reinterpret_cast<std::uint64_t>(to.address), to.lkey,
                                      static_cast<std::uint32_t>(bytes));
  });
}

// Atomically adds to the peer's 8-byte aligned word; the original value lands in the first 8 B of `original`,
// 8-byte aligned too. Errors: the endpoint's; kRemoteInvalid for a word that is not aligned.
template <Scope S, Placement P>
GDX_DEVICE Status gdx_fetch_add(device::Endpoint<S, P>& endpoint, LocalMemory original, RemoteMemory target,
                                std::uint64_t add) {
  endpoint.start_call();
  return device::impl::post_one(endpoint, Doorbell::kRing, [&] {
    return device::impl::atomic_wqe(endpoint, mlx5::WqeOpcode::kAtomicFetchAdd, target, add, 0,
                                    reinterpret_cast<std::uint64_t>(original.address), original.lkey, 0);
  });
}

// Atomically replaces the peer's 8-byte aligned word by `swap` if it equals `compare`; the original value
// lands in the first 8 B of `original`, 8-byte aligned too, either way. Errors: as gdx_fetch_add.
template <Scope S, Placement P>
GDX_DEVICE Status gdx_compare_swap(device::Endpoint<S, P>& endpoint, LocalMemory original,
                                   RemoteMemory target, std::uint64_t compare, std::uint64_t swap) {
  endpoint.start_call();
  return device::impl::post_one(endpoint, Doorbell::kRing, [&] {
    return device::impl::atomic_wqe(endpoint, mlx5::WqeOpcode::kAtomicCompareSwap, target, swap, compare,
                                    reinterpret_cast<std::uint64_t>(original.address), original.lkey, 0);
  });
}

// What this kernel posts after it starts only when every gdx_get and atomic before it has been answered.
// Posts nothing, and is lost when the endpoint closes: the next kernel's first post needs a fence of its own.
template <Scope S, Placement P>
GDX_DEVICE void gdx_fence(device::Endpoint<S, P>& endpoint) {
  endpoint.fence_next();
}

// Waits until everything posted on the endpoint is complete: sources may be reused, results have
// landed, and (RC) the peer's NIC has acknowledged. That is local completion; it does not say that the
// peer's kernel has looked. Errors: the endpoint's; after kTimeout and kAborted part of it may be complete.
template <Scope S, Placement P>
GDX_DEVICE Status gdx_flush(device::Endpoint<S, P>& endpoint) {
  endpoint.start_call();
  return device::impl::by_leader(endpoint, [&] {
    if (endpoint.status() != Status::kOk) return endpoint.status();
    endpoint.ring_if_deferred();
    return endpoint.wait_all_completed();
  });
}

// Does `left` compare so with `right`?
GDX_DEVICE bool compare(std::uint64_t left, Compare how, std::uint64_t right) {
  switch (how) {
    case Compare::kEqual: return left == right;
    case Compare::kNotEqual: return left != right;
    case Compare::kGreaterEqual: return left >= right;
    case Compare::kGreater: return left > right;
    case Compare::kLessEqual: return left <= right;
    case Compare::kLess: return left < right;
  }
  return false;
}

// Does the local signal word compare true? Payload sent before that signal may be read then. Never waits, so
// a loop around it is the caller's to bound; gdx_wait is bounded.
GDX_DEVICE bool gdx_test(const std::uint64_t* signal, Compare how, std::uint64_t value) {
  if (compare(exec::load_acquire(signal), how, value)) return true;
  exec::yield();
  return false;
}

// Waits until the local signal word compares true. The endpoint is the one whose peer will signal: when
// nothing comes for a while the wait asks that peer's NIC for life (a zero-length WRITE), so that a dead
// peer ends it as kPeerUnreachable and not only as kTimeout. Errors: the endpoint's; after kTimeout and
// kAborted the signal may still come.
template <Scope S, Placement P>
GDX_DEVICE Status gdx_wait(device::Endpoint<S, P>& endpoint, const std::uint64_t* signal, Compare how,
                           std::uint64_t value) {
  endpoint.start_call();
  return device::impl::by_leader(endpoint, [&] {
    const auto holds = [&] { return compare(exec::load_acquire(signal), how, value); };
    if (holds()) return Status::kOk;
    if (endpoint.status() != Status::kOk) return endpoint.status();
    endpoint.ring_if_deferred();
    std::uint64_t probe_at = exec::now_ns() + endpoint.handle().probe_after_ns;
    return endpoint.wait_until([&] {
      if (holds()) return true;
      if (exec::now_ns() >= probe_at && endpoint.all_completed()) {
        device::impl::post_probe(endpoint);
        probe_at = exec::now_ns() + endpoint.handle().probe_after_ns;
      }
      return false;
    });
  });
}

}  // namespace gdx

// The prefix is namespace enough for kernel authors.
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
