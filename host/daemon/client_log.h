// Lines of the log that clients can cause: few a second of all clients together, so that none fills the log.
#pragma once

#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace gdx::daemon {

inline log::LineRate client_lines(10);

template <typename... Args>
void warn_of_client(fmt::format_string<Args...> format, Args&&... args) {
  const auto left_out = client_lines.take(monotonic_ns());
  if (!left_out) return;
  if (*left_out != 0) log::warn("gdxd has left out {} lines about clients", *left_out);
  log::warn(format, std::forward<Args>(args)...);
}

}  // namespace gdx::daemon
