#include "driver-shim/pcie/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "driver-shim/pcie/fabric.h"
#include "driver-shim/pcie/tlp.h"

namespace gdx::pcie {
namespace {

using Pieces = std::vector<std::pair<std::uint64_t, std::uint32_t>>;

Pieces pieces(std::uint64_t address, std::uint64_t length_bytes, std::uint32_t boundary) {
  Pieces all;
  for_each_piece(address, length_bytes, boundary,
                 [&](std::uint64_t at, std::uint32_t bytes) { all.emplace_back(at, bytes); });
  return all;
}

TEST(Tlp, transfer_aligned_is_cut_into_equal_pieces) {
  EXPECT_EQ(pieces(4096, 512, 256), (Pieces{{4096, 256}, {4352, 256}}));
}

TEST(Tlp, transfer_unaligned_first_piece_ends_at_the_boundary) {
  EXPECT_EQ(pieces(96, 100, 64), (Pieces{{96, 32}, {128, 64}, {192, 4}}));
}

TEST(Tlp, transfer_of_nothing_has_no_piece) { EXPECT_TRUE(pieces(64, 0, 64).empty()); }

TEST(Tlp, overhead_before_flits_is_what_pcie_bench_counts) {
  EXPECT_EQ(wire_bytes(Generation::kGen5, TlpKind::kWrite, 256), 280u);
  EXPECT_EQ(wire_bytes(Generation::kGen3, TlpKind::kReadRequest, 0), 24u);
  EXPECT_EQ(wire_bytes(Generation::kGen4, TlpKind::kCompletion, 64), 84u);
}

TEST(Tlp, payload_travels_in_whole_double_words) {
  EXPECT_EQ(wire_bytes(Generation::kGen5, TlpKind::kWrite, 1), 28u);
  EXPECT_EQ(wire_bytes(Generation::kGen5, TlpKind::kWrite, 5), 32u);
}

TEST(Tlp, overhead_with_flits_has_neither_framing_nor_lcrc) {
  EXPECT_EQ(wire_bytes(Generation::kGen6, TlpKind::kWrite, 256), 272u);
}

TEST(Link, raw_rate_doubles_with_each_generation_up_to_the_flit) {
  LinkConfig link{.generation = Generation::kGen3};
  EXPECT_DOUBLE_EQ(raw_bytes_per_s(link), 16e9 * 128 / 130);
  link.generation = Generation::kGen5;
  EXPECT_DOUBLE_EQ(raw_bytes_per_s(link), 64e9 * 128 / 130);
  link.generation = Generation::kGen6;
  EXPECT_DOUBLE_EQ(raw_bytes_per_s(link), 128e9 * 236 / 256);
}

TEST(Link, width_halved_halves_the_rate) {
  EXPECT_DOUBLE_EQ(2 * raw_bytes_per_s({.lanes = 8}), raw_bytes_per_s({.lanes = 16}));
}

TEST(Link, flits_owe_no_packets_of_the_link_layer) {
  EXPECT_EQ(dllp_share({.generation = Generation::kGen6}), 0);
  EXPECT_GT(dllp_share({.generation = Generation::kGen5}), 0);
}

// 168 symbol times of 16 lanes; pcie-bench takes them for 168 bytes.
TEST(Link, acknowledgement_limit_is_a_time_in_which_every_lane_carries_a_byte) {
  EXPECT_DOUBLE_EQ(dllp_share({.lanes = 16}), 16.0 / (168 * 16));
  EXPECT_DOUBLE_EQ(dllp_share({.lanes = 4, .mps_bytes = 128}), 16.0 / (169 * 4));
  EXPECT_DOUBLE_EQ(dllp_share({.dllp = DllpAccounting::kBothWays}), 16.0 / 168);
}

TEST(Link, configuration_impossible_is_refused_by_name) {
  const auto message = [](const LinkConfig& link) { return check(link).error().message; };
  EXPECT_THAT(message({.lanes = 3}), testing::HasSubstr("width 3"));
  EXPECT_THAT(message({.mps_bytes = 300}), testing::HasSubstr("payload size 300"));
  EXPECT_THAT(message({.generation = static_cast<Generation>(2)}), testing::HasSubstr("generation 2"));
  EXPECT_TRUE(check(LinkConfig{}));
}

TEST(Platform, every_built_in_one_is_possible) {
  for (const Platform* platform : kPlatforms) EXPECT_TRUE(check(*platform)) << platform->name;
}

TEST(Platform, parameter_impossible_is_refused_by_name) {
  Platform platform = kGeneric;
  platform.nic.tags = 0;
  EXPECT_THAT(check(platform).error().message, testing::HasSubstr("tags of the NIC"));
  platform = kGeneric;
  platform.gpu_store_bytes = 48;
  EXPECT_THAT(check(platform).error().message, testing::HasSubstr("store size"));
  platform = kGeneric;
  platform.buffers.posted.data_bytes = 128;  // a 256 B write would wait for ever
  EXPECT_THAT(check(platform).error().message, testing::HasSubstr("data credit"));
}

}  // namespace
}  // namespace gdx::pcie
