#include "proto/mad/cm_codec.h"

#include <gtest/gtest.h>

#include <span>
#include <string>

namespace gdx::cm {
namespace codec_test {

constexpr std::array kTypes = {MessageType::kReq,  MessageType::kMra,     MessageType::kRej,
                               MessageType::kRep,  MessageType::kRtu,     MessageType::kDreq,
                               MessageType::kDrep, MessageType::kSidrReq, MessageType::kSidrRep};

Message req() {
  Message m;
  m.type = MessageType::kReq;
  m.transaction_id = 0x1122334455667788;
  m.local_id = 0xa1a2a3a4;
  m.service_id = ip_service_id(0x0106, 7174);
  m.endpoint = {.qpn = 0x123456,
                .starting_psn = 0x654321,
                .ca_guid = 0x0102030405060708,
                .responder_resources = 16,
                .initiator_depth = 9,
                .rnr_retry_count = 6,
                .flow_control = true,
                .srq = true};
  m.path.local_lid = 0x1718;
  m.path.remote_lid = 0x191a;
  m.path.local_gid[15] = 1;
  m.path.remote_gid[15] = 2;
  m.path.flow_label = 0xb1b2b;
  m.path.service_level = 9;
  m.path.subnet_local = true;
  m.path.traffic_class = 0x60;
  m.path.hop_limit = 63;
  m.path.ack_timeout = 19;
  m.transport = Transport::kUc;
  m.retry_count = 5;
  m.path_mtu = 4;
  m.remote_response_timeout = 20;
  m.local_response_timeout = 21;
  m.max_cm_retries = 15;
  m.private_data.assign(92, std::byte{0x5a});
  return m;
}

std::uint8_t at(const Mad& mad, std::size_t offset) {
  return std::to_integer<std::uint8_t>(mad[mad::kHeaderBytes + offset]);
}

// Offsets and bits counted by hand in table 106.
TEST(CmCodec, req_encoded_fields_lie_where_the_specification_puts_them) {
  const Mad mad = encode(req());
  EXPECT_EQ(std::to_integer<int>(mad[0]), 1);
  EXPECT_EQ(std::to_integer<int>(mad[1]), 7);
  EXPECT_EQ(std::to_integer<int>(mad[2]), 2);
  EXPECT_EQ(std::to_integer<int>(mad[3]), 3);
  EXPECT_EQ(std::to_integer<int>(mad[17]), 0x10);
  EXPECT_EQ(at(mad, 0), 0xa1);
  EXPECT_EQ(at(mad, 13), 0x06);  // service id: 01 06 then the port
  EXPECT_EQ(at(mad, 14), 7174 >> 8);
  EXPECT_EQ(at(mad, 32), 0x12);
  EXPECT_EQ(at(mad, 34), 0x56);
  EXPECT_EQ(at(mad, 35), 16);
  EXPECT_EQ(at(mad, 39), 9);
  EXPECT_EQ(at(mad, 43), 20 << 3 | 1 << 1 | 1);
  EXPECT_EQ(at(mad, 44), 0x65);
  EXPECT_EQ(at(mad, 47), 21 << 3 | 5);
  EXPECT_EQ(at(mad, 48), 0xff);
  EXPECT_EQ(at(mad, 50), 4 << 4 | 6);
  EXPECT_EQ(at(mad, 51), 15 << 4 | 1 << 3);
  EXPECT_EQ(at(mad, 52), 0x17);
  EXPECT_EQ(at(mad, 53), 0x18);
  EXPECT_EQ(at(mad, 54), 0x19);
  EXPECT_EQ(at(mad, 55), 0x1a);
  EXPECT_EQ(at(mad, 71), 1);
  EXPECT_EQ(at(mad, 87), 2);
  EXPECT_EQ(at(mad, 88), 0xb1);
  EXPECT_EQ(at(mad, 89), 0xb2);
  EXPECT_EQ(at(mad, 90), 0xb0);
  EXPECT_EQ(at(mad, 91), 16) << "rate";
  EXPECT_EQ(at(mad, 92), 0x60);
  EXPECT_EQ(at(mad, 93), 63);
  EXPECT_EQ(at(mad, 94), 9 << 4 | 1 << 3);
  EXPECT_EQ(at(mad, 95), 19 << 3);
  EXPECT_EQ(at(mad, 139), 0);
  EXPECT_EQ(at(mad, 140), 0x5a);
  EXPECT_EQ(at(mad, 231), 0x5a);
}

// A message whose every field differs from its default and from the others of its size.
Message full(MessageType type) {
  Message m = req();
  m.type = type;
  m.remote_id = 0xb1b2b3b4;
  m.answered = Answered::kRep;
  m.reason = type == MessageType::kSidrRep ? 2 : 28;
  m.service_timeout = 20;
  m.remote_qpn = 0xabcdef;
  m.qkey = 0x01234567;
  m.pkey = 0x8123;
  m.reject_information.assign(4, std::byte{0x77});
  m.private_data.assign(private_data_bytes(type), std::byte{0xc3});
  return m;
}

// By hand from tables 106 to 120: all before the private data, without zeros at its end.
TEST(CmCodec, each_types_bytes_are_those_of_the_specification) {
  const std::string zeros(36, '0');
  const std::string ids = "a1a2a3a4b1b2b3b4";
  struct Case {
    MessageType type;
    std::string hex;
    std::size_t private_offset;
    std::size_t private_bytes;
  };
  for (const Case& c :
       {Case{MessageType::kReq,
             "a1a2a3a4000000000000000001061c060102030405060708000000000000000012345610000000090000"
             "00a3654321ad812346f81718191a" +
                 zeros.substr(0, 30) + "01" + zeros.substr(0, 30) + "02b1b2b010603f9898",
             140, 92},
        Case{MessageType::kMra, ids + "40a0", 10, 222},
        Case{MessageType::kRej, ids + "4008001c77777777", 84, 148},
        Case{MessageType::kRep, ids + "00000000123456000000000065432100100901d00102030405060708", 36, 196},
        Case{MessageType::kRtu, ids, 8, 224}, Case{MessageType::kDreq, ids + "abcdef", 12, 220},
        Case{MessageType::kDrep, ids, 8, 224},
        Case{MessageType::kSidrReq, "a1a2a3a4812300000000000001061c06", 16, 216},
        Case{MessageType::kSidrRep, "a1a2a3a402000000123456000000000001061c0601234567", 96, 136}}) {
    std::string expected = "0107020300000000112233445566778800";
    expected += "0123456789abcdef"[static_cast<int>(c.type) >> 4];
    expected += "0123456789abcdef"[static_cast<int>(c.type) & 15];
    expected += "000000000000";
    expected += c.hex;
    expected.resize(2 * (mad::kHeaderBytes + c.private_offset), '0');
    for (std::size_t i = 0; i < c.private_bytes; ++i) expected += "c3";
    expected.resize(2 * mad::kMadBytes, '0');
    std::string actual;
    for (const std::byte byte : encode(full(c.type))) {
      actual.push_back("0123456789abcdef"[std::to_integer<int>(byte) >> 4]);
      actual.push_back("0123456789abcdef"[std::to_integer<int>(byte) & 15]);
    }
    EXPECT_EQ(actual, expected) << static_cast<int>(c.type);
    EXPECT_EQ(private_data_bytes(c.type), c.private_bytes);
  }
}

// Fields that nobody has set: their defaults, without zeros at the end.
TEST(CmCodec, each_types_bytes_without_content_are_zeros_but_for_what_a_request_must_say) {
  for (const MessageType type : kTypes) {
    Message m;
    m.type = type;
    const Mad encoded = encode(m);
    std::string actual;
    for (const std::byte byte : std::span(encoded).subspan(mad::kHeaderBytes)) {
      actual.push_back("0123456789abcdef"[std::to_integer<int>(byte) >> 4]);
      actual.push_back("0123456789abcdef"[std::to_integer<int>(byte) & 15]);
    }
    actual.resize(actual.find_last_not_of('0') + 1);
    const std::string zeros(96, '0');
    EXPECT_EQ(actual, type == MessageType::kReq ? zeros + "ffff0000ffffffff" + zeros.substr(26) + "10004"
                      : type == MessageType::kSidrReq ? "00000000ffff"
                                                      : "")
        << static_cast<int>(type);
  }
}

// Lost or mixed-up fields show as a difference in the second encoding or in these fields.
TEST(CmCodec, every_type_decoded_and_encoded_again_is_the_same) {
  for (const MessageType type : kTypes) {
    const Message m = full(type);
    const Mad mad = encode(m);
    const std::optional<Message> decoded = decode(mad);
    ASSERT_TRUE(decoded) << static_cast<int>(type);
    EXPECT_EQ(decoded->type, type);
    EXPECT_EQ(decoded->private_data, m.private_data) << static_cast<int>(type);
    EXPECT_EQ(encode(*decoded), mad) << static_cast<int>(type);
  }
}

TEST(CmCodec, req_decoded_has_the_path) {
  const Path path = decode(encode(req()))->path;
  EXPECT_EQ(path.local_lid, 0x1718);
  EXPECT_EQ(path.remote_lid, 0x191a);
  EXPECT_EQ(path.flow_label, 0xb1b2bu);
  EXPECT_EQ(path.service_level, 9);
  EXPECT_TRUE(path.subnet_local);
  EXPECT_EQ(path.hop_limit, 63);
}

TEST(CmCodec, rej_has_information_of_any_length_and_no_more_than_its_room) {
  Message m = req();
  m.type = MessageType::kRej;
  m.reject_information = wire_bytes(Be16(0x1718));
  Mad mad = encode(m);
  EXPECT_EQ(at(mad, 9), 2 << 1);
  EXPECT_EQ(at(mad, 12), 0x17);
  EXPECT_EQ(at(mad, 13), 0x18);
  EXPECT_EQ(decode(mad)->reject_information, m.reject_information);
  mad[mad::kHeaderBytes + 9] = std::byte{0xfe};  // 127 bytes
  EXPECT_EQ(decode(mad)->reject_information.size(), 72u);
}

TEST(CmCodec, rep_decoded_has_the_endpoint) {
  Message m = req();
  m.type = MessageType::kRep;
  m.remote_id = 7;
  const Message decoded = *decode(encode(m));
  EXPECT_EQ(decoded.remote_id, 7u);
  EXPECT_EQ(decoded.endpoint.qpn, 0x123456u);
  EXPECT_EQ(decoded.endpoint.starting_psn, 0x654321u);
  EXPECT_EQ(decoded.endpoint.responder_resources, 16);
  EXPECT_EQ(decoded.endpoint.initiator_depth, 9);
  EXPECT_EQ(decoded.endpoint.rnr_retry_count, 6);
  EXPECT_TRUE(decoded.endpoint.srq);
}

TEST(CmCodec, foreign_or_short_datagram_is_nothing) {
  Mad mad = encode(req());
  EXPECT_FALSE(decode(std::span<const std::byte>(mad).first(mad.size() - 1)));
  for (const std::size_t byte : {0u, 1u, 2u, 3u, 17u}) {
    Mad changed = mad;
    changed[byte] = std::byte{0x7f};
    EXPECT_FALSE(decode(changed)) << byte;
  }
}

TEST(CmCodec, too_much_private_data_is_cut_at_the_room_there_is) {
  Message m = req();
  m.private_data.assign(1000, std::byte{1});
  EXPECT_EQ(decode(encode(m))->private_data.size(), 92u);
}

}  // namespace codec_test
}  // namespace gdx::cm
