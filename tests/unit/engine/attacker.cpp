#include "tests/unit/engine/attacker.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cstring>

#include "driver-shim/softhca/wire/host_tokens.h"
#include "driver-shim/softhca/wire/icrc_check.h"
#include "proto/roce/codec.h"
#include "tests/unit/engine/node.h"

namespace gdx::softhca::test {

Attacker::Attacker(const wire::Address& source, Port port, Knows knows)
    : source_(source),
      knows_(knows),
      socket_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  const int discover = IP_PMTUDISC_DO;
  EXPECT_EQ(setsockopt(socket_.value(), IPPROTO_IP, IP_MTU_DISCOVER, &discover, sizeof discover), 0);
  constexpr std::uint32_t kFirst = 0x7f4e0001;  // no HCA takes these
  constexpr std::uint32_t kPlaces = 0xfffd;
  const auto start = static_cast<std::uint32_t>(getpid());
  sockaddr_storage name;
  socklen_t length = 0;
  int refused = -1;
  for (std::uint32_t i = 0; refused != 0 && i < kPlaces; ++i) {
    const bool roce = port == Port::kRoce;
    length = wire::to_sockaddr(roce ? wire::Address::ipv4(kFirst + (start + i) % kPlaces) : source, 0, name);
    if (!roce) reinterpret_cast<sockaddr_in&>(name).sin_port = 0;
    refused = ::bind(socket_.value(), reinterpret_cast<sockaddr*>(&name), length);
  }
  EXPECT_EQ(refused, 0) << std::strerror(errno);
  EXPECT_EQ(::getsockname(socket_.value(), reinterpret_cast<sockaddr*>(&name), &length), 0);
  source_port_ = ntohs(reinterpret_cast<sockaddr_in&>(name).sin_port);
}

void Attacker::send_raw(const wire::Address& destination, std::span<const std::byte> bytes) {
  sockaddr_storage name;
  iovec whole{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_name = &name;
  message.msg_namelen = wire::to_sockaddr(destination, 0, name);
  message.msg_iov = &whole;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(in_pktinfo))]{};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = IPPROTO_IP;
  header->cmsg_type = IP_PKTINFO;
  header->cmsg_len = CMSG_LEN(sizeof(in_pktinfo));
  in_pktinfo from{};
  from.ipi_spec_dst.s_addr = htonl(source_.ipv4_host_order());
  std::memcpy(CMSG_DATA(header), &from, sizeof from);
  // A full buffer on the way is a packet that the network lost.
  (void)::sendmsg(socket_.value(), &message, 0);
}

void Attacker::send(const wire::Address& destination, const roce::Headers& headers,
                    std::span<const std::byte> payload, std::uint16_t icrc_ip_id) {
  roce::Headers padded = headers;
  padded.bth.pad_count = roce::pad_count_for(payload.size());
  std::vector<std::byte> datagram(roce::header_bytes(headers.bth.opcode));
  ASSERT_EQ(roce::encode(padded, datagram), datagram.size());
  datagram.insert(datagram.end(), payload.begin(), payload.end());
  datagram.resize(datagram.size() + padded.bth.pad_count);
  const std::uint32_t icrc = wire::icrc_between(source_, destination, source_port_, icrc_ip_id, datagram);
  datagram.resize(datagram.size() + sizeof icrc);
  std::memcpy(datagram.data() + datagram.size() - sizeof icrc, &icrc, sizeof icrc);
  if (knows_ == Knows::kTokens) {
    const wire::HostTokens of_source(kTokenSecret, source_, {});
    const wire::HostTokens of_destination(kTokenSecret, destination, {});
    wire::Seal(of_destination.token_for(source_, of_source.incarnation())).apply(datagram);
  }
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
