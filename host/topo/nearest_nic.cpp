#include "host/topo/nearest_nic.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <map>
#include <optional>

namespace gdx {
namespace {

// Processors and a NIC have no class but NODE and SYS, because processors are below no bridge.
std::optional<PathClass> distance(const Topology& topology, const Place& place, const std::string& name) {
  if (!place.gpu.empty()) {
    const auto paths = paths_to(topology, name, {place.gpu});
    return paths.empty() ? std::nullopt : std::optional(paths.front());
  }
  const auto nic = std::ranges::find(topology.nics, name, &PciDevice::os_name);
  if (nic == topology.nics.end() || place.processors.empty()) return std::nullopt;
  const bool near = std::ranges::find_first_of(nic->processors, place.processors) != nic->processors.end();
  return near ? PathClass::kNode : PathClass::kSys;
}

// Returns numbers as text in ranges: "0-3,8" for 0, 1, 2, 3, 8.
std::string ranges_text(const std::vector<int>& numbers) {
  std::string text;
  for (auto first = numbers.begin(); first != numbers.end();) {
    const auto last =
        std::ranges::adjacent_find(first, numbers.end(), [](int a, int b) { return b != a + 1; });
    const auto end = last == numbers.end() ? last : last + 1;
    text += fmt::format("{}{}", text.empty() ? "" : ",", *first);
    if (end - first > 1) text += fmt::format("-{}", *(end - 1));
    first = end;
  }
  return text;
}

std::string describe(const Place& place) {
  if (!place.gpu.empty()) return "GPU " + canonical_bus_id(place.gpu).value_or(place.gpu);
  return place.processors.empty() ? "the processors" : "processors " + ranges_text(place.processors);
}

}  // namespace

std::vector<int> allowed_processors() {
  std::vector<int> processors;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &allowed)) processors.push_back(processor);
  }
  return processors;
}

std::vector<RankedNic> rank_nics(const Topology& topology, const Place& place,
                                 const std::vector<std::string>& names, std::uint32_t rank) {
  constexpr auto kBeyondAll = kPathClasses.size();
  std::map<std::size_t, std::vector<std::string>> by_distance;
  for (const std::string& name : names) {
    const auto path = distance(topology, place, name);
    by_distance[path ? static_cast<std::size_t>(*path) : kBeyondAll].push_back(name);
  }
  std::vector<RankedNic> ranked;
  for (const auto& [at, equals] : by_distance) {
    std::string why =
        at == kBeyondAll
            ? fmt::format("as the first that serves: its distance from {} is not known", describe(place))
            : fmt::format("as the nearest that serves: {} from {}", name(kPathClasses[at]), describe(place));
    if (equals.size() > 1) why += fmt::format(", one of {} such, by rank {}", equals.size(), rank);
    for (std::size_t turn = 0; turn < equals.size(); ++turn)
      ranked.push_back({equals[(rank + turn) % equals.size()], why});
  }
  return ranked;
}

}  // namespace gdx
