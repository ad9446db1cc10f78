// The conditions of a measurement: machine, processor, kernel, HCA, GPU and libraries.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "host/gpu/gpu.h"
#include "host/hca/hca.h"

namespace gdx::bench {

// "the software HCA, kernels on the CPU layer": the thing that figures were measured on.
[[nodiscard]] std::string measured_on(const Hca& hca, const Gpu* gpu);

// This process's machine, as names and text; null where it cannot be read. `gpu`: null on the CPU layer.
[[nodiscard]] nlohmann::ordered_json read_conditions(const Hca& hca, const Gpu* gpu);

}  // namespace gdx::bench
