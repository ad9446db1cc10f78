// What `gdx info` tells of an HCA, for people and programs.
#pragma once

#include <nlohmann/json.hpp>

#include "host/hca/hca.h"

namespace gdx {

// What endpoints on it would be made of, each choice as it would be made now, and the GPUs that it would
// serve. A part that cannot be had is told by the reason in its place.
[[nodiscard]] nlohmann::ordered_json describe_hca(const Hca& hca);

}  // namespace gdx
