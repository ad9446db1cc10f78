// Packets that a queue pair sends: gathers their payload from memory, gives them to the wire, and charges the
// peer's window. Congestion notifications, sent and received, belong here because they are packets of the
// queue pair itself and not of its transport.
//
//   Requester -> RequestPort  -> PacketOut::send_request
//   Responder -> ResponsePort -> PacketOut::send_answer, send_read_data
#pragma once

#include <cstddef>
#include <cstdint>

#include "driver-shim/softhca/engine/qp_parts.h"
#include "driver-shim/softhca/engine/sides.h"

namespace gdx::softhca {

class PacketOut {
 public:
  // `parts` must outlive this.
  explicit PacketOut(QpParts& parts) : parts_(parts) {}

  // Sends one packet of a WQE. Returns kNone, or the error of the WQE or of its memory; then nothing was
  // sent.
  mlx5::Syndrome send_request(const roce::Headers& headers, const transport::WorkRequest& request,
                              std::uint32_t offset_bytes, std::uint32_t length_bytes);
  // Sends an ACK, NAK or atomic acknowledge.
  void send_answer(const roce::Headers& headers);
  // Sends a READ response. False: the key forbids it.
  bool send_read_data(const roce::Headers& headers, std::uint32_t rkey, std::uint64_t address,
                      std::uint32_t length_bytes);

  // Answers the mark of a packet that was taken with a notification, at a limited rate.
  void on_marked(std::uint64_t now_ns, const roce::Bth& bth);
  // Slows down for a notification. False: not from this queue pair's peer, or not for it now.
  bool on_notification(std::uint64_t now_ns, const wire::Address& source, const roce::Decoded& packet);

  // Returns the window of the next request, for UD that of the next message's destination; null: none.
  [[nodiscard]] PeerWindow* request_window() const;
  // Returns whether the next request waits because its destination must first answer this HCA.
  [[nodiscard]] bool request_awaits_peer() const;
  // Returns the number of requests that `side` may send.
  [[nodiscard]] std::uint32_t requests_permitted(std::uint64_t now_ns, std::uint32_t max_packets,
                                                 const SendSide& side) const;

 private:
  // Sends a packet whose payload `fill` stores. Returns its bytes; 0: `fill` has returned false.
  template <typename Fill>
  std::size_t transmit(const wire::Address& destination, bool global, const roce::Headers& headers,
                       std::size_t payload_bytes, Fill fill);
  // Sends a packet to the peer of a connection as the other transmit() sends one to a destination.
  template <typename Fill>
  std::size_t transmit(const roce::Headers& headers, std::size_t payload_bytes, Fill fill);

  QpParts& parts_;
};

}  // namespace gdx::softhca
