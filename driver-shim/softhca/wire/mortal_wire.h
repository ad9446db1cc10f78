// A wire that dies: from one packet on, chosen by seed, nothing leaves and nothing arrives.
#pragma once

#include <memory>
#include <random>

#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca::wire {

// Passes everything to another wire until its death, which FaultConfig::death gives each packet sent. What is
// sent later counts as lost, and what arrives later counts as received by the other wire alone.
class MortalWire : public Wire {
 public:
  MortalWire(std::unique_ptr<Wire> living, const FaultConfig& faults);

  [[nodiscard]] const Address& local() const override { return living_->local(); }
  [[nodiscard]] std::size_t room(const Address& destination) override { return living_->room(destination); }
  [[nodiscard]] bool awaits(const Address& destination) override { return living_->awaits(destination); }
  [[nodiscard]] std::uint64_t next_deadline_ns() const override { return living_->next_deadline_ns(); }
  [[nodiscard]] std::span<std::byte> begin_packet(const Address& destination) override {
    return living_->begin_packet(destination);
  }
  [[nodiscard]] bool streams() const override { return living_->streams(); }
  void commit_packet(const Address& destination, std::size_t length_bytes) override;
  void flush() override { living_->flush(); }
  std::size_t receive(std::size_t max_packets, const Sink& sink) override;
  [[nodiscard]] bool arrival_is_marked() const override { return living_->arrival_is_marked(); }
  [[nodiscard]] std::uint16_t arrival_port() const override { return living_->arrival_port(); }
  [[nodiscard]] int poll_fd() const override { return living_->poll_fd(); }
  [[nodiscard]] bool lost() const override { return living_->lost(); }
  [[nodiscard]] bool arm() override { return living_->arm(); }
  [[nodiscard]] const WireCounters& counters() const override;
  [[nodiscard]] std::size_t window_bytes() const override { return living_->window_bytes(); }
  [[nodiscard]] std::size_t socket_bytes() const override { return living_->socket_bytes(); }
  [[nodiscard]] std::uint32_t mtu_bytes() const override { return living_->mtu_bytes(); }
  [[nodiscard]] bool socket_was_drained() const override { return living_->socket_was_drained(); }
  [[nodiscard]] bool holds_back(const Address& destination) override {
    return living_->holds_back(destination);
  }

 private:
  std::unique_ptr<Wire> living_;
  std::mt19937_64 random_;
  double death_;
  std::uint64_t committed_ = 0;
  std::uint64_t lost_in_death_ = 0;
  bool dead_ = false;
  mutable WireCounters sum_;
};

}  // namespace gdx::softhca::wire
