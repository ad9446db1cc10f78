#include "host/team/team_options.h"

#include <fmt/format.h>

#include <string>

namespace gdx {
namespace {

template <typename T>
Result<void> check_range(const char* option, T value, T least, T most) {
  if (value >= least && value <= most) return {};
  return fail(Status::kInvalidArgument,
              fmt::format("team option {} = {}: use {} to {}", option, value, least, most));
}

}  // namespace

Result<TeamOptions> resolve_team_options(const TeamOptions& given, bool hca_is_software,
                                         LinkLayer link_layer) {
  TeamOptions options = given;
  GDX_TRY(check_range("heap_bytes", given.heap_bytes, kMinTeamHeapBytes, kMaxTeamHeapBytes));
  GDX_TRY(check_range("lanes", given.lanes, 1u, kMaxTeamLanes));
  GDX_TRY(check_range("timeout_ns", given.timeout_ns, std::uint64_t{1}, kMaxWaitNs));
  if (given.gpu && *given.gpu < 0) {
    return fail(Status::kInvalidArgument,
                fmt::format("team option gpu = {}: use a GPU's ordinal, from 0, or leave it out for kernels "
                            "of the CPU layer",
                            *given.gpu));
  }
  const bool heap_in_gpu = given.heap_memory == HeapMemory::kGpu;
  if (heap_in_gpu && !given.gpu) {
    return fail(Status::kInvalidArgument,
                "team option heap_memory = gpu: say with option gpu whose memory it is to be");
  }
  if (!options.direct) options.direct = GDX_TRY(direct_choice_from_environment());
  options.endpoint.sharing = Sharing::kShared;
  if (given.gpu && given.endpoint.placement == Placement::kGpu && !heap_in_gpu) {
    return fail(
        Status::kInvalidArgument,
        "team option endpoint.placement = gpu: kernels then order stores to GPU memory only; put the heap "
        "there, too, by heap_memory = gpu");
  }
  // Queues in the memory of the team's GPU need no second mention of it.
  EndpointOptions checked = options.endpoint;
  checked.placement = checked.placement.value_or(Placement::kHost);
  const bool inherits_gpu = checked.placement == Placement::kGpu && !checked.gpu && given.gpu;
  if (inherits_gpu) checked.placement = Placement::kHost;
  options.endpoint = GDX_TRY(resolve_endpoint_options(checked, hca_is_software, link_layer));
  options.endpoint.placement = given.endpoint.placement.value_or(Placement::kHost);
  return options;
}

}  // namespace gdx
