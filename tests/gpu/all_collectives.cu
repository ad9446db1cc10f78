// Every collective call, every call of the host on a stream, and order across lanes, so that each compiles as
// CUDA and as C++. Nothing runs it.
#include "device/collectives/on_stream.h"

namespace gdx {

template <Scope S, Placement P>
__global__ void all_orders(TeamHandle team, std::uint64_t* words, std::uint32_t rank, Status* out) {
  TeamMark mark{};
  out[0] = gdx_signal_after_all<S, P>(team, words, 1, SignalOp::kAdd, rank);
  out[1] = gdx_mark<S, P>(team, &mark, rank);
  out[2] = gdx_flush<S, P>(team, mark);
  std::uint32_t index = 0;
  out[3] = gdx_wait_all<S, P>(team, words, &rank, 1, Compare::kEqual, words + 1);
  out[4] = gdx_wait_any<S, P>(team, words, &rank, 1, Compare::kEqual, words + 1, &index);
  if (gdx_ptr<P>(team, words, rank) != nullptr) words[2] = gdx_signal_fetch(words + 1);
}
template __global__ void all_orders<Scope::kThread, Placement::kHost>(TeamHandle, std::uint64_t*,
                                                                      std::uint32_t, Status*);
template __global__ void all_orders<Scope::kWarp, Placement::kGpu>(TeamHandle, std::uint64_t*, std::uint32_t,
                                                                   Status*);
template __global__ void all_orders<Scope::kBlock, Placement::kGpu>(TeamHandle, std::uint64_t*, std::uint32_t,
                                                                    Status*);

template <Scope S, Placement P, typename T>
__global__ void all_collectives(TeamHandle team, T* x, const std::size_t* at, Status* out) {
  out[0] = gdx_all_reduce<Reduce::kSum, S, P>(team, x, x, 8);
  out[1] = gdx_all_reduce<Reduce::kAverage, S, P>(team, x, x, 8);
  out[2] = gdx_reduce<Reduce::kMin, S, P>(team, x, x, 8, 0);
  out[3] = gdx_reduce_scatter<Reduce::kProduct, S, P>(team, x, x, 8);
  out[4] = gdx_all_to_all_v<S, P>(team, x, at, x, at, at);
  const HeapPiece piece{team.area, 4096};
  out[5] = gdx_all_to_all_v<S, P>(team, piece, x, at, x, at, at);
  out[6] = gdx_gather<S, P>(team, piece, x, x, 8, 0);
  out[7] = gdx_reduce<Reduce::kSum, S, P>(team, piece, x, x, 8, 0);
}
template __global__ void all_collectives<Scope::kThread, Placement::kHost>(TeamHandle, std::int8_t*,
                                                                           const std::size_t*, Status*);
template __global__ void all_collectives<Scope::kWarp, Placement::kHost>(TeamHandle, __half*,
                                                                         const std::size_t*, Status*);
template __global__ void all_collectives<Scope::kBlock, Placement::kGpu>(TeamHandle, __nv_bfloat16*,
                                                                         const std::size_t*, Status*);

void all_stream_calls(const TeamHandle& team, exec::Stream stream, float* x, const std::size_t* at,
                      std::uint64_t* words, Status* out) {
  TeamStream on(team, stream);
  on.send_through(words, 4096);
  out[0] = gdx_put(on, x, x, 8, 0);
  out[1] = gdx_put_signal<Mode::kPull>(on, x, x, 8, words, 1, SignalOp::kSet, 0);
  out[2] = gdx_signal(on, words, 1, SignalOp::kAdd, 0);
  out[3] = gdx_wait(on, words, Compare::kGreaterEqual, 1, 0);
  out[4] = gdx_quiet(on);
  out[5] = gdx_barrier(on);
  out[6] = gdx_broadcast(on, x, x, 8, 0);
  out[7] = gdx_all_gather(on, x, x, 8);
  out[8] = gdx_gather(on, x, x, 8, 0);
  out[9] = gdx_scatter(on, x, x, 8, 0);
  out[10] = gdx_all_to_all(on, x, x, 8);
  out[11] = gdx_all_to_all_v(on, x, at, x, at, at);
  out[12] = gdx_reduce<Reduce::kSum>(on, x, x, 8, 0);
  out[13] = gdx_reduce_scatter<Reduce::kSum>(on, x, x, 8);
  out[14] = gdx_all_reduce<Reduce::kSum>(on, x, x, 8);
  out[15] = on.synchronize();
  exec::Event event{};
  out[16] = exec::create_event(&event);
  out[17] = exec::record(event, stream);
  out[18] = exec::wait_for(stream, event);
  out[19] = exec::synchronize(event);
  out[20] = exec::query(stream);
  exec::destroy_event(event);
}

}  // namespace gdx
