// Virtual time of the PCIe model: picoseconds, because a 64 B packet on a Gen6 x16 link takes 0.7 ns.
#pragma once

#include <cmath>
#include <cstdint>

namespace gdx::pcie {

using TimePs = std::uint64_t;

inline constexpr TimePs kPsPerNs = 1000;
inline constexpr double kPsPerSecond = 1e12;

constexpr TimePs from_ns(std::uint64_t ns) { return ns * kPsPerNs; }
constexpr double to_ns(TimePs ps) { return static_cast<double>(ps) / static_cast<double>(kPsPerNs); }

// Returns the time of `bytes` at a rate.
inline TimePs transfer_ps(double bytes, double bytes_per_s) {
  return static_cast<TimePs>(std::llround(bytes * kPsPerSecond / bytes_per_s));
}

}  // namespace gdx::pcie
