// The scopes at which device functions are called, and what else both execution layers must agree on.
#pragma once

#include <cstdint>

namespace gdx {

// Who calls together. All threads of the scope make the same call with the same arguments.
enum class Scope { kThread, kWarp, kBlock };

inline constexpr std::uint32_t kWarpThreads = 32;

namespace exec {

// Through which a block's bulk stores go.
inline constexpr std::uint32_t kBulkStageBytes = 4096;  // a staging slot of the default size
inline constexpr std::uint32_t kBulkStages = 2;

}  // namespace exec
}  // namespace gdx
