// The UD transport: single-packet SENDs, each to the address of its work request. Pure, under the rules of
// rc.h.
// Source: InfiniBand Architecture Specification 1.4, section 9.8.3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "driver-shim/softhca/transport/unacknowledged.h"

namespace gdx::softhca::transport {

inline constexpr std::uint32_t kControlledQkey = 0x80000000u;  // in a WQE: use the queue pair's own Q_Key

struct UdConfig {
  std::uint32_t local_qpn = 0;
  std::uint32_t qkey = 0;
  std::uint32_t send_psn = 0;
  std::uint32_t mtu_bytes = 1024;
};

class UdRequester final : public UnacknowledgedRequester {
 public:
  UdRequester(const UdConfig& config, RequesterPort& port);
  void set_qkey(std::uint32_t qkey) { config_.qkey = qkey; }

 private:
  [[nodiscard]] mlx5::Syndrome admit(const WorkRequest& request) const override;
  void address(const WorkRequest& request, roce::Headers& headers) const override;

  UdConfig config_;
};

// Drops a packet with another Q_Key without a report. Drops and counts one that finds no receive WQE. A
// receive WQE that cannot hold its message fails and takes the queue pair to the error state. Every later
// packet is ignored.
class UdResponder {
 public:
  UdResponder(const UdConfig& config, ResponderPort& port);
  void set_qkey(std::uint32_t qkey) { config_.qkey = qkey; }

  // Handles a UD packet for this queue pair; `grh` precedes its payload.
  void on_packet(const roce::Headers& headers, std::span<const std::byte> grh,
                 std::span<const std::byte> payload);
  [[nodiscard]] const TransportCounters& counters() const { return counters_; }

 private:
  UdConfig config_;
  ResponderPort& port_;
  TransportCounters counters_;
  bool dead_ = false;
};

}  // namespace gdx::softhca::transport
