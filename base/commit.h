// The commit of the tree that a program was built from: `git describe --always --dirty`, or "unknown".
#pragma once

namespace gdx {

[[nodiscard]] const char* commit();

}  // namespace gdx
