// The kernels that simulated ranks run: one block of one thread for every endpoint.
#pragma once

#include <cstdint>

#include "device/gdx.h"
#include "tests/ranks/flow.h"

namespace gdx::ranks {

GDX_DEVICE std::uint64_t expected_word(std::uint64_t salt, std::uint64_t sequence, std::uint64_t index) {
  return ((salt + sequence) * 0x9e3779b97f4a7c15u ^ index) * 0xd6e8feb86659fd93u;
}

// The time that a GPU's thread would spend on the put of message `sequence`.
GDX_DEVICE void spend(const Shape& shape, const Flow& flow, std::uint64_t sequence) {
  const std::uint64_t jitter_ns = expected_word(flow.own_salt, sequence, 0) % (shape.jitter_ns + 1);
  const std::uint64_t until_ns = exec::now_ns() + shape.post_ns + jitter_ns;
  while (exec::now_ns() < until_ns) exec::relax();
}

__global__ void exchange(const Flow* flows, Shape shape, Outcome* outcomes) {
  const Flow& flow = flows[blockIdx.x];
  Outcome& outcome = outcomes[blockIdx.x];
  device::Endpoint<> endpoint(flow.endpoint);
  const std::uint64_t words = shape.message_bytes / 8;
  outcome.status = endpoint.status();
  for (std::uint64_t m = 1; m <= shape.messages && outcome.status == Status::kOk; ++m) {
    // The peer puts message m + 2 into the same half only after it has seen m + 1, which follows this check.
    const std::uint64_t half = (m & 1) * shape.message_bytes;
    auto* const outgoing = reinterpret_cast<std::uint64_t*>((flow.source + half).address);
    for (std::uint64_t i = 0; i < words; ++i) outgoing[i] = expected_word(flow.own_salt, m, i);
    spend(shape, flow, m);
    outcome.status = gdx_put_signal<Mode::kPull>(endpoint, flow.peer_inbox + half, flow.source + half,
                                                 shape.message_bytes, flow.peer_signal, m);
    if (outcome.status == Status::kOk)
      outcome.status = gdx_wait(endpoint, flow.signal, Compare::kGreaterEqual, m);
    if (outcome.status != Status::kOk) break;
    outcome.seen_ns = exec::now_ns();
    const auto* const incoming = reinterpret_cast<const std::uint64_t*>((flow.inbox + half).address);
    for (std::uint64_t i = 0; i < words; ++i)
      outcome.wrong_words += incoming[i] != expected_word(flow.peer_salt, m, i);
    ++outcome.messages;
  }
  if (outcome.status == Status::kOk) outcome.status = gdx_flush(endpoint);
}

__global__ void stream(const Flow* flows, Shape shape, Outcome* outcomes) {
  const Flow& flow = flows[blockIdx.x];
  Outcome& outcome = outcomes[blockIdx.x];
  if (!flow.sends) return;
  device::Endpoint<> endpoint(flow.endpoint);
  outcome.status = endpoint.status();
  for (std::uint64_t m = 1; m <= shape.messages && outcome.status == Status::kOk; ++m) {
    const std::uint64_t half = (m & 1) * shape.message_bytes;
    spend(shape, flow, m);
    outcome.status =
        gdx_put<Mode::kPull>(endpoint, flow.peer_inbox + half, flow.source + half, shape.message_bytes);
    outcome.messages += outcome.status == Status::kOk;
  }
  if (outcome.status == Status::kOk) outcome.status = gdx_flush(endpoint);
}

}  // namespace gdx::ranks
