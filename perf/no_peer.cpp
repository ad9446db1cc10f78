#include "perf/posting.h"

namespace gdx::posting {

const Peer* peer() { return nullptr; }

}  // namespace gdx::posting
