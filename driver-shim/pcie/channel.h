// One direction of a link: the sender's queues, the wire, and the credits for the receiver's buffers.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>

#include "driver-shim/pcie/packet.h"
#include "driver-shim/pcie/parameters.h"
#include "driver-shim/pcie/time.h"

namespace gdx::pcie {

struct ChannelConfig {
  NodeId from = kNoNode;
  NodeId to = kNoNode;
  double bytes_per_s = 0;
  TimePs latency_ps = 0;
  std::array<Credits, kTlpKinds> buffers{};
  std::optional<Generation> framing{};  // none: a way inside a processor, which carries payload only
  double dllp_share = 0;                // bytes owed to the other direction for each byte received here
};

// Pure: the caller keeps the clock. The order between packets follows PCIe's rules: a write passes blocked
// reads and completions, nothing passes a write ahead of it.
// Source: PCI Express Base Specification 5.0, 2.4.1 (ordering), 2.6.1 (flow control).
class Channel {
 public:
  explicit Channel(const ChannelConfig& config);

  [[nodiscard]] const ChannelConfig& config() const { return config_; }

  void enqueue(PacketId id, const Packet& packet);

  struct Sent {
    PacketId id = 0;
    TimePs left_at = 0;  // time at which its last bit has left
  };
  // Starts to send the next packet that may go, if the wire is free and its credits are there.
  std::optional<Sent> send_next(TimePs now);

  // Takes note that `packet` has left the receiver's buffer, whose credits can be used again.
  void return_credits(const Packet& packet);

  // DLLPs to be sent in this direction, for what came in the other.
  void owe_bytes(double bytes) { owed_bytes_ += bytes; }

  [[nodiscard]] std::uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  struct Waiting {
    PacketId id;
    std::uint64_t sequence;
    std::uint32_t payload_bytes;
  };
  [[nodiscard]] bool has_credits(std::size_t kind, const Waiting& waiting) const;
  [[nodiscard]] std::optional<std::size_t> choose() const;

  ChannelConfig config_;
  std::array<std::deque<Waiting>, kTlpKinds> queues_;
  std::array<Credits, kTlpKinds> used_{};
  std::uint64_t next_sequence_ = 0;
  TimePs free_at_ = 0;
  double owed_bytes_ = 0;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace gdx::pcie
