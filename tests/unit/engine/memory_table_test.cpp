#include "driver-shim/softhca/engine/memory_table.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <unordered_set>
#include <utility>
#include <vector>

#include "driver-shim/softhca/engine/paging.h"
#include "proto/mlx5/wqe.h"

namespace gdx::softhca {
namespace memory_table_test {

constexpr std::uint32_t kPd = 7;
constexpr KeyUser kUser{kPd, 0x11};
constexpr KeyUser kStranger{kPd + 1, 0x11};
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
  EXPECT_EQ(table_.resolve(key, kUser, kIova, 100, kRemoteWrite), bytes_.data());
  EXPECT_EQ(table_.resolve(key, kUser, kIova + 99, 1, 0), bytes_.data() + 99);
  EXPECT_EQ(table_.resolve(key, kUser, kIova + 100, 0, 0), bytes_.data() + 100);
}

TEST_F(MemoryTableTest, null_key_reads_as_zeros_and_discards_for_every_domain) {
  constexpr std::uint64_t kAll = 3 << 20;
  for (const KeyUser& user : {kUser, kStranger}) {
    std::uint64_t zeros = 0;
    EXPECT_TRUE(table_.visit_extents(MemoryTable::kNullMkey, user, 0, kAll, kLocalWrite,
                                     [](const auto& extent, auto) {
                                       std::fill_n(extent.at, extent.length_bytes, std::byte{1});
                                       return true;
                                     }));
    EXPECT_TRUE(
        table_.visit_extents(MemoryTable::kNullMkey, user, kIova, kAll, 0, [&](const auto& extent, auto) {
          zeros += static_cast<std::uint64_t>(
              std::count(extent.at, extent.at + extent.length_bytes, std::byte{0}));
          return true;
        }));
    EXPECT_EQ(zeros, kAll);
    for (const std::uint32_t remote : {kRemoteRead, kRemoteWrite, kRemoteAtomic}) {
      EXPECT_EQ(table_.resolve(MemoryTable::kNullMkey, user, 0, 8, remote), nullptr);
    }
  }
}

TEST_F(MemoryTableTest, range_outside_is_refused_without_overflow) {
  const std::uint32_t key = add(kIova, kRemoteWrite);
  EXPECT_EQ(table_.resolve(key, kUser, kIova - 1, 1, 0), nullptr);
  EXPECT_EQ(table_.resolve(key, kUser, kIova, 101, 0), nullptr);
  EXPECT_EQ(table_.resolve(key, kUser, kIova + 100, 1, 0), nullptr);
  EXPECT_EQ(table_.resolve(key, kUser, kIova + 50, ~std::uint64_t{0} - 10, 0), nullptr);
  EXPECT_EQ(table_.resolve(key, kUser, ~std::uint64_t{0}, 1, 0), nullptr);
}

TEST_F(MemoryTableTest, zero_based_key_starts_at_zero) {
  const std::uint32_t key = add(0, 0);
  EXPECT_EQ(table_.resolve(key, kUser, 8, 8, 0), bytes_.data() + 8);
}

TEST_F(MemoryTableTest, missing_access_other_pd_and_unknown_key_are_refused) {
  const std::uint32_t key = add(kIova, kLocalWrite | kRemoteRead);
  EXPECT_NE(table_.resolve(key, kUser, kIova, 8, kRemoteRead), nullptr);
  EXPECT_EQ(table_.resolve(key, kUser, kIova, 8, kRemoteWrite), nullptr);
  EXPECT_EQ(table_.resolve(key, kUser, kIova, 8, kRemoteRead | kRemoteAtomic), nullptr);
  EXPECT_EQ(table_.resolve(key, kStranger, kIova, 8, 0), nullptr);
  EXPECT_EQ(table_.resolve(key + 1, kUser, kIova, 8, 0), nullptr);
  EXPECT_TRUE(table_.remove(key));
  EXPECT_EQ(table_.resolve(key, kUser, kIova, 8, 0), nullptr);
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

TEST_F(MemoryTableTest, indirect_key_resolves_through_the_keys_below_it) {
  const std::uint32_t below = add(kIova, kLocalWrite | kRemoteWrite);
  MemoryRegionSpec spec{
      .pd = kPd, .iova = 0x5000, .length_bytes = 100, .access = kRemoteRead | kRemoteAtomic};
  spec.pieces = {{below, kIova}, {below, kIova + 64, 64}};
  spec.key_tag = 0x5a;
  const std::uint32_t key = table_.add(spec, random_);
  EXPECT_EQ(key & 0xff, 0x5au);
  EXPECT_EQ(table_.resolve(key, kUser, 0x5000 + 60, 40, kRemoteAtomic), bytes_.data() + 60)
      << "over both pieces";
  EXPECT_EQ(table_.resolve(key, kUser, 0x5000, 8, kRemoteWrite), nullptr) << "a right of the key below only";
  EXPECT_EQ(table_.resolve(key, kUser, 0x5000, 101, kRemoteRead), nullptr);
  EXPECT_EQ(table_.resolve(key, kStranger, 0x5000, 8, kRemoteRead), nullptr);
  ASSERT_TRUE(table_.remove(below));
  EXPECT_EQ(table_.resolve(key, kUser, 0x5000, 8, kRemoteRead), nullptr) << "the key below is gone";
}

TEST_F(MemoryTableTest,
       indirect_key_over_scattered_pieces_has_extents_and_over_read_only_or_indirect_ones_nothing) {
  const std::uint32_t below = add(kIova, 0);
  MemoryRegionSpec spec{.pd = kPd, .iova = 0, .length_bytes = 16, .access = kRemoteRead | kRemoteWrite};
  spec.pieces = {{below, kIova}, {below, kIova + 32, 8}};
  const std::uint32_t scattered = table_.add(spec, random_);
  EXPECT_NE(table_.resolve(scattered, kUser, 8, 8, kRemoteRead), nullptr);
  EXPECT_EQ(table_.resolve(scattered, kUser, 0, 16, kRemoteRead), nullptr);
  std::vector<std::pair<std::ptrdiff_t, std::uint64_t>> extents;
  EXPECT_TRUE(table_.visit_extents(scattered, kUser, 2, 12, kRemoteRead,
                                   [&](const MemoryTable::Extent& extent, std::uint64_t offset) {
                                     extents.emplace_back(extent.at - bytes_.data(), offset);
                                     return extent.length_bytes == 6;
                                   }));
  EXPECT_EQ(extents, (std::vector<std::pair<std::ptrdiff_t, std::uint64_t>>{{2, 0}, {32, 6}}));
  EXPECT_EQ(table_.resolve(scattered, kUser, 0, 8, kRemoteWrite), nullptr)
      << "nobody may write what is below";
  spec.pieces = {{scattered, 0}, {scattered, 8, 8}};
  EXPECT_EQ(table_.resolve(table_.add(spec, random_), kUser, 0, 8, kRemoteRead), nullptr);
}

TEST_F(MemoryTableTest, range_to_page_in_lies_within_its_key) {
  const std::uint32_t key = add(kIova, kOnDemand);
  const auto find = [&](std::uint64_t address, std::uint64_t length_bytes) {
    return table_.find_paged(key, kPd, address, length_bytes, false);
  };
  EXPECT_EQ(find(kIova + 50, 50).value_or(nullptr), bytes_.data() + 50);
  const std::pair<std::uint64_t, std::uint64_t> outside[] = {
      {kIova - 1, 1}, {kIova + 50, 51}, {kIova + 100, 1}, {kIova + 101, 0}, {kIova + 1, ~std::uint64_t{0}}};
  for (const auto& [address, length_bytes] : outside) {
    const auto found = find(address, length_bytes);
    ASSERT_FALSE(found) << address - kIova << " " << length_bytes;
    EXPECT_EQ(found.error(), EFAULT);
  }
}

TEST_F(MemoryTableTest, paged_key_resolves_what_is_mapped_and_as_it_may_be_used) {
  if (!can_page_in()) GTEST_SKIP() << "needs Linux 5.14, and a sandbox that permits process_vm_writev";
  constexpr std::size_t kPage = 4096;
  auto* const pages = static_cast<std::byte*>(
      mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(static_cast<void*>(pages), MAP_FAILED);
  ASSERT_EQ(mprotect(pages + kPage, kPage, PROT_READ), 0);
  ASSERT_EQ(mprotect(pages + 2 * kPage, kPage, PROT_NONE), 0);
  const auto start = reinterpret_cast<std::uintptr_t>(pages);
  const std::uint32_t key = table_.add({.pd = kPd,
                                        .base = nullptr,
                                        .iova = 0,
                                        .length_bytes = ~std::uint64_t{0},
                                        .access = kLocalWrite | kRemoteWrite | kRemoteRead | kOnDemand},
                                       random_);
  EXPECT_EQ(table_.resolve(key, kUser, start, kPage, kRemoteWrite), pages);
  EXPECT_EQ(table_.resolve(key, kUser, start + kPage - 1, 2, kRemoteWrite), nullptr)
      << "read only from there";
  EXPECT_EQ(table_.resolve(key, kUser, start + kPage - 1, 2, kRemoteRead), pages + kPage - 1);
  EXPECT_EQ(table_.resolve(key, kUser, start + 2 * kPage - 1, 2, kRemoteRead), nullptr);
  EXPECT_EQ(table_.resolve(key, kUser, start + 2 * kPage - 1, 1, 0), pages + 2 * kPage - 1);
  EXPECT_EQ(table_.resolve(key, kUser, ~std::uint64_t{0} - 2, 2, 0), nullptr);
  EXPECT_EQ(munmap(pages, 3 * kPage), 0);
}

TEST_F(MemoryTableTest, paged_key_of_a_long_range_brings_in_a_part_at_a_time) {
  if (!can_page_in()) GTEST_SKIP() << "needs Linux 5.14, and a sandbox that permits process_vm_writev";
  constexpr std::size_t kPage = 4096;
  constexpr std::uint64_t kPart = 4 << 20;
  constexpr std::uint64_t kAll = 2 * kPart + kPage;
  void* const pages = mmap(nullptr, kAll, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  // One page more may come than is asked for where it is a huge one.
  ASSERT_EQ(madvise(pages, kAll, MADV_NOHUGEPAGE), 0);
  const std::uint32_t key = table_.add({.pd = kPd,
                                        .base = static_cast<std::byte*>(pages),
                                        .iova = kIova,
                                        .length_bytes = kAll,
                                        .access = kLocalWrite | kOnDemand},
                                       random_);
  MemoryRegionSpec above{.pd = kPd, .iova = 0, .length_bytes = kAll, .access = kRemoteRead};
  above.pieces = {{key, kIova}};
  const std::uint32_t indirect = table_.add(above, random_);
  const auto is_there = [pages](std::uint64_t offset_bytes) {
    unsigned char resident = 0;
    EXPECT_EQ(mincore(static_cast<std::byte*>(pages) + offset_bytes, kPage, &resident), 0);
    return (resident & 1) != 0;
  };
  for (const auto& [mkey, address] : {std::pair(key, kIova), std::pair(indirect, std::uint64_t{0})}) {
    const auto first = table_.first_extent(mkey, kUser, address, kAll, 0);
    EXPECT_EQ(static_cast<void*>(first.at), pages);
    EXPECT_EQ(first.length_bytes, kPart);
    EXPECT_TRUE(is_there(0));
    EXPECT_FALSE(is_there(kPart));
  }
  std::uint64_t visited_bytes = 0;
  EXPECT_TRUE(table_.visit_extents(key, kUser, kIova, kAll, 0, [&](const auto& extent, auto at) {
    EXPECT_EQ(at, visited_bytes);
    EXPECT_TRUE(extent.paged);
    visited_bytes += extent.length_bytes;
    return true;
  }));
  EXPECT_EQ(visited_bytes, kAll);
  EXPECT_EQ(static_cast<void*>(table_.resolve(key, kUser, kIova, kAll, 0)), pages);
  EXPECT_EQ(munmap(pages, kAll), 0);
}

}  // namespace memory_table_test
}  // namespace gdx::softhca
