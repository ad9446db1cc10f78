// gdx_credit_sim FIRST LAST [exclusive|shared|team|tenants] [hunt]: the seeds of the credits' world. Without
// a choice some endpoints of each are shared.
#include <functional>

#include "tests/sim/credits/world.h"

int main(int argc, char** argv) {
  using namespace gdx::sim;
  using Run = std::function<CreditOutcome(std::uint64_t)>;
  const auto world_of = [](const std::string& choice) {
    const auto run = [](Sharers sharers) {
      return Run([sharers](std::uint64_t seed) { return CreditWorld(seed, sharers).run(10'000); });
    };
    if (choice == "exclusive") return run(Sharers::kNone);
    if (choice == "team") return run(Sharers::kTeam);
    if (choice == "tenants") return run(Sharers::kTenants);
    return choice.empty() || choice == "shared" ? run(Sharers::kSome) : Run();
  };
  return run_seed_program(argc, argv, "gdx_credit_sim FIRST LAST [exclusive|shared|team|tenants]", world_of,
                          [](const CreditOutcome& sum) {
                            return fmt::format(
                                "{} steps, {} of threads, {} pushes, {} waits, {} errors, {} deaths",
                                sum.steps, sum.thread_steps, sum.pushes, sum.waits, sum.errors, sum.deaths);
                          });
}
