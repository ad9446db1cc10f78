// The network between the two hosts: it loses, damages, repeats and delays. An ICRC seals packets, so that
// damage is found as on a wire.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tests/sim/random.h"
#include "tests/sim/scenario.h"
#include "tests/sim/world.h"

namespace gdx::sim {

// Fate of a packet.
struct Fate {
  bool gone = false;  // lost or damaged
  bool repeated = false;
  std::uint64_t delay_ns = 0;  // of the first copy to arrive, beyond that of every packet
};

class Link {
 public:
  using Deliver = std::function<void(std::uint64_t time_ns, std::vector<std::byte> datagram)>;

  Link(const LinkFaults& faults, Random& random, Outcome& outcome)
      : faults_(faults), random_(random), outcome_(outcome) {}

  // Takes BTH to padding from host `from`; `deliver` is called once for every copy that arrives.
  Fate transmit(std::uint64_t now_ns, std::size_t from, std::vector<std::byte> datagram,
                const Deliver& deliver);
  // Returns the content of a datagram that arrived; empty when it is damaged.
  [[nodiscard]] static std::span<const std::byte> open(std::size_t from, std::span<const std::byte> datagram);

 private:
  void digest(std::uint64_t now_ns, std::size_t from, std::span<const std::byte> datagram);
  void damage(std::vector<std::byte>& datagram);
  [[nodiscard]] std::uint64_t arrival_ns(std::uint64_t now_ns);

  const LinkFaults& faults_;
  Random& random_;
  Outcome& outcome_;
};

}  // namespace gdx::sim
