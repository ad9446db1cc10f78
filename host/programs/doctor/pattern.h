// Patterns that tell one put's bytes from another's, for the host and for kernels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gdx::doctor {

inline constexpr std::uint32_t kPutBytes = 64;

// Each `seed` has a pattern of its own.
constexpr std::uint8_t pattern_byte(std::uint32_t seed, std::size_t at) {
  return static_cast<std::uint8_t>(seed * 31 + at * 7 + 1);
}

}  // namespace gdx::doctor
