// Sizes as people write them.
#pragma once

#include <cstdint>
#include <string>

namespace gdx {

// "28 B", "4 KiB", "16 MiB"; "6000 B" where it is no whole number of the larger unit.
inline std::string size_text(std::uint64_t bytes) {
  constexpr std::uint64_t kMiB = 1 << 20;
  constexpr std::uint64_t kKiB = 1 << 10;
  if (bytes >= kMiB && bytes % kMiB == 0) return std::to_string(bytes / kMiB) + " MiB";
  if (bytes >= kKiB && bytes % kKiB == 0) return std::to_string(bytes / kKiB) + " KiB";
  return std::to_string(bytes) + " B";
}

}  // namespace gdx
