// The machine's topology as gdx topo --json prints it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "host/topo/topology.h"

namespace gdx {

// With links, ACS and CUDA's numbers for a topology of the `running` machine, which opens each GPU.
[[nodiscard]] nlohmann::ordered_json topology_json(const Topology& topology, bool running);

}  // namespace gdx
