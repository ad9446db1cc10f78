// State behind queries and changes of memory.
#pragma once

#include <memory>

#include "driver-shim/softhca/uverbs/context.h"
#include "driver-shim/softhca/uverbs/objects.h"

namespace gdx::softhca::uverbs {

struct RegionObject : Object {
  std::uint64_t length_bytes = 0;
  std::uint64_t iova = 0;
};

// Region of memory by its address: of this process, or of a GPU.
struct MemoryRegionObject : RegionObject {
  MemoryRegionSpec spec;
  std::unique_ptr<ForeignRange> foreign;
};

struct DeviceMemoryObject : Object {
  std::uint64_t length_bytes = 0;
  std::uint16_t first_page = 0;
};

// Makes an object in the domain `pd` for `spec`, after checking it. Errors: EINVAL, EFAULT, EOVERFLOW. In
// write_memory.cpp.
ErrnoOr<std::unique_ptr<MemoryRegionObject>> checked_region(Context& context, const Object& pd,
                                                            MemoryRegionSpec spec);

}  // namespace gdx::softhca::uverbs
