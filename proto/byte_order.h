// Big-endian integers as types, so that a field's byte order is part of its declaration.
#pragma once

#include <cstdint>

namespace gdx {

// Shifts, not builtins: GCC and nvcc both lower these to one byte swap (PRMT on a GPU). The functions stay
// constexpr and usable from device code under --expt-relaxed-constexpr.
constexpr std::uint16_t byte_swap(std::uint16_t v) { return static_cast<std::uint16_t>((v << 8) | (v >> 8)); }
constexpr std::uint32_t byte_swap(std::uint32_t v) {
  return (v << 24) | ((v & 0xff00u) << 8) | ((v >> 8) & 0xff00u) | (v >> 24);
}
constexpr std::uint64_t byte_swap(std::uint64_t v) {
  return (static_cast<std::uint64_t>(byte_swap(static_cast<std::uint32_t>(v))) << 32) |
         byte_swap(static_cast<std::uint32_t>(v >> 32));
}

// An integer stored big-endian. Hosts and GPUs that gdx runs on are little-endian.
template <typename T>
struct BigEndian {
  T raw;

  BigEndian() = default;
  constexpr BigEndian(T host) : raw(byte_swap(host)) {}    // NOLINT(google-explicit-constructor)
  constexpr operator T() const { return byte_swap(raw); }  // NOLINT(google-explicit-constructor)
};

using Be16 = BigEndian<std::uint16_t>;
using Be32 = BigEndian<std::uint32_t>;
using Be64 = BigEndian<std::uint64_t>;

static_assert(sizeof(Be16) == 2 && sizeof(Be32) == 4 && sizeof(Be64) == 8);

}  // namespace gdx
