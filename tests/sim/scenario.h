// Choices of a seed: the link's faults, the peers' misfortunes, and the queue pairs' attributes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "driver-shim/softhca/transport/rc_types.h"
#include "tests/sim/ledger.h"
#include "tests/sim/random.h"

namespace gdx::sim {

inline constexpr std::uint64_t kMicrosecondNs = 1000;
inline constexpr std::uint64_t kSecondNs = 1'000'000'000;
inline constexpr std::uint64_t kNever = softhca::transport::kNever;

struct LinkFaults {
  double loss = 0, corruption = 0, duplication = 0, reordering = 0;
  std::uint64_t delay_ns = 0, jitter_ns = 0;

  [[nodiscard]] bool none() const { return loss + corruption + duplication + reordering == 0; }
};

// Nodes 2i and 2i + 1 are connected; even ones are the first host's.
struct Scenario {
  LinkFaults faults;
  double pauses = 0;
  bool patient = false;              // timeouts of seconds; each burst waits for the one before it
  bool calm = false;                 // no faults, pauses, death, starvation or flaw
  std::uint32_t operations = 0;      // of each node
  std::uint64_t death_ns = kNever;   // of the second host
  std::uint64_t starve_ns = kNever;  // from here on the second host posts no receives
  Flaw flaw = Flaw::kNone;           // in what node 0 posts
  std::uint32_t flawed_operation = 0;
  std::uint32_t connections = 1;
  bool shared_receives = false;      // one queue for all queue pairs of a host
  std::array<bool, 2> advertises{};  // [host]: its ACKs say how many receives are posted
  std::vector<softhca::transport::RcConfig> configs;

  [[nodiscard]] bool advertises_receives(std::size_t node) const {
    return advertises[node & 1] && !shared_receives;
  }
  [[nodiscard]] std::string text() const;
};

[[nodiscard]] LinkFaults make_faults(Random& random);
[[nodiscard]] Scenario make_scenario(Random& random);
[[nodiscard]] std::string text_of(const LinkFaults& faults);

}  // namespace gdx::sim
