// Protocols of a service manager: a listening socket that it passes, and the states that it is told.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/descriptor.h"
#include "base/result.h"

namespace gdx::daemon {

struct PassedListener {
  Descriptor socket;
  std::string path;
};

// Takes the socket that was passed to this process, if one was. Clears the variables that told of it. Source:
// sd_listen_fds(3). Errors: kInvalidArgument for more than one, or one of another kind.
[[nodiscard]] Result<std::optional<PassedListener>> take_passed_listener();

// Tells the manager that started this process a state, as "READY=1"; nothing without a manager. Source:
// sd_notify(3).
void tell_manager(std::string_view state);

}  // namespace gdx::daemon
