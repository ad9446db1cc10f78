// Transport opcodes, in one table that all classifications of packets read.
// Source: InfiniBand Architecture Specification 1.4, table 38; annex A17.9.3 for CNPs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace gdx::roce {

inline constexpr std::size_t kBthBytes = 12;
inline constexpr std::size_t kRethBytes = 16;
inline constexpr std::size_t kAethBytes = 4;
inline constexpr std::size_t kAtomicEthBytes = 28;
inline constexpr std::size_t kAtomicAckEthBytes = 8;
inline constexpr std::size_t kAtomicMaskEthBytes = 16;
inline constexpr std::size_t kImmediateBytes = 4;
inline constexpr std::size_t kDethBytes = 8;
inline constexpr std::size_t kMaxHeaderBytes = kBthBytes + kAtomicEthBytes + kAtomicMaskEthBytes;

// Transport service: bits 7:5 of a standard opcode.
enum class Service : std::uint8_t { kRc = 0, kUc = 1, kUd = 3, kOther = 7 };

enum class Operation : std::uint8_t {
  kNone,  // neither a request nor a response: CNPs, receive windows, unknown opcodes
  kSend,
  kWrite,
  kRead,
  kCompareSwap,
  kFetchAdd,
  kReadResponse,
  kAcknowledge,
  kAtomicAcknowledge,
};

constexpr bool is_request(Operation operation) {
  return operation >= Operation::kSend && operation <= Operation::kFetchAdd;
}
constexpr bool is_response(Operation operation) { return operation >= Operation::kReadResponse; }
// Returns whether a READ response or an atomic ACK answers a request, instead of an ACK.
constexpr bool wants_response(Operation operation) {
  return operation >= Operation::kRead && operation <= Operation::kFetchAdd;
}
constexpr bool is_atomic(Operation operation) {
  return operation == Operation::kCompareSwap || operation == Operation::kFetchAdd;
}

enum class Position : std::uint8_t { kMiddle = 0, kFirst = 1, kLast = 2, kOnly = kFirst | kLast };

// Contents after the BTH, in wire order but for payload.
enum Extension : std::uint16_t {
  kHasDeth = 1 << 0,
  kHasReth = 1 << 1,
  kHasAtomicEth = 1 << 2,
  kHasAtomicMaskEth = 1 << 3,
  kHasAeth = 1 << 4,
  kHasAtomicAckEth = 1 << 5,
  kHasImmediate = 1 << 6,  // ImmDt
  kHasIeth = 1 << 7,       // IETH
  kHasPayload = 1 << 8,
  kHasImmediateOrIeth = kHasImmediate | kHasIeth,  // either is in the same four bytes
};

// BTH opcodes: value, name, service, operation, position in its message, contents. A new opcode is a new row.
// Values with bits 7:5 all set are free for manufacturers. gdx defines the masked atomics, numbered like the
// plain ones, two for windows between HCAs (window.h) and two for tokens of one host (host_token.h).
#define GDX_ROCE_OPCODES(ROW)                                                                  \
  ROW(0x00, kRcSendFirst, kRc, kSend, kFirst, kHasPayload)                                     \
  ROW(0x01, kRcSendMiddle, kRc, kSend, kMiddle, kHasPayload)                                   \
  ROW(0x02, kRcSendLast, kRc, kSend, kLast, kHasPayload)                                       \
  ROW(0x03, kRcSendLastImmediate, kRc, kSend, kLast, kHasImmediate | kHasPayload)              \
  ROW(0x04, kRcSendOnly, kRc, kSend, kOnly, kHasPayload)                                       \
  ROW(0x05, kRcSendOnlyImmediate, kRc, kSend, kOnly, kHasImmediate | kHasPayload)              \
  ROW(0x06, kRcWriteFirst, kRc, kWrite, kFirst, kHasReth | kHasPayload)                        \
  ROW(0x07, kRcWriteMiddle, kRc, kWrite, kMiddle, kHasPayload)                                 \
  ROW(0x08, kRcWriteLast, kRc, kWrite, kLast, kHasPayload)                                     \
  ROW(0x09, kRcWriteLastImmediate, kRc, kWrite, kLast, kHasImmediate | kHasPayload)            \
  ROW(0x0a, kRcWriteOnly, kRc, kWrite, kOnly, kHasReth | kHasPayload)                          \
  ROW(0x0b, kRcWriteOnlyImmediate, kRc, kWrite, kOnly, kHasReth | kHasImmediate | kHasPayload) \
  ROW(0x0c, kRcReadRequest, kRc, kRead, kOnly, kHasReth)                                       \
  ROW(0x0d, kRcReadResponseFirst, kRc, kReadResponse, kFirst, kHasAeth | kHasPayload)          \
  ROW(0x0e, kRcReadResponseMiddle, kRc, kReadResponse, kMiddle, kHasPayload)                   \
  ROW(0x0f, kRcReadResponseLast, kRc, kReadResponse, kLast, kHasAeth | kHasPayload)            \
  ROW(0x10, kRcReadResponseOnly, kRc, kReadResponse, kOnly, kHasAeth | kHasPayload)            \
  ROW(0x11, kRcAcknowledge, kRc, kAcknowledge, kOnly, kHasAeth)                                \
  ROW(0x12, kRcAtomicAcknowledge, kRc, kAtomicAcknowledge, kOnly, kHasAeth | kHasAtomicAckEth) \
  ROW(0x13, kRcCompareSwap, kRc, kCompareSwap, kOnly, kHasAtomicEth)                           \
  ROW(0x14, kRcFetchAdd, kRc, kFetchAdd, kOnly, kHasAtomicEth)                                 \
  ROW(0x16, kRcSendLastInvalidate, kRc, kSend, kLast, kHasIeth | kHasPayload)                  \
  ROW(0x17, kRcSendOnlyInvalidate, kRc, kSend, kOnly, kHasIeth | kHasPayload)                  \
  ROW(0x20, kUcSendFirst, kUc, kSend, kFirst, kHasPayload)                                     \
  ROW(0x21, kUcSendMiddle, kUc, kSend, kMiddle, kHasPayload)                                   \
  ROW(0x22, kUcSendLast, kUc, kSend, kLast, kHasPayload)                                       \
  ROW(0x23, kUcSendLastImmediate, kUc, kSend, kLast, kHasImmediate | kHasPayload)              \
  ROW(0x24, kUcSendOnly, kUc, kSend, kOnly, kHasPayload)                                       \
  ROW(0x25, kUcSendOnlyImmediate, kUc, kSend, kOnly, kHasImmediate | kHasPayload)              \
  ROW(0x26, kUcWriteFirst, kUc, kWrite, kFirst, kHasReth | kHasPayload)                        \
  ROW(0x27, kUcWriteMiddle, kUc, kWrite, kMiddle, kHasPayload)                                 \
  ROW(0x28, kUcWriteLast, kUc, kWrite, kLast, kHasPayload)                                     \
  ROW(0x29, kUcWriteLastImmediate, kUc, kWrite, kLast, kHasImmediate | kHasPayload)            \
  ROW(0x2a, kUcWriteOnly, kUc, kWrite, kOnly, kHasReth | kHasPayload)                          \
  ROW(0x2b, kUcWriteOnlyImmediate, kUc, kWrite, kOnly, kHasReth | kHasImmediate | kHasPayload) \
  ROW(0x64, kUdSendOnly, kUd, kSend, kOnly, kHasDeth | kHasPayload)                            \
  ROW(0x65, kUdSendOnlyImmediate, kUd, kSend, kOnly, kHasDeth | kHasImmediate | kHasPayload)   \
  ROW(0x81, kCongestionNotification, kOther, kNone, kOnly, kHasPayload)                        \
  ROW(0xf3, kMaskedCompareSwap, kRc, kCompareSwap, kOnly, kHasAtomicEth | kHasAtomicMaskEth)   \
  ROW(0xf4, kMaskedFetchAdd, kRc, kFetchAdd, kOnly, kHasAtomicEth | kHasAtomicMaskEth)         \
  ROW(0xf8, kWindowMarker, kOther, kNone, kOnly, kHasPayload)                                  \
  ROW(0xf9, kWindowGrant, kOther, kNone, kOnly, kHasPayload)                                   \
  ROW(0xfa, kTokenRequest, kOther, kNone, kOnly, kHasPayload)                                  \
  ROW(0xfb, kTokenAnswer, kOther, kNone, kOnly, kHasPayload)

enum class Opcode : std::uint8_t {
#define GDX_ROW(value, name, ...) name = (value),
  GDX_ROCE_OPCODES(GDX_ROW)
#undef GDX_ROW
};

struct OpcodeTraits {
  Operation operation = Operation::kNone;
  Service service = Service::kOther;
  bool first = false;             // FIRST or ONLY packet of its message
  bool last = false;              // LAST or ONLY packet of its message
  std::uint16_t extensions = 0;   // Extension bits; 0 for an unknown opcode
  std::uint8_t header_bytes = 0;  // BTH and extension headers; 0 for an unknown opcode

  [[nodiscard]] constexpr bool has(int extension) const { return (extensions & extension) != 0; }
};

namespace detail {

// Bytes of the headers, in the order of Extension's bits.
inline constexpr std::array kExtensionBytes{kDethBytes,          kRethBytes,     kAtomicEthBytes,
                                            kAtomicMaskEthBytes, kAethBytes,     kAtomicAckEthBytes,
                                            kImmediateBytes,     kImmediateBytes};

inline constexpr std::array<OpcodeTraits, 256> kOpcodeTable = [] {
  std::array<OpcodeTraits, 256> table{};
  table.fill(OpcodeTraits{});  // because GCC 12 emits zeros between the assigned elements
  const auto add = [&table](std::uint8_t value, Service service, Operation operation, Position position,
                            std::uint16_t extensions) {
    if (table[value].extensions != 0) throw "two opcodes have one value";
    std::size_t bytes = kBthBytes;
    for (std::size_t bit = 0; bit < kExtensionBytes.size(); ++bit)
      bytes += (extensions >> bit & 1) * kExtensionBytes[bit];
    const auto place = static_cast<unsigned>(position);
    table[value] = {operation,        service,    (place & 1) != 0,
                    (place & 2) != 0, extensions, static_cast<std::uint8_t>(bytes)};
  };
#define GDX_ROW(value, name, service, operation, position, extensions) \
  add(value, Service::service, Operation::operation, Position::position, extensions);
  GDX_ROCE_OPCODES(GDX_ROW)
#undef GDX_ROW
  return table;
}();

}  // namespace detail

// Returns the traits of an opcode, in constant time.
constexpr const OpcodeTraits& traits_of(Opcode opcode) {
  return detail::kOpcodeTable[static_cast<std::uint8_t>(opcode)];
}

constexpr std::uint16_t extensions_of(Opcode opcode) { return traits_of(opcode).extensions; }
constexpr std::size_t header_bytes(Opcode opcode) { return traits_of(opcode).header_bytes; }

// Returns the opcode of `service` that has bits 4:0 of `opcode`. Services number equal packets alike.
constexpr Opcode in_service(Opcode opcode, Service service) {
  return static_cast<Opcode>(static_cast<unsigned>(service) << 5 | (static_cast<unsigned>(opcode) & 0x1f));
}

namespace detail {

// Returns whether the service and operation of `row` have an opcode for a place; `ending`: with ImmDt or
// IETH.
constexpr bool exists(const OpcodeTraits& row, bool first, bool last, int ending) {
  for (unsigned low = 0; low < 0x20; ++low) {
    const OpcodeTraits& other = traits_of(in_service(static_cast<Opcode>(low), row.service));
    if (other.operation == row.operation && other.first == first && other.last == last &&
        (other.extensions & kHasImmediateOrIeth) == ending)
      return true;
  }
  return false;
}

constexpr void require(bool holds, const char* rule) {
  if (!holds) throw rule;
}

// Checks the rules that all rows follow. A broken rule ends the compilation.
consteval bool follows_rules(std::uint8_t value, const OpcodeTraits& row) {
  const OpcodeTraits& rc = traits_of(in_service(static_cast<Opcode>(value), Service::kRc));
  const bool send = row.operation == Operation::kSend;
  const bool write = row.operation == Operation::kWrite;
  const int ending = row.extensions & kHasImmediateOrIeth;
  const bool other = row.service == Service::kOther;
  require(value >= 0x80 || value >> 5 == static_cast<int>(row.service), "bits 7:5 are the service");
  require(other == (row.operation == Operation::kNone), "each service's packets are requests or responses");
  require(other || (row.operation == rc.operation && row.first == rc.first && row.last == rc.last &&
                    (row.extensions & ~(kHasDeth | kHasAtomicMaskEth)) == rc.extensions),
          "UC, UD and masked atomics are numbered as RC");
  require((row.first && !exists(row, true, false, 0)) ||
              (exists(row, true, false, 0) && exists(row, false, false, 0) &&
               exists(row, false, true, ending) && exists(row, true, true, ending)),
          "messages of several packets have FIRST, MIDDLE, LAST and ONLY");
  require(row.has(kHasAeth) == (is_response(row.operation) && (row.first || row.last)),
          "responses but MIDDLE have an AETH, requests none");
  require(row.has(kHasReth) == (row.operation == Operation::kRead || (write && row.first)),
          "READ requests have a RETH, and WRITEs in their first packet");
  require(row.has(kHasAtomicEth) == (is_atomic(row.operation) && row.service == Service::kRc) &&
              row.has(kHasAtomicAckEth) == (row.operation == Operation::kAtomicAcknowledge),
          "atomics are RC's and have an AtomicETH, their answers an AtomicAckETH");
  require(row.has(kHasAtomicMaskEth) == (value >= 0xe0 && is_atomic(row.operation)),
          "masked atomics are gdx's own");
  require(row.has(kHasDeth) == (row.service == Service::kUd), "UD alone has a DETH");
  require(row.has(kHasPayload) == (other || send || write || row.operation == Operation::kReadResponse),
          "SEND, WRITE and READ responses have payload");
  require(ending == 0 || (row.last && (send || (write && !row.has(kHasIeth)))),
          "immediate data ends a SEND or WRITE, an IETH a SEND");
  require(row.header_bytes <= kMaxHeaderBytes, "headers are longer than kMaxHeaderBytes");
  return true;
}
#define GDX_ROW(value, name, ...) static_assert(follows_rules(value, traits_of(Opcode::name)));
GDX_ROCE_OPCODES(GDX_ROW)
#undef GDX_ROW

}  // namespace detail

}  // namespace gdx::roce

#undef GDX_ROCE_OPCODES
