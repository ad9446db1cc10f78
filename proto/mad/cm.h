// Communication management messages as values; the codec is in cm_codec.h.
// Source: InfiniBand Architecture Specification 1.4, chapter 12 (tables 106 to 120); annex A11 for what the
// IP service puts into service ids and private data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "proto/byte_order.h"

namespace gdx::cm {

using Gid = std::array<std::uint8_t, 16>;

inline constexpr std::uint8_t kManagementClass = 0x07;
inline constexpr std::uint8_t kClassVersion = 2;

enum class MessageType : std::uint16_t {  // the MAD's attribute id
  kReq = 0x10,
  kMra = 0x11,
  kRej = 0x12,
  kRep = 0x13,
  kRtu = 0x14,
  kDreq = 0x15,
  kDrep = 0x16,
  kSidrReq = 0x17,
  kSidrRep = 0x18,
};

// Message that an MRA or REJ answers (two bits).
enum class Answered : std::uint8_t { kReq = 0, kRep = 1, kOther = 2 };

enum class RejectReason : std::uint16_t {  // table 109
  kNoQp = 1,
  kNoResources = 3,
  kTimeout = 4,
  kInvalidCommunicationId = 6,
  kInvalidServiceId = 8,
  kInvalidTransport = 9,
  kStaleConnection = 10,
  kInvalidGid = 12,
  kInvalidLid = 13,
  kInvalidHopLimit = 16,
  kInvalidPathMtu = 26,
  kConsumerDefined = 28,
  kVendorOptionNotSupported = 35,
};

enum class SidrStatus : std::uint8_t { kValid = 0, kInvalidServiceId = 1, kRejected = 2, kNoQp = 3 };

enum class Transport : std::uint8_t { kRc = 0, kUc = 1 };

// Queue pair parameters of one end, in a REQ and partly in a REP.
struct Endpoint {
  std::uint32_t qpn = 0;
  std::uint32_t starting_psn = 0;  // first PSN that the other end sends (12.7.31)
  std::uint64_t ca_guid = 0;
  std::uint8_t responder_resources = 0;
  std::uint8_t initiator_depth = 0;
  std::uint8_t rnr_retry_count = 0;
  bool flow_control = false;
  bool srq = false;
};

inline constexpr std::uint16_t kPermissiveLid = 0xffff;
inline constexpr std::uint16_t kFirstMulticastLid = 0xc000;

constexpr bool is_unicast_lid(std::uint16_t lid) { return lid != 0 && lid < kFirstMulticastLid; }

// The primary path of a REQ. RoCE has permissive LIDs, and no subnet.
struct Path {
  std::uint16_t local_lid = kPermissiveLid;
  std::uint16_t remote_lid = kPermissiveLid;
  Gid local_gid{};
  Gid remote_gid{};
  std::uint32_t flow_label = 0;
  std::uint8_t service_level = 0;
  bool subnet_local = false;  // packets have no GRH
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 64;
  std::uint8_t ack_timeout = 0;  // 4.096 us * 2^n, as in a queue pair
};

// Returns the path as the other end sees it.
constexpr Path reversed(Path path) {
  std::swap(path.local_lid, path.remote_lid);
  std::swap(path.local_gid, path.remote_gid);
  return path;
}

// Returns the bytes of a value of the wire's layout, for additional reject information.
template <typename T>
std::vector<std::byte> wire_bytes(const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  return {bytes.begin(), bytes.end()};
}

// One message; `type` decides which fields are on the wire.
struct Message {
  MessageType type = MessageType::kReq;
  std::uint64_t transaction_id = 0;
  std::uint32_t local_id = 0;  // the sender's communication id; a SIDR's request id
  std::uint32_t remote_id = 0;
  std::uint64_t service_id = 0;
  Endpoint endpoint;
  Path path;
  Transport transport = Transport::kRc;
  std::uint8_t retry_count = 0;
  std::uint8_t path_mtu = 0;  // enum ib_mtu
  // 4.096 us * 2^n: the time that REQ's receiver may take to answer
  std::uint8_t remote_response_timeout = 0;
  std::uint8_t local_response_timeout = 0;
  std::uint8_t max_cm_retries = 0;
  std::uint16_t pkey = 0xffff;
  std::uint32_t qkey = 0;  // SIDR_REP
  Answered answered = Answered::kReq;
  std::uint16_t reason = 0;  // RejectReason, or a SIDR_REP's SidrStatus
  // Of a REJ: the sender's GUID for kTimeout, the GID or LID that it would accept for those refused.
  std::vector<std::byte> reject_information;
  std::uint8_t service_timeout = 0;  // MRA
  std::uint32_t remote_qpn = 0;      // DREQ
  // At most the type's capacity; decoding always yields the full capacity.
  std::vector<std::byte> private_data;
};

// Returns the bytes of private data that a type has room for; 0 for a type that is not in use here.
constexpr std::size_t private_data_bytes(MessageType type) {
  switch (type) {
    case MessageType::kReq: return 92;
    case MessageType::kMra: return 222;
    case MessageType::kRej: return 148;
    case MessageType::kRep: return 196;
    case MessageType::kRtu: return 224;
    case MessageType::kDreq: return 220;
    case MessageType::kDrep: return 224;
    case MessageType::kSidrReq: return 216;
    case MessageType::kSidrRep: return 136;
  }
  return 0;
}

// Start of the private data of the IP service's REQ and SIDR_REQ (A11.4).
struct IpHeader {
  std::uint8_t version = 0;     // major and minor, both 0
  std::uint8_t ip_version = 0;  // in bits 7:4
  Be16 source_port;
  Gid source;  // an IPv4 address in the last four bytes, the rest 0
  Gid destination;
};

inline constexpr std::size_t kIpHeaderBytes = 36;
static_assert(sizeof(IpHeader) == kIpHeaderBytes);

// Service ids of the IP service: bytes 4 and 5 the port space, 6 and 7 the port.
constexpr std::uint64_t ip_service_id(std::uint16_t port_space, std::uint16_t port) {
  return std::uint64_t{port_space} << 16 | port;
}

}  // namespace gdx::cm
