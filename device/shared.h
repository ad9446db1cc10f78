// The device API on shared endpoints. As device/gdx.h, but:
//  - A thread calls for itself, and any number of threads may call at the same time.
//  - kOk means posted. What one thread posts takes effect at the peer in that order; a thread that has seen
//    another's call return is behind it.
//  - A wait for a free queue, or for the turn to publish, that times out or is aborted ends the endpoint: a
//    reservation cannot be given back. All threads then get the first failure, from every call; it is in
//    Endpoint::fault() of the host. gdx_flush may time out and leave the queue intact.
//  - A call waits up to twice the endpoint's timeout: for room, then for its turn; a chunk of a push or
//    bounce three times, for a credit first, which threads get in the order in which they began to wait. That
//    wait holds nothing: it may time out or be aborted and leave the queue intact, with the chunks before it
//    sent. A call that meets the endpoint's failure gives credits back, and waits once more for slots that
//    the NIC has yet to flush.
//  - Puts are pulled unless their Mode says kPush or kBounce: there is no kAuto, and no inline data but
//    gdx_put_value's. No Doorbell::kDefer, no gdx_fence, no gdx_wait: gdx_test needs no endpoint. Doorbells
//    are plain, for a BlueFlame register has one writer.
//  - There is no close: slots above the endpoint's limit go back when a push looks for credits, and at
//    gdx_flush. What it holds when the kernel ends it keeps; EndpointOptions::slot_count bounds that.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/impl/shared_put.h"
#include "device/options.h"
#include "device/shared_endpoint.h"
#include "proto/gpu/memory.h"

namespace gdx {

// Writes `bytes` of `from` to the peer's `to`. A push or bounce may be made by a warp or a block together:
// then all threads of it call with the same arguments, fill each slot together, and get the same Status.
// Errors: kInvalidLength for 0 bytes or, pulled, more than 1 GiB; kUnsupported for push or bounce on an
// endpoint without such memory; the endpoint's failure; of a push or bounce also kTimeout and kAborted.
template <Mode M = Mode::kPull, Scope S = Scope::kThread, Placement P>
GDX_DEVICE Status gdx_put(device::SharedEndpoint<P>& endpoint, RemoteMemory to, LocalMemory from,
                          std::uint64_t bytes) {
  return device::impl::put_shared<M, S>(endpoint, to, from, bytes, device::impl::NoSignal{});
}

// gdx_put from every lane of a warp, each with its own arguments, in the order of lanes: one reservation,
// one publication and one doorbell for all. All lanes call it together and get the same Status; a bad length
// in one lane posts nothing. A shared queue is never shorter than a warp: no kUnsupported here.
template <Placement P>
GDX_DEVICE Status gdx_put_warp(device::SharedEndpoint<P>& endpoint, RemoteMemory to, LocalMemory from,
                               std::uint64_t bytes) {
  constexpr Scope kWarp = Scope::kWarp;
  if (endpoint.status() != Status::kOk) return endpoint.status();
  if (exec::any<kWarp>(!device::impl::is_message_length(bytes))) return Status::kInvalidLength;
  const std::uint32_t lane = exec::thread_rank<kWarp>();
  const std::uint32_t lanes = exec::thread_count<kWarp>();
  std::uint32_t first = 0;
  Status status = Status::kOk;
  if (lane == 0) {
    status = endpoint.reserve(lanes, &first);
    if (status != Status::kOk) status = device::impl::give_back_shared(endpoint.handle().state);
  }
  status = static_cast<Status>(exec::broadcast<kWarp>(static_cast<std::uint32_t>(status)));
  if (status != Status::kOk) return status;
  first = exec::broadcast<kWarp>(first);
  endpoint.store_transfer(first + lane, mlx5::WqeOpcode::kRdmaWrite, to, from,
                          static_cast<std::uint32_t>(bytes));
  exec::sync<kWarp>();  // the release below must cover every lane's payload and WQE
  if (lane == 0) {
    status = endpoint.publish(first, first + lanes, endpoint.write_doorbell(first + lanes - 1));
    if (status != Status::kOk) status = device::impl::give_back_shared(endpoint.handle().state);
  }
  return static_cast<Status>(exec::broadcast<kWarp>(static_cast<std::uint32_t>(status)));
}

// Writes a value of 1, 2, 4 or 8 B that travels in the work request itself.
template <typename T, Placement P>
GDX_DEVICE Status gdx_put_value(device::SharedEndpoint<P>& endpoint, RemoteMemory to, T value) {
  static_assert(std::is_integral_v<T> && sizeof(T) <= 8);
  return device::impl::post_shared(endpoint, 1, [&](std::uint32_t first) {
    return endpoint.store_value(first, to, static_cast<std::uint64_t>(value), sizeof(T), 0);
  });
}

// Sets, or atomically adds to, the peer's 8-byte aligned signal word.
template <Placement P>
GDX_DEVICE Status gdx_signal(device::SharedEndpoint<P>& endpoint, RemoteMemory signal, std::uint64_t value,
                             SignalOp op = SignalOp::kSet) {
  return device::impl::post_shared(
      endpoint, 1, [&](std::uint32_t first) { return endpoint.store_signal(first, signal, value, op); });
}

// gdx_put and gdx_signal with one reservation and one doorbell for both; Mode and Scope as of gdx_put.
template <Mode M = Mode::kPull, Scope S = Scope::kThread, Placement P>
GDX_DEVICE Status gdx_put_signal(device::SharedEndpoint<P>& endpoint, RemoteMemory to, LocalMemory from,
                                 std::uint64_t bytes, RemoteMemory signal, std::uint64_t value,
                                 SignalOp op = SignalOp::kSet) {
  return device::impl::put_shared<M, S>(endpoint, to, from, bytes, device::impl::Signal{signal, value, op});
}

// Reads `bytes` of the peer's `from` into `to`; they are there after gdx_flush. Errors: as gdx_put.
template <Placement P>
GDX_DEVICE Status gdx_get(device::SharedEndpoint<P>& endpoint, LocalMemory to, RemoteMemory from,
                          std::uint64_t bytes) {
  if (!device::impl::is_message_length(bytes)) return Status::kInvalidLength;
  return device::impl::post_shared(endpoint, 1, [&](std::uint32_t first) {
    return endpoint.store_transfer(first, mlx5::WqeOpcode::kRdmaRead, from, to,
                                   static_cast<std::uint32_t>(bytes));
  });
}

// Atomically adds to the peer's 8-byte aligned word; the original value is in `original` after gdx_flush.
template <Placement P>
GDX_DEVICE Status gdx_fetch_add(device::SharedEndpoint<P>& endpoint, LocalMemory original,
                                RemoteMemory target, std::uint64_t add) {
  return device::impl::post_shared(endpoint, 1, [&](std::uint32_t first) {
    return endpoint.store_atomic(first, mlx5::WqeOpcode::kAtomicFetchAdd, target, add, 0, original.address,
                                 original.lkey, 0);
  });
}

// Atomically replaces the peer's 8-byte aligned word by `swap` if it equals `compare`; the original value is
// in `original` after gdx_flush either way.
template <Placement P>
GDX_DEVICE Status gdx_compare_swap(device::SharedEndpoint<P>& endpoint, LocalMemory original,
                                   RemoteMemory target, std::uint64_t compare, std::uint64_t swap) {
  return device::impl::post_shared(endpoint, 1, [&](std::uint32_t first) {
    return endpoint.store_atomic(first, mlx5::WqeOpcode::kAtomicCompareSwap, target, swap, compare,
                                 original.address, original.lkey, 0);
  });
}

// Waits until everything that any thread has published before is complete, this thread's own in any case.
// Errors: kTimeout and kAborted, which leave the queue intact; the endpoint's failure.
template <Placement P>
GDX_DEVICE Status gdx_flush(device::SharedEndpoint<P>& endpoint) {
  if (endpoint.status() != Status::kOk) return endpoint.status();
  QueueState* const state = endpoint.handle().state;
  return device::impl::flush_shared(state, exec::load_counter(&state->shared.published));
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
