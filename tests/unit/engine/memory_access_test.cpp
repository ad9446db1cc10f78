#include "driver-shim/softhca/engine/memory_access.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "tests/unit/engine/still_wire.h"

namespace gdx::softhca {
namespace memory_access_test {

using mlx5::Syndrome;

constexpr std::uint32_t kPd = 7;
constexpr std::uint64_t kIova = 0x10000;
constexpr std::uint32_t kEverything = kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic;

class MemoryAccessTest : public testing::Test {
 protected:
  MemoryAccessTest() {
    for (std::size_t i = 0; i < host_.size(); ++i) host_[i] = static_cast<std::byte>(i);
    host_key_ = add({.base = host_.data(), .length_bytes = host_.size()});
    device_key_ = add({.base = device_.data(), .length_bytes = device_.size(), .device_memory = true});
  }
  std::uint32_t add(MemoryRegionSpec spec) {
    spec.pd = kPd;
    spec.iova = kIova;
    spec.access = kEverything;
    return keys_.add(spec, [this] { return random_ += 0x12345; });
  }
  [[nodiscard]] DataPiece piece(std::uint32_t offset_bytes, std::uint32_t length_bytes) const {
    return {.lkey = host_key_, .length_bytes = length_bytes, .address = kIova + offset_bytes};
  }
  [[nodiscard]] MemoryAccess access(bool two_step_atomics = false) {
    return {{kPd, 0x11}, {keys_, foreign_, pcie_, wire_, device_, two_step_atomics}};
  }

  alignas(8) std::array<std::byte, 256> host_{};
  alignas(8) std::array<std::byte, 64> device_{};
  std::uint32_t random_ = 1;
  MemoryTable keys_;
  ForeignMemory foreign_;
  PcieCounters pcie_;
  test::StillWire wire_;
  std::uint32_t host_key_ = 0;
  std::uint32_t device_key_ = 0;
};

TEST_F(MemoryAccessTest, list_is_gathered_from_any_offset_across_its_pieces) {
  SendBody body;
  body.inline_bytes = {std::byte{0xa0}, std::byte{0xa1}};
  body.pieces = {piece(10, 3), {.length_bytes = 2, .is_inline = true}, piece(20, 4)};
  std::array<std::byte, 6> out{};
  EXPECT_EQ(access().gather(body, 2, out), Syndrome::kNone);
  constexpr std::array kExpected{std::byte{12}, std::byte{0xa0}, std::byte{0xa1},
                                 std::byte{20}, std::byte{21},   std::byte{22}};
  EXPECT_EQ(out, kExpected);
  EXPECT_EQ(pcie_.payload_reads, 2u) << "inline bytes came with the WQE";
  EXPECT_EQ(access().gather(body, 4, out), Syndrome::kLocalProtection) << "beyond the list";
}

TEST_F(MemoryAccessTest, payload_is_scattered_and_what_does_not_fit_is_told_from_what_is_forbidden) {
  const std::array payload{std::byte{0xb0}, std::byte{0xb1}, std::byte{0xb2}};
  EXPECT_EQ(access().scatter({piece(100, 2), piece(200, 2)}, 1, payload), Syndrome::kNone);
  EXPECT_EQ(host_[101], std::byte{0xb0});
  EXPECT_EQ(host_[200], std::byte{0xb1});
  EXPECT_EQ(host_[201], std::byte{0xb2});
  EXPECT_EQ(pcie_.payload_writes, 2u);
  EXPECT_EQ(access().scatter({piece(100, 2)}, 0, payload), Syndrome::kLocalLength);
  EXPECT_EQ(access().scatter({piece(255, 3)}, 0, payload), Syndrome::kLocalProtection);
  EXPECT_TRUE(access().can_scatter({piece(0, 256)}));
  EXPECT_FALSE(access().can_scatter({piece(0, 8), piece(255, 3)}));
}

TEST_F(MemoryAccessTest, device_memory_crosses_no_pcie_link_and_has_an_offset) {
  std::array<std::byte, 16> bytes{};
  bytes.fill(std::byte{0xc7});
  EXPECT_TRUE(access().store(device_key_, kIova + 8, bytes, kRemoteWrite));
  EXPECT_EQ(device_[8], std::byte{0xc7});
  EXPECT_TRUE(access().load(bytes.data(), device_key_, kIova + 1, bytes.size(), kRemoteRead));
  EXPECT_EQ(bytes[0], std::byte{0});
  EXPECT_EQ(pcie_.payload_reads + pcie_.payload_writes, 0u);
  EXPECT_EQ(access().device_offset({.lkey = device_key_, .length_bytes = 8, .address = kIova + 24}), 24u);
  EXPECT_EQ(access().device_offset({.lkey = device_key_, .length_bytes = 8, .address = kIova + 60}),
            std::nullopt);
  EXPECT_EQ(access().device_offset(piece(0, 8)), std::nullopt);
}

TEST_F(MemoryAccessTest, stranger_gets_nothing) {
  MemoryAccess stranger({kPd + 1, 0x11}, {keys_, foreign_, pcie_, wire_, device_, false});
  std::array<std::byte, 8> bytes{};
  EXPECT_FALSE(stranger.permits(host_key_, kIova, 8, kRemoteRead));
  EXPECT_FALSE(stranger.load(bytes.data(), host_key_, kIova, 8, kRemoteRead));
  EXPECT_FALSE(stranger.store(host_key_, kIova, bytes, kRemoteWrite));
  EXPECT_EQ(stranger.execute(host_key_, kIova, {.add = true}), std::nullopt);
  EXPECT_EQ(pcie_.payload_reads + pcie_.payload_writes, 0u);
}

TEST_F(MemoryAccessTest, atomic_returns_the_value_before_in_one_step_and_in_two) {
  auto& word = *reinterpret_cast<std::uint64_t*>(host_.data() + 64);
  word = 5;
  EXPECT_TRUE(access().may_execute(host_key_, kIova + 64));
  EXPECT_FALSE(access().may_execute(host_key_, kIova + 65));
  for (const bool two_steps : {false, true}) {
    const std::uint64_t before = word;
    EXPECT_EQ(access(two_steps).execute(host_key_, kIova + 64, {.add = true, .swap_or_add = 3}), before);
    EXPECT_EQ(word, before + 3);
  }
  EXPECT_EQ(access().execute(host_key_, kIova + 65, {.add = true}), std::nullopt);
  EXPECT_EQ(pcie_.payload_reads, 2u);
  EXPECT_EQ(pcie_.payload_writes, 2u);
}

}  // namespace memory_access_test
}  // namespace gdx::softhca
