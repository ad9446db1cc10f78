// Packet opcodes of each work request. The traits of a packet opcode give its kind of work request.
#pragma once

#include <array>
#include <cstdint>

#include "proto/mlx5/wqe.h"
#include "proto/roce/opcodes.h"

namespace gdx::softhca::transport {

inline constexpr roce::Opcode kNoOpcode{0xff};

// RC's opcodes for the packets of a message; roce::in_service() converts them.
struct PacketOpcodes {
  roce::Opcode first = kNoOpcode;
  roce::Opcode middle = kNoOpcode;
  roce::Opcode last = kNoOpcode;
  roce::Opcode only = kNoOpcode;

  [[nodiscard]] constexpr roce::Opcode at(bool is_first, bool is_last) const {
    return is_last ? (is_first ? only : last) : (is_first ? first : middle);
  }
};

inline constexpr std::array<PacketOpcodes, 256> kPacketOpcodes = [] {
  using enum roce::Opcode;
  using enum mlx5::WqeOpcode;
  std::array<PacketOpcodes, 256> table{};
  table.fill(PacketOpcodes{});  // because GCC 12 emits zeros between the assigned elements
  const auto at = [&table](mlx5::WqeOpcode opcode) -> PacketOpcodes& {
    return table[static_cast<std::uint8_t>(opcode)];
  };
  at(kSend) = {kRcSendFirst, kRcSendMiddle, kRcSendLast, kRcSendOnly};
  at(kSendImmediate) = {kRcSendFirst, kRcSendMiddle, kRcSendLastImmediate, kRcSendOnlyImmediate};
  at(kSendInvalidate) = {kRcSendFirst, kRcSendMiddle, kRcSendLastInvalidate, kRcSendOnlyInvalidate};
  at(kRdmaWrite) = {kRcWriteFirst, kRcWriteMiddle, kRcWriteLast, kRcWriteOnly};
  at(kRdmaWriteImmediate) = {kRcWriteFirst, kRcWriteMiddle, kRcWriteLastImmediate, kRcWriteOnlyImmediate};
  at(kRdmaRead).only = kRcReadRequest;
  at(kAtomicCompareSwap).only = kRcCompareSwap;
  at(kAtomicFetchAdd).only = kRcFetchAdd;
  at(kAtomicMaskedCompareSwap).only = kMaskedCompareSwap;
  at(kAtomicMaskedFetchAdd).only = kMaskedFetchAdd;
  return table;
}();

// Returns the packet opcodes of a work request; all kNoOpcode for one that sends no packet.
constexpr const PacketOpcodes& packet_opcodes(mlx5::WqeOpcode opcode) {
  return kPacketOpcodes[static_cast<std::uint8_t>(opcode)];
}

// Returns the traits of a work request that fits one packet. Operation kNone: it sends no packet.
constexpr const roce::OpcodeTraits& traits_of(mlx5::WqeOpcode opcode) {
  return roce::traits_of(packet_opcodes(opcode).only);
}

}  // namespace gdx::softhca::transport
