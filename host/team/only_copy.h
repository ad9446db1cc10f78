// Copies of gdx in one process. Each has a registry of its regions, pools and HCAs of its own, and the ranks,
// files and doorbells of the other do not exist for it.
#pragma once

#include "base/result.h"

namespace gdx::team {

// Looks through the files that this process has loaded. Each with this library in it carries a note.
// Errors: kUnsupported with the files, where there are two or more. Threads: any.
[[nodiscard]] Result<void> check_only_copy();

}  // namespace gdx::team
