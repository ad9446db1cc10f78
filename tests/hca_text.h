// Packets and counters of software HCAs as lines of text.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <span>
#include <sstream>
#include <string>

#include "driver-shim/softhca/engine/hca.h"
#include "proto/roce/codec.h"

namespace gdx {

inline std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

// Counts addresses from what `origin_of` gives for them, because the heap moves. An address of no bytes
// stands as it is.
inline std::string packet_text(std::span<const std::byte> datagram,
                               const std::function<std::uint64_t(std::uint64_t)>& origin_of) {
  const auto decoded = roce::decode(datagram);
  if (!decoded) {
    ADD_FAILURE() << "a packet that cannot be decoded: " << hex(datagram);
    return {};
  }
  const auto& [bth, reth, aeth, atomic, mask, original, immediate, deth] = decoded->headers;
  std::string text = fmt::format("opcode {:#04x} qp {:#x} psn {:#x}", static_cast<int>(bth.opcode),
                                 bth.destination_qpn, bth.psn);
  if (bth.ack_request) text += " ack";
  if (bth.solicited) text += " solicited";
  if (bth.migration) text += " migrated";
  if (bth.backward_congestion) text += " becn";
  const auto place = [&origin_of](std::uint64_t address, std::uint32_t rkey) {
    return fmt::format(" at {} key {:#x}", static_cast<std::int64_t>(address - origin_of(address)), rkey);
  };
  const std::uint16_t has = roce::extensions_of(bth.opcode);
  if (has & roce::kHasDeth) text += fmt::format(" qkey {:#x} from {:#x}", deth.qkey, deth.source_qpn);
  if (has & roce::kHasReth && reth.length_bytes == 0)
    text += fmt::format(" of 0 B at {:#x} key {:#x}", reth.address, reth.rkey);
  if (has & roce::kHasReth && reth.length_bytes != 0) {
    text += fmt::format(" of {} B", reth.length_bytes);
    text += place(reth.address, reth.rkey);
  }
  if (has & roce::kHasAtomicEth) {
    text += place(atomic.address, atomic.rkey);
    text += fmt::format(" {:#x} {:#x}", atomic.swap_or_add, atomic.compare);
  }
  if (has & roce::kHasAtomicMaskEth)
    text += fmt::format(" masks {:#x} {:#x}", mask.swap_mask_or_boundaries, mask.compare_mask);
  if (has & roce::kHasAeth) text += fmt::format(" syndrome {:#x} msn {}", aeth.syndrome, aeth.msn);
  if (has & roce::kHasAtomicAckEth) text += fmt::format(" original {:#x}", original);
  if (has & roce::kHasImmediateOrIeth) text += fmt::format(" immediate {:#x}", immediate);
  std::uint32_t hash = 0;
  for (const std::byte byte : decoded->payload) hash = hash * 31 + static_cast<std::uint32_t>(byte);
  if (!decoded->payload.empty())
    text += fmt::format(" payload {} B #{:08x} pad {}", decoded->payload.size(), hash, bth.pad_count);
  return text;
}

// Names each counter that has grown since `before`, and by how much.
inline std::string counters_text(const softhca::HcaCounters& now, const softhca::HcaCounters& before = {}) {
  // In the order of the members.
  static constexpr char kNames[] =
      "packets_sent packets_received retransmitted timeouts tail_resends naks_received out_of_sequence "
      "duplicates rnr_naks_received credit_waits credit_probes credit_updates naks_sent naks_withheld "
      "key_faults qkey_violations out_of_buffer wire_sent wire_received bytes_sent lost corrupted marked "
      "icrc_errors "
      "send_errors shared_memory_sent socket_drops forged_drops record_reads wqe_reads receive_wqe_reads "
      "payload_reads payload_writes blueflame_wqes blueflame_torn window_waits markers grants doorbells "
      "bad_doorbells wqes cqes staging_sends staging_violations marked_packets cnps_sent cnps_heeded "
      "dropped_packets";
  using Words = std::array<std::uint64_t, sizeof now / sizeof(std::uint64_t)>;
  const auto words = std::bit_cast<Words>(now);
  const auto words_before = std::bit_cast<Words>(before);
  std::istringstream names(kNames);
  std::string name;
  std::string text;
  for (std::size_t i = 0; i < words.size() && names >> name; ++i) {
    if (words[i] != words_before[i]) text += fmt::format(" {} {}", name, words[i] - words_before[i]);
  }
  EXPECT_TRUE(names && !(names >> name)) << "a counter without a name, or a name too many";
  return text;
}

}  // namespace gdx
