// libfabric, loaded when a port is first opened: its libraries take 0.2 s to load, which programs without a
// proxied rank shall not pay.
#pragma once

#include <rdma/fabric.h>

#include "base/result.h"

namespace gdx::libfabric {

// Functions that are no inline code of libfabric's headers.
struct Library {
  decltype(&fi_getinfo) getinfo;
  decltype(&fi_freeinfo) freeinfo;
  decltype(&fi_dupinfo) dupinfo;  // of null: an empty one
  decltype(&fi_fabric) fabric;
  decltype(&fi_strerror) strerror;
};

// Loads the library once in a process. Errors: kUnsupported, with what to install. Threads: any.
[[nodiscard]] Result<const Library*> load_library();
// Returns what load_library() has loaded.
[[nodiscard]] const Library& library();

}  // namespace gdx::libfabric
