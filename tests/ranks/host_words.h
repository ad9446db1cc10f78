// Hook of the execution layer of simulated ranks for loads.
#pragma once

#include <cstdint>

namespace gdx::ranks {

// A kernel of the running simulation loads `bytes` at `from`. Returns when they would have come: at once, but
// for words that only the host writes.
void carry_load(const void* from, std::uint64_t bytes);

}  // namespace gdx::ranks
