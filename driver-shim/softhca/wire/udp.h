// Parts of the UDP wire, used alone or below the shared-memory wire.
#pragma once

#include <memory>
#include <string>

#include "driver-shim/softhca/wire/pcap.h"
#include "driver-shim/softhca/wire/udp_socket.h"
#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca::wire {

// Opens a capture; null for an empty path. Errors: those of PcapWriter::open.
[[nodiscard]] Result<std::shared_ptr<PcapWriter>> open_capture(const std::string& path);

// Makes a UDP wire. `capture` may be null. It uses only the faults of `config`.
[[nodiscard]] std::unique_ptr<Wire> make_udp(BoundSocket socket, const UdpConfig& config,
                                             std::shared_ptr<PcapWriter> capture);

}  // namespace gdx::softhca::wire
