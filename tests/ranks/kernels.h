// The kernels that simulated ranks run: one block of one thread for every endpoint. The thread is a warp's
// first, because an endpoint of a thread rings plainly.
#pragma once

#include <cstdint>

#include "device/endpoint.h"
#include "tests/ranks/flow.h"

namespace gdx::ranks {

using Ep = device::Endpoint<Scope::kWarp>;

GDX_DEVICE std::uint64_t expected_word(std::uint64_t salt, std::uint64_t sequence, std::uint64_t index) {
  return ((salt + sequence) * 0x9e3779b97f4a7c15u ^ index) * 0xd6e8feb86659fd93u;
}

GDX_DEVICE void spend(const Shape& shape, std::uint64_t ns) {
  const std::uint64_t until_ns = exec::now_ns() + ns;
  while (exec::now_ns() < until_ns) {
    shape.busy_until(blockIdx.x, until_ns);
    exec::relax();
  }
}

// The time that a GPU's thread would spend before the put of message `sequence`.
GDX_DEVICE void prepare(const Shape& shape, const Flow& flow, std::uint64_t sequence) {
  spend(shape, shape.post_ns + expected_word(flow.own_salt, sequence, 0) % (shape.jitter_ns + 1));
}

// Slot by slot, so that each store can be told of, but with credits asked for as gdx_put does: for all that
// the rest could use. The thread spends a fence for every quarter of what it holds, and the caller the last.
// gdx_put differs in one thing: with BlueFlame it rings when all of a quarter is stored. This function rings
// each slot at once where fences cost nothing.
template <Mode M, typename Pool>
GDX_DEVICE Status put_slots(Ep& endpoint, const Shape& shape, const RemoteMemory& to, const LocalMemory& from,
                            Doorbell doorbell) {
  auto& open = device::impl::Access::state_of(endpoint);
  const std::uint64_t slot_bytes = Pool::of(endpoint.handle()).slot_bytes;
  const bool blueflame = endpoint.handle().blueflame_half_bytes != 0;
  std::uint32_t unordered = 0;
  for (std::uint64_t at = 0; at < shape.message_bytes; at += slot_bytes) {
    const std::uint64_t rest = shape.message_bytes - at;
    const bool last = rest <= slot_bytes;
    const std::uint64_t bytes = last ? rest : slot_bytes;
    const Status credit = open.template reserve_credit<Pool>((rest - 1) / slot_bytes + 1);
    if (credit != Status::kOk) return credit;
    const bool orders = ++unordered * 4 >= Pool::held(open);
    const Doorbell between = blueflame || orders ? Doorbell::kRing : Doorbell::kDefer;
    const Status status = gdx_put<M>(endpoint, to + at, from + at, bytes, last ? doorbell : between);
    if (status != Status::kOk) return status;
    shape.stored(blockIdx.x, bytes);
    shape.posted(blockIdx.x);
    if (last || !orders) continue;
    spend(shape, shape.order_ns);
    unordered = 0;
  }
  return Status::kOk;
}

template <Mode M>
GDX_DEVICE Status put(Ep& endpoint, const Flow& flow, const Shape& shape, std::uint64_t sequence,
                      Doorbell doorbell) {
  const std::uint64_t half = (sequence & 1) * shape.message_bytes;
  const RemoteMemory to = flow.peer_inbox + half;
  const LocalMemory from = flow.source + half;
  if constexpr (M == Mode::kPush)
    return put_slots<M, device::impl::NicPool>(endpoint, shape, to, from, doorbell);
  if constexpr (M == Mode::kBounce)
    return put_slots<M, device::impl::HostPool>(endpoint, shape, to, from, doorbell);
  const Status status = gdx_put<M>(endpoint, to, from, shape.message_bytes, doorbell);
  shape.posted(blockIdx.x);
  return status;
}

template <Mode M>
__global__ void exchange(const Flow* flows, Shape shape, Outcome* outcomes) {
  const Flow& flow = flows[blockIdx.x];
  Outcome& outcome = outcomes[blockIdx.x];
  Ep endpoint(flow.endpoint);
  const std::uint64_t words = shape.message_bytes / 8;
  // One doorbell for put and signal; with BlueFlame one for each, since it carries one WQE.
  const Doorbell between = flow.endpoint.blueflame_half_bytes == 0 ? Doorbell::kDefer : Doorbell::kRing;
  outcome.status = endpoint.status();
  for (std::uint64_t m = 1; m <= shape.messages && outcome.status == Status::kOk; ++m) {
    // The peer puts message m + 2 into the same half only after it saw m + 1, which follows this check.
    const std::uint64_t half = (m & 1) * shape.message_bytes;
    auto* const outgoing = reinterpret_cast<std::uint64_t*>((flow.source + half).address);
    for (std::uint64_t i = 0; i < words; ++i) outgoing[i] = expected_word(flow.own_salt, m, i);
    prepare(shape, flow, m);
    const std::uint64_t begun_ns = exec::now_ns() + shape.order_ns;
    outcome.status = put<M>(endpoint, flow, shape, m, between);
    if (outcome.status == Status::kOk) outcome.status = gdx_signal(endpoint, flow.peer_signal, m);
    shape.posted(blockIdx.x);
    if (outcome.status != Status::kOk) break;
    spend(shape, shape.order_ns);
    shape.sent(blockIdx.x, shape.message_bytes, begun_ns);
    outcome.status = gdx_wait(endpoint, flow.signal, Compare::kGreaterEqual, m);
    if (outcome.status != Status::kOk) break;
    shape.received(blockIdx.x, shape.message_bytes);
    outcome.seen_ns = exec::now_ns();
    const auto* const incoming = reinterpret_cast<const std::uint64_t*>((flow.inbox + half).address);
    for (std::uint64_t i = 0; i < words; ++i)
      outcome.wrong_words += incoming[i] != expected_word(flow.peer_salt, m, i);
    ++outcome.messages;
  }
  if (outcome.status == Status::kOk) outcome.status = gdx_flush(endpoint);
}

template <Mode M>
__global__ void stream(const Flow* flows, Shape shape, Outcome* outcomes) {
  const Flow& flow = flows[blockIdx.x];
  Outcome& outcome = outcomes[blockIdx.x];
  if (!flow.sends) return;
  Ep endpoint(flow.endpoint);
  outcome.status = endpoint.status();
  for (std::uint64_t m = 1; m <= shape.messages && outcome.status == Status::kOk; ++m) {
    prepare(shape, flow, m);
    outcome.status = put<M>(endpoint, flow, shape, m, Doorbell::kRing);
    spend(shape, shape.order_ns);
    outcome.messages += outcome.status == Status::kOk;
  }
  if (outcome.status == Status::kOk) outcome.status = gdx_flush(endpoint);
}

}  // namespace gdx::ranks
