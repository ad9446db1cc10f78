// IPv4 ids of arrivals, which a UDP socket hides and the ICRC covers. Software HCAs send ids that IcrcChecker
// tries anyway; Soft-RoCE and hardware count theirs. A raw socket beside the UDP socket reads the headers of
// the UDP socket's arrivals only. A filter leaves all other headers, and all payload, in the Linux kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>

#include "driver-shim/softhca/wire/udp_socket.h"
#include "proto/roce/headers.h"

namespace gdx::softhca::wire {

// Headers in the order of their arrival, until their datagrams are read. Pure.
class IpIdLog {
 public:
  static constexpr std::size_t kHeaderBytes = 20 + 8 + roce::kBthBytes;  // IPv4, UDP, BTH
  static constexpr std::size_t kMaxHeaders = 4096;

  // Adds a raw socket's `header`, from the IPv4 header on. Ignores shorter or other ones. At kMaxHeaders it
  // discards all, because their datagrams did not arrive.
  void add(std::span<const std::byte> header);
  // Returns the id of a datagram, named by its sender and BTH. Discards it and all before it, because both
  // sockets keep the order.
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
  // Errors: kSystem with errno's text, mostly because CAP_NET_RAW is missing.
  [[nodiscard]] static Result<IpIdReader> open(const Address& local);

  // Takes as IpIdLog::take does, reading as many headers as needed. Never blocks.
  [[nodiscard]] std::optional<std::uint16_t> take(const Endpoint& from, std::span<const std::byte> datagram);

 private:
  explicit IpIdReader(Descriptor socket) : socket_(std::move(socket)) {}
  bool read_some();

  Descriptor socket_;
  IpIdLog log_;
};

}  // namespace gdx::softhca::wire
