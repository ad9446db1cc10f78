// The software HCA's configuration, from GDX_SOFTHCA_* environment variables (see ../README.md).
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca::uverbs {

// Returns a variable's value, or null.
using Environment = std::function<const char*(const char* name)>;

// Errors: kInvalidArgument, naming the variable, its value and what it may be.
[[nodiscard]] Result<HcaConfig> config_from(const Environment& environment, int pid);

}  // namespace gdx::softhca::uverbs
