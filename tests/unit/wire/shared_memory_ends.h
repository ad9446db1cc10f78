// Ends of links in shared memory for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "driver-shim/softhca/wire/links.h"
#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca::wire {

using Bytes = std::vector<std::byte>;

inline std::unique_ptr<Wire> open(Carrier carrier, const UdpConfig& config = {}) {
  Result<std::unique_ptr<Wire>> wire = open_wire(carrier, config);
  EXPECT_TRUE(wire) << (wire ? "" : wire.error().message);
  return wire ? std::move(*wire) : nullptr;
}

inline void send(Wire& wire, const Address& to, std::uint8_t tag, std::size_t length_bytes) {
  std::fill_n(wire.begin_packet(to).begin(), length_bytes, std::byte{tag});
  wire.commit_packet(to, length_bytes);
}

// Calls as an HCA would that makes its links by itself.
inline Result<Descriptor> call_as(const Address& local, const Address& peer, int memory_fd) {
  Result<Descriptor> socket = reach_peer(peer);
  if (!socket) return socket;
  const Result<void> sent = send_call(*socket, local, memory_fd);
  if (!sent) return tl::unexpected<Error>(sent.error());
  return socket;
}

// Polls until nothing has come for a while, because descriptors are polled every 20 us only.
inline std::vector<Bytes> receive_all(Wire& wire) {
  std::vector<Bytes> arrivals;
  for (int empty = 0; empty < 20; ++empty) {
    static_cast<void>(wire.arm());  // the next receive() polls descriptors too
    while (wire.receive(7, [&](const Address&, std::span<const std::byte> datagram) {
      arrivals.emplace_back(datagram.begin(), datagram.end());
    }) > 0) {
      empty = 0;
    }
  }
  return arrivals;
}

}  // namespace gdx::softhca::wire
