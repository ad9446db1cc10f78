// Sum of a structure of counters, without its members' names, so that none can be left out.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace gdx {

// Adds every member of `more` to that of `sum`. Each must be a std::uint64_t.
template <typename Counters>
Counters& add_counters(Counters& sum, const Counters& more) {
  using Words = std::array<std::uint64_t, sizeof(Counters) / sizeof(std::uint64_t)>;
  auto words = std::bit_cast<Words>(sum);
  const auto added = std::bit_cast<Words>(more);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] += added[i];
  return sum = std::bit_cast<Counters>(words);
}

}  // namespace gdx
