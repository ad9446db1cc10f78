// Dispatch of tokens to experts, and combine: gdx run --ranks 4 -- moe_dispatch [ROUNDS [TOKENS]]
#include "moe_dispatch.h"

#include "../example.h"

using gdx::program::or_exit;

namespace {

// Returns different experts for the choices of a token. Not every rank sends something to every other.
std::uint32_t expert_of(std::uint32_t ranks, std::uint32_t rank, std::uint32_t i, std::uint32_t round) {
  return (rank * 7 + i / kChoices * 5 + round * 11 + i % kChoices) % (ranks * kExperts);
}
// Powers of two, whose bfloat16 is written down easily.
std::uint32_t power(std::uint32_t rank, std::uint32_t i, std::uint32_t round) {
  return (rank * 5 + i / kHidden + i % kHidden + round) % 6;
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint32_t rounds = example::number(argc, argv, 1, 3);
  const std::uint32_t tokens = example::number(argc, argv, 2, 4);
  const std::uint32_t size = or_exit(gdx::WorldOptions::from_environment()).size;
  const std::uint64_t choices = std::uint64_t{tokens} * kChoices;
  gdx::Team team = or_exit(gdx::Team::create({.heap_bytes = (size + 3) * choices * kHidden * 2 + (8 << 20)}));
  const auto numbers = [&](auto n) { return or_exit(team.allocate<std::uint16_t>(n * kHidden)); };
  const auto words = [&](auto n) { return or_exit(team.allocate<std::uint64_t>(n)); };
  const Moe moe{static_cast<std::uint32_t>(choices),
                numbers(tokens),
                or_exit(team.allocate<std::uint32_t>(choices)),
                or_exit(team.allocate<float>(tokens * kHidden)),
                numbers(choices),
                numbers(size * choices),
                words(size * choices),
                words(2 * size),
                or_exit(team.allocate<gdx::Status>(size))};
  for (std::uint32_t round = 1; round <= rounds; ++round) {
    for (std::uint32_t i = 0; i < tokens * kHidden; ++i)
      moe.x[i] = static_cast<std::uint16_t>((127 + power(team.rank(), i, round)) << 7);
    for (std::uint32_t i = 0; i < choices; ++i) moe.experts[i] = expert_of(size, team.rank(), i, round);
    example::check(team, run_moe(team.handle(), moe, round), moe.status, size);
    for (std::uint32_t i = 0; i < tokens * kHidden; ++i) {
      const auto x = static_cast<float>(1u << power(team.rank(), i, round));
      float right = 0;
      for (std::uint32_t c = 0; c < kChoices; ++c)
        right += apply_expert(moe.experts[i / kHidden * kChoices + c], x) / kChoices;
      example::expect_equal(team, "number", i, moe.out[i], right);
    }
  }
  if (team.rank() == 0) std::printf("%u ranks: %u rounds of %u tokens are right\n", size, rounds, tokens);
}
