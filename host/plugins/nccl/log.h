// Lines of the plugin, through NCCL's logger where it has given one.
#pragma once

#include <string>

#include "base/result.h"
#include "host/plugins/nccl/abi.h"

namespace gdx::nccl {

// Threads: any; the last logger given counts.
void set_logger(Logger logger);
void info(const std::string& line);
void warn(const std::string& line);

// Returns what NCCL is told for a status.
[[nodiscard]] Outcome outcome_of(Status status);
// Tells `error` in one line, and returns its outcome.
[[nodiscard]] Outcome told(const Error& error);

}  // namespace gdx::nccl
