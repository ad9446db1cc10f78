// The scopes of device functions, and other constants of both execution layers.
#pragma once

#include <cstdint>

namespace gdx {

// Threads that make a call together. All threads of the scope make it with the same arguments.
enum class Scope { kThread, kWarp, kBlock };

inline constexpr std::uint32_t kWarpThreads = 32;

namespace exec {

// Stages of a block's bulk stores, in shared memory.
inline constexpr std::uint32_t kBulkStageBytes = 4096;  // a staging slot of the default size
inline constexpr std::uint32_t kBulkStages = 2;

inline constexpr std::uint32_t kMostWarps = 32;  // of a block

inline constexpr std::uint32_t kSharedAlignment = 128;  // of gdx_dynamic_shared(), as TMA requires

}  // namespace exec
}  // namespace gdx
