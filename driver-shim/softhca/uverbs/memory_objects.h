// What queries of memory answer from, and changes of it.
#pragma once

#include <memory>

#include "driver-shim/softhca/uverbs/context.h"
#include "driver-shim/softhca/uverbs/objects.h"

namespace gdx::softhca::uverbs {

struct RegionObject : Object {
  std::uint64_t length_bytes = 0;
  std::uint64_t iova = 0;
};

// Of memory by its address: of this process, or of a GPU.
struct MemoryRegionObject : RegionObject {
  MemoryRegionSpec spec;
  std::unique_ptr<ForeignRange> foreign;
};

struct DeviceMemoryObject : Object {
  std::uint64_t length_bytes = 0;
  std::uint16_t first_page = 0;
};

// An object in the domain `pd` for what `spec` asks for, which may be registered. Errors: EINVAL, EFAULT,
// EOVERFLOW. In write_memory.cpp.
Answer<std::unique_ptr<MemoryRegionObject>> checked_region(Context& context, const Object& pd,
                                                           MemoryRegionSpec spec);

}  // namespace gdx::softhca::uverbs
