// What programs ask for and this HCA has not: told to the program as the kernel tells it, and to people once.
#pragma once

#include <cerrno>
#include <string_view>

#include "base/log.h"
#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca {

// Names `what` in the log, the first time in this process. `level`: kInfo for what libraries only try, to
// learn whether it is there. Threads: any.
void name_refusal(std::string_view what, log::Level level = log::Level::kWarn);

inline Errno unsupported(std::string_view what, log::Level level = log::Level::kWarn) {
  name_refusal(what, level);
  return EOPNOTSUPP;
}

}  // namespace gdx::softhca
