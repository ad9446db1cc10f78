#include "proto/roce/codec.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "proto/roce/window.h"

namespace gdx::roce {
namespace codec_test {

std::vector<Opcode> known_opcodes() {
  std::vector<Opcode> opcodes;
  for (int value = 0; value < 256; ++value) {
    if (extensions_of(static_cast<Opcode>(value)) != 0) opcodes.push_back(static_cast<Opcode>(value));
  }
  return opcodes;
}

Headers full_headers(Opcode opcode) {
  Headers headers;
  headers.bth = {opcode, true, true, 0, 0x8001, 0xabcdef, true, 0xfedcba, true, false};
  headers.reth = {0x0123456789abcdef, 0x11223344, 0x55667788};
  headers.aeth = {0x62, 0x00c0de};
  headers.atomic = {0x1112131415161718, 0x21222324, 0x3132333435363738, 0x4142434445464748};
  headers.atomic_mask = {0x9192939495969798, 0xa1a2a3a4a5a6a7a8};
  headers.atomic_original = 0x5152535455565758;
  headers.immediate = 0x61626364;
  headers.deth = {0x71727374, 0x818283};
  return headers;
}

TEST(RoceCodec, every_opcode_encoded_decodes_to_the_same_fields) {
  ASSERT_EQ(known_opcodes().size(), 44u);
  for (const Opcode opcode : known_opcodes()) {
    SCOPED_TRACE(static_cast<int>(opcode));
    const Headers in = full_headers(opcode);
    std::array<std::byte, kMaxHeaderBytes> bytes{};
    const std::size_t length = encode(in, bytes);
    ASSERT_EQ(length, header_bytes(opcode));
    const auto out = decode(std::span(bytes).first(length));
    ASSERT_TRUE(out);
    const std::uint16_t extensions = extensions_of(opcode);
    EXPECT_EQ(out->headers.bth.opcode, opcode);
    EXPECT_TRUE(out->headers.bth.solicited && out->headers.bth.migration && out->headers.bth.ack_request &&
                out->headers.bth.backward_congestion && !out->headers.bth.has_grh);
    EXPECT_EQ(out->headers.bth.pkey, in.bth.pkey);
    EXPECT_EQ(out->headers.bth.destination_qpn, in.bth.destination_qpn);
    EXPECT_EQ(out->headers.bth.psn, in.bth.psn);
    EXPECT_EQ(out->headers.reth.address, (extensions & kHasReth) ? in.reth.address : 0);
    EXPECT_EQ(out->headers.reth.rkey, (extensions & kHasReth) ? in.reth.rkey : 0);
    EXPECT_EQ(out->headers.reth.length_bytes, (extensions & kHasReth) ? in.reth.length_bytes : 0);
    EXPECT_EQ(out->headers.aeth.syndrome, (extensions & kHasAeth) ? in.aeth.syndrome : 0);
    EXPECT_EQ(out->headers.aeth.msn, (extensions & kHasAeth) ? in.aeth.msn : 0);
    EXPECT_EQ(out->headers.atomic.address, (extensions & kHasAtomicEth) ? in.atomic.address : 0);
    EXPECT_EQ(out->headers.atomic.rkey, (extensions & kHasAtomicEth) ? in.atomic.rkey : 0);
    EXPECT_EQ(out->headers.atomic.compare, (extensions & kHasAtomicEth) ? in.atomic.compare : 0);
    EXPECT_EQ(out->headers.atomic.swap_or_add, (extensions & kHasAtomicEth) ? in.atomic.swap_or_add : 0);
    const bool masked = (extensions & kHasAtomicMaskEth) != 0;
    EXPECT_EQ(out->headers.atomic_mask.swap_mask_or_boundaries,
              masked ? in.atomic_mask.swap_mask_or_boundaries : 0);
    EXPECT_EQ(out->headers.atomic_mask.compare_mask, masked ? in.atomic_mask.compare_mask : 0);
    EXPECT_EQ(out->headers.atomic_original, (extensions & kHasAtomicAckEth) ? in.atomic_original : 0);
    EXPECT_EQ(out->headers.immediate, (extensions & kHasImmediateOrIeth) ? in.immediate : 0);
    EXPECT_EQ(out->headers.deth.qkey, (extensions & kHasDeth) ? in.deth.qkey : 0);
    EXPECT_EQ(out->headers.deth.source_qpn, (extensions & kHasDeth) ? in.deth.source_qpn : 0);
    EXPECT_TRUE(out->payload.empty());
  }
}

TEST(RoceCodec, write_only_encodes_to_the_bytes_of_the_specification) {
  Headers headers;
  headers.bth = {Opcode::kRcWriteOnly, false, false, 1, kDefaultPkey, 0x000012, true, 0x000abc};
  headers.reth = {0x1000, 0x77, 3};
  std::array<std::byte, kMaxHeaderBytes> bytes{};
  ASSERT_EQ(encode(headers, bytes), 28u);
  const std::array<int, 28> expected{0x0a, 0x10, 0xff, 0xff, 0,    0, 0, 0x12, 0x80, 0,    0x0a, 0xbc, 0, 0,
                                     0,    0,    0,    0,    0x10, 0, 0, 0,    0,    0x77, 0,    0,    0, 3};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(std::to_integer<int>(bytes[i]), expected[i]) << "byte " << i;
  }
}

TEST(RoceCodec, path_replaces_p_key_and_the_mark_of_no_grh_alone) {
  Headers headers = full_headers(Opcode::kRcAcknowledge);
  std::array<std::byte, kMaxHeaderBytes> encoded{};
  ASSERT_EQ(encode(headers, encoded), 16u);
  for (const bool has_grh : {true, false}) {
    headers.bth.pkey = 0x1234;
    headers.bth.has_grh = has_grh;
    std::array<std::byte, kMaxHeaderBytes> expected{};
    ASSERT_EQ(encode(headers, expected), 16u);
    set_path(encoded, 0x1234, has_grh);
    EXPECT_EQ(encoded, expected) << has_grh;
  }
}

TEST(RoceCodec, p_keys_may_talk_in_one_partition_of_which_one_is_a_full_member) {
  EXPECT_TRUE(may_talk(0xffff, 0xffff) && may_talk(0x7fff, 0xffff) && may_talk(0x8001, 0x0001));
  EXPECT_FALSE(may_talk(0x7fff, 0x7fff) || may_talk(0x8001, 0xffff) || may_talk(0x8001, 0x8002));
  EXPECT_FALSE(may_talk(0x8000, 0x8000) || may_talk(0, 0x8000)) << "no partition";
}

// Bytes as in the specification, each header alone behind a BTH of zeros.
TEST(RoceCodec, extension_headers_encode_to_the_bytes_of_the_specification) {
  const auto hex_of = [](Opcode opcode) {
    Headers headers = full_headers(opcode);
    headers.bth = Bth{};
    headers.bth.opcode = opcode;
    std::array<std::byte, kMaxHeaderBytes> bytes{};
    std::string hex;
    for (const std::byte byte : std::span(bytes).first(encode(headers, bytes)).subspan(kBthBytes)) {
      hex.push_back("0123456789abcdef"[std::to_integer<int>(byte) >> 4]);
      hex.push_back("0123456789abcdef"[std::to_integer<int>(byte) & 15]);
    }
    return hex;
  };
  const std::string reth = "0123456789abcdef1122334455667788";
  const std::string atomic = "11121314151617182122232431323334353637384142434445464748";
  EXPECT_EQ(hex_of(Opcode::kRcReadRequest), reth);
  EXPECT_EQ(hex_of(Opcode::kUcWriteOnlyImmediate), reth + "61626364");
  EXPECT_EQ(hex_of(Opcode::kRcSendOnlyInvalidate), "61626364");
  EXPECT_EQ(hex_of(Opcode::kRcAcknowledge), "6200c0de");
  EXPECT_EQ(hex_of(Opcode::kRcAtomicAcknowledge), "6200c0de5152535455565758");
  EXPECT_EQ(hex_of(Opcode::kRcCompareSwap), atomic);
  EXPECT_EQ(hex_of(Opcode::kMaskedFetchAdd), atomic + "9192939495969798a1a2a3a4a5a6a7a8");
  EXPECT_EQ(hex_of(Opcode::kUdSendOnlyImmediate), "717273740081828361626364");
  EXPECT_EQ(hex_of(Opcode::kRcSendMiddle), "");
}

TEST(RoceCodec, each_flag_of_the_bth_is_one_bit_of_its_own) {
  struct Case {
    bool Bth::*flag;
    std::size_t byte;
    std::uint8_t bit;
  };
  for (const auto& [flag, at, bit] :
       {Case{&Bth::solicited, 1, 0x80}, Case{&Bth::migration, 1, 0x40}, Case{&Bth::ack_request, 8, 0x80},
        Case{&Bth::backward_congestion, 4, 0x40}}) {
    Headers headers;
    headers.bth.opcode = Opcode::kRcSendOnly;
    headers.bth.pkey = 0;
    headers.bth.*flag = true;
    std::array<std::byte, kBthBytes> bytes{};
    ASSERT_EQ(encode(headers, bytes), kBthBytes);
    std::array<std::byte, kBthBytes> expected{std::byte{0x04}};
    expected[at] |= std::byte{bit};
    EXPECT_EQ(bytes, expected) << at;
    const Bth decoded = decode(bytes)->headers.bth;
    for (bool Bth::*const other :
         {&Bth::solicited, &Bth::migration, &Bth::ack_request, &Bth::backward_congestion}) {
      EXPECT_EQ(decoded.*other, other == flag) << at;
    }
    EXPECT_TRUE(decoded.has_grh);
  }
  Headers headers;
  headers.bth.opcode = Opcode::kRcSendOnly;
  headers.bth.pkey = 0;
  headers.bth.has_grh = false;
  std::array<std::byte, kBthBytes> bytes{};
  ASSERT_EQ(encode(headers, bytes), kBthBytes);
  EXPECT_EQ(bytes, (std::array<std::byte, kBthBytes>{std::byte{0x04}, {}, {}, {}, std::byte{0x01}}));
  EXPECT_FALSE(decode(bytes)->headers.bth.has_grh);
}

TEST(RoceWindow, grants_and_markers_are_four_numbers_in_network_order) {
  const WindowGrant grant{{0x0102030405060708, 0x1112131415161718, 0x2122232425262728}, 0x3132333435363738};
  std::array<std::byte, kWindowBytes + 1> bytes{};
  encode_grant(grant, bytes);
  for (std::size_t i = 0; i < kWindowBytes; ++i)
    EXPECT_EQ(std::to_integer<std::size_t>(bytes[i]), 16 * (i / 8) + i % 8 + 1) << i;
  EXPECT_EQ(bytes.back(), std::byte{0});
  const auto all = std::span<const std::byte>(bytes);
  EXPECT_EQ(decode_window(all.first(kWindowBytes)), grant);
  EXPECT_EQ(decode_window(all), std::nullopt);
  EXPECT_EQ(decode_window(all.first(kWindowBytes - 1)), std::nullopt);
  encode_marker(grant.marker, bytes);
  EXPECT_EQ(decode_window(all.first(kWindowBytes)), (WindowGrant{grant.marker, 0}));
}

TEST(RoceCodec, short_output_span_is_refused_untouched) {
  for (const Opcode opcode : known_opcodes()) {
    std::array<std::byte, kMaxHeaderBytes> bytes{};
    for (std::size_t room = 0; room < header_bytes(opcode); ++room) {
      EXPECT_EQ(encode(full_headers(opcode), std::span(bytes).first(room)), 0u);
    }
    EXPECT_EQ(bytes[0], std::byte{0});
  }
}

TEST(RoceCodec, padding_is_stripped_and_excess_padding_refused) {
  Headers headers;
  headers.bth.opcode = Opcode::kRcSendOnly;
  headers.bth.pad_count = 3;
  std::array<std::byte, kBthBytes + 4> bytes{};
  ASSERT_EQ(encode(headers, bytes), kBthBytes);
  const auto one_byte = decode(bytes);
  ASSERT_TRUE(one_byte);
  EXPECT_EQ(one_byte->payload.size(), 1u);
  EXPECT_EQ(one_byte->payload.data(), bytes.data() + kBthBytes);
  EXPECT_TRUE(decode(std::span(bytes).first(kBthBytes + 3))->payload.empty());
  EXPECT_FALSE(decode(std::span(bytes).first(kBthBytes + 2)));
}

TEST(RoceCodec, unknown_opcode_version_and_misplaced_payload_are_refused) {
  std::array<std::byte, kMaxHeaderBytes + 4> bytes{};
  bytes[0] = std::byte{0x1f};
  EXPECT_FALSE(decode(bytes));
  bytes[0] = static_cast<std::byte>(Opcode::kRcSendOnly);
  EXPECT_TRUE(decode(bytes));
  bytes[1] = std::byte{0x01};
  EXPECT_FALSE(decode(bytes));
  bytes[1] = std::byte{0};
  bytes[0] = static_cast<std::byte>(Opcode::kRcReadRequest);
  EXPECT_FALSE(decode(bytes));
  EXPECT_TRUE(decode(std::span(bytes).first(kBthBytes + kRethBytes)));
}

TEST(RoceCodec, random_bytes_of_any_length_never_overrun) {
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    // On the heap and exactly sized, so that AddressSanitizer sees an overrun of one byte.
    std::vector<std::byte> bytes(random() % 80);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    const auto out = decode(bytes);
    if (out) {
      EXPECT_LE(out->payload.size() + header_bytes(out->headers.bth.opcode), bytes.size());
    }
  }
}

TEST(RoceCodec, pad_count_completes_words) {
  EXPECT_EQ(pad_count_for(0), 0);
  EXPECT_EQ(pad_count_for(1), 3);
  EXPECT_EQ(pad_count_for(2), 2);
  EXPECT_EQ(pad_count_for(3), 1);
  EXPECT_EQ(pad_count_for(4096), 0);
}

}  // namespace codec_test
}  // namespace gdx::roce
