// Thresholds of Mode::kAuto. Part of the endpoint's handle, so that a choice costs comparisons with constants
// and no load.
#pragma once

#include <cstdint>

namespace gdx {

inline constexpr std::uint64_t kNoSizeLimit = ~std::uint64_t{0};
inline constexpr std::uint32_t kMaxAutoInlineBytes = 220;  // capacity of one work request
inline constexpr std::uint32_t kSharedInlineBytes = 28;  // on a shared endpoint, whose WQEs are of one block

// Upper ends of consecutive ranges of message sizes; any range may be empty. Larger messages bounce.
//
//   0 ...inline... inline_bytes ...push... push_bytes ...pull... pull_bytes ...bounce...
struct ModeTable {
  std::uint64_t inline_bytes;
  std::uint64_t push_bytes;
  std::uint64_t pull_bytes;

  friend constexpr bool operator==(const ModeTable& a, const ModeTable& b) {
    return a.inline_bytes == b.inline_bytes && a.push_bytes == b.push_bytes && a.pull_bytes == b.pull_bytes;
  }
};
static_assert(sizeof(ModeTable) == 24);

}  // namespace gdx
