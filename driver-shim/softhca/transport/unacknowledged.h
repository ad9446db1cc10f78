// Common part of the sending halves of UC and UD. No peer answers, so a request ends when it has left. Pure,
// under the rules of rc.h.
#pragma once

#include <cstdint>

#include "driver-shim/softhca/transport/rc_types.h"
#include "driver-shim/softhca/transport/ring.h"

namespace gdx::softhca::transport {

// States and their events:
//   sending: post, pump; on a failure to error
//   error: posts are flushed at once; there is no way back
class UnacknowledgedRequester {
 public:
  UnacknowledgedRequester(RequesterPort& port, roce::Service service, std::uint32_t send_psn,
                          std::uint32_t mtu_bytes);
  virtual ~UnacknowledgedRequester() = default;

  // Queues a work request. The error state accepts it too, and flushes it at once.
  void post(const WorkRequest& request);
  // Sends at most `max_packets`; each request completes after its last packet. Returns packets sent.
  std::uint32_t pump(std::uint64_t now_ns, std::uint32_t max_packets);
  // Moves to the error state: the oldest request completes with `first`, the others are flushed.
  void fail_all(mlx5::Syndrome first);

  [[nodiscard]] bool idle() const { return queue_.empty(); }
  [[nodiscard]] bool in_error() const { return in_error_; }
  [[nodiscard]] bool can_send(std::uint64_t /*now_ns*/) const { return !queue_.empty(); }
  [[nodiscard]] std::uint32_t next_psn() const { return psn_; }
  [[nodiscard]] const TransportCounters& counters() const { return counters_; }

 protected:
  // Returns whether the service has packets for a work request.
  [[nodiscard]] bool carries(mlx5::WqeOpcode opcode) const;

 private:
  struct Segment {
    std::uint32_t offset_bytes;
    std::uint32_t length_bytes;
    bool first;
    bool last;
  };

  // Returns kNone, or the error of a request that this transport does not carry.
  [[nodiscard]] virtual mlx5::Syndrome admit(const WorkRequest& request) const = 0;
  // Sets destination and extension headers of a packet.
  virtual void address(const WorkRequest& request, roce::Headers& headers) const = 0;

  mlx5::Syndrome transmit(const WorkRequest& request, const Segment& segment);

  RequesterPort& port_;
  roce::Service service_;
  TransportCounters counters_;
  Ring<WorkRequest> queue_;
  std::uint32_t psn_;
  std::uint32_t mtu_bytes_;
  std::uint32_t sent_bytes_ = 0;  // bytes of the front request that are sent
  bool in_error_ = false;
};

}  // namespace gdx::softhca::transport
