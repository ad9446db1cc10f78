#include "host/programs/bench/experts.h"

#include <algorithm>

namespace gdx::bench {
namespace {

// A number that looks drawn, the same in every run. Source: SplitMix64, by Sebastiano Vigna.
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// Tokens of rank `from` by experts of rank `to`. An odd step reaches 8 experts that differ.
std::uint32_t routed(std::uint32_t from, std::uint32_t to, std::uint32_t ranks) {
  std::uint32_t count = 0;
  for (std::uint32_t token = 0; token < kTokens; ++token) {
    const std::uint64_t drawn = mixed(from * kTokens + token);
    const auto step = static_cast<std::uint32_t>(drawn >> 32) | 1;
    for (std::uint32_t k = 0; k < kExpertsOfToken; ++k) {
      const std::uint32_t expert = (static_cast<std::uint32_t>(drawn) + k * step) % kExperts;
      count += expert * ranks / kExperts == to ? 1 : 0;
    }
  }
  return count;
}

}  // namespace

std::uint32_t messages_between(Operation operation, std::uint32_t from, std::uint32_t to,
                               std::uint32_t ranks) {
  return operation == Operation::kDispatch ? routed(from, to, ranks) : routed(to, from, ranks);
}

std::uint32_t most_messages_between(std::uint32_t ranks) {
  std::uint32_t most = 0;
  for (std::uint32_t from = 0; from < ranks; ++from) {
    for (std::uint32_t to = 0; to < ranks; ++to) {
      if (to != from) most = std::max(most, routed(from, to, ranks));
    }
  }
  return most;
}

std::uint32_t messages_to_others(Operation operation, std::uint32_t from, std::uint32_t ranks) {
  std::uint32_t sum = 0;
  for (std::uint32_t to = 0; to < ranks; ++to) {
    if (to != from) sum += messages_between(operation, from, to, ranks);
  }
  return sum;
}

}  // namespace gdx::bench
