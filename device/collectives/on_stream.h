// Host calls of a team on a stream. Each is the kernel's call of that name, with the stream in the team's
// place: it is launched as one block, runs after what was launched on the stream before, and returns at once.
//
//   TeamStream on(team.handle(), stream);
//   run_my_kernel(stream, x, n);                      // with exec::launch_async
//   gdx_all_reduce<Reduce::kSum>(on, x, x, n);
//   Status status = on.synchronize();                 // x is there, and the host may read it
//
// Rules:
//  - A call returns what its launch came to: kInvalidArgument on the CPU layer without a stream, on a GPU
//    what exec::launch_async returns.
//  - What a call itself came to is kept. After a failure the later calls of this TeamStream do nothing,
//    until synchronize() has told it. The program's own kernels run all the same.
//  - Collective calls of two streams at once need a lane each (TeamHandle::on_lane), because a lane has one
//    at a time.
//  - A wait holds its stream, within the team's timeout, and nothing else: streams may wait for each other.
//    On a GPU its block must find room beside what else runs.
//  - A file with these calls is compiled as kernels are, by nvcc for a GPU.
//
// Ordering: the host reads what peers have put into this rank's heap after synchronize(), of this or of an
// event, and behind one of these calls; at no other time while they put:
//  - gdx_wait: what was put before the signal that it saw
//  - gdx_barrier: what any rank had put before its own gdx_barrier
//  - another collective call: what it stores at this rank
// A call reads what the host has stored before it. Source: docs/collectives.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "device/collectives/through_piece.h"

namespace gdx {
namespace device::impl {

// On the CPU layer one thread is the fastest, because threads of a block share a processor there.
inline constexpr unsigned kStreamThreads = exec::kOnGpu ? 512 : 1;

// Collective calls have their number of enum CollectiveKind.
enum class StreamCall : std::uint32_t {
  kBroadcast = 1,
  kAllGather,
  kGather,
  kScatter,
  kAllToAll,
  kAllToAllV,
  kReduce,
  kReduceScatter,
  kAllReduce,
  kPut,
  kPutSignal,
  kSignal,
  kWait,
  kQuiet,
  kBarrier
};
static_assert(static_cast<std::uint32_t>(StreamCall::kAllReduce) ==
              static_cast<std::uint32_t>(CollectiveKind::kAllReduce));

// `Option`: the call's Mode or Reduce; 0 without one.
template <StreamCall C, auto Option, Placement P, typename... Args>
GDX_DEVICE Status make_on_stream(const TeamHandle& team, Args... args) {
  constexpr Scope kScope = Scope::kBlock;
  if constexpr (C == StreamCall::kPut) return gdx_put<Option, kScope, P>(team, args...);
  if constexpr (C == StreamCall::kPutSignal) return gdx_put_signal<Option, kScope, P>(team, args...);
  if constexpr (C == StreamCall::kSignal) return gdx_signal<kScope, P>(team, args...);
  if constexpr (C == StreamCall::kWait) return gdx_wait<kScope, P>(team, args...);
  if constexpr (C == StreamCall::kQuiet) return gdx_quiet<kScope, P>(team);
  if constexpr (C == StreamCall::kBarrier) return gdx_barrier<kScope, P>(team);
  if constexpr (C == StreamCall::kBroadcast) return gdx_broadcast<kScope, P>(team, args...);
  if constexpr (C == StreamCall::kAllGather) return gdx_all_gather<kScope, P>(team, args...);
  if constexpr (C == StreamCall::kGather) return gdx_gather<kScope, P>(team, args...);
  if constexpr (C == StreamCall::kScatter) return gdx_scatter<kScope, P>(team, args...);
  if constexpr (C == StreamCall::kAllToAll) return gdx_all_to_all<kScope, P>(team, args...);
  if constexpr (C == StreamCall::kAllToAllV) return gdx_all_to_all_v<kScope, P>(team, args...);
  if constexpr (C == StreamCall::kReduce) return gdx_reduce<Option, kScope, P>(team, args...);
  if constexpr (C == StreamCall::kReduceScatter) return gdx_reduce_scatter<Option, kScope, P>(team, args...);
  if constexpr (C == StreamCall::kAllReduce) return gdx_all_reduce<Option, kScope, P>(team, args...);
}

// Makes one call, unless one before it failed.
template <Placement P, StreamCall C, auto Option, typename... Args>
__global__ void __launch_bounds__(kStreamThreads)
    run_on_stream(TeamHandle team, std::uint64_t* failure, Args... args) {
  const Status before =
      scope_by_leader<Scope::kBlock>([&] { return static_cast<Status>(exec::load_acquire(failure)); });
  if (before != Status::kOk) return;
  const Status status = make_on_stream<C, Option, P>(team, args...);
  if (status == Status::kOk || exec::thread_rank<Scope::kBlock>() != 0) return;
  exec::publish(failure, static_cast<std::uint64_t>(status));
}

}  // namespace device::impl

// A stream on which a team's calls are made. Threads: one at a time.
class TeamStream {
 public:
  // The program's stream must outlive this, and so must the team.
  TeamStream(const TeamHandle& team, exec::Stream stream)
      : team_(team), stream_(stream), status_(exec::make_word(&failure_)) {}
  // Waits for the calls. A failure that nobody asked for goes to stderr.
  ~TeamStream() {
    exec::Event end = nullptr;  // not synchronize(), which would forget what the program's launches came to
    Status waited = exec::create_event(&end);
    if (waited == Status::kOk) waited = exec::record(end, stream_);
    if (waited == Status::kOk) (void)exec::synchronize(end);
    exec::destroy_event(end);
    if (failure_ != nullptr && *failure_ != 0) {
      std::fprintf(stderr,
                   "gdx: a call on a stream failed and nobody asked for it: %s; synchronize the stream\n",
                   status_name(static_cast<Status>(*failure_)));
    }
    exec::free_word(failure_);
  }
  TeamStream(const TeamStream&) = delete;
  TeamStream& operator=(const TeamStream&) = delete;

  // Lets collective calls made after this take memory outside the team's windows at all ranks: they are then
  // those of through_piece.h, with `piece`, of `bytes` bytes of the heap, which says what it costs. Memory
  // inside goes as without a piece. All ranks give equal pieces, whose content no other call uses meanwhile,
  // and have the memory of a call outside, or all inside: where they differ, the host's next barrier() or
  // close() fails. A null `piece` ends it.
  void send_through(void* piece, std::size_t bytes) { piece_ = {static_cast<std::byte*>(piece), bytes}; }

  // Waits until all that was launched on the stream has ended. Returns the first failure of a launch or a
  // call since the last synchronize(), and forgets it; Team::describe_fault() names the call. Errors: those
  // of the calls; exec::synchronize's; kNoDevice and kNoMemory where this could not be made.
  [[nodiscard]] Status synchronize() {
    if (status_ != Status::kOk) return status_;
    const Status launched = exec::synchronize(stream_);
    if (launched != Status::kOk || exec::query(stream_) != Status::kOk) return launched;
    const auto failed = static_cast<Status>(*failure_);
    *failure_ = 0;
    return failed;
  }

  // Launches one call, for the functions below. Errors: the rules'.
  template <device::impl::StreamCall C, auto Option = 0, typename... Args>
  [[nodiscard]] Status launch(Args... args) {
    if (status_ != Status::kOk) return status_;
    exec::LaunchConfig config;
    config.block = {device::impl::kStreamThreads};
    config.stream = stream_;
    if (team_.layout == team_layout(Placement::kGpu)) {
      return exec::launch_async(config, device::impl::run_on_stream<Placement::kGpu, C, Option, Args...>,
                                team_, failure_, args...);
    }
    return exec::launch_async(config, device::impl::run_on_stream<Placement::kHost, C, Option, Args...>,
                              team_, failure_, args...);
  }

  // Launches a collective call of `args`, through the piece if `to` or `from` of these is outside the
  // windows. Errors: the rules'; kInvalidLength for a piece that holds no element of each vector.
  template <device::impl::StreamCall C, auto Option = 0, typename T, typename... Args>
  [[nodiscard]] Status launch_on(const T* to, const T* from, Args... args) {
    if (piece_.data == nullptr || (is_inside(to) && is_inside(from))) return launch<C, Option>(args...);
    constexpr auto kKind = static_cast<device::impl::CollectiveKind>(C);
    const bool fits = device::impl::elements_of(kKind, team_.size, piece_.bytes, sizeof(T)) != 0;
    return fits || team_.size == 0 ? launch<C, Option>(piece_, args...) : Status::kInvalidLength;
  }
  // Launches one of `to`, `from` and `args`. Errors: those of launch_on.
  template <device::impl::StreamCall C, auto Option = 0, typename T, typename... Args>
  [[nodiscard]] Status launch_collective(T* to, const T* from, Args... args) {
    return launch_on<C, Option>(to, from, to, from, args...);
  }

 private:
  // A null pointer names no memory, as that of a rank that is no root.
  [[nodiscard]] bool is_inside(const void* memory) const {
    bool inside = memory == nullptr;
    for (std::uint32_t w = 0; w < team_.window_count && !inside; ++w) {
      const TeamWindow& window = team_.windows[w];
      inside = reinterpret_cast<std::uintptr_t>(memory) - reinterpret_cast<std::uintptr_t>(window.address) <
               window.bytes;
    }
    return inside;
  }

  TeamHandle team_;
  exec::Stream stream_;
  HeapPiece piece_ = {nullptr, 0};
  std::uint64_t* failure_ = nullptr;  // status of the first call that failed
  Status status_;                     // of making this
};

// Launches gdx_put. Errors: the rules'.
template <Mode M = Mode::kAuto>
[[nodiscard]] Status gdx_put(TeamStream& on, void* to, const void* from, std::size_t bytes,
                             std::uint32_t rank) {
  return on.launch<device::impl::StreamCall::kPut, M>(to, from, bytes, rank);
}

// Launches gdx_put_signal. Errors: the rules'.
template <Mode M = Mode::kAuto>
[[nodiscard]] Status gdx_put_signal(TeamStream& on, void* to, const void* from, std::size_t bytes,
                                    std::uint64_t* signal, std::uint64_t value, SignalOp op,
                                    std::uint32_t rank) {
  return on.launch<device::impl::StreamCall::kPutSignal, M>(to, from, bytes, signal, value, op, rank);
}

// Launches gdx_signal. Errors: the rules'.
[[nodiscard]] inline Status gdx_signal(TeamStream& on, std::uint64_t* signal, std::uint64_t value,
                                       SignalOp op, std::uint32_t rank) {
  return on.launch<device::impl::StreamCall::kSignal>(signal, value, op, rank);
}

// Launches gdx_wait. Errors: the rules'.
[[nodiscard]] inline Status gdx_wait(TeamStream& on, const std::uint64_t* signal, Compare how,
                                     std::uint64_t value, std::uint32_t rank) {
  return on.launch<device::impl::StreamCall::kWait>(signal, how, value, rank);
}

// Launches gdx_quiet. Errors: the rules'.
[[nodiscard]] inline Status gdx_quiet(TeamStream& on) {
  return on.launch<device::impl::StreamCall::kQuiet>();
}

// Launches gdx_barrier. Errors: the rules'.
[[nodiscard]] inline Status gdx_barrier(TeamStream& on) {
  return on.launch<device::impl::StreamCall::kBarrier>();
}

// Launches gdx_broadcast. Errors: the rules'.
template <typename T>
[[nodiscard]] Status gdx_broadcast(TeamStream& on, T* to, const T* from, std::size_t count,
                                   std::uint32_t root) {
  return on.launch_collective<device::impl::StreamCall::kBroadcast>(to, from, count, root);
}

// Launches gdx_all_gather. Errors: the rules'.
template <typename T>
[[nodiscard]] Status gdx_all_gather(TeamStream& on, T* to, const T* from, std::size_t count) {
  return on.launch_collective<device::impl::StreamCall::kAllGather>(to, from, count);
}

// Launches gdx_gather. Errors: the rules'.
template <typename T>
[[nodiscard]] Status gdx_gather(TeamStream& on, T* to, const T* from, std::size_t count, std::uint32_t root) {
  return on.launch_collective<device::impl::StreamCall::kGather>(to, from, count, root);
}

// Launches gdx_scatter. Errors: the rules'.
template <typename T>
[[nodiscard]] Status gdx_scatter(TeamStream& on, T* to, const T* from, std::size_t count,
                                 std::uint32_t root) {
  return on.launch_collective<device::impl::StreamCall::kScatter>(to, from, count, root);
}

// Launches gdx_all_to_all. Errors: the rules'.
template <typename T>
[[nodiscard]] Status gdx_all_to_all(TeamStream& on, T* to, const T* from, std::size_t count) {
  return on.launch_collective<device::impl::StreamCall::kAllToAll>(to, from, count);
}

// Launches gdx_all_to_all_v. Errors: the rules'.
template <typename T>
[[nodiscard]] Status gdx_all_to_all_v(TeamStream& on, T* to, const std::size_t* to_at, const T* from,
                                      const std::size_t* from_at, const std::size_t* counts) {
  return on.launch_on<device::impl::StreamCall::kAllToAllV>(to, from, to, to_at, from, from_at, counts);
}

// Launches gdx_reduce. Errors: the rules'.
template <Reduce R, typename T>
[[nodiscard]] Status gdx_reduce(TeamStream& on, T* to, const T* from, std::size_t count, std::uint32_t root) {
  return on.launch_collective<device::impl::StreamCall::kReduce, R>(to, from, count, root);
}

// Launches gdx_reduce_scatter. Errors: the rules'.
template <Reduce R, typename T>
[[nodiscard]] Status gdx_reduce_scatter(TeamStream& on, T* to, const T* from, std::size_t count) {
  return on.launch_collective<device::impl::StreamCall::kReduceScatter, R>(to, from, count);
}

// Launches gdx_all_reduce. Errors: the rules'.
template <Reduce R, typename T>
[[nodiscard]] Status gdx_all_reduce(TeamStream& on, T* to, const T* from, std::size_t count) {
  return on.launch_collective<device::impl::StreamCall::kAllReduce, R>(to, from, count);
}

}  // namespace gdx

using gdx::gdx_all_gather;
using gdx::gdx_all_reduce;
using gdx::gdx_all_to_all;
using gdx::gdx_all_to_all_v;
using gdx::gdx_barrier;
using gdx::gdx_broadcast;
using gdx::gdx_gather;
using gdx::gdx_put;
using gdx::gdx_put_signal;
using gdx::gdx_quiet;
using gdx::gdx_reduce;
using gdx::gdx_reduce_scatter;
using gdx::gdx_scatter;
using gdx::gdx_signal;
using gdx::gdx_wait;
