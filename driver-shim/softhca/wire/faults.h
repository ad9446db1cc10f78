// Draws the faults of outgoing packets. Pure: one seed and one sequence of packets give one sequence of
// faults, so that a run can be replayed.
#pragma once

#include <cstddef>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca::wire {

// Damage to a packet that arrives.
struct Damage {
  std::optional<std::size_t> corrupt_bit{};  // bit of the datagram, ICRC included
  bool mark = false;

  bool operator==(const Damage&) const = default;
};

struct Fault {
  bool lose = false;
  bool duplicate = false;
  bool hold_back = false;  // leaves after the packet that follows
  Damage damage{};

  bool operator==(const Fault&) const = default;
};

// Draws once, also where the probability is 0, so that one probability does not shift the sequences of
// others.
[[nodiscard]] bool draw(std::mt19937_64& random, double probability);

class FaultInjector {
 public:
  explicit FaultInjector(const FaultConfig& config)
      : config_(config), random_(config.seed), marks_(~config.seed) {}

  // Draws the fault of the next packet, `length_bytes` from BTH to ICRC. A lost packet gets no other fault.
  [[nodiscard]] Fault next(std::size_t length_bytes);
  // False: next() never returns a fault, so that callers may skip it.
  [[nodiscard]] bool active() const;

 private:
  FaultConfig config_;
  std::mt19937_64 random_;
  std::mt19937_64 marks_;
};

// Applies faults to packets on their way out.
class FaultStage {
 public:
  explicit FaultStage(const FaultConfig& config) : injector_(config) {}

  [[nodiscard]] bool active() const { return injector_.active(); }
  // Calls emit(destination, body, damage) for packets that leave now, in their order: `body` unless it is
  // lost or held back, its duplicate, and a packet that was held back. `body` is BTH to padding.
  template <typename Emit>
  void pass(const Address& destination, std::span<const std::byte> body, WireCounters& counters, Emit emit);
  // Sends the packet that is held back.
  template <typename Emit>
  void flush(Emit emit);

 private:
  static constexpr std::size_t kIcrcBytes = 4;
  struct Held {
    Address destination;
    std::vector<std::byte> body;
  };

  FaultInjector injector_;
  std::optional<Held> held_;
};

template <typename Emit>
void FaultStage::pass(const Address& destination, std::span<const std::byte> body, WireCounters& counters,
                      Emit emit) {
  const Fault fault = injector_.next(body.size() + kIcrcBytes);
  if (fault.lose) {
    ++counters.faults_lost;
    return;
  }
  if (fault.hold_back && !held_) {
    held_ = Held{destination, {body.begin(), body.end()}};
    return;
  }
  std::vector<std::byte> copy;  // the original lies in the wire's memory, which may damage it there
  if (fault.duplicate) copy.assign(body.begin(), body.end());
  if (fault.damage.corrupt_bit) ++counters.faults_corrupted;
  if (fault.damage.mark) ++counters.faults_marked;
  emit(destination, body, fault.damage);
  if (fault.duplicate) emit(destination, std::span<const std::byte>(copy), Damage{});
  flush(emit);
}

template <typename Emit>
void FaultStage::flush(Emit emit) {
  if (!held_) return;
  const Held late = std::move(*held_);
  held_.reset();
  emit(late.destination, std::span<const std::byte>(late.body), Damage{});
}

}  // namespace gdx::softhca::wire
