// The modes that a table chooses among, for kernels and for what is made of their times.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace gdx {

// In the order in which a table has their ranges.
enum class TableMode : std::uint8_t { kInline, kPush, kPull, kBounce };
inline constexpr std::array<std::string_view, 4> kTableModeNames = {"inline", "push", "pull", "bounce"};

}  // namespace gdx
