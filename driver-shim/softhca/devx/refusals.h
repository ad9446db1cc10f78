// What programs ask for and this HCA has not: told to the program as the kernel tells it, and to people once.
#pragma once

#include <cerrno>
#include <string_view>

#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca {

// Names `what` in the log, the first time in this process. Threads: any.
void name_refusal(std::string_view what);

inline Errno unsupported(std::string_view what) {
  name_refusal(what);
  return EOPNOTSUPP;
}

}  // namespace gdx::softhca
