// Options of a team, and their check without ranks or an HCA.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "host/bootstrap/world.h"
#include "host/direct/peer_mapping.h"
#include "host/hca/hca.h"
#include "host/queue/endpoint.h"
#include "host/staging/staging_pool.h"

namespace gdx {

inline constexpr std::uint64_t kMinTeamHeapBytes = 4096;
inline constexpr std::uint64_t kMaxTeamHeapBytes = std::uint64_t{1} << 40;
inline constexpr std::uint32_t kMaxTeamLanes = 64;
// 8/10 of it, after which connect_all ends, are more than the 31.6 s after which a connector gives up a pair
// on hardware. So a pair that fails tells its own reason first.
inline constexpr std::uint64_t kDefaultTeamTimeoutNs = 40'000'000'000;

// Environment variable of TeamOptions::provider.
inline constexpr char kProviderVariable[] = "GDX_PROVIDER";

// Memory that holds a team's heap.
enum class HeapMemory : std::uint8_t {
  kHost,  // memory that ranks of this node can map
  kGpu,   // memory of TeamOptions::gpu, which kernels and CUDA's copies reach, and the host does not
};

struct TeamOptions {
  std::uint64_t heap_bytes = 64 << 20;  // heap of one rank, equal at all; 4 KiB to 1 TiB
  std::uint32_t lanes = 1;              // endpoints towards each rank, equal at all; 1 to 64
  HeapMemory heap_memory = HeapMemory::kHost;
  // Ordinal of the GPU whose kernels use the team. None: that of Gpu::current() where nvcc has compiled the
  // program's kernels, else kernels of the CPU layer.
  std::optional<int> gpu = std::nullopt;
  // Options of each endpoint. `placement` must equal the Placement of the kernels' calls. `sharing` is always
  // kShared. The slot counts are lowered to those of the pools. `gpu` is the team's where none is set.
  EndpointOptions endpoint = {.slot_count = 16, .bounce_slot_count = 16, .sharing = Sharing::kShared};
  // Use of loads and stores for ranks of this node. nullopt: the value of $GDX_DIRECT. With kOff puts to this
  // rank itself go through the NIC, too.
  std::optional<DirectChoice> direct = std::nullopt;
  std::uint64_t timeout_ns = kDefaultTeamTimeoutNs;  // bound of each collective call; 1 to kMaxWaitNs
  // Connects all ranks in Team::create, so that no first use is delayed. Else a connection is made once a
  // kernel or Team::connect needs it.
  bool connect_all = false;

  // Way to ranks that are not mapped, equal at all ranks:
  //  - empty: an HCA.
  //  - a provider of libfabric as fi_info prints it, such as tcp: a thread of the host posts over it, and
  //    opens no HCA.
  //  - ibverbs or ibverbs:DEVICE: a thread of the host posts over an RDMA device, without libfabric.
  //  - auto: an HCA if every rank has one, else tcp.
  // nullopt: the value of $GDX_PROVIDER, or an HCA if it is not set.
  std::optional<std::string> provider = std::nullopt;

  // Options below are for what Team::create makes itself. They are unused where the program gives its own.
  std::optional<WorldOptions> world = std::nullopt;  // none: as the environment says
  HcaOptions hca = {};  // `rank` is the world's, `gpu` the team's where none is set
  // Pools, whose slots endpoints lease when they need them; none: endpoints cannot push, or bounce. An HCA
  // without memory for pushes gets no pool of it.
  std::optional<StagingOptions> staging = StagingOptions{}.leased_by_use();
  std::optional<StagingOptions> bounce = StagingOptions::in_host_memory().leased_by_use();
};

// Returns the options with every value set; `endpoint.gpu` is left to Team::create. Reads the environment.
// Errors: kInvalidArgument naming the option or variable, its value and its range.
[[nodiscard]] Result<TeamOptions> resolve_team_options(const TeamOptions& given, bool hca_is_software,
                                                       LinkLayer link_layer);

}  // namespace gdx
