// Another user of the machine: forges RoCE v2 packets with a right ICRC under any address of the loopback
// network, with no right but that to open UDP sockets.
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
  enum class Port {
    kRoce,   // held at an address that no HCA has; packets name `source` by IP_PKTINFO
    kOther,  // of `source` itself, whose RoCE port an HCA holds
  };
  enum class Knows {
    kTokens,    // also those that nodes give each other (node.h), which never reach him in fact
    kNoTokens,  // all numbers but those
  };
  // Sends as `source`: an address of its own, or a victim's.
  explicit Attacker(const wire::Address& source, Port port = Port::kRoce, Knows knows = Knows::kTokens);

  // Names another source from now on.
  void pose_as(const wire::Address& source) { source_ = source; }
  void send(const wire::Address& destination, const roce::Headers& headers,
            std::span<const std::byte> payload = {}, std::uint16_t icrc_ip_id = 0);
  // Anything at all, without an ICRC.
  void send_raw(const wire::Address& destination, std::span<const std::byte> bytes);

 private:
  wire::Address source_;
  std::uint16_t source_port_ = 0;
  Knows knows_;
  Descriptor socket_;
};

// BTH of a request to `qpn`.
[[nodiscard]] roce::Headers forge(roce::Opcode opcode, std::uint32_t qpn, std::uint32_t psn);

}  // namespace gdx::softhca::test
