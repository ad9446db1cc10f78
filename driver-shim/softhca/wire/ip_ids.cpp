#include "driver-shim/softhca/wire/ip_ids.h"

#include <linux/filter.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "driver-shim/softhca/wire/icrc_check.h"
#include "proto/roce/ip_header.h"

namespace gdx::softhca::wire {
namespace {

constexpr std::size_t kHeadersAtOnce = 32;
constexpr int kMaxReads = 32;  // most reads for the id of one datagram
constexpr std::size_t kUdpAt = roce::kIpv4Bytes;
constexpr std::size_t kBthAt = kUdpAt + 8;
constexpr std::byte kNoOptions{0x45};  // the ICRC cannot cover options

std::uint32_t big_endian(std::span<const std::byte> bytes) {
  std::uint32_t value = 0;
  for (const std::byte byte : bytes) value = value << 8 | std::to_integer<std::uint32_t>(byte);
  return value;
}

// Passes the headers of RoCE datagrams whose id IcrcChecker would not try, and nothing behind the BTH.
bool attach_filter(int fd) {
  constexpr std::uint32_t kIpIdAt = 4;
  constexpr std::uint32_t kDestinationPortAt = kUdpAt + 2;
  std::array<sock_filter, 8> program = {{
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(kNoOptions), 0, 5),
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, kIpIdAt),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, IcrcChecker::kIpIds, 0, 3),
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, kDestinationPortAt),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, roce::kUdpPort, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, IpIdLog::kHeaderBytes),
      BPF_STMT(BPF_RET | BPF_K, 0),
  }};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0;
}

}  // namespace

void IpIdLog::add(std::span<const std::byte> header) {
  if (header.size() < kHeaderBytes || header[0] != kNoOptions) return;
  if (headers_.size() == kMaxHeaders) headers_.clear();
  Header& added = headers_.emplace_back();
  added.ip_id = static_cast<std::uint16_t>(big_endian(header.subspan(4, 2)));
  added.source = big_endian(header.subspan(12, 4));
  added.source_port = static_cast<std::uint16_t>(big_endian(header.subspan(kUdpAt, 2)));
  std::ranges::copy(header.subspan(kBthAt, roce::kBthBytes), added.bth.begin());
}

std::optional<std::uint16_t> IpIdLog::take(const Endpoint& from, std::span<const std::byte> datagram) {
  if (datagram.size() < roce::kBthBytes || !from.address.is_ipv4()) return std::nullopt;
  const std::uint32_t source = from.address.ipv4_host_order();
  const auto found = std::ranges::find_if(headers_, [&](const Header& header) {
    return header.source == source && header.source_port == from.port &&
           std::equal(header.bth.begin(), header.bth.end(), datagram.begin());
  });
  if (found == headers_.end()) return std::nullopt;
  const std::uint16_t ip_id = found->ip_id;
  headers_.erase(headers_.begin(), found + 1);
  return ip_id;
}

Result<IpIdReader> IpIdReader::open(const Address& local) {
  Descriptor socket =
      Descriptor::keep(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_UDP));
  sockaddr_storage name;
  const socklen_t length = to_sockaddr(local, 0, name);
  if (socket.value() < 0 || !attach_filter(socket.value()) ||
      ::bind(socket.value(), reinterpret_cast<const sockaddr*>(&name), length) != 0) {
    return fail(Status::kSystem,
                std::string("no raw socket: ") + std::strerror(errno) + "; give the process CAP_NET_RAW");
  }
  enlarge_buffers(socket.value());
  return IpIdReader(std::move(socket));
}

std::optional<std::uint16_t> IpIdReader::take(const Endpoint& from, std::span<const std::byte> datagram) {
  // Bounded, because headers may arrive faster than they are read.
  for (int round = 0; round < kMaxReads; ++round) {
    if (const auto ip_id = log_.take(from, datagram)) return ip_id;
    if (!read_some()) return std::nullopt;
  }
  return log_.take(from, datagram);
}

bool IpIdReader::read_some() {
  std::array<std::array<std::byte, IpIdLog::kHeaderBytes>, kHeadersAtOnce> headers;
  std::array<mmsghdr, kHeadersAtOnce> messages{};
  std::array<iovec, kHeadersAtOnce> vectors;
  for (std::size_t i = 0; i < kHeadersAtOnce; ++i) {
    vectors[i] = {headers[i].data(), headers[i].size()};
    messages[i].msg_hdr.msg_iov = &vectors[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  const int n = recvmmsg(socket_.value(), messages.data(), kHeadersAtOnce, MSG_DONTWAIT, nullptr);
  for (int i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    log_.add(std::span<const std::byte>(headers[at]).first(messages[at].msg_len));
  }
  return n > 0;
}

}  // namespace gdx::softhca::wire
