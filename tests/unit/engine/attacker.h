// Somebody else on the network: forges RoCE v2 packets with a right ICRC. On loopback a second socket on a
// victim's own address, on another port, is enough to be taken for it; the network demands no more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "driver-shim/softhca/wire/udp_socket.h"
#include "proto/roce/headers.h"

namespace gdx::softhca::test {

class Attacker {
 public:
  // Sends as `source`: an address of its own, or a victim's.
  explicit Attacker(const wire::Address& source);

  void send(const wire::Address& destination, const roce::Headers& headers,
            std::span<const std::byte> payload = {});
  // Anything at all, without an ICRC.
  void send_raw(const wire::Address& destination, std::span<const std::byte> bytes);

 private:
  wire::Address source_;
  std::uint16_t source_port_ = 0;
  Descriptor socket_;
};

// BTH of a request to `qpn`.
[[nodiscard]] roce::Headers forge(roce::Opcode opcode, std::uint32_t qpn, std::uint32_t psn);

}  // namespace gdx::softhca::test
