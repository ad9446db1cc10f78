#include "driver-shim/pcie/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
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

TEST(Link, acknowledgement_limits_are_those_of_the_specification) {
  constexpr std::uint32_t kMps[] = {128, 256, 512, 1024};
  const std::pair<std::uint32_t, std::array<double, 4>> limits[] = {
      {4, {169, 214, 250, 378}}, {8, {163, 203, 182, 246}}, {16, {144, 168, 182, 246}}};
  for (const auto& [lanes, symbols] : limits) {
    for (std::size_t i = 0; i < std::size(kMps); ++i) {
      const LinkConfig link{.generation = Generation::kGen4, .lanes = lanes, .mps_bytes = kMps[i]};
      EXPECT_TRUE(check(link));
      EXPECT_DOUBLE_EQ(dllp_share(link), 16 / (symbols[i] * lanes)) << lanes << ' ' << kMps[i];
    }
  }
}

TEST(Link, rate_for_packets_is_what_skips_and_the_other_direction_leave) {
  LinkConfig link{.generation = Generation::kGen4, .lanes = 8, .mps_bytes = 512};
  EXPECT_DOUBLE_EQ(raw_bytes_per_s(link), 16e9 * 128 / 130);
  EXPECT_DOUBLE_EQ(skip_share(link), 4.0 / 1538);
  EXPECT_DOUBLE_EQ(tlp_bytes_per_s(link), raw_bytes_per_s(link) * (1 - 4.0 / 1538));
  link.dllp = DllpAccounting::kBothWays;
  EXPECT_DOUBLE_EQ(tlp_bytes_per_s(link), raw_bytes_per_s(link) * (1 - 4.0 / 1538 - 16.0 / 182));
  link.generation = Generation::kGen6;
  EXPECT_EQ(skip_share(link), 0);
  EXPECT_DOUBLE_EQ(tlp_bytes_per_s(link), 64e9 * 236 / 256);
}

TEST(Link, configuration_impossible_is_refused_by_name) {
  const auto message = [](const LinkConfig& link) { return check(link).error().message; };
  EXPECT_THAT(message({.lanes = 3}), testing::HasSubstr("width 3"));
  EXPECT_THAT(message({.mps_bytes = 300}), testing::HasSubstr("payload size 300"));
  EXPECT_THAT(message({.generation = static_cast<Generation>(2)}), testing::HasSubstr("generation 2"));
  EXPECT_THAT(message({.generation = static_cast<Generation>(7)}), testing::HasSubstr("generation 7"));
  for (const Generation each : {Generation::kGen3, Generation::kGen4, Generation::kGen5, Generation::kGen6})
    EXPECT_TRUE(check(LinkConfig{.generation = each}));
}

TEST(Platform, every_built_in_one_is_possible) {
  for (const Platform* platform : kPlatforms) EXPECT_TRUE(check(*platform)) << platform->name;
}

std::string refusal_of(const Platform& platform) {
  const auto checked = check(platform);
  return checked ? "" : checked.error().message;
}

TEST(Platform, size_or_count_impossible_is_refused_by_name) {
  const std::pair<std::string, std::uint32_t& (*)(Platform&)> sizes[] = {
      {"MRRS of the NIC", [](Platform & p) -> auto& {return p.nic.mrrs_bytes;
}
}  // namespace
, {"MRRS of the GPU", [](Platform& p) -> auto& {return p.gpu.mrrs_bytes;
}  // namespace gdx::pcie
}
, {"completion size of GPU memory", [](Platform& p) -> auto& {return p.gpu_memory.completion_bytes;
}
}
, {"completion size of NIC memory", [](Platform& p) -> auto& {return p.nic_memory.completion_bytes;
}
}
, {"completion size of host memory", [](Platform& p) -> auto& {return p.host_memory.completion_bytes;
}
}
, {"line of the root complex", [](Platform& p) -> auto& {return p.root.line_bytes;
}
}
, {
  "store size of the GPU", [](Platform & p) -> auto& { return p.gpu_store_bytes; }
}
}
;
for (const auto& [name, field] : sizes) {
  Platform platform = kGeneric;
  for (const std::uint32_t possible : {32u, 4096u}) {
    field(platform) = possible;
    EXPECT_EQ(refusal_of(platform), "") << name;
  }
  for (const std::uint32_t bad : {0u, 16u, 48u, 8192u}) {
    field(platform) = bad;
    EXPECT_EQ(refusal_of(platform),
              name + " is " + std::to_string(bad) + ": use a power of two from 32 to 4096");
  }
}
const std::pair<std::string, std::uint32_t& (*)(Platform&)> counts[] = {
    {"tags of the NIC", [](Platform& p) -> auto& {return p.nic.tags;
}
}
, {"tags of the GPU", [](Platform& p) -> auto& {return p.gpu.tags;
}
}
, {"peer read lines of the root complex", [](Platform& p) -> auto& {return p.root.peer_read_lines;
}
}
, {"posted headers", [](Platform& p) -> auto& {return p.buffers.posted.headers;
}
}
, {"non-posted headers", [](Platform& p) -> auto& {return p.buffers.non_posted.headers;
}
}
, {
  "completion headers", [](Platform & p) -> auto& { return p.buffers.completion.headers; }
}
}
;
for (const auto& [name, field] : counts) {
  Platform platform = kGeneric;
  field(platform) = 1;
  EXPECT_EQ(refusal_of(platform), "") << name;
  field(platform) = 0;
  EXPECT_EQ(refusal_of(platform), name + " is 0: use at least 1");
}
}

// A 256 B write would wait for ever.
TEST(Platform, buffer_smaller_than_a_packet_is_refused) {
  for (Credits Buffers::*const data : {&Buffers::posted, &Buffers::completion}) {
    Platform platform = kGeneric;
    (platform.buffers.*data).data_bytes = 256;
    EXPECT_EQ(refusal_of(platform), "");
    (platform.buffers.*data).data_bytes = 255;
    EXPECT_EQ(refusal_of(platform), "data credit is 255: use at least the maximum payload size");
  }
  Platform platform = kGeneric;
  platform.link.lanes = 5;
  EXPECT_EQ(refusal_of(platform), "width 5: use 4, 8 or 16 lanes");
}

}  // namespace
}  // namespace gdx::pcie
