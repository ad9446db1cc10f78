// The exchange of a job in virtual time: its ranks join a world, gather a word each, and meet at a barrier.
// World and what lies below are production code, down to its calls on sockets. A seed chooses when ranks
// come and who is lost when.
//
// Every rank ends within its bounds. Without a loss all have all words. Else rank 0 names who is lost, and
// the others report what rank 0 has told them, that rank 0 has gone, or their own timeout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/bootstrap/world.h"
#include "tests/sim/exchange/network.h"
#include "tests/sim/random.h"
#include "tests/sim/seeds.h"

namespace gdx::sim {

struct ExchangeOutcome {
  std::string problem;       // empty: every promise was kept
  std::uint64_t losses = 0;  // before the lost rank was through
  std::uint64_t named = 0;   // by rank 0
  std::uint64_t told = 0;    // ranks to which rank 0 has told why
  std::uint64_t whole = 0;   // runs in which all ranks were through
  Traffic sent, received;    // by rank 0, in a run without a loss

  void add(const ExchangeOutcome& other);
};

class ExchangeWorld {
 public:
  ExchangeWorld(std::uint64_t seed, std::uint32_t ranks);
  [[nodiscard]] ExchangeOutcome run();

 private:
  struct Course {
    int steps = 0;  // done
    std::uint64_t longest_ns = 0;
    std::optional<Error> error;
  };

  void be_rank(std::uint32_t rank);
  Result<void> take_part(std::uint32_t rank, Course& course);
  [[nodiscard]] std::string problem() const;
  [[nodiscard]] std::string problem_of(std::uint32_t rank) const;

  Random random_;
  std::uint32_t size_;
  Network network_;
  std::vector<Course> courses_;
  Loss loss_ = Loss::kNone;
  std::uint32_t lost_ = 0;
};

}  // namespace gdx::sim
