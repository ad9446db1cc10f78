// Ends of links in shared memory for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "driver-shim/softhca/wire/links.h"
#include "driver-shim/softhca/wire/wire.h"
#include "tests/unit/wire/packets.h"

namespace gdx::softhca::wire {

inline std::unique_ptr<Wire> open(Carrier carrier, const UdpConfig& config = {}) {
  Result<std::unique_ptr<Wire>> wire = open_wire(carrier, config);
  EXPECT_TRUE(wire) << (wire ? "" : wire.error().message);
  return wire ? std::move(*wire) : nullptr;
}

// Calls as an HCA would that makes its links by itself.
inline Result<Descriptor> call_as(const Address& local, const Address& peer, int memory_fd) {
  Result<Descriptor> socket = reach_peer(peer);
  if (!socket) return socket;
  const Result<void> sent = send_call(*socket, local, memory_fd);
  if (!sent) return tl::unexpected<Error>(sent.error());
  return socket;
}

}  // namespace gdx::softhca::wire
