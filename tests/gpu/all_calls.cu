// Every device call at every scope and placement, so that each compiles as CUDA and as C++. Nothing runs it.
#include "device/endpoint.h"
#include "device/team.h"

namespace gdx {

template <Scope S, Placement P>
__global__ void all_calls(EndpointHandle handle, RemoteMemory remote, LocalMemory local, std::uint64_t bytes,
                          const std::uint64_t* signal, Status* out) {
  device::Endpoint<S, P> ep(handle);
  out[0] = gdx_put<Mode::kPull>(ep, remote, local, bytes);
  out[1] = gdx_put<Mode::kPush>(ep, remote, local, bytes, Doorbell::kDefer);
  out[2] = gdx_put<Mode::kInline>(ep, remote, local, bytes);
  out[3] = gdx_put(ep, remote, local, bytes);
  out[4] = gdx_put_value(ep, remote, std::uint32_t{1});
  out[5] = gdx_put_signal<Mode::kPush>(ep, remote, local, bytes, remote, 1, SignalOp::kAdd);
  out[6] = gdx_signal(ep, remote, 1);
  out[7] = gdx_get(ep, local, remote, bytes);
  gdx_fence(ep);
  out[8] = gdx_fetch_add(ep, local, remote, 1);
  out[9] = gdx_compare_swap(ep, local, remote, 1, 2);
  out[10] = gdx_flush(ep);
  out[11] = gdx_wait(ep, signal, Compare::kGreaterEqual, 1);
  if (gdx_test(signal, Compare::kNotEqual, 0)) out[12] = ep.fault().status;
  out[14] = gdx_put<Mode::kBounce>(ep, remote, local, bytes);
  if constexpr (S == Scope::kWarp) out[13] = gdx_put_warp(ep, remote, local, bytes);
}

struct Quad {
  float of[4];
};

template <Scope S, Placement P>
__global__ void all_shared_calls(EndpointHandle handle, RemoteMemory remote, LocalMemory local,
                                 std::uint64_t bytes, Status* out) {
  device::SharedEndpoint<S, P> ep(handle);
  out[0] = gdx_put(ep, remote, local, bytes);
  if constexpr (S == Scope::kWarp) out[1] = gdx_put_warp(ep, remote, local, bytes);
  out[2] = gdx_put_value(ep, remote, std::uint16_t{1});
  out[3] = gdx_signal(ep, remote, 1, SignalOp::kAdd);
  out[4] = gdx_put_signal(ep, remote, local, bytes, remote, 1);
  out[5] = gdx_get(ep, local, remote, bytes);
  out[6] = gdx_fetch_add(ep, local, remote, 1);
  out[7] = gdx_compare_swap(ep, local, remote, 1, 2);
  out[8] = gdx_flush(ep);
  out[9] = gdx_put<Mode::kPush>(ep, remote, local, bytes);
  out[10] = gdx_put_signal<Mode::kBounce>(ep, remote, local, bytes, remote, 1, SignalOp::kAdd);
  out[11] = gdx_put<Mode::kInline>(ep, remote, local, bytes);
  out[12] = gdx_put_value(ep, remote, Quad{{1, 2, 3, 4}});
  out[13] = gdx_wait(ep, reinterpret_cast<const std::uint64_t*>(local.address), Compare::kEqual, 1);
}

#define GDX_ALL_SHARED_CALLS(scope, placement)                                                           \
  template __global__ void all_shared_calls<scope, placement>(EndpointHandle, RemoteMemory, LocalMemory, \
                                                              std::uint64_t, Status*);
GDX_ALL_SHARED_CALLS(Scope::kThread, Placement::kHost)
GDX_ALL_SHARED_CALLS(Scope::kWarp, Placement::kHost)
GDX_ALL_SHARED_CALLS(Scope::kBlock, Placement::kHost)
GDX_ALL_SHARED_CALLS(Scope::kThread, Placement::kGpu)
GDX_ALL_SHARED_CALLS(Scope::kWarp, Placement::kGpu)
GDX_ALL_SHARED_CALLS(Scope::kBlock, Placement::kGpu)
#undef GDX_ALL_SHARED_CALLS

template __global__ void all_calls<Scope::kThread, Placement::kHost>(EndpointHandle, RemoteMemory,
                                                                     LocalMemory, std::uint64_t,
                                                                     const std::uint64_t*, Status*);
template __global__ void all_calls<Scope::kThread, Placement::kGpu>(EndpointHandle, RemoteMemory, LocalMemory,
                                                                    std::uint64_t, const std::uint64_t*,
                                                                    Status*);
template __global__ void all_calls<Scope::kWarp, Placement::kHost>(EndpointHandle, RemoteMemory, LocalMemory,
                                                                   std::uint64_t, const std::uint64_t*,
                                                                   Status*);
template __global__ void all_calls<Scope::kWarp, Placement::kGpu>(EndpointHandle, RemoteMemory, LocalMemory,
                                                                  std::uint64_t, const std::uint64_t*,
                                                                  Status*);
template __global__ void all_calls<Scope::kBlock, Placement::kHost>(EndpointHandle, RemoteMemory, LocalMemory,
                                                                    std::uint64_t, const std::uint64_t*,
                                                                    Status*);
template __global__ void all_calls<Scope::kBlock, Placement::kGpu>(EndpointHandle, RemoteMemory, LocalMemory,
                                                                   std::uint64_t, const std::uint64_t*,
                                                                   Status*);

template <Scope S, Placement P>
__global__ void all_team_calls(TeamHandle whole, float* x, std::uint64_t* words, std::uint32_t rank,
                               Status* out) {
  const TeamHandle team = whole.on_lane(rank % 2);
  std::uint32_t index = 0;
  out[0] = gdx_put<Mode::kAuto, S, P>(team, x, x, 8, rank);
  out[1] = gdx_put_signal<Mode::kPull, S, P>(team, x, x, 8, words, 1, SignalOp::kAdd, rank);
  out[2] = gdx_put<Mode::kPush, S, P>(team, x, x, 8, rank);
  out[3] = gdx_put<Mode::kInline, S, P>(team, x, x, 8, rank);
  out[4] = gdx_put_value<S, P>(team, x, 1.0f, rank);
  out[5] = gdx_put_value<S, P>(team, reinterpret_cast<Quad*>(x), Quad{{1, 2, 3, 4}}, rank);
  out[6] = gdx_signal<S, P>(team, words, 1, SignalOp::kSet, rank);
  out[7] = gdx_get<S, P>(team, x, x, 8, rank);
  out[8] = gdx_fetch_add<S, P>(team, words, words, 1, rank);
  out[9] = gdx_compare_swap<S, P>(team, words, words, 1, 2, rank);
  out[10] = gdx_flush<S, P>(team, rank);
  out[11] = gdx_quiet<S, P>(team);
  out[12] = gdx_wait<S, P>(team, words, Compare::kEqual, 1, rank);
  out[13] = gdx_wait<S, P>(team, words, Compare::kEqual, 1);
  out[14] = gdx_wait_all<S, P>(team, words, nullptr, 2, Compare::kEqual, 1);
  out[15] = gdx_wait_any<S, P>(team, words, nullptr, 2, Compare::kEqual, 1, &index);
}

#define GDX_ALL_TEAM_CALLS(scope, placement)                                                    \
  template __global__ void all_team_calls<scope, placement>(TeamHandle, float*, std::uint64_t*, \
                                                            std::uint32_t, Status*);
GDX_ALL_TEAM_CALLS(Scope::kThread, Placement::kHost)
GDX_ALL_TEAM_CALLS(Scope::kWarp, Placement::kHost)
GDX_ALL_TEAM_CALLS(Scope::kBlock, Placement::kHost)
GDX_ALL_TEAM_CALLS(Scope::kThread, Placement::kGpu)
GDX_ALL_TEAM_CALLS(Scope::kWarp, Placement::kGpu)
GDX_ALL_TEAM_CALLS(Scope::kBlock, Placement::kGpu)
#undef GDX_ALL_TEAM_CALLS

}  // namespace gdx
