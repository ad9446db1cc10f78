#include "tests/unit/engine/attacker.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <array>
#include <cstring>

#include "driver-shim/softhca/wire/icrc_check.h"
#include "proto/roce/codec.h"

namespace gdx::softhca::test {

Attacker::Attacker(const wire::Address& source)
    : source_(source), socket_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  const int discover = IP_PMTUDISC_DO;
  EXPECT_EQ(setsockopt(socket_.value(), IPPROTO_IP, IP_MTU_DISCOVER, &discover, sizeof discover), 0);
  sockaddr_storage name;
  socklen_t length = wire::to_sockaddr(source, 0, name);
  reinterpret_cast<sockaddr_in&>(name).sin_port = 0;
  EXPECT_EQ(::bind(socket_.value(), reinterpret_cast<sockaddr*>(&name), length), 0);
  EXPECT_EQ(::getsockname(socket_.value(), reinterpret_cast<sockaddr*>(&name), &length), 0);
  source_port_ = ntohs(reinterpret_cast<sockaddr_in&>(name).sin_port);
}

void Attacker::send_raw(const wire::Address& destination, std::span<const std::byte> bytes) {
  sockaddr_storage name;
  const socklen_t length = wire::to_sockaddr(destination, 0, name);
  // A full buffer on the way is a packet that the network lost.
  (void)::sendto(socket_.value(), bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&name), length);
}

void Attacker::send(const wire::Address& destination, const roce::Headers& headers,
                    std::span<const std::byte> payload) {
  roce::Headers padded = headers;
  padded.bth.pad_count = roce::pad_count_for(payload.size());
  std::vector<std::byte> datagram(roce::header_bytes(headers.bth.opcode));
  ASSERT_EQ(roce::encode(padded, datagram), datagram.size());
  datagram.insert(datagram.end(), payload.begin(), payload.end());
  datagram.resize(datagram.size() + padded.bth.pad_count);
  const std::uint32_t icrc = wire::icrc_between(source_, destination, source_port_, 0, datagram);
  datagram.resize(datagram.size() + sizeof icrc);
  std::memcpy(datagram.data() + datagram.size() - sizeof icrc, &icrc, sizeof icrc);
  send_raw(destination, datagram);
}

roce::Headers forge(roce::Opcode opcode, std::uint32_t qpn, std::uint32_t psn) {
  roce::Headers headers;
  headers.bth.opcode = opcode;
  headers.bth.pkey = roce::kDefaultPkey;
  headers.bth.destination_qpn = qpn;
  headers.bth.ack_request = true;
  headers.bth.psn = psn & roce::kPsnMask;
  return headers;
}

}  // namespace gdx::softhca::test
