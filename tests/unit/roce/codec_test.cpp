#include "proto/roce/codec.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

namespace gdx::roce {
namespace {

std::vector<Opcode> known_opcodes() {
  std::vector<Opcode> opcodes;
  for (int value = 0; value < 256; ++value) {
    if (extensions_of(static_cast<Opcode>(value)) != 0) opcodes.push_back(static_cast<Opcode>(value));
  }
  return opcodes;
}

Headers full_headers(Opcode opcode) {
  Headers headers;
  headers.bth = {opcode, true, true, 0, 0x8001, 0xabcdef, true, 0xfedcba, true};
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
  ASSERT_EQ(known_opcodes().size(), 42u);
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
    EXPECT_TRUE(out->headers.bth.solicited && out->headers.bth.migration && out->headers.bth.ack_request);
    EXPECT_EQ(out->headers.bth.pkey, in.bth.pkey);
    EXPECT_EQ(out->headers.bth.destination_qpn, in.bth.destination_qpn);
    EXPECT_EQ(out->headers.bth.psn, in.bth.psn);
    EXPECT_EQ(out->headers.reth.address, (extensions & kHasReth) ? in.reth.address : 0);
    EXPECT_EQ(out->headers.reth.rkey, (extensions & kHasReth) ? in.reth.rkey : 0);
    EXPECT_EQ(out->headers.reth.length_bytes, (extensions & kHasReth) ? in.reth.length_bytes : 0);
    EXPECT_EQ(out->headers.aeth.syndrome, (extensions & kHasAeth) ? in.aeth.syndrome : 0);
    EXPECT_EQ(out->headers.aeth.msn, (extensions & kHasAeth) ? in.aeth.msn : 0);
    EXPECT_EQ(out->headers.atomic.compare, (extensions & kHasAtomicEth) ? in.atomic.compare : 0);
    EXPECT_EQ(out->headers.atomic.swap_or_add, (extensions & kHasAtomicEth) ? in.atomic.swap_or_add : 0);
    const bool masked = (extensions & kHasAtomicMaskEth) != 0;
    EXPECT_EQ(out->headers.atomic_mask.swap_mask_or_boundaries,
              masked ? in.atomic_mask.swap_mask_or_boundaries : 0);
    EXPECT_EQ(out->headers.atomic_mask.compare_mask, masked ? in.atomic_mask.compare_mask : 0);
    EXPECT_EQ(out->headers.atomic_original, (extensions & kHasAtomicAckEth) ? in.atomic_original : 0);
    EXPECT_EQ(out->headers.immediate, (extensions & kHasImmediateOrIeth) ? in.immediate : 0);
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

}  // namespace
}  // namespace gdx::roce
