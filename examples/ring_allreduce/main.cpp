// Sums floats of all ranks, round a ring: gdx run --ranks 4 -- ring_allreduce [FLOATS [ROUNDS]]
#include "ring_allreduce.h"

#include "../example.h"

using gdx::program::or_exit;

namespace {

// Small whole numbers, so that every sum of 16 ranks is exact.
float value(std::uint32_t rank, std::uint32_t i, std::uint32_t round) {
  return static_cast<float>((rank + 1) * (1 + i % 97) + round % 1000);
}
float sum(std::uint32_t ranks, std::uint32_t i, std::uint32_t round) {
  float all = 0;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) all += value(rank, i, round);
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint32_t count = example::number(argc, argv, 1, 10'007);
  const std::uint32_t rounds = example::number(argc, argv, 2, 3);
  gdx::Team team = or_exit(gdx::Team::create());
  const Ring ring{or_exit(team.allocate<float>(count)),
                  or_exit(team.allocate<float>(count)),
                  count,
                  or_exit(team.allocate<std::uint64_t>(kBlocks)),
                  or_exit(team.allocate<std::uint64_t>(kBlocks)),
                  or_exit(team.allocate<gdx::Status>(kBlocks))};
  for (std::uint32_t round = 0; round < rounds; ++round) {
    for (std::uint32_t i = 0; i < count; ++i) ring.x[i] = value(team.rank(), i, round);
    const gdx::Status launched = run_allreduce(team.handle(), ring);
    example::check(team, launched, ring.status, kBlocks);
    for (std::uint32_t i = 0; i < count; ++i)
      example::expect_equal(team, "sum", i, ring.x[i], sum(team.size(), i, round));
  }
  if (team.rank() == 0) std::printf("%u ranks: %u sums are right in %u rounds\n", team.size(), count, rounds);
}
