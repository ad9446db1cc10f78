// A packet on its way, and what it is for.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "driver-shim/pcie/tlp.h"

namespace gdx::pcie {

using NodeId = std::uint8_t;
inline constexpr NodeId kNoNode = 0xff;
using PacketId = std::uint32_t;

// Purpose of a transfer, by which transfers are counted.
enum class Purpose : std::uint8_t { kPayload, kWqe, kRecord, kDoorbell, kCqe, kProxy, kHostWord };
inline constexpr std::array<std::string_view, 7> kPurposeNames = {"payload", "WQE",   "record",   "doorbell",
                                                                  "CQE",     "proxy", "host word"};
inline constexpr std::size_t kPurposes = kPurposeNames.size();

struct Traffic {
  std::uint64_t transfers = 0;
  std::uint64_t packets = 0;  // on the first link: requests of a read, TLPs of a write
  std::uint64_t bytes = 0;
};

struct Counters {
  std::array<Traffic, kPurposes> reads{};
  std::array<Traffic, kPurposes> writes{};
};

struct Packet {
  TlpKind kind = TlpKind::kWrite;
  NodeId origin = kNoNode;
  NodeId target = kNoNode;
  std::uint32_t payload_bytes = 0;
  std::uint32_t requested_bytes = 0;  // bytes that a read request asks for
  std::uint64_t address = 0;
  std::uint32_t job = 0;           // the write, or the read request with its tag, that it belongs to
  NodeId line_holder = kNoNode;    // root complex that keeps a line buffer for it
  std::uint32_t held_channel = 0;  // the channel whose receive buffer it occupies, plus one
};

}  // namespace gdx::pcie
