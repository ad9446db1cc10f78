// Numbers of 24 bits that tell nothing of each other: the values of a counter under a keyed permutation. Who
// gets some of them learns no other, past or next, and none returns before all others were drawn. Pure.
// Source: SipHash-2-4 (Aumasson and Bernstein, INDOCRYPT 2012) as the round function of a Feistel network.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <utility>

namespace gdx::softhca {

using SipKey = std::array<std::uint64_t, 2>;

// Returns SipHash-2-4 of a message of 8 B.
constexpr std::uint64_t sip_hash(const SipKey& key, std::uint64_t message) {
  constexpr std::uint64_t kLength = std::uint64_t{8} << 56;  // the last block of such a message
  std::uint64_t v0 = key[0] ^ 0x736f6d6570736575;
  std::uint64_t v1 = key[1] ^ 0x646f72616e646f6d;
  std::uint64_t v2 = key[0] ^ 0x6c7967656e657261;
  std::uint64_t v3 = key[1] ^ 0x7465646279746573;
  const auto mix = [&](int rounds) {
    for (; rounds > 0; --rounds) {
      v0 += v1;
      v2 += v3;
      v1 = std::rotl(v1, 13) ^ v0;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 = std::rotl(v0, 32);
      v2 += v1;
      v0 += v3;
      v1 = std::rotl(v1, 17) ^ v2;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 = std::rotl(v2, 32);
    }
  };
  for (const std::uint64_t block : {message, kLength}) {
    v3 ^= block;
    mix(2);
    v0 ^= block;
  }
  v2 ^= 0xff;
  mix(4);
  return v0 ^ v1 ^ v2 ^ v3;
}

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
