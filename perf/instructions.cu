// Kernels that instructions.py compiles and counts; nothing runs them. Each makes N calls with arguments of
// their own. The kernel of two calls minus that of one is the cost of one more call.
#include "device/endpoint.h"
#include "device/team.h"

namespace gdx {

struct Call {
  RemoteMemory to;
  LocalMemory from;
  std::uint64_t bytes;
  RemoteMemory signal;
  std::uint64_t value;
};

struct Calls {
  Call calls[2];
  Status* out;
};

// Results of single calls are left to the endpoint's status, as peers' calls, which return nothing, have it.
template <int N, typename Ep, typename Post>
GDX_DEVICE void make_calls(const EndpointHandle& handle, const Calls& calls, Post post) {
  Ep endpoint(handle);
  (void)post(endpoint, calls.calls[0]);
  if constexpr (N == 2) (void)post(endpoint, calls.calls[1]);
  if (endpoint.is_leader()) *calls.out = endpoint.status();
}

#define GDX_COUNTED(NAME, ENDPOINT, CALL)                                                 \
  extern "C" __global__ void NAME##_1(EndpointHandle handle, Calls calls) {               \
    make_calls<1, ENDPOINT>(handle, calls, [](auto& ep, const Call& c) { return CALL; }); \
  }                                                                                       \
  extern "C" __global__ void NAME##_2(EndpointHandle handle, Calls calls) {               \
    make_calls<2, ENDPOINT>(handle, calls, [](auto& ep, const Call& c) { return CALL; }); \
  }

using ThreadGpu = device::Endpoint<Scope::kThread, Placement::kGpu>;
using ThreadHost = device::Endpoint<Scope::kThread, Placement::kHost>;
using WarpGpu = device::Endpoint<Scope::kWarp, Placement::kGpu>;
using WarpHost = device::Endpoint<Scope::kWarp, Placement::kHost>;
using BlockHost = device::Endpoint<Scope::kBlock, Placement::kHost>;

GDX_COUNTED(put_thread_gpu, ThreadGpu, gdx_put<Mode::kPull>(ep, c.to, c.from, c.bytes))
GDX_COUNTED(put_thread_host, ThreadHost, gdx_put<Mode::kPull>(ep, c.to, c.from, c.bytes))
GDX_COUNTED(put_warp_gpu, WarpGpu, gdx_put<Mode::kPull>(ep, c.to, c.from, c.bytes))
GDX_COUNTED(put_block_host, BlockHost, gdx_put<Mode::kPull>(ep, c.to, c.from, c.bytes))
GDX_COUNTED(put_signal_thread_gpu, ThreadGpu,
            gdx_put_signal<Mode::kPull>(ep, c.to, c.from, c.bytes, c.signal, c.value))
GDX_COUNTED(put_signal_thread_host, ThreadHost,
            gdx_put_signal<Mode::kPull>(ep, c.to, c.from, c.bytes, c.signal, c.value))
GDX_COUNTED(put_32_warp_gpu, WarpGpu, gdx_put_warp(ep, c.to, c.from, c.bytes))
GDX_COUNTED(put_32_warp_host, WarpHost, gdx_put_warp(ep, c.to, c.from, c.bytes))
GDX_COUNTED(put_value_thread_gpu, ThreadGpu, gdx_put_value(ep, c.to, c.value))
GDX_COUNTED(push_thread_host, ThreadHost, gdx_put<Mode::kPush>(ep, c.to, c.from, c.bytes))
GDX_COUNTED(push_deferred_thread_gpu, ThreadGpu,
            gdx_put<Mode::kPush>(ep, c.to, c.from, c.bytes, Doorbell::kDefer))
GDX_COUNTED(push_warp_host, WarpHost, gdx_put<Mode::kPush>(ep, c.to, c.from, c.bytes))
GDX_COUNTED(push_block_host, BlockHost, gdx_put<Mode::kPush>(ep, c.to, c.from, c.bytes))

// A shared endpoint has no leader: every thread reports its own outcome.
template <int N, typename Ep, typename Post>
GDX_DEVICE void make_shared_calls(const EndpointHandle& handle, const Calls& calls, Post post) {
  Ep endpoint(handle);
  Status status = post(endpoint, calls.calls[0]);
  if (N == 2 && status == Status::kOk) status = post(endpoint, calls.calls[1]);
  *calls.out = status;
}

#define GDX_COUNTED_SHARED(NAME, ENDPOINT, CALL)                                                 \
  extern "C" __global__ void NAME##_1(EndpointHandle handle, Calls calls) {                      \
    make_shared_calls<1, ENDPOINT>(handle, calls, [](auto& ep, const Call& c) { return CALL; }); \
  }                                                                                              \
  extern "C" __global__ void NAME##_2(EndpointHandle handle, Calls calls) {                      \
    make_shared_calls<2, ENDPOINT>(handle, calls, [](auto& ep, const Call& c) { return CALL; }); \
  }

using SharedGpu = device::SharedEndpoint<Scope::kThread, Placement::kGpu>;
using SharedHost = device::SharedEndpoint<Scope::kThread, Placement::kHost>;
using SharedWarpGpu = device::SharedEndpoint<Scope::kWarp, Placement::kGpu>;
using SharedWarpHost = device::SharedEndpoint<Scope::kWarp, Placement::kHost>;

GDX_COUNTED_SHARED(shared_put_gpu, SharedGpu, gdx_put<Mode::kPull>(ep, c.to, c.from, c.bytes))
GDX_COUNTED_SHARED(shared_put_host, SharedHost, gdx_put<Mode::kPull>(ep, c.to, c.from, c.bytes))
GDX_COUNTED_SHARED(shared_put_32_warp_gpu, SharedWarpGpu, gdx_put_warp(ep, c.to, c.from, c.bytes))
GDX_COUNTED_SHARED(push_shared_thread_host, SharedHost, gdx_put<Mode::kPush>(ep, c.to, c.from, c.bytes))
GDX_COUNTED_SHARED(push_shared_warp_host, SharedWarpHost, gdx_put<Mode::kPush>(ep, c.to, c.from, c.bytes))
GDX_COUNTED_SHARED(shared_put_signal_gpu, SharedGpu,
                   gdx_put_signal<Mode::kPull>(ep, c.to, c.from, c.bytes, c.signal, c.value))

// A team's pointers and ranks arrive as kernel parameters, as a kernel's arguments do.
struct TeamCall {
  std::byte* to;
  const std::byte* from;
  std::uint64_t bytes;
  std::uint64_t* signal;
  std::uint64_t value;
  std::uint32_t rank;
};

struct TeamCalls {
  TeamCall calls[2];
  Status* out;
};

template <int N, typename Post>
GDX_DEVICE void make_team_calls(const TeamCalls& calls, Post post) {
  Status status = post(calls.calls[0]);
  if (N == 2 && status == Status::kOk) status = post(calls.calls[1]);
  *calls.out = status;
}

#define GDX_COUNTED_TEAM(NAME, CALL)                                      \
  extern "C" __global__ void NAME##_1(TeamHandle team, TeamCalls calls) { \
    make_team_calls<1>(calls, [&](const TeamCall& c) { return CALL; });   \
  }                                                                       \
  extern "C" __global__ void NAME##_2(TeamHandle team, TeamCalls calls) { \
    make_team_calls<2>(calls, [&](const TeamCall& c) { return CALL; });   \
  }

GDX_COUNTED_TEAM(team_put_gpu,
                 (gdx_put<Mode::kPull, Scope::kThread, Placement::kGpu>(team, c.to, c.from, c.bytes, c.rank)))
GDX_COUNTED_TEAM(team_put_host, (gdx_put<Mode::kPull, Scope::kThread, Placement::kHost>(team, c.to, c.from,
                                                                                        c.bytes, c.rank)))
GDX_COUNTED_TEAM(team_put_signal_gpu,
                 (gdx_put_signal<Mode::kPull, Scope::kThread, Placement::kGpu>(team, c.to, c.from, c.bytes,
                                                                               c.signal, c.value,
                                                                               SignalOp::kAdd, c.rank)))

}  // namespace gdx
