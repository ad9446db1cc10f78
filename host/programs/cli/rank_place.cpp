#include "host/programs/cli/rank_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "host/hca/hca.h"
#include "host/staging/staging_pool.h"

namespace gdx {
namespace {

constexpr char kVisibleGpusVariable[] = "CUDA_VISIBLE_DEVICES";

bool is_set(const char* variable) { return std::getenv(variable) != nullptr; }

// Returns the GPU's number for CUDA where that counts in the order of bus ids.
std::size_t cuda_number(const Topology& topology, std::size_t gpu) {
  const auto begin = topology.gpus.begin();
  return static_cast<std::size_t>(std::count_if(begin, begin + static_cast<std::ptrdiff_t>(gpu),
                                                [](const PciDevice& d) { return d.runs_cuda; }));
}

}  // namespace

std::vector<std::string> place_of_rank(const Topology& topology, std::uint32_t rank, std::uint32_t ranks) {
  std::vector<std::string> variables;
  const std::vector<GpuNicPath> pairs =
      is_set(kVisibleGpusVariable) ? std::vector<GpuNicPath>{} : pair_by_distance(topology);
  const auto nic_of = [&](std::uint32_t any) {
    return pairs.empty() || is_set(kHcaVariable) ? std::string()
                                                 : topology.nics[pairs[any % pairs.size()].nic].os_name;
  };
  const std::string nic = nic_of(rank);
  if (!pairs.empty()) {
    variables.emplace_back("CUDA_DEVICE_ORDER=PCI_BUS_ID");
    variables.push_back(
        fmt::format("{}={}", kVisibleGpusVariable, cuda_number(topology, pairs[rank % pairs.size()].gpu)));
  }
  if (!nic.empty()) variables.push_back(fmt::format("{}={}", kHcaVariable, nic));
  std::uint32_t sharing = 0;
  for (std::uint32_t other = 0; other < ranks; ++other) sharing += nic_of(other) == nic ? 1 : 0;
  if (sharing > 1 && !is_set(kProcessesVariable))
    variables.push_back(fmt::format("{}={}", kProcessesVariable, std::min(sharing, kMaxProcessesPerHca)));
  return variables;
}

Result<cpu_set_t> share_of_processors(const cpu_set_t& all, std::uint32_t rank, std::uint32_t ranks) {
  const auto count = static_cast<std::uint32_t>(CPU_COUNT(&all));
  if (count < ranks)
    return fail(Status::kInvalidArgument,
                fmt::format("--pin: more ranks ({}) than processors ({}): leave it out, or start fewer ranks",
                            ranks, count));
  cpu_set_t share;
  CPU_ZERO(&share);
  for (std::uint32_t processor = 0, place = 0; place < count; ++processor) {
    if (!CPU_ISSET(processor, &all)) continue;
    if (place >= rank * count / ranks && place < (rank + 1) * count / ranks) CPU_SET(processor, &share);
    ++place;
  }
  return share;
}

}  // namespace gdx
