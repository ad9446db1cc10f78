// QP 1 of an HCA: management datagrams in and out, for an agent of another component.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca {

class ManagementAgent {
 public:
  virtual ~ManagementAgent() = default;

  // Handles a datagram with QP 1's Q_Key. Called with the HCA locked; must not call back.
  // Ordering: earlier arrivals are complete, and their completions can be polled.
  virtual void on_datagram(const wire::Address& source, std::span<const std::byte> datagram) = 0;
  // Called after every step of the HCA, which is not locked then. Never blocks. Returns things done.
  virtual int step(std::uint64_t now_ns) = 0;
  // Returns the time at which step() has work even without arrivals; ~0: never. Called with the HCA locked.
  [[nodiscard]] virtual std::uint64_t next_deadline_ns() const = 0;
};

}  // namespace gdx::softhca
