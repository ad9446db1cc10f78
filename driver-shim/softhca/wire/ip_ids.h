// The IPv4 ids of arrivals, which a UDP socket hides and the ICRC covers. Linux peers like ours send ids that
// IcrcChecker tries anyway; Soft-RoCE and hardware count theirs. A raw socket beside the UDP socket sees the
// headers of those only: a filter leaves the others, and all payload, in the kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>

#include "driver-shim/softhca/wire/udp_socket.h"
#include "proto/roce/headers.h"

namespace gdx::softhca::wire {

// Headers in the order of their arrival, until the datagrams that they belong to are read. Pure.
class IpIdLog {
 public:
  static constexpr std::size_t kHeaderBytes = 20 + 8 + roce::kBthBytes;  // IPv4, UDP, BTH
  static constexpr std::size_t kMaxHeaders = 4096;

  // `header` as a raw socket gives it: from the IPv4 header on. Shorter or other ones are left out. At
  // kMaxHeaders all are forgotten: their datagrams did not come.
  void add(std::span<const std::byte> header);
  // The id with which a datagram came, named by its sender and BTH; it and all before it are forgotten, since
  // both sockets keep the order.
  [[nodiscard]] std::optional<std::uint16_t> take(const Endpoint& from, std::span<const std::byte> datagram);
  [[nodiscard]] std::size_t size() const { return headers_.size(); }

 private:
  struct Header {
    std::uint32_t source = 0;  // host order
    std::uint16_t source_port = 0;
    std::uint16_t ip_id = 0;
    std::array<std::byte, roce::kBthBytes> bth{};
  };
  std::deque<Header> headers_;
};

class IpIdReader {
 public:
  // Errors: kSystem with errno's text, mostly for want of CAP_NET_RAW.
  [[nodiscard]] static Result<IpIdReader> open(const Address& local);

  // As IpIdLog::take, reading as many headers as it takes. Never blocks.
  [[nodiscard]] std::optional<std::uint16_t> take(const Endpoint& from, std::span<const std::byte> datagram);

 private:
  explicit IpIdReader(Descriptor socket) : socket_(std::move(socket)) {}
  bool read_some();

  Descriptor socket_;
  IpIdLog log_;
};

}  // namespace gdx::softhca::wire
