// Ranks without work take that of others: gdx run --ranks 4 -- work_stealing [ROUNDS]
#include "work_stealing.h"

#include "../example.h"

using gdx::program::or_exit;

namespace {

std::uint64_t number(std::uint32_t rank, std::uint32_t i, std::uint32_t round) {
  return rank * 1'000'003ull + i * 11ull + round;
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint32_t rounds = example::number(argc, argv, 1, 2);
  gdx::Team team = or_exit(gdx::Team::create());
  const auto words = [&](std::uint32_t count) { return or_exit(team.allocate<std::uint64_t>(count)); };
  const Work work{words(1),
                  words(kMostTasks * kNumbers),
                  words(kMostTasks * kNumbers),
                  words(kMostTasks),
                  words(1),
                  words(kWorkers),
                  words(kWorkers * kNumbers),
                  or_exit(team.allocate<gdx::Status>(kWorkers))};
  const std::uint32_t mine = tasks_of(team.rank());
  unsigned long long all = 0;
  for (std::uint32_t rank = 0; rank < team.size(); ++rank) all += tasks_of(rank);

  for (std::uint32_t round = 1; round <= rounds; ++round) {
    for (std::uint32_t i = 0; i < mine * kNumbers; ++i) work.tasks[i] = number(team.rank(), i, round);
    *work.next = 0;
    or_exit(team.barrier());  // every queue is filled
    example::check(team, run_workers(team.handle(), work), work.status, kWorkers);
    or_exit(team.barrier());  // every rank has done what it took
    for (std::uint32_t i = 0; i < mine * kNumbers; ++i) {
      if (work.done[i / kNumbers] != round || work.results[i] != solve(number(team.rank(), i, round)))
        example::stop("rank %u, round %u: task %u was not done once and right", team.rank(), round,
                      i / kNumbers);
    }
    if (team.rank() == 0 && *work.total != all * round)
      example::stop("round %u: %llu tasks were done, not %llu", round,
                    static_cast<unsigned long long>(*work.total), all * round);
  }
  std::printf("rank %u: its %u tasks were done once in each of %u rounds\n", team.rank(), mine, rounds);
}
