// Packets as a classic pcap file (Ethernet link type). It rebuilds the headers that the socket hides:
// Ethernet, IP and UDP. Any analyser then decodes RoCE v2, and the ICRC verifies.
// Source: draft-ietf-opsawg-pcap (file format).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/result.h"
#include "driver-shim/softhca/wire/wire.h"
#include "proto/roce/headers.h"
#include "proto/roce/ip_header.h"

namespace gdx::softhca::wire {

// Headers of a captured packet below BTH. `ip_id` is the one in the ICRC.
struct CapturedHeaders {
  Address source;
  Address destination;
  std::uint16_t source_port = roce::kUdpPort;
  std::uint16_t ip_id = 0;
  roce::Ecn ecn = roce::Ecn::kCapableZero;
};

class PcapWriter {
 public:
  static constexpr std::uint64_t kReaderBoundNs = 1'000'000'000;

  // Creates or truncates `path`. A flush waits for the reader of a FIFO for `reader_bound_ns` in all; then
  // the capture ends. Errors: kSystem with the path and errno's text.
  static Result<std::unique_ptr<PcapWriter>> open(const std::string& path,
                                                  std::uint64_t reader_bound_ns = kReaderBoundNs);
  ~PcapWriter();
  PcapWriter(const PcapWriter&) = delete;
  PcapWriter& operator=(const PcapWriter&) = delete;

  // `datagram` from BTH to ICRC, `unix_time_ns` since 1970.
  void record(std::uint64_t unix_time_ns, const CapturedHeaders& headers,
              std::span<const std::byte> datagram);
  // Writes whole records only, so that a killed process leaves a readable file.
  void flush();

 private:
  PcapWriter(Descriptor file, std::string path, std::uint64_t reader_bound_ns);

  Descriptor file_;
  std::string path_;
  std::uint64_t reader_bound_ns_;
  bool failed_ = false;
  std::vector<std::byte> pending_;
};

// Builds the Ethernet frame around a datagram. Appends to `out`.
void append_frame(std::vector<std::byte>& out, const CapturedHeaders& headers,
                  std::span<const std::byte> datagram);

}  // namespace gdx::softhca::wire
