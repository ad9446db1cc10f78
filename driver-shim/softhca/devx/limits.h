// Reported limits of the device, in one place for PRM capabilities and for the verbs attributes.
#pragma once

#include <cstdint>

namespace gdx::softhca::devx {

inline constexpr std::uint32_t kLogMaxSendBlocks = 15;  // doorbell counters have 16 bits
inline constexpr std::uint32_t kLogMaxSrqEntries = 15;
inline constexpr std::uint32_t kLogMaxCqEntries = 22;
inline constexpr std::uint32_t kLogMaxObjects = 18;
inline constexpr std::uint32_t kLogMaxTranslations = 16;  // entries of an indirect key
inline constexpr std::uint32_t kLogMaxReads = 4;          // READs and atomics in flight per queue pair
inline constexpr std::uint32_t kLogMaxMessage = 30;
inline constexpr std::uint32_t kLogBlueFlameRegister = 9;
inline constexpr std::uint32_t kMaxSendWqeBytes = 1024;
inline constexpr std::uint32_t kMaxReceiveWqeBytes = 512;
inline constexpr std::uint32_t kCompletionVectors = 1;
inline constexpr std::uint32_t kFirstEqn = 16;

}  // namespace gdx::softhca::devx
