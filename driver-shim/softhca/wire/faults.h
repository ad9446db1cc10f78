// Decides which outgoing packets suffer what. Pure: the same seed and the same packets give the same
// faults, so that a run can be replayed.
#pragma once

#include <cstddef>
#include <optional>
#include <random>

#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca::wire {

struct Fault {
  bool lose = false;
  bool duplicate = false;
  bool hold_back = false;                    // leaves behind the packet that follows
  std::optional<std::size_t> corrupt_bit{};  // of the datagram, ICRC included

  bool operator==(const Fault&) const = default;
};

class FaultInjector {
 public:
  explicit FaultInjector(const FaultConfig& config) : config_(config), random_(config.seed) {}

  // The fate of the next packet, `length_bytes` from BTH to ICRC. A lost packet suffers nothing else.
  [[nodiscard]] Fault next(std::size_t length_bytes);
  // False: next() never returns a fault, so that callers may skip it.
  [[nodiscard]] bool active() const;

 private:
  bool draw(double probability);

  FaultConfig config_;
  std::mt19937_64 random_;
};

}  // namespace gdx::softhca::wire
