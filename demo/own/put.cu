// A program of one's own on an installed gdx: the kernel of rank 0 puts a message, that of rank 1 waits for
// it. `gdx run --ranks 2 -- put` starts it on the software HCA. Its kernels run on the CPU layer; ../ shows
// how host and kernels part, and how memory is mapped, where they run on a GPU.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <utility>

#include "device/gdx.h"
#include "host/gdx.h"

namespace {

using namespace gdx;

constexpr char kMessage[] = "put by a kernel";
constexpr std::uint64_t kTimeoutNs = 30'000'000'000;
constexpr std::uint32_t kThreads = 32;

// In the memory that both ranks register: the message comes first.
constexpr std::uint64_t kSignalAt = 1024;
constexpr std::uint64_t kStatusAt = 2048;
constexpr std::uint64_t kMemoryBytes = 4096;

__global__ void send(EndpointHandle handle, LocalMemory from, RemoteMemory to, Status* result) {
  device::Endpoint<Scope::kWarp> peer(handle);
  Status status = gdx_put_signal<Mode::kPush>(peer, to, from, sizeof kMessage, to + kSignalAt, 1);
  if (status == Status::kOk) status = gdx_flush(peer);
  if (peer.is_leader()) *result = status;
}

__global__ void receive(EndpointHandle handle, const std::uint64_t* signal, Status* result) {
  device::Endpoint<Scope::kWarp> peer(handle);
  const Status status = gdx_wait(peer, signal, Compare::kGreaterEqual, 1);
  if (peer.is_leader()) *result = status;
}

template <typename T>
T or_exit(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "put: %s\n", result.error().message.c_str());
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// Addresses that a rank needs of its peer.
struct Introduction {
  EndpointAddress endpoint;
  RemoteMemory memory;
};

}  // namespace

int main() {
  Hca hca = or_exit(Hca::open({}));
  World world = or_exit(World::join(or_exit(WorldOptions::from_environment())));
  if (world.size() != 2) {
    std::fprintf(stderr, "put: %u ranks, 2 are needed: start it as gdx run --ranks 2 -- put\n", world.size());
    return 2;
  }
  StagingPool staging = or_exit(StagingPool::create(hca));
  Memory memory = or_exit(allocate_memory(hca, kMemoryBytes));
  Endpoint endpoint = or_exit(Endpoint::create(hca, &staging, {.slot_count = 4}));
  const Introduction mine{endpoint.address(), memory.remote()};
  const auto all = or_exit(world.allgather_value(mine, kTimeoutNs));
  const Introduction& peer = all[1 - world.rank()];
  or_exit(endpoint.connect(peer.endpoint));
  or_exit(world.barrier(kTimeoutNs));  // both can receive now

  const exec::LaunchConfig config{.grid = {1}, .block = {kThreads}, .progress = progress};
  auto* status = reinterpret_cast<Status*>(memory.data() + kStatusAt);
  Status launched = Status::kOk;
  if (world.rank() == 0) {
    std::copy_n(kMessage, sizeof kMessage, reinterpret_cast<char*>(memory.data()));
    launched = exec::launch(config, send, endpoint.handle(), memory.local(), peer.memory, status);
  } else {
    const auto* signal = reinterpret_cast<const std::uint64_t*>(memory.data() + kSignalAt);
    launched = exec::launch(config, receive, endpoint.handle(), signal, status);
  }
  if (launched != Status::kOk || *status != Status::kOk) {
    std::fprintf(stderr, "put: launch %s, kernel %s\n", status_name(launched), status_name(*status));
    return 1;
  }
  if (world.rank() == 1) std::printf("rank 1 has: %s\n", reinterpret_cast<const char*>(memory.data()));
  or_exit(world.barrier(kTimeoutNs));  // no rank ends before the other is done
}
