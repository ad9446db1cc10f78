// Numbers of 24 bits that tell nothing of each other: the values of a counter under a keyed permutation. Who
// gets some of them learns no other, past or next, and none returns before all others were drawn. Pure.
// Source: base/sip_hash.h as the round function of a Feistel network.
#pragma once

#include <cstdint>
#include <utility>

#include "base/sip_hash.h"

namespace gdx::softhca {

class ScatteredNumbers {
 public:
  // `key`: secret, and of this sequence alone.
  explicit ScatteredNumbers(const SipKey& key) : key_(key) {}

  std::uint32_t next() {
    std::uint32_t left = count_ >> kHalfBits & kHalfMask;
    std::uint32_t right = count_++ & kHalfMask;
    // More rounds than the four of the proof, because the halves are short.
    for (std::uint64_t round = 0; round < 8; ++round)
      left = std::exchange(right, left ^ (sip_hash(key_, round << 32 | right) & kHalfMask));
    return left << kHalfBits | right;
  }

 private:
  static constexpr unsigned kHalfBits = 12;
  static constexpr std::uint32_t kHalfMask = (1u << kHalfBits) - 1;

  SipKey key_;
  std::uint32_t count_ = 0;
};

}  // namespace gdx::softhca
