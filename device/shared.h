// The device API on shared endpoints. Differences from device/gdx.h:
//  - A thread calls for itself, and any number of threads may call at a time.
//  - kOk means posted. A signal takes effect at the peer after what its thread has called before, and after
//    calls of other threads whose return that thread observed.
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
//  - A call that meets the endpoint's failure gives credits back. It waits once more for slots that the NIC
//    has yet to flush.
//  - A put inline takes one work request for every 28 B, and so kAuto takes at most one inline.
//  - There is no Doorbell::kDefer and no gdx_fence; gdx_test needs no endpoint.
//  - Doorbells are plain, because a BlueFlame register has one writer.
//  - There is no close. A push that polls credits, and gdx_flush, return slots above the limit.
//    Slots held at the kernel's end stay held; EndpointOptions::slot_count bounds them.
//  - "Errors: the endpoint's" means the endpoint's failure, of which a timeout or an abort may be the cause.
#pragma once

#include <cstdint>

#include "device/impl/access.h"
#include "device/impl/shared_put.h"
#include "device/options.h"
#include "device/shared_endpoint.h"
#include "proto/gpu/memory.h"

namespace gdx {

// Writes `bytes` of `from` to the peer's `to`. A warp or a block may make a put together. Then all its
// threads call with equal arguments and get the same Status. They fill each slot of a push or bounce
// together. Errors: kInvalidLength for a pull of more than 1 GiB; kUnsupported for push or bounce on an
// endpoint without such memory; the endpoint's failure; of a push or bounce also kTimeout and kAborted.
template <Mode M = Mode::kAuto, Scope S = Scope::kThread, Placement P>
GDX_DEVICE Status gdx_put(device::SharedEndpoint<P>& endpoint, RemoteMemory to, LocalMemory from,
                          std::uint64_t bytes) {
  auto& open = endpoint.*device::impl::Access::kState<device::SharedEndpoint<P>>;
  return device::impl::put_shared<M, S>(open, to, from, bytes, device::impl::NoSignal{});
}

// Posts gdx_put<Mode::kPull> from every lane of a warp, in lane order, each with its own arguments. All lanes
// share one reservation, one publication and one doorbell. All lanes call together and get the same Status. A
// lane without bytes posts nothing. Errors: the endpoint's; kInvalidLength in all lanes for a bad length in
// one, and then nothing is posted.
template <Placement P>
GDX_DEVICE Status gdx_put_warp(device::SharedEndpoint<P>& endpoint, RemoteMemory to, LocalMemory from,
                               std::uint64_t bytes) {
  auto& open = endpoint.*device::impl::Access::kState<device::SharedEndpoint<P>>;
  return device::impl::put_warp_shared(open, to, from, bytes);
}

// Writes a value of 1, 2, 4, 8 or 16 B, of any type that may be copied as bytes. It travels in the work
// request. A reader may see parts of 16 B before the rest. Errors: the endpoint's.
template <typename T, Placement P>
GDX_DEVICE Status gdx_put_value(device::SharedEndpoint<P>& endpoint, RemoteMemory to, T value) {
  auto& open = endpoint.*device::impl::Access::kState<device::SharedEndpoint<P>>;
  const device::impl::ValueBits bits = device::impl::bits_of(value);
  return device::impl::post_shared(open, 1, [&](std::uint32_t first) {
    if constexpr (sizeof(T) > 8) return open.store_wide_value(first, to, bits, 0);
    return open.store_value(first, to, bits.low, sizeof(T), 0);
  });
}

// Sets, or atomically adds to, the peer's 8-byte aligned signal word. Errors: the endpoint's; kRemoteInvalid
// for an add to an unaligned word.
template <Placement P>
GDX_DEVICE Status gdx_signal(device::SharedEndpoint<P>& endpoint, RemoteMemory signal, std::uint64_t value,
                             SignalOp op = SignalOp::kSet) {
  auto& open = endpoint.*device::impl::Access::kState<device::SharedEndpoint<P>>;
  return device::impl::post_shared(
      open, 1, [&](std::uint32_t first) { return open.store_signal(first, signal, value, op); });
}

// Posts gdx_put and gdx_signal under one reservation and one doorbell. Mode and Scope have gdx_put's meaning.
// Errors: those of both calls.
template <Mode M = Mode::kAuto, Scope S = Scope::kThread, Placement P>
GDX_DEVICE Status gdx_put_signal(device::SharedEndpoint<P>& endpoint, RemoteMemory to, LocalMemory from,
                                 std::uint64_t bytes, RemoteMemory signal, std::uint64_t value,
                                 SignalOp op = SignalOp::kSet) {
  auto& open = endpoint.*device::impl::Access::kState<device::SharedEndpoint<P>>;
  return device::impl::put_shared<M, S>(open, to, from, bytes, device::impl::Signal{signal, value, op});
}

// Reads `bytes` of the peer's `from` into `to`, complete after gdx_flush. Errors: those of gdx_put.
template <Placement P>
GDX_DEVICE Status gdx_get(device::SharedEndpoint<P>& endpoint, LocalMemory to, RemoteMemory from,
                          std::uint64_t bytes) {
  auto& open = endpoint.*device::impl::Access::kState<device::SharedEndpoint<P>>;
  if (!device::impl::is_message_length(bytes)) return bytes == 0 ? open.status() : Status::kInvalidLength;
  return device::impl::post_shared(open, 1, [&](std::uint32_t first) {
    return open.store_transfer(first, mlx5::WqeOpcode::kRdmaRead, from, to,
                               static_cast<std::uint32_t>(bytes));
  });
}

// Atomically adds to the peer's 8-byte aligned word. The original value is in the first 8 B of `original`
// after gdx_flush; they are 8-byte aligned too. Errors: the endpoint's; kRemoteInvalid for an unaligned word.
template <Placement P>
GDX_DEVICE Status gdx_fetch_add(device::SharedEndpoint<P>& endpoint, LocalMemory original,
                                RemoteMemory target, std::uint64_t add) {
  auto& open = endpoint.*device::impl::Access::kState<device::SharedEndpoint<P>>;
  return device::impl::post_shared(open, 1, [&](std::uint32_t first) {
    return open.store_atomic(first, mlx5::WqeOpcode::kAtomicFetchAdd, target, add, 0, original.address,
                             original.lkey, 0);
  });
}

// Atomically replaces the peer's 8-byte aligned word by `swap` if it equals `compare`. The original value is
// in the first 8 B of `original` after gdx_flush either way. Errors: those of gdx_fetch_add.
template <Placement P>
GDX_DEVICE Status gdx_compare_swap(device::SharedEndpoint<P>& endpoint, LocalMemory original,
                                   RemoteMemory target, std::uint64_t compare, std::uint64_t swap) {
  auto& open = endpoint.*device::impl::Access::kState<device::SharedEndpoint<P>>;
  return device::impl::post_shared(open, 1, [&](std::uint32_t first) {
    return open.store_atomic(first, mlx5::WqeOpcode::kAtomicCompareSwap, target, swap, compare,
                             original.address, original.lkey, 0);
  });
}

// Waits until everything that any thread has published before is complete, the caller's own posts included.
// Errors: kTimeout and kAborted, which leave the queue intact; the endpoint's failure.
template <Placement P>
GDX_DEVICE Status gdx_flush(device::SharedEndpoint<P>& endpoint) {
  if (endpoint.status() != Status::kOk) return endpoint.status();
  QueueState* const state = endpoint.handle().state;
  return device::impl::flush_shared(state, exec::load_counter(&state->shared.published), exec::now_ns());
}

// Waits until the local signal word compares true. The wait is bounded, and probes a silent peer's NIC, as on
// an exclusive endpoint. Any number of threads may wait; they share the probes. Errors: kTimeout and
// kAborted, which leave the queue intact; the endpoint's failure, kPeerUnreachable among them.
template <Placement P>
GDX_DEVICE Status gdx_wait(device::SharedEndpoint<P>& endpoint, const std::uint64_t* signal, Compare how,
                           std::uint64_t value) {
  if (device::impl::holds(signal, how, value)) return Status::kOk;
  if (endpoint.status() != Status::kOk) return endpoint.status();
  return device::impl::wait_signal_shared<P>(endpoint.handle().state, signal, how, value);
}

}  // namespace gdx

using gdx::gdx_compare_swap;
using gdx::gdx_fetch_add;
using gdx::gdx_flush;
using gdx::gdx_get;
using gdx::gdx_put;
using gdx::gdx_put_signal;
using gdx::gdx_put_value;
using gdx::gdx_put_warp;
using gdx::gdx_signal;
using gdx::gdx_wait;
