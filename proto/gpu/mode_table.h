// What Mode::kAuto goes by, as the host tells kernels: part of the endpoint's handle, so that a choice costs
// comparisons with constants and no load.
#pragma once

#include <cstdint>

namespace gdx {

inline constexpr std::uint64_t kNoSizeLimit = ~std::uint64_t{0};
inline constexpr std::uint32_t kMaxAutoInlineBytes = 220;  // what one work request holds

// Ranges of message sizes, each above the one before it and up to so many bytes; any may be empty. What is
// above them all bounces.
struct ModeTable {
  std::uint64_t inline_bytes;
  std::uint64_t push_bytes;
  std::uint64_t pull_bytes;

  friend constexpr bool operator==(const ModeTable&, const ModeTable&) = default;
};
static_assert(sizeof(ModeTable) == 24);

}  // namespace gdx
