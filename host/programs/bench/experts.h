// Routes of expert parallelism in the shape of DeepEP's low-latency kernels: each rank has 128 tokens, and
// sends each to 8 of 256 experts, which the ranks share evenly.
#pragma once

#include <cstdint>

#include "host/programs/bench/load.h"

namespace gdx::bench {

inline constexpr std::uint32_t kTokens = 128;  // of a rank, in a round
inline constexpr std::uint32_t kExpertsOfToken = 8;
inline constexpr std::uint32_t kExperts = 256;
inline constexpr std::uint32_t kRoutes = kTokens * kExpertsOfToken;  // of a rank, its own experts included

// Returns the messages that rank `from` of `ranks` sends to rank `to` in a round: a dispatch sends tokens to
// their experts, a combine sends back what came.
[[nodiscard]] std::uint32_t messages_between(Operation operation, std::uint32_t from, std::uint32_t to,
                                             std::uint32_t ranks);
// Returns the most messages that a rank sends to one other in a round of either.
[[nodiscard]] std::uint32_t most_messages_between(std::uint32_t ranks);
// Returns the messages that a rank sends to all others in a round.
[[nodiscard]] std::uint32_t messages_to_others(Operation operation, std::uint32_t from, std::uint32_t ranks);

}  // namespace gdx::bench
