// Description of an HCA by `gdx info`, for people and programs.
#pragma once

#include <nlohmann/json.hpp>

#include "host/hca/hca.h"

namespace gdx {

// Describes the placements and choices of endpoints on the HCA, as create() would make them now, and the GPUs
// that it would serve. A part that fails is replaced by the reason.
[[nodiscard]] nlohmann::ordered_json describe_hca(const Hca& hca);

}  // namespace gdx
