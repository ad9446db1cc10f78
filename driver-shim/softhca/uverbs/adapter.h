// The software HCAs of a process, and what belongs to each alone.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "driver-shim/softhca/engine/hca.h"
#include "driver-shim/softhca/uverbs/config.h"
#include "driver-shim/softhca/uverbs/page_file.h"

namespace gdx::softhca::uverbs {

// A software HCA with its device memory. The HCA is declared last, so that it ends first.
struct Adapter {
  explicit Adapter(DevicePages&& pages) : device_memory(std::move(pages)) {}
  DevicePages device_memory;
  std::unique_ptr<Hca> hca;
};
using Adapters = std::vector<std::unique_ptr<Adapter>>;

// Opens the configured number of adapters. Without a configured address it takes free consecutive ones.
// Errors: kBusy, kInvalidArgument or kSystem, naming the address or the file.
[[nodiscard]] Result<Adapters> open_adapters(const Configuration& configuration);

}  // namespace gdx::softhca::uverbs
