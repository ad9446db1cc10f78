// The parts from which the UDP wire is put together, alone or below the shared-memory one.
#pragma once

#include <memory>
#include <string>

#include "driver-shim/softhca/wire/pcap.h"
#include "driver-shim/softhca/wire/udp_socket.h"
#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca::wire {

// Null for an empty path. Errors: as PcapWriter::open.
[[nodiscard]] Result<std::shared_ptr<PcapWriter>> open_capture(const std::string& path);

// `capture` may be null. Of `config` only the faults count.
[[nodiscard]] std::unique_ptr<Wire> make_udp(BoundSocket socket, const UdpConfig& config,
                                             std::shared_ptr<PcapWriter> capture);

}  // namespace gdx::softhca::wire
