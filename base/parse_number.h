// Strict numbers: the whole text or nothing.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace gdx {

[[nodiscard]] inline std::optional<std::uint64_t> parse_unsigned(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Parses a number that begins with 0x.
[[nodiscard]] inline std::optional<std::uint64_t> parse_hexadecimal(std::string_view text) {
  if (!text.starts_with("0x")) return std::nullopt;
  std::uint64_t value = 0;
  constexpr int kBase = 16;
  const auto [end, error] = std::from_chars(text.data() + 2, text.data() + text.size(), value, kBase);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace gdx
