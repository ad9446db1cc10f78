// The conditions of a measurement: machine, processor, kernel, HCA, GPU and libraries.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "host/hca/hca.h"
#include "host/programs/bench/rank.h"

namespace gdx::bench {

// "the software HCA", or "HCA mlx5_0".
[[nodiscard]] std::string hca_text(const Hca& hca);
// "the software HCA, kernels on the CPU layer": the thing that figures were measured on.
[[nodiscard]] std::string measured_on(const Hca& hca, const Gpus& gpus);

// This process's machine, as names and text; null where it cannot be read.
[[nodiscard]] nlohmann::ordered_json read_conditions(const Rank& rank, const Gpus& gpus);

}  // namespace gdx::bench
