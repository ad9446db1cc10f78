// Memory of this process that no HCA knows, and so without keys: of teams whose ranks are proxied.
#pragma once

#include <cstddef>

#include "base/result.h"
#include "host/memory/memory.h"

namespace gdx {

struct UnregisteredMemory {
  // Allocates page-aligned zeroed host memory that peers on this node can map. Errors: those of
  // allocate_shareable_memory, but for the registration's.
  [[nodiscard]] static Result<Memory> allocate(std::size_t bytes);
  // Describes host memory, which the caller keeps alive as long as the result. Errors: kInvalidArgument as
  // register_memory; kUnsupported for memory of a GPU.
  [[nodiscard]] static Result<Memory> of(void* address, std::size_t bytes);
};

}  // namespace gdx
