#include "driver-shim/softhca/engine/memory_table.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <unordered_set>

#include "proto/mlx5/wqe.h"

namespace gdx::softhca {
namespace {

constexpr std::uint32_t kPd = 7;
constexpr std::uint64_t kIova = 0x10000;

class MemoryTableTest : public testing::Test {
 protected:
  std::uint32_t add(std::uint64_t iova, std::uint32_t access) {
    return table_.add({.pd = kPd, .base = bytes_.data(), .iova = iova, .length_bytes = 100, .access = access},
                      [this] { return static_cast<std::uint32_t>(random_()); });
  }

  std::array<std::byte, 100> bytes_{};
  std::mt19937_64 random_{1};
  MemoryTable table_;
};

TEST_F(MemoryTableTest, range_inside_resolves_to_its_place) {
  const std::uint32_t key = add(kIova, kLocalWrite | kRemoteWrite);
  EXPECT_EQ(table_.resolve(key, kPd, kIova, 100, kRemoteWrite), bytes_.data());
  EXPECT_EQ(table_.resolve(key, kPd, kIova + 99, 1, 0), bytes_.data() + 99);
  EXPECT_EQ(table_.resolve(key, kPd, kIova + 100, 0, 0), bytes_.data() + 100);
}

TEST_F(MemoryTableTest, range_outside_is_refused_without_overflow) {
  const std::uint32_t key = add(kIova, kRemoteWrite);
  EXPECT_EQ(table_.resolve(key, kPd, kIova - 1, 1, 0), nullptr);
  EXPECT_EQ(table_.resolve(key, kPd, kIova, 101, 0), nullptr);
  EXPECT_EQ(table_.resolve(key, kPd, kIova + 100, 1, 0), nullptr);
  EXPECT_EQ(table_.resolve(key, kPd, kIova + 50, ~std::uint64_t{0} - 10, 0), nullptr);
  EXPECT_EQ(table_.resolve(key, kPd, ~std::uint64_t{0}, 1, 0), nullptr);
}

TEST_F(MemoryTableTest, zero_based_key_starts_at_zero) {
  const std::uint32_t key = add(0, 0);
  EXPECT_EQ(table_.resolve(key, kPd, 8, 8, 0), bytes_.data() + 8);
}

TEST_F(MemoryTableTest, missing_access_other_pd_and_unknown_key_are_refused) {
  const std::uint32_t key = add(kIova, kLocalWrite | kRemoteRead);
  EXPECT_NE(table_.resolve(key, kPd, kIova, 8, kRemoteRead), nullptr);
  EXPECT_EQ(table_.resolve(key, kPd, kIova, 8, kRemoteWrite), nullptr);
  EXPECT_EQ(table_.resolve(key, kPd, kIova, 8, kRemoteRead | kRemoteAtomic), nullptr);
  EXPECT_EQ(table_.resolve(key, kPd + 1, kIova, 8, 0), nullptr);
  EXPECT_EQ(table_.resolve(key + 1, kPd, kIova, 8, 0), nullptr);
  EXPECT_TRUE(table_.remove(key));
  EXPECT_EQ(table_.resolve(key, kPd, kIova, 8, 0), nullptr);
  EXPECT_FALSE(table_.remove(key));
}

TEST_F(MemoryTableTest, keys_are_unlike_each_other) {
  std::unordered_set<std::uint32_t> keys;
  std::uint32_t high_bits = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::uint32_t key = add(kIova, 0);
    keys.insert(key);
    high_bits |= key;
    EXPECT_NE(key, mlx5::kInvalidLkey);
  }
  EXPECT_EQ(keys.size(), 1000u);
  EXPECT_EQ(high_bits, 0xffffffffu);
}

}  // namespace
}  // namespace gdx::softhca
