// Communication management messages to and from the 256 bytes of a MAD. Offsets are from the end of the MAD
// header, as the specification's tables count them; so are bits, from the most significant one.
// Source: InfiniBand Architecture Specification 1.4, tables 106 to 120.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>

#include "proto/mad/cm.h"
#include "proto/mad/mad.h"

namespace gdx::cm {

using Mad = std::array<std::byte, mad::kMadBytes>;

namespace detail {

inline constexpr std::uint8_t kRate100Gbps = 16;  // enum ib_rate
inline constexpr std::size_t kMaxRejectInformationBytes = 72;
inline constexpr int kFlowLabelShift = 12;  // 20 bits at the top of a word

// Place of a field: `width` bits from bit `first` of the byte at `offset`.
struct Bits {
  std::size_t offset;
  int first;
  int width;
};

inline constexpr Bits kReqRemoteResponseTimeout{43, 0, 5}, kReqTransport{43, 5, 2}, kReqFlowControl{43, 7, 1},
    kReqLocalResponseTimeout{47, 0, 5}, kReqRetryCount{47, 5, 3}, kReqPathMtu{50, 0, 4},
    kReqRnrRetryCount{50, 5, 3}, kReqMaxCmRetries{51, 0, 4}, kReqSrq{51, 4, 1}, kReqRate{91, 2, 6},
    kReqServiceLevel{94, 0, 4}, kReqSubnetLocal{94, 4, 1}, kReqAckTimeout{95, 0, 5},
    kRepFlowControl{26, 7, 1}, kRepRnrRetryCount{27, 0, 3}, kRepSrq{27, 3, 1}, kAnswered{8, 0, 2},
    kMraServiceTimeout{9, 0, 5}, kRejInfoLength{9, 0, 7};

class Body {
 public:
  explicit Body(Mad& mad) : at_(mad.data() + mad::kHeaderBytes) {}

  template <typename T>
  void put(std::size_t offset, T value) {
    const BigEndian<T> wire(value);
    std::memcpy(at_ + offset, &wire, sizeof wire);
  }
  void put(std::size_t offset, std::uint8_t value) { at_[offset] = std::byte{value}; }
  void put(std::size_t offset, const Gid& gid) { std::memcpy(at_ + offset, gid.data(), gid.size()); }
  // Stores 24 bits, and leaves the byte after them.
  void put_number(std::size_t offset, std::uint32_t number) {
    put(offset, static_cast<std::uint8_t>(number >> 16));
    put(offset + 1, static_cast<std::uint16_t>(number));
  }
  void put(const Bits& field, unsigned value) {
    const int shift = 8 - field.first - field.width;
    at_[field.offset] |= std::byte{static_cast<std::uint8_t>((value & ((1u << field.width) - 1)) << shift)};
  }
  void put_bytes(std::size_t offset, std::span<const std::byte> bytes) {
    if (!bytes.empty()) std::memcpy(at_ + offset, bytes.data(), bytes.size());
  }

 private:
  std::byte* at_;
};

class ConstBody {
 public:
  explicit ConstBody(std::span<const std::byte, mad::kMadBytes> mad) : at_(mad.data() + mad::kHeaderBytes) {}

  template <typename T>
  [[nodiscard]] T take(std::size_t offset) const {
    BigEndian<T> wire;
    std::memcpy(&wire, at_ + offset, sizeof wire);
    return wire;
  }
  [[nodiscard]] std::uint8_t byte(std::size_t offset) const {
    return std::to_integer<std::uint8_t>(at_[offset]);
  }
  [[nodiscard]] Gid gid(std::size_t offset) const {
    Gid gid;
    std::memcpy(gid.data(), at_ + offset, gid.size());
    return gid;
  }
  [[nodiscard]] std::uint32_t number(std::size_t offset) const { return take<std::uint32_t>(offset) >> 8; }
  [[nodiscard]] std::uint8_t bits(const Bits& field) const {
    const int shift = 8 - field.first - field.width;
    return static_cast<std::uint8_t>(byte(field.offset) >> shift & ((1u << field.width) - 1));
  }
  [[nodiscard]] std::vector<std::byte> bytes(std::size_t offset, std::size_t count) const {
    return {at_ + offset, at_ + offset + count};
  }

 private:
  const std::byte* at_;
};

constexpr std::size_t private_data_offset(MessageType type) {
  switch (type) {
    case MessageType::kReq: return 140;
    case MessageType::kMra: return 10;
    case MessageType::kRej: return 84;
    case MessageType::kRep: return 36;
    case MessageType::kRtu: return 8;
    case MessageType::kDreq: return 12;
    case MessageType::kDrep: return 8;
    case MessageType::kSidrReq: return 16;
    case MessageType::kSidrRep: return 96;
  }
  return 0;
}

inline void put_req(const Message& m, Body& body) {
  body.put(8, m.service_id);
  body.put(16, m.endpoint.ca_guid);
  body.put_number(32, m.endpoint.qpn);
  body.put(35, m.endpoint.responder_resources);
  body.put(39, m.endpoint.initiator_depth);
  body.put(kReqRemoteResponseTimeout, m.remote_response_timeout);
  body.put(kReqTransport, static_cast<unsigned>(m.transport));
  body.put(kReqFlowControl, m.endpoint.flow_control);
  body.put_number(44, m.endpoint.starting_psn);
  body.put(kReqLocalResponseTimeout, m.local_response_timeout);
  body.put(kReqRetryCount, m.retry_count);
  body.put(48, m.pkey);
  body.put(kReqPathMtu, m.path_mtu);
  body.put(kReqRnrRetryCount, m.endpoint.rnr_retry_count);
  body.put(kReqMaxCmRetries, m.max_cm_retries);
  body.put(kReqSrq, m.endpoint.srq);
  body.put(52, m.path.local_lid);
  body.put(54, m.path.remote_lid);
  body.put(56, m.path.local_gid);
  body.put(72, m.path.remote_gid);
  body.put(88, m.path.flow_label << kFlowLabelShift);
  body.put(kReqRate, kRate100Gbps);
  body.put(92, m.path.traffic_class);
  body.put(93, m.path.hop_limit);
  body.put(kReqServiceLevel, m.path.service_level);
  body.put(kReqSubnetLocal, m.path.subnet_local);
  body.put(kReqAckTimeout, m.path.ack_timeout);
}

inline void take_req(const ConstBody& body, Message& m) {
  m.service_id = body.take<std::uint64_t>(8);
  m.endpoint.ca_guid = body.take<std::uint64_t>(16);
  m.endpoint.qpn = body.number(32);
  m.endpoint.responder_resources = body.byte(35);
  m.endpoint.initiator_depth = body.byte(39);
  m.remote_response_timeout = body.bits(kReqRemoteResponseTimeout);
  m.transport = static_cast<Transport>(body.bits(kReqTransport));
  m.endpoint.flow_control = body.bits(kReqFlowControl) != 0;
  m.endpoint.starting_psn = body.number(44);
  m.local_response_timeout = body.bits(kReqLocalResponseTimeout);
  m.retry_count = body.bits(kReqRetryCount);
  m.pkey = body.take<std::uint16_t>(48);
  m.path_mtu = body.bits(kReqPathMtu);
  m.endpoint.rnr_retry_count = body.bits(kReqRnrRetryCount);
  m.max_cm_retries = body.bits(kReqMaxCmRetries);
  m.endpoint.srq = body.bits(kReqSrq) != 0;
  m.path.local_lid = body.take<std::uint16_t>(52);
  m.path.remote_lid = body.take<std::uint16_t>(54);
  m.path.local_gid = body.gid(56);
  m.path.remote_gid = body.gid(72);
  m.path.flow_label = body.take<std::uint32_t>(88) >> kFlowLabelShift;
  m.path.traffic_class = body.byte(92);
  m.path.hop_limit = body.byte(93);
  m.path.service_level = body.bits(kReqServiceLevel);
  m.path.subnet_local = body.bits(kReqSubnetLocal) != 0;
  m.path.ack_timeout = body.bits(kReqAckTimeout);
}

inline void put_rep(const Message& m, Body& body) {
  body.put_number(12, m.endpoint.qpn);
  body.put_number(20, m.endpoint.starting_psn);
  body.put(24, m.endpoint.responder_resources);
  body.put(25, m.endpoint.initiator_depth);
  body.put(kRepFlowControl, m.endpoint.flow_control);
  body.put(kRepRnrRetryCount, m.endpoint.rnr_retry_count);
  body.put(kRepSrq, m.endpoint.srq);
  body.put(28, m.endpoint.ca_guid);
}

inline void take_rep(const ConstBody& body, Message& m) {
  m.endpoint.qpn = body.number(12);
  m.endpoint.starting_psn = body.number(20);
  m.endpoint.responder_resources = body.byte(24);
  m.endpoint.initiator_depth = body.byte(25);
  m.endpoint.flow_control = body.bits(kRepFlowControl) != 0;
  m.endpoint.rnr_retry_count = body.bits(kRepRnrRetryCount);
  m.endpoint.srq = body.bits(kRepSrq) != 0;
  m.endpoint.ca_guid = body.take<std::uint64_t>(28);
}

inline void put_fields(const Message& m, Body& body) {
  body.put(0, m.local_id);
  switch (m.type) {
    case MessageType::kReq: return put_req(m, body);
    case MessageType::kSidrReq: body.put(4, m.pkey); return body.put(8, m.service_id);
    case MessageType::kSidrRep:
      body.put(4, static_cast<std::uint8_t>(m.reason));
      body.put_number(8, m.endpoint.qpn);
      body.put(12, m.service_id);
      return body.put(20, m.qkey);
    default: break;
  }
  body.put(4, m.remote_id);
  switch (m.type) {
    case MessageType::kMra:
      body.put(kAnswered, static_cast<unsigned>(m.answered));
      return body.put(kMraServiceTimeout, m.service_timeout);
    case MessageType::kRej:
      body.put(kAnswered, static_cast<unsigned>(m.answered));
      body.put(10, m.reason);
      body.put(kRejInfoLength, static_cast<unsigned>(m.reject_information.size()));
      return body.put_bytes(12, m.reject_information);
    case MessageType::kRep: return put_rep(m, body);
    case MessageType::kDreq: return body.put_number(8, m.remote_qpn);
    default: return;
  }
}

inline void take_fields(const ConstBody& body, Message& m) {
  m.local_id = body.take<std::uint32_t>(0);
  switch (m.type) {
    case MessageType::kReq: return take_req(body, m);
    case MessageType::kSidrReq:
      m.pkey = body.take<std::uint16_t>(4);
      m.service_id = body.take<std::uint64_t>(8);
      return;
    case MessageType::kSidrRep:
      m.reason = body.byte(4);
      m.endpoint.qpn = body.number(8);
      m.service_id = body.take<std::uint64_t>(12);
      m.qkey = body.take<std::uint32_t>(20);
      return;
    default: break;
  }
  m.remote_id = body.take<std::uint32_t>(4);
  m.answered = static_cast<Answered>(body.bits(kAnswered));
  switch (m.type) {
    case MessageType::kMra: m.service_timeout = body.bits(kMraServiceTimeout); return;
    case MessageType::kRej:
      m.reason = body.take<std::uint16_t>(10);
      m.reject_information =
          body.bytes(12, std::min<std::size_t>(body.bits(kRejInfoLength), kMaxRejectInformationBytes));
      return;
    case MessageType::kRep: return take_rep(body, m);
    case MessageType::kDreq: m.remote_qpn = body.number(8); return;
    default: return;
  }
}

}  // namespace detail

// Encodes a message, without private data beyond the type's capacity. Its reject information must fit.
[[nodiscard]] inline Mad encode(const Message& message) {
  Mad mad{};
  const mad::Header header{.base_version = mad::kBaseVersion,
                           .management_class = kManagementClass,
                           .class_version = kClassVersion,
                           .method = mad::kMethodSend,
                           .status = 0,
                           .class_specific = 0,
                           .transaction_id = message.transaction_id,
                           .attribute_id = static_cast<std::uint16_t>(message.type),
                           .reserved = 0,
                           .attribute_modifier = 0};
  std::memcpy(mad.data(), &header, sizeof header);
  detail::Body body(mad);
  detail::put_fields(message, body);
  const std::size_t count = std::min(message.private_data.size(), private_data_bytes(message.type));
  body.put_bytes(detail::private_data_offset(message.type), std::span(message.private_data).first(count));
  return mad;
}

// Decodes a message; nullopt for no MAD, or for one of a class or type that is not in use here.
[[nodiscard]] inline std::optional<Message> decode(std::span<const std::byte> datagram) {
  if (datagram.size() != mad::kMadBytes) return std::nullopt;
  mad::Header header;
  std::memcpy(&header, datagram.data(), sizeof header);
  if (header.base_version != mad::kBaseVersion || header.management_class != kManagementClass ||
      header.class_version != kClassVersion || header.method != mad::kMethodSend) {
    return std::nullopt;
  }
  Message message;
  message.type = static_cast<MessageType>(static_cast<std::uint16_t>(header.attribute_id));
  const std::size_t room = private_data_bytes(message.type);
  if (room == 0) return std::nullopt;
  message.transaction_id = header.transaction_id;
  const detail::ConstBody body(datagram.first<mad::kMadBytes>());
  detail::take_fields(body, message);
  message.private_data = body.bytes(detail::private_data_offset(message.type), room);
  return message;
}

}  // namespace gdx::cm
