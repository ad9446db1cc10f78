// What a request opcode means to a responder. RC and UC number their requests alike in bits 4:0.
#pragma once

#include <array>
#include <cstdint>

#include "proto/roce/headers.h"

namespace gdx::softhca::transport {

struct RequestTraits {
  enum class Operation : std::uint8_t { kNone, kSend, kWrite, kRead, kAtomic };
  Operation operation = Operation::kNone;
  bool first = false;
  bool last = false;
  bool immediate = false;
  bool invalidate = false;
};

namespace detail {

constexpr std::array<RequestTraits, 32> make_request_traits() {
  using enum roce::Opcode;
  using Operation = RequestTraits::Operation;
  std::array<RequestTraits, 32> table{};
  const auto at = [&table](roce::Opcode opcode) -> RequestTraits& {
    return table[static_cast<std::uint8_t>(opcode)];
  };
  at(kRcSendFirst) = {Operation::kSend, true, false};
  at(kRcSendMiddle) = {Operation::kSend, false, false};
  at(kRcSendLast) = {Operation::kSend, false, true};
  at(kRcSendLastImmediate) = {Operation::kSend, false, true, true};
  at(kRcSendLastInvalidate) = {Operation::kSend, false, true, false, true};
  at(kRcSendOnly) = {Operation::kSend, true, true};
  at(kRcSendOnlyImmediate) = {Operation::kSend, true, true, true};
  at(kRcSendOnlyInvalidate) = {Operation::kSend, true, true, false, true};
  at(kRcWriteFirst) = {Operation::kWrite, true, false};
  at(kRcWriteMiddle) = {Operation::kWrite, false, false};
  at(kRcWriteLast) = {Operation::kWrite, false, true};
  at(kRcWriteLastImmediate) = {Operation::kWrite, false, true, true};
  at(kRcWriteOnly) = {Operation::kWrite, true, true};
  at(kRcWriteOnlyImmediate) = {Operation::kWrite, true, true, true};
  at(kRcReadRequest) = {Operation::kRead, true, true};
  at(kRcCompareSwap) = {Operation::kAtomic, true, true};
  at(kRcFetchAdd) = {Operation::kAtomic, true, true};
  return table;
}

inline constexpr std::array<RequestTraits, 32> kRequestTraits = make_request_traits();

static_assert((static_cast<std::uint8_t>(roce::Opcode::kMaskedCompareSwap) & 0x1f) ==
              static_cast<std::uint8_t>(roce::Opcode::kRcCompareSwap));
static_assert((static_cast<std::uint8_t>(roce::Opcode::kMaskedFetchAdd) & 0x1f) ==
              static_cast<std::uint8_t>(roce::Opcode::kRcFetchAdd));

}  // namespace detail

// `opcode` of a transport that the caller has checked. Operation kNone: not a request. The masked atomics
// have the low bits of the plain ones.
constexpr const RequestTraits& traits_of(roce::Opcode opcode) {
  return detail::kRequestTraits[static_cast<std::uint8_t>(opcode) & 0x1f];
}

}  // namespace gdx::softhca::transport
