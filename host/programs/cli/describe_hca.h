// Description of an HCA by `gdx info`, for people and programs.
#pragma once

#include <nlohmann/json.hpp>

#include "host/hca/hca.h"

namespace gdx {

// Describes placements and choices of endpoints as create() would make them now, and the GPUs that the HCA
// would serve. A part that fails is replaced by the reason.
[[nodiscard]] nlohmann::ordered_json describe_hca(const Hca& hca);

}  // namespace gdx
