// SipHash-2-4, a keyed hash: without the key nobody can tell its values from random ones. Pure.
// Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF", INDOCRYPT 2012.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <initializer_list>

namespace gdx {

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

}  // namespace gdx
