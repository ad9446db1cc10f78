// The UC transport: SEND and WRITE without acknowledgements. A lost packet loses its message, without a
// report. Pure, under the rules of rc.h.
// Source: InfiniBand Architecture Specification 1.4, section 9.8.2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "driver-shim/softhca/transport/unacknowledged.h"

namespace gdx::softhca::transport {

struct UcConfig {
  std::uint32_t remote_qpn = 0;
  std::uint32_t send_psn = 0;
  std::uint32_t receive_psn = 0;
  std::uint32_t mtu_bytes = 1024;
  bool remote_write = false;
};

class UcRequester final : public UnacknowledgedRequester {
 public:
  UcRequester(const UcConfig& config, RequesterPort& port);

 private:
  [[nodiscard]] mlx5::Syndrome admit(const WorkRequest& request) const override;
  void address(const WorkRequest& request, roce::Headers& headers) const override;

  std::uint32_t remote_qpn_;
};

// Bounds guesses at keys, because UC answers none, so guesses are otherwise free.
inline constexpr std::uint32_t kMaxKeyFaults = 16;
// Distance behind the expected packet up to which a packet is a copy or late. Such a packet must not be
// delivered. A larger distance means a long loss of the peer's packets.
inline constexpr std::uint32_t kMaxLatePackets = 1 << 15;

// States and their events:
//   idle: FIRST to in-message; ONLY stays; MIDDLE and LAST are dropped
//   in-message (SEND or WRITE): MIDDLE of that kind stays, LAST of that kind to idle; a PSN out of
//     sequence or a packet that does not fit ends the message, and a FIRST or ONLY then begins the next;
//     a late packet changes nothing
//   dead, after a receive WQE that could not hold its message, or kMaxKeyFaults WRITEs whose key, range or
//     right was wrong: every packet is ignored
// A receive WQE whose message was lost serves the next one.
class UcResponder {
 public:
  UcResponder(const UcConfig& config, ResponderPort& port);

  // Adopts rights, which may change while the queue pair works.
  void reconfigure(const UcConfig& config) { config_.remote_write = config.remote_write; }
  // Handles a UC packet for this queue pair.
  void on_packet(const roce::Headers& headers, std::span<const std::byte> payload);
  [[nodiscard]] std::uint32_t expected_psn() const { return expected_psn_; }
  [[nodiscard]] const TransportCounters& counters() const { return counters_; }

 private:
  enum class Message : std::uint8_t { kNone, kSend, kWrite };

  void on_send(const roce::Headers& headers, const roce::OpcodeTraits& traits,
               std::span<const std::byte> payload);
  void on_write(const roce::Headers& headers, const roce::OpcodeTraits& traits,
                std::span<const std::byte> payload);
  bool may_write(const roce::Reth& reth, std::size_t payload_bytes, bool last);
  bool take_receive();
  void complete_receive(const ReceiveCompletion& completion);
  void die(mlx5::Syndrome syndrome);
  void note_key_fault();

  UcConfig config_;
  ResponderPort& port_;
  TransportCounters counters_;
  std::uint32_t expected_psn_;
  Message message_ = Message::kNone;
  std::uint32_t offset_bytes_ = 0;  // place of the next payload in its message
  roce::Reth write_{};
  bool has_receive_ = false;  // taken, and not completed
  bool dead_ = false;
};

}  // namespace gdx::softhca::transport
