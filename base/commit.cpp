#include "base/commit.h"

#include <gdx_commit.h>

namespace gdx {

const char* commit() { return GDX_COMMIT; }

}  // namespace gdx
