// The software HCA's configuration, from GDX_SOFTHCA_* environment variables (see ../README.md).
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "driver-shim/softhca/engine/hca.h"
#include "driver-shim/softhca/engine/planted_fault.h"

namespace gdx::softhca::uverbs {

// Returns a variable's value, or null.
using Environment = std::function<const char*(const char* name)>;

// As many software HCAs as one process may have.
inline constexpr std::uint32_t kMaxHcas = 16;

struct Configuration {
  HcaConfig first;
  std::uint32_t hcas = 1;
  PlantedFault fault = PlantedFault::kNone;  // fault planted in all HCAs
  std::string counters_path;                 // path of the file that keeps their counters; empty: no file
};

// Errors: kInvalidArgument, naming the variable, its value and what it may be.
[[nodiscard]] Result<Configuration> config_from(const Environment& environment, int pid);

// HCA `index` beside the first, which has come to `first_address`: the address that follows by as many, a
// name, a capture and faults of its own.
[[nodiscard]] HcaConfig sibling_config(const HcaConfig& first, const wire::Address& first_address,
                                       std::uint32_t index);

}  // namespace gdx::softhca::uverbs
