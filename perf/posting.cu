#include "perf/posting.h"

#include "device/endpoint.h"

namespace gdx::posting {
namespace {

template <typename T>
GDX_DEVICE T* moved(T* in_first, std::uint64_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(in_first) + bytes);
}

GDX_DEVICE EndpointHandle handle_of(const Queues& queues, std::uint32_t number) {
  const std::uint64_t distance = number * queues.queue_bytes;
  EndpointHandle handle = queues.first;
  handle.send_queue = moved(handle.send_queue, distance);
  handle.completion_queue = moved(handle.completion_queue, distance);
  handle.send_record = moved(handle.send_record, distance);
  handle.doorbell = moved(handle.doorbell, distance);
  handle.scratch = moved(handle.scratch, distance);
  handle.owner = moved(handle.owner, distance);
  handle.state += number;
  return handle;
}

struct Clock {
  std::uint64_t ns;
  std::uint64_t cycles;
};
GDX_DEVICE Clock read_clock() { return {exec::now_ns(), exec::now_cycles()}; }

GDX_DEVICE void record(Times& times, const Clock& start, Status status) {
  const Clock end = read_clock();
  times = {start.ns, end.ns, end.cycles - start.cycles, status, 0};
}

GDX_DEVICE RemoteMemory to_put(std::uint64_t address) { return {address, kPutBytes, 0x77, 0}; }
GDX_DEVICE LocalMemory from_put() { return {nullptr, kPutBytes, 0x88, 0}; }

template <typename Endpoint>
GDX_DEVICE Status put(Endpoint& endpoint, const RemoteMemory& to) {
  return gdx_put<Mode::kPull>(endpoint, to, from_put(), kPutBytes);
}
template <Scope S, Placement P>
GDX_DEVICE Status put(device::Endpoint<S, P>& endpoint, const RemoteMemory& to) {
  return gdx_put<Mode::kPull>(endpoint, to, from_put(), kPutBytes);
}

// A poster's loop; the endpoint is open already, and is closed after the clock is read.
template <Poster Who, typename Endpoint>
GDX_DEVICE void post_all(Endpoint& endpoint, const PostCase& what, std::uint32_t poster, Times* times) {
  Status status = endpoint.status();
  const Clock start = read_clock();
  if constexpr (Who == Poster::kWarp) {
    const std::uint32_t lane = threadIdx.x % kWarpThreads;
    for (std::uint32_t k = lane; k < what.puts && status == Status::kOk; k += kWarpThreads) {
      status = gdx_put_warp(endpoint, to_put(put_address(poster, what.puts, k)), from_put(), kPutBytes);
    }
    if (lane == 0) record(times[poster], start, status);
  } else {
    for (std::uint32_t k = 0; k < what.puts && status == Status::kOk; ++k) {
      status = put(endpoint, to_put(put_address(poster, what.puts, k)));
    }
    if (Who == Poster::kThread || threadIdx.x % kWarpThreads == 0) record(times[poster], start, status);
  }
}

template <Poster Who>
GDX_DEVICE std::uint32_t poster_number() {
  const std::uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  return Who == Poster::kThread ? thread : thread / kWarpThreads;
}

template <Poster Who, Placement P>
__global__ void post_exclusively(PostCase what, Times* times) {
  constexpr Scope kScope = Who == Poster::kThread ? Scope::kThread : Scope::kWarp;
  const std::uint32_t poster = poster_number<Who>();
  const EndpointHandle handle = handle_of(what.queues, poster);
  // A GPU without TMA rings plainly on an endpoint with BlueFlame.
  if (handle.blueflame_half_bytes != 0 && !exec::BulkStores::by_tma()) {
    times[poster].status = Status::kUnsupported;
    return;
  }
  device::Endpoint<kScope, P> endpoint(handle);
  post_all<Who>(endpoint, what, poster, times);
}

template <Poster Who, Placement P>
__global__ void post_shared(PostCase what, Times* times) {
  constexpr Scope kScope = Who == Poster::kWarp ? Scope::kWarp : Scope::kThread;
  device::SharedEndpoint<kScope, P> endpoint(what.queues.first);
  post_all<Who>(endpoint, what, poster_number<Who>(), times);
}

template <Poster Who, Placement P>
Status launch_post(const PostCase& what, Times* times) {
  const std::uint32_t width = Who == Poster::kThread ? 1 : kWarpThreads;
  const exec::LaunchConfig config{.grid = {what.posters / what.posters_of_block},
                                  .block = {what.posters_of_block * width}};
  if (what.sharing == Sharing::kExclusive) return exec::launch(config, post_exclusively<Who, P>, what, times);
  if constexpr (Who != Poster::kWarpPut) return exec::launch(config, post_shared<Who, P>, what, times);
  return Status::kInvalidArgument;
}

template <Placement P>
Status launch_post(const PostCase& what, Times* times) {
  switch (what.poster) {
    case Poster::kThread: return launch_post<Poster::kThread, P>(what, times);
    case Poster::kWarp: return launch_post<Poster::kWarp, P>(what, times);
    case Poster::kWarpPut: return launch_post<Poster::kWarpPut, P>(what, times);
  }
  return Status::kInvalidArgument;
}

template <Storer Who>
__global__ void fill(StoreCase what, Times* times) {
  const std::uint32_t bytes = what.chunk_bytes;
  std::byte* const mine = what.to + std::uint64_t{blockIdx.x} * what.chunks * bytes;
  const bool leads = exec::thread_rank<Scope::kBlock>() == 0;
  exec::BulkStores bulk;
  const auto complete_stores = [&] {
    if (Who == Storer::kBulk && leads) bulk.wait();
    if (what.released_for == Placement::kGpu) {
      exec::fence_release<Placement::kGpu>();
    } else {
      exec::fence_release<Placement::kHost>();
    }
    __syncthreads();
  };
  Status status = Status::kOk;
  if constexpr (Who == Storer::kBulk) {
    if (!exec::BulkStores::by_tma()) status = Status::kUnsupported;
  }
  const Clock start = read_clock();
  for (std::uint32_t chunk = 0; chunk < what.chunks && status == Status::kOk; ++chunk) {
    std::byte* const to = mine + chunk * bytes;
    if constexpr (Who == Storer::kThread) exec::fill_slot<Scope::kThread>(to, what.from, bytes);
    if constexpr (Who == Storer::kWarp) exec::fill_slot<Scope::kWarp>(to, what.from, bytes);
    if constexpr (Who == Storer::kBlock) exec::fill_slot<Scope::kBlock>(to, what.from, bytes);
    if constexpr (Who == Storer::kBulk) bulk.store(to, what.from, bytes);
    if (what.one_at_a_time) complete_stores();
  }
  complete_stores();
  if (leads) record(times[blockIdx.x], start, status);
}

__global__ void ask_of_a_thread(AskCase what, Times* times) {
  constexpr std::uint64_t kPatienceNs = 1'000'000'000;
  Status status = Status::kOk;
  const Clock start = read_clock();
  for (std::uint64_t round = 1; round <= what.rounds && status == Status::kOk; ++round) {
    exec::publish(what.question, round);
    const std::uint64_t asked_ns = exec::now_ns();
    while (exec::load_acquire(what.answer) != round && status == Status::kOk) {
      if (exec::now_ns() - asked_ns > kPatienceNs) status = Status::kTimeout;
      exec::yield();
    }
  }
  record(*times, start, status);
}

}  // namespace

Status post(const PostCase& what, Times* times) {
  return what.queues.first.placement == Placement::kGpu ? launch_post<Placement::kGpu>(what, times)
                                                        : launch_post<Placement::kHost>(what, times);
}

Status store(const StoreCase& what, Times* times) {
  const auto config = [&](unsigned threads) {
    return exec::LaunchConfig{.grid = {what.blocks}, .block = {threads}};
  };
  switch (what.storer) {
    case Storer::kThread: return exec::launch(config(1), fill<Storer::kThread>, what, times);
    case Storer::kWarp: return exec::launch(config(kWarpThreads), fill<Storer::kWarp>, what, times);
    case Storer::kBlock: return exec::launch(config(kBlockThreads), fill<Storer::kBlock>, what, times);
    case Storer::kBulk: return exec::launch(config(kBlockThreads), fill<Storer::kBulk>, what, times);
  }
  return Status::kInvalidArgument;
}

Status ask(const AskCase& what, Times* times) {
  return exec::launch(exec::LaunchConfig{}, ask_of_a_thread, what, times);
}

}  // namespace gdx::posting
