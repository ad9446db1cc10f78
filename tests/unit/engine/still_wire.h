// A wire that carries nothing. A test sets its answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca::test {

class StillWire final : public wire::Wire {
 public:
  const wire::Address& local() const override { return local_; }
  std::size_t room(const wire::Address& /*destination*/) override { return packets_of_room; }
  std::span<std::byte> begin_packet(const wire::Address& /*destination*/) override { return {}; }
  void commit_packet(const wire::Address& /*destination*/, std::size_t /*length_bytes*/) override {}
  void flush() override {}
  std::size_t receive(std::size_t /*max_packets*/, const Sink& /*sink*/) override { return 0; }
  int poll_fd() const override { return -1; }
  bool arm() override { return true; }
  const wire::WireCounters& counters() const override { return counters_; }
  bool holds_back(const wire::Address& /*destination*/) override { return bounded_by_ring; }

  std::size_t packets_of_room = SIZE_MAX;
  bool bounded_by_ring = false;

 private:
  wire::Address local_ = wire::Address::ipv4(0x0a000001);
  wire::WireCounters counters_;
};

}  // namespace gdx::softhca::test
