// Requests for features that this HCA lacks: answered as the kernel answers them, and logged once.
#pragma once

#include <cerrno>
#include <string_view>

#include "base/log.h"
#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca {

// Logs `what`, the first time in this process. `level`: kInfo for features that libraries merely probe.
// Threads: any.
void name_refusal(std::string_view what, log::Level level = log::Level::kWarn);

inline Errno unsupported(std::string_view what, log::Level level = log::Level::kWarn) {
  name_refusal(what, level);
  return EOPNOTSUPP;
}

}  // namespace gdx::softhca
