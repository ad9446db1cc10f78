// Rate of UDP alone over loopback with GSO and GRO: the reference for the software HCA's bandwidth.
#pragma once

#include <cstdint>

namespace gdx::perf {

struct RawUdpOptions {
  std::uint32_t segment_bytes = 4096 + 16;  // a RoCE packet of MTU 4096: BTH, payload, ICRC
  std::uint32_t segments = 15;              // in one send
  std::uint32_t sends = 4;                  // in one sendmmsg
  double seconds = 1;
};

struct RawUdpRate {
  double bytes_per_s = 0;  // bytes that the receiver took out of its socket
  double lost_share = 0;   // of what was sent
};

// Measures UDP alone, without computation or checks: the receiver reads into its buffers and counts.
[[nodiscard]] RawUdpRate measure_raw_udp(const RawUdpOptions& options);

// Nanoseconds of processor time for a byte sent and received, one thread doing both in turn.
[[nodiscard]] double raw_udp_cost(const RawUdpOptions& options);

}  // namespace gdx::perf
