// Sums floats of all ranks by a kernel's own all-reduce and by the library's:
// gdx run --ranks 4 -- own_allreduce [ROUNDS [FLOATS]]
#include "own_allreduce.h"

#include "../example.h"

using gdx::program::or_exit;

namespace {

// Small whole numbers, so that every sum of 16 ranks is exact.
float value(std::uint32_t rank, std::uint32_t i, std::uint64_t round) {
  return static_cast<float>((rank + 1) * (1 + i % 97) + round % 1000);
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint32_t rounds = example::number(argc, argv, 1, 3);
  const std::uint32_t count = example::number(argc, argv, 2, 10'007);
  gdx::Team team = or_exit(gdx::Team::create());
  const auto floats = [&](std::uint64_t n) { return or_exit(team.allocate<float>(n)); };
  const Sums sums{count,
                  floats(count),
                  floats(count),
                  floats(count),
                  floats(std::uint64_t{2} * team.size() * count),
                  or_exit(team.allocate<std::uint64_t>(team.size())),
                  or_exit(team.allocate<gdx::Status>(1))};
  for (std::uint32_t round = 1; round <= rounds; ++round) {
    for (std::uint32_t i = 0; i < count; ++i) sums.x[i] = value(team.rank(), i, round);
    example::check(team, run_sums(team.handle(), sums, round), sums.status, 1);
    for (std::uint32_t i = 0; i < count; ++i) {
      float right = 0;
      for (std::uint32_t rank = 0; rank < team.size(); ++rank) right += value(rank, i, round);
      example::expect_equal(team, "own sum", i, sums.own[i], right);
      example::expect_equal(team, "the library's sum", i, sums.library[i], right);
    }
  }
  if (team.rank() == 0)
    std::printf("%u ranks: %u sums are right in %u rounds, both ways\n", team.size(), count, rounds);
}
