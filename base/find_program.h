// Search for a program as execvp() does it.
#pragma once

#include <string>

namespace gdx {

// Returns the path that execvp() would execute; empty without one. A name with a slash is returned as it is.
// Reads PATH, so no other thread may set it meanwhile.
[[nodiscard]] std::string find_program(const std::string& name);

}  // namespace gdx
