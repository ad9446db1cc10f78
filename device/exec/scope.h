// The scopes at which device functions are called.
#pragma once

#include <cstdint>

namespace gdx {

// Who calls together. All threads of the scope make the same call with the same arguments.
enum class Scope { kThread, kWarp, kBlock };

inline constexpr std::uint32_t kWarpThreads = 32;

}  // namespace gdx
