// What queries of memory answer from.
#pragma once

#include "driver-shim/softhca/uverbs/objects.h"

namespace gdx::softhca::uverbs {

struct RegionObject : Object {
  std::uint64_t length_bytes = 0;
  std::uint64_t iova = 0;
};

struct DeviceMemoryObject : Object {
  std::uint64_t length_bytes = 0;
  std::uint16_t first_page = 0;
};

}  // namespace gdx::softhca::uverbs
