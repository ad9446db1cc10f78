// Memory that a team's collective calls use: words by which ranks signal each other, and scratch for what is
// to be reduced. It lies in front of the symmetric heap, on each lane alike at every rank.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gdx {

// Each word is of 8 B. Peers signal `arrived`, and the words of each rank; the others are this rank's own.
struct TeamAreaWords {
  std::uint64_t calls;    // collective calls begun on the lane
  std::uint64_t failure;  // status with which a call failed, after which ranks no longer agree on `calls`
  std::uint64_t busy;     // nonzero while a call is under way
  // Calls begun, modulo 2^32, in the high half; in the low one a mix of what all ranks must give alike to
  // each of them. The host compares ranks whose high halves are equal.
  std::uint64_t alike;
  std::uint64_t through;  // nonzero, and mixed into `alike`, while calls go through a piece of the heap
  std::uint64_t reserved[11];
  std::uint64_t arrived[16];  // by round of a barrier
};

// Words of each rank behind those.
struct TeamAreaRankWords {
  std::uint64_t ready;  // the rank has begun a call, so that its memory may be written
  std::uint64_t data;   // pieces that came from the rank
  std::uint64_t taken;  // pieces of scratch that the rank has read
  std::uint64_t place;  // element at which the rank wants this rank's piece of a call with lengths
};

inline constexpr std::uint32_t kMinScratchBytes = 4096;
inline constexpr std::uint32_t kMaxScratchBytes = 128 << 10;

// Returns the bytes in front of the scratch, a multiple of 128.
constexpr std::uint32_t team_area_word_bytes(std::uint32_t size) {
  const std::size_t bytes = sizeof(TeamAreaWords) + size * sizeof(TeamAreaRankWords);
  return static_cast<std::uint32_t>((bytes + 127) / 128 * 128);
}

static_assert(sizeof(TeamAreaWords) == 256 && sizeof(TeamAreaRankWords) == 32);

}  // namespace gdx
