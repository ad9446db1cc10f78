// The demo's kernels. A warp on one rank puts a message and signals. A warp on the other waits for the
// signal, answers it, checks every byte and reports. Without CUDA this file is compiled as C++ and its
// threads run on the CPU.
#include "demo/pingpong.h"

#include "device/team.h"

namespace gdx::demo {
namespace {

constexpr Scope kWarp = Scope::kWarp;
constexpr unsigned kThreads = kWarpThreads;

// Returns the value of word `index` of message `sequence`, unlike its neighbours and that word of every other
// message.
GDX_DEVICE std::uint64_t expected_word(std::uint64_t sequence, std::uint64_t index) {
  return (sequence * 0x9e3779b97f4a7c15u ^ index) * 0xd6e8feb86659fd93u;
}

// For the thread that reports times alone: on the CPU layer the others' readings would be part of what is
// measured.
GDX_DEVICE std::uint64_t read_clock(bool leads) { return leads ? exec::now_ns() : 0; }

// Returns the waits for slots on the way to the peer so far. A mapped peer may have no queue.
GDX_DEVICE std::uint64_t stalls_so_far(const Exchange& x) {
  const QueueState* const state = x.team.peers[x.peer].state;
  return state == nullptr ? 0 : state->staging.stalls + state->bounce.stalls;
}

template <Mode M>
__global__ void send_messages(Exchange x, Case shape, Outcome* outcome) {
  const bool leads = threadIdx.x == 0;
  auto* words = reinterpret_cast<std::uint64_t*>(x.buffer);
  const std::uint64_t stalls_before = stalls_so_far(x);
  Outcome result{};

  for (std::uint32_t m = 0; m < shape.messages && result.status == Status::kOk; ++m) {
    const std::uint64_t sequence = shape.first_sequence + m;
    for (std::uint64_t i = threadIdx.x; i < shape.bytes / 8; i += kThreads)
      words[i] = expected_word(sequence, i);

    const std::uint64_t start = read_clock(leads);
    result.status = gdx_put_signal<M, kWarp>(x.team, x.buffer, x.buffer, shape.bytes, &x.signals[kData],
                                             sequence, SignalOp::kSet, x.peer);
    if (result.status == Status::kOk) result.status = gdx_flush<kWarp>(x.team, x.peer);
    const std::uint64_t flushed = read_clock(leads);
    if (result.status == Status::kOk) {
      result.status = gdx_wait<kWarp>(x.team, &x.signals[kArrived], Compare::kGreaterEqual, sequence, x.peer);
    }
    const std::uint64_t answered = read_clock(leads);
    if (result.status == Status::kOk) {
      result.status =
          gdx_wait<kWarp>(x.team, &x.signals[kVerified], Compare::kGreaterEqual, sequence, x.peer);
    }
    if (result.status != Status::kOk) break;

    ++result.messages_done;
    if (m < shape.warmup) continue;
    result.completion_ns += flushed - start;
    result.round_trip_ns += answered - start;
  }
  result.credit_stalls = stalls_so_far(x) - stalls_before;
  if (leads) *outcome = result;
}

__global__ void receive_messages(Exchange x, Case shape, Outcome* outcome) {
  const bool leads = threadIdx.x == 0;
  auto* words = reinterpret_cast<std::uint64_t*>(x.buffer);
  Outcome result{};

  for (std::uint32_t m = 0; m < shape.messages && result.status == Status::kOk; ++m) {
    const std::uint64_t sequence = shape.first_sequence + m;
    result.status = gdx_wait<kWarp>(x.team, &x.signals[kData], Compare::kGreaterEqual, sequence, x.peer);
    if (result.status == Status::kOk)
      result.status = gdx_signal<kWarp>(x.team, &x.signals[kArrived], sequence, SignalOp::kSet, x.peer);
    if (result.status != Status::kOk) break;

    if (shape.break_memory && m == 0 && leads) x.buffer[shape.bytes / 2] ^= std::byte{1};
    __syncwarp();
    for (std::uint64_t i = threadIdx.x; i < shape.bytes / 8; i += kThreads) {
      std::uint64_t wrong = words[i] ^ expected_word(sequence, i);
      for (; wrong != 0; wrong >>= 8) result.bad_bytes += (wrong & 0xff) != 0;
    }
    ++result.messages_done;
    result.status = gdx_signal<kWarp>(x.team, &x.signals[kVerified], sequence, SignalOp::kSet, x.peer);
  }
  if (result.status == Status::kOk) result.status = gdx_flush<kWarp>(x.team, x.peer);
  exec::add(&outcome->bad_bytes, result.bad_bytes);  // every thread has checked its own words
  if (leads) {
    outcome->status = result.status;
    outcome->messages_done = result.messages_done;
  }
}

}  // namespace

bool kernels_run_on_gpu() { return exec::kOnGpu; }

Status run_sender(const Exchange& exchange, const Case& shape, Outcome* outcome, int (*progress)()) {
  const exec::LaunchConfig config{.grid = {1}, .block = {kThreads}, .progress = progress};
  *outcome = {};
  switch (shape.mode) {
    case Mode::kPull: return exec::launch(config, send_messages<Mode::kPull>, exchange, shape, outcome);
    case Mode::kPush: return exec::launch(config, send_messages<Mode::kPush>, exchange, shape, outcome);
    case Mode::kInline: return exec::launch(config, send_messages<Mode::kInline>, exchange, shape, outcome);
    case Mode::kBounce: return exec::launch(config, send_messages<Mode::kBounce>, exchange, shape, outcome);
    case Mode::kAuto: return exec::launch(config, send_messages<Mode::kAuto>, exchange, shape, outcome);
  }
  return Status::kInvalidArgument;
}

Status run_receiver(const Exchange& exchange, const Case& shape, Outcome* outcome, int (*progress)()) {
  *outcome = {};
  return exec::launch({.grid = {1}, .block = {kThreads}, .progress = progress}, receive_messages, exchange,
                      shape, outcome);
}

}  // namespace gdx::demo
