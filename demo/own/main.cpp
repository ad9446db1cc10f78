// A program of one's own on an installed gdx: a kernel of rank 0 puts a message, one of rank 1 waits for it.
// `gdx run --ranks 2 -- put` starts it on the software HCA. This is the host's half; put.cu has the kernels.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>

#include "host/gdx.h"
#include "put.h"

namespace {

using gdx::allocate_memory;
using gdx::Endpoint;
using gdx::EndpointAddress;
using gdx::Gpu;
using gdx::GpuMapping;
using gdx::Hca;
using gdx::Memory;
using gdx::progress;
using gdx::RemoteMemory;
using gdx::StagingPool;
using gdx::Status;
using gdx::status_name;
using gdx::World;
using gdx::WorldOptions;
using gdx::program::or_exit;

constexpr std::uint64_t kTimeoutNs = 30'000'000'000;

// In the memory that both ranks register: the message comes first, then the signal.
constexpr std::uint64_t kStatusAt = 2048;
constexpr std::uint64_t kMemoryBytes = 4096;

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
  std::optional<Gpu> gpu;
  std::shared_ptr<GpuMapping> mapping;
  if (kernels_run_on_gpu()) {
    gpu = or_exit(Gpu::open());
    mapping = or_exit(gpu->map(memory.data(), memory.bytes()));
  }
  const bool pushes = !gpu || staging.map_if_allowed(*gpu).empty();
  Endpoint endpoint =
      or_exit(Endpoint::create(hca, pushes ? &staging : nullptr, {.slot_count = pushes ? 4u : 0u}));
  if (gpu) or_exit(endpoint.map_to(*gpu));
  const Introduction mine{endpoint.address(), memory.remote()};
  const auto all = or_exit(world.allgather_value(mine, kTimeoutNs));
  const Introduction& peer = all[1 - world.rank()];
  or_exit(endpoint.connect(peer.endpoint));
  or_exit(world.barrier(kTimeoutNs));  // both can receive now

  auto* status = reinterpret_cast<Status*>(memory.data() + kStatusAt);
  Status launched = Status::kOk;
  if (world.rank() == 0) {
    std::copy_n(kMessage, sizeof kMessage, reinterpret_cast<char*>(memory.data()));
    launched = run_send(endpoint.handle(), memory.local(), peer.memory, status, progress);
  } else {
    const auto* signal = reinterpret_cast<const std::uint64_t*>(memory.data() + kSignalAt);
    launched = run_receive(endpoint.handle(), signal, status, progress);
  }
  if (launched != Status::kOk || *status != Status::kOk) {
    std::fprintf(stderr, "put: launch %s, kernel %s, endpoint %s\n", status_name(launched),
                 status_name(*status), endpoint.describe_fault().c_str());
    return 1;
  }
  if (world.rank() == 1) std::printf("rank 1 has: %s\n", reinterpret_cast<const char*>(memory.data()));
  or_exit(world.barrier(kTimeoutNs));  // no rank ends before the other is done
}
