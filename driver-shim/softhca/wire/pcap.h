// Packets as a classic pcap file (Ethernet link type): what the socket hides, Ethernet, IP and UDP
// headers, is put together again, so that any analyser decodes RoCE v2 and the ICRC verifies.
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

// What a capture says below BTH. `ip_id` is what the ICRC was computed with.
struct CapturedHeaders {
  Address source;
  Address destination;
  std::uint16_t source_port = roce::kUdpPort;
  std::uint16_t ip_id = 0;
  roce::Ecn ecn = roce::Ecn::kCapableZero;
};

class PcapWriter {
 public:
  // Creates or truncates `path`. Errors: kSystem with the path and errno's text.
  static Result<std::unique_ptr<PcapWriter>> open(const std::string& path);
  ~PcapWriter();
  PcapWriter(const PcapWriter&) = delete;
  PcapWriter& operator=(const PcapWriter&) = delete;

  // `datagram` from BTH to ICRC, `unix_time_ns` since 1970.
  void record(std::uint64_t unix_time_ns, const CapturedHeaders& headers,
              std::span<const std::byte> datagram);
  // Writes out whole records only: a process that is killed leaves a readable file.
  void flush();

 private:
  explicit PcapWriter(Descriptor file, std::string path);

  Descriptor file_;
  std::string path_;
  bool failed_ = false;
  std::vector<std::byte> pending_;
};

// The Ethernet frame around a datagram. Appends to `out`.
void append_frame(std::vector<std::byte>& out, const CapturedHeaders& headers,
                  std::span<const std::byte> datagram);

}  // namespace gdx::softhca::wire
