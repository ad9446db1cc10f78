// Tokens go to experts on all ranks, and answers come back: gdx run --ranks 4 -- moe_dispatch [ROUNDS]
#include "moe_dispatch.h"

#include "../example.h"

using gdx::program::or_exit;

namespace {

// Returns different experts for the choices of a token. Not every rank sends something to every other.
std::uint32_t expert_of(std::uint32_t ranks, std::uint32_t rank, std::uint32_t i, std::uint32_t round) {
  const std::uint32_t token = i / kChoices;
  return (rank * 7 + token * token * 5 + round * 11 + i % kChoices * (1 + token % 2)) % (ranks * kExperts);
}
float value(std::uint32_t rank, std::uint32_t i, std::uint32_t round) {
  const std::uint32_t token = i / kHidden;
  return static_cast<float>(rank * 100 + token * 5 + i % kHidden + round % 1000);
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint32_t rounds = example::number(argc, argv, 1, 3);
  gdx::Team team = or_exit(gdx::Team::create());
  const std::uint32_t size = team.size();
  const auto floats = [&](std::uint32_t tokens) { return or_exit(team.allocate<float>(tokens * kHidden)); };
  const auto words = [&](std::uint32_t count) { return or_exit(team.allocate<std::uint64_t>(count)); };
  const auto numbers = [&](std::uint32_t count) { return or_exit(team.allocate<std::uint32_t>(count)); };
  const Moe moe{floats(kTokens),       numbers(kSlots),
                floats(kTokens),       floats(kSlots),
                floats(size * kSlots), words(size * kSlots),
                words(size),           words(size),
                numbers(size),         or_exit(team.allocate<gdx::Status>(size))};
  for (std::uint32_t rank = 0; rank < size; ++rank) moe.ranks[rank] = rank;

  for (std::uint32_t round = 1; round <= rounds; ++round) {
    for (std::uint32_t i = 0; i < kTokens * kHidden; ++i) moe.x[i] = value(team.rank(), i, round);
    for (std::uint32_t i = 0; i < kSlots; ++i) moe.experts[i] = expert_of(size, team.rank(), i, round);
    example::check(team, run_moe(team.handle(), moe, round), moe.status, size);
    for (std::uint32_t i = 0; i < kTokens * kHidden; ++i) {
      float right = 0;
      for (std::uint32_t c = 0; c < kChoices; ++c)
        right +=
            weight(c) * apply_expert(moe.experts[i / kHidden * kChoices + c], value(team.rank(), i, round));
      example::expect_equal(team, "number", i, moe.out[i], right);
    }
  }
  if (team.rank() == 0) std::printf("%u ranks: %u rounds of %u tokens are right\n", size, rounds, kTokens);
}
