// Keys that UMR changes, windows and others: the table's rules, one request at a time.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "driver-shim/softhca/engine/memory_table.h"
#include "proto/mlx5/umr.h"

namespace gdx::softhca {
namespace umr_keys_test {

constexpr KeyUser kOwner{7, 0x11};
constexpr KeyUser kSamePd{7, 0x12};
constexpr KeyUser kOtherPd{8, 0x11};
constexpr std::uint64_t kIova = 0x10000;
constexpr std::uint32_t kBytes = 100;
constexpr std::uint32_t kRights = kRemoteRead | kRemoteWrite | kRemoteAtomic;
constexpr std::uint64_t kStateMask = mlx5::kMkeyMaskFree | mlx5::kMkeyMaskTag;
constexpr std::uint64_t kRangeMask = mlx5::kMkeyMaskLength | mlx5::kMkeyMaskStartAddress |
                                     mlx5::kMkeyMaskLocalWrite | mlx5::kMkeyMaskRemoteRead |
                                     mlx5::kMkeyMaskRemoteWrite | mlx5::kMkeyMaskAtomic;

std::uint32_t with_tag(std::uint32_t rkey, std::uint8_t tag) { return (rkey & ~0xffu) | tag; }

enum class WindowType { kType1, kType2B };

class UmrKeys : public testing::Test {
 protected:
  std::uint32_t add_region(std::uint32_t access, std::uint32_t pd = kOwner.pd) {
    return add({.pd = pd, .base = bytes_.data(), .iova = kIova, .length_bytes = kBytes, .access = access});
  }
  std::uint32_t add_window(WindowType type) {
    const bool peer = type == WindowType::kType2B;
    return add(
        {.pd = kOwner.pd, .umr = UmrKey{.window = true, .peer_may_invalidate = peer, .max_entries = 4}});
  }
  std::uint32_t add(const MemoryRegionSpec& spec) {
    return table_.add(spec, [this] { return static_cast<std::uint32_t>(random_()); });
  }
  const char* update(std::uint32_t mkey, const KeyUser& user, const UmrRequest& request,
                     const std::vector<mlx5::DataSegment>& entries = {}) {
    return table_.update(mkey, user, request, entries);
  }
  std::vector<mlx5::DataSegment> entry(std::uint64_t address, std::uint32_t length_bytes) const {
    return {{length_bytes, region_, address}};
  }

  // As libmlx5 asks.
  static UmrRequest bind(WindowType type, std::uint8_t tag, std::uint32_t length_bytes = 40,
                         std::uint64_t start = kIova + 20, std::uint32_t access = kRights) {
    UmrRequest request;
    request.mask = kStateMask | kRangeMask;
    request.tag = tag;
    request.access = access;
    request.start_address = start;
    request.length_bytes = length_bytes;
    request.translation_entries = 1;
    if (type == WindowType::kType2B) {
      request.check_free = true;
      request.mask |= mlx5::kMkeyMaskQpn;
      request.qpn = kOwner.qpn;
    }
    return request;
  }
  static UmrRequest local_invalidate() {
    UmrRequest request;
    request.mask = kStateMask | mlx5::kMkeyMaskQpn;
    request.check_qpn = true;
    request.free = true;
    request.qpn = mlx5::kMkeyAnyQpn;
    return request;
  }
  std::uint32_t bound(WindowType type) {
    const std::uint32_t window = add_window(type);
    EXPECT_EQ(update(window, kOwner, bind(type, 0x5a), entry(kIova + 20, 40)), nullptr);
    return with_tag(window, 0x5a);
  }
  std::uint32_t add_key(std::uint32_t entries, bool peer = false) {
    return add({.pd = kOwner.pd,
                .key_tag = std::uint8_t{0},
                .umr = UmrKey{.peer_may_invalidate = peer, .max_entries = entries}});
  }
  static mlx5::DataSegment pattern(std::uint32_t bytes, std::uint32_t repeats, std::uint16_t entries) {
    return std::bit_cast<mlx5::DataSegment>(
        mlx5::RepeatBlockSegment{bytes, mlx5::kRepeatBlockOperation, repeats, 0, entries});
  }
  mlx5::DataSegment strided(std::uint16_t bytes, std::uint16_t stride, std::uint64_t address) const {
    return std::bit_cast<mlx5::DataSegment>(mlx5::RepeatEntrySegment{stride, bytes, region_, address});
  }
  // Offset in bytes_ and length of each extent; empty if a part is not available.
  using Extents = std::vector<std::pair<std::ptrdiff_t, std::uint64_t>>;
  Extents extents(std::uint32_t key, std::uint64_t address, std::uint64_t length_bytes,
                  std::uint32_t access = kRemoteRead) const {
    Extents list;
    const bool whole = table_.visit_extents(
        key, kOwner, address, length_bytes, access, [&](const MemoryTable::Extent& extent, std::uint64_t) {
          list.emplace_back(extent.at - bytes_.data(), extent.length_bytes);
          return true;
        });
    return whole ? list : Extents{};
  }
  bool works(std::uint32_t rkey, const KeyUser& user = kOwner) const {
    return table_.resolve(rkey, user, kIova + 20, 40, kRemoteWrite) == bytes_.data() + 20;
  }

  alignas(8) std::array<std::byte, kBytes> bytes_{};
  std::mt19937_64 random_{1};
  MemoryTable table_;
  std::uint32_t region_ = add_region(kLocalWrite | kWindowBind);
};

TEST_F(UmrKeys, window_free_resolves_nothing) {
  const std::uint32_t window = add_window(WindowType::kType1);
  EXPECT_EQ(table_.resolve(window, kOwner, 0, 0, 0), nullptr);
}

TEST_F(UmrKeys, window_bound_gives_its_range_and_rights_whatever_the_region_gives) {
  const std::uint32_t rkey = bound(WindowType::kType1);
  EXPECT_TRUE(works(rkey));
  EXPECT_NE(table_.resolve(rkey, kOwner, kIova + 59, 1, kRemoteRead), nullptr);
  EXPECT_EQ(table_.resolve(rkey, kOwner, kIova + 59, 2, kRemoteRead), nullptr);
  EXPECT_EQ(table_.resolve(rkey, kOwner, kIova + 19, 1, kRemoteRead), nullptr);
  EXPECT_EQ(table_.resolve(region_, kOwner, kIova + 20, 40, kRemoteWrite), nullptr) << "nobody gave it that";
}

TEST_F(UmrKeys, window_is_bound_over_paged_memory_that_is_not_there) {
  region_ = add({.pd = kOwner.pd,
                 .base = nullptr,  // never accessed
                 .iova = kIova,
                 .length_bytes = kBytes,
                 .access = kLocalWrite | kWindowBind | kOnDemand});
  const std::uint32_t window = add_window(WindowType::kType1);
  const UmrRequest request = bind(WindowType::kType1, 1);
  EXPECT_EQ(update(window, kOwner, request, entry(kIova + 20, 40)), nullptr);
  EXPECT_EQ(table_.resolve(with_tag(window, 1), kOwner, kIova + 20, 40, kRemoteWrite), nullptr);
  EXPECT_NE(update(window, kOwner, request, entry(kIova + 80, 40)), nullptr) << "beyond the region";
}

TEST_F(UmrKeys, window_without_a_right_refuses_what_needs_it) {
  const std::uint32_t window = add_window(WindowType::kType1);
  const auto request = bind(WindowType::kType1, 1, 40, kIova + 20, kRemoteRead);
  ASSERT_EQ(update(window, kOwner, request, entry(kIova + 20, 40)), nullptr);
  EXPECT_NE(table_.resolve(with_tag(window, 1), kOwner, kIova + 20, 8, kRemoteRead), nullptr);
  EXPECT_EQ(table_.resolve(with_tag(window, 1), kOwner, kIova + 20, 8, kRemoteWrite), nullptr);
  EXPECT_EQ(table_.resolve(with_tag(window, 1), kOwner, kIova + 24, 8, kRemoteAtomic), nullptr);
}

TEST_F(UmrKeys, window_zero_based_starts_at_zero) {
  const std::uint32_t window = add_window(WindowType::kType2B);
  const auto request = bind(WindowType::kType2B, 1, 40, 0);
  ASSERT_EQ(update(window, kOwner, request, entry(kIova + 20, 40)), nullptr);
  EXPECT_EQ(table_.resolve(with_tag(window, 1), kOwner, 4, 8, kRemoteWrite), bytes_.data() + 24);
  EXPECT_EQ(table_.resolve(with_tag(window, 1), kOwner, kIova + 20, 8, kRemoteWrite), nullptr);
}

TEST_F(UmrKeys, window_of_type_1_serves_every_queue_pair_of_its_domain) {
  const std::uint32_t rkey = bound(WindowType::kType1);
  EXPECT_TRUE(works(rkey, kSamePd));
  EXPECT_FALSE(works(rkey, kOtherPd));
}

TEST_F(UmrKeys, window_of_type_2_serves_the_queue_pair_that_bound_it) {
  const std::uint32_t rkey = bound(WindowType::kType2B);
  EXPECT_TRUE(works(rkey));
  EXPECT_FALSE(works(rkey, kSamePd));
  EXPECT_FALSE(works(rkey, kOtherPd));
}

TEST_F(UmrKeys, window_of_type_1_rebound_ends_the_old_key) {
  const std::uint32_t rkey = bound(WindowType::kType1);
  ASSERT_TRUE(works(rkey));
  ASSERT_EQ(update(rkey, kOwner, bind(WindowType::kType1, 0x5b), entry(kIova + 20, 40)), nullptr);
  EXPECT_FALSE(works(rkey));
  EXPECT_TRUE(works(with_tag(rkey, 0x5b)));
}

TEST_F(UmrKeys, window_of_type_1_bound_to_nothing_is_free) {
  const std::uint32_t rkey = bound(WindowType::kType1);
  UmrRequest request;
  request.mask = kStateMask;
  request.free = true;
  request.tag = 0x5b;
  ASSERT_EQ(update(rkey, kOwner, request), nullptr);
  EXPECT_FALSE(works(rkey));
  EXPECT_FALSE(works(with_tag(rkey, 0x5b)));
}

TEST_F(UmrKeys, window_of_type_2_is_bound_once_until_it_is_invalidated) {
  const std::uint32_t rkey = bound(WindowType::kType2B);
  const auto again = bind(WindowType::kType2B, 0x5b);
  EXPECT_STREQ(update(rkey, kOwner, again, entry(kIova + 20, 40)), "the key is bound");
  EXPECT_TRUE(works(rkey)) << "a refusal changes nothing";
  ASSERT_EQ(update(rkey, kOwner, local_invalidate()), nullptr);
  EXPECT_FALSE(works(rkey));
  // Invalidated, it has another tag than its owner knows.
  ASSERT_EQ(update(rkey, kOwner, again, entry(kIova + 20, 40)), nullptr);
  EXPECT_TRUE(works(with_tag(rkey, 0x5b)));
}

TEST_F(UmrKeys, window_that_was_freed_belongs_to_no_queue_pair_any_more) {
  const std::uint32_t rkey = bound(WindowType::kType2B);
  UmrRequest names_no_queue_pair = local_invalidate();
  names_no_queue_pair.mask &= ~mlx5::kMkeyMaskQpn;
  EXPECT_EQ(update(rkey, kOwner, names_no_queue_pair), nullptr);
  UmrRequest again = bind(WindowType::kType2B, 0x5b);
  again.mask &= ~mlx5::kMkeyMaskQpn;
  EXPECT_EQ(update(rkey, kOwner, again, entry(kIova + 20, 40)), nullptr);
  EXPECT_TRUE(works(with_tag(rkey, 0x5b), kSamePd));
}

TEST_F(UmrKeys, local_invalidation_is_for_the_queue_pair_that_bound) {
  const std::uint32_t rkey = bound(WindowType::kType2B);
  EXPECT_NE(update(rkey, kSamePd, local_invalidate()), nullptr);
  EXPECT_NE(update(rkey, kOtherPd, local_invalidate()), nullptr);
  EXPECT_NE(update(region_, kOwner, local_invalidate()), nullptr) << "no window";
  EXPECT_TRUE(works(rkey));
  EXPECT_EQ(update(rkey, kOwner, local_invalidate()), nullptr);
  EXPECT_NE(update(rkey, kOwner, local_invalidate()), nullptr) << "it is free";
}

TEST_F(UmrKeys, peer_may_invalidate_its_own_queue_pairs_bound_window_of_type_2_and_nothing_else) {
  const std::uint32_t rkey = bound(WindowType::kType2B);
  EXPECT_FALSE(table_.invalidate(rkey, kSamePd));
  EXPECT_FALSE(table_.invalidate(rkey, kOtherPd));
  EXPECT_FALSE(table_.invalidate(with_tag(rkey, 0x59), kOwner)) << "an old key";
  EXPECT_FALSE(table_.invalidate(region_, kOwner));
  EXPECT_FALSE(table_.invalidate(bound(WindowType::kType1), kOwner));
  EXPECT_FALSE(table_.invalidate(add_window(WindowType::kType2B), kOwner)) << "bound to nothing";
  EXPECT_FALSE(table_.invalidate(0x12345678, kOwner));
  ASSERT_TRUE(works(rkey));
  EXPECT_TRUE(table_.invalidate(rkey, kOwner));
  EXPECT_FALSE(works(rkey));
  EXPECT_FALSE(table_.invalidate(rkey, kOwner)) << "once";
}

TEST_F(UmrKeys, region_that_goes_takes_the_window_with_it) {
  const std::uint32_t rkey = bound(WindowType::kType1);
  EXPECT_TRUE(table_.remove(region_));
  EXPECT_FALSE(works(rkey));
}

TEST_F(UmrKeys, window_is_removed_by_any_of_its_keys_and_a_region_by_its_own) {
  const std::uint32_t rkey = bound(WindowType::kType1);
  EXPECT_TRUE(table_.uses_pd(kOwner.pd));
  EXPECT_FALSE(table_.remove(region_ ^ 1));
  EXPECT_TRUE(table_.remove(with_tag(rkey, 0)));
  EXPECT_FALSE(works(rkey));
  EXPECT_FALSE(table_.remove(rkey));
  EXPECT_FALSE(table_.remove(with_tag(region_, static_cast<std::uint8_t>(region_ + 1))));
  EXPECT_TRUE(table_.remove(region_));
}

TEST_F(UmrKeys, binding_that_the_region_does_not_permit_is_refused_and_changes_nothing) {
  const std::uint32_t unbindable = add_region(kLocalWrite);
  const std::uint32_t read_only = add_region(kWindowBind);
  const std::uint32_t foreign = add_region(kLocalWrite | kWindowBind, kOtherPd.pd);
  const std::uint32_t other_window = bound(WindowType::kType1);
  const auto request = bind(WindowType::kType1, 1);
  const auto shorter = [&](std::uint64_t start, std::uint32_t length_bytes) {
    return bind(WindowType::kType1, 1, length_bytes, start);
  };
  const std::uint64_t at = kIova + 20;
  const auto with_right = [&](std::uint32_t right) { return bind(WindowType::kType1, 1, 40, at, right); };
  const struct {
    UmrRequest request;
    std::vector<mlx5::DataSegment> entries;
    const char* reason;
  } cases[] = {
      {request, {{40, unbindable, at}}, "without the right to bind"},
      {with_right(kRemoteWrite), {{40, read_only, at}}, "change what the region may not"},
      {with_right(kRemoteAtomic), {{40, read_only, at}}, "change what the region may not"},
      {request, {{40, foreign, at}}, "no such region"},
      {request, {{40, region_ ^ 0x100, at}}, "no such region"},
      {request, {{40, other_window, at}}, "no region of memory"},
      {request, {{40, region_, at + 41}}, "beyond the region"},
      {request, {{40, region_, kIova - 1}}, "beyond the region"},
      {request, {{39, region_, at}}, "do not cover"},
      {shorter(at, 0), {{40, region_, at}}, "bound to nothing"},
      {shorter(~std::uint64_t{0}, 40), {{40, region_, at}}, "wraps"},
      {shorter(at, 0), {}, "bound to nothing"},
      {request, {}, "grows beyond"},
      {request, {{20, region_, at}, {20, unbindable, at}}, "without the right to bind"},
      {request, {{20, region_, at}, {20, region_, at + 61}}, "beyond the region"},
      {request, {5, {8, region_, at}}, "more translation entries"},
  };
  const std::uint32_t window = add_window(WindowType::kType1);
  for (const auto& one : cases) {
    const char* const reason = update(window, kOwner, one.request, one.entries);
    ASSERT_NE(reason, nullptr) << one.reason;
    EXPECT_NE(std::string(reason).find(one.reason), std::string::npos) << reason;
    EXPECT_EQ(table_.resolve(with_tag(window, 1), kOwner, at, 1, 0), nullptr) << one.reason;
  }
  EXPECT_EQ(update(window, kOwner, with_right(kRemoteRead), {{40, read_only, at}}), nullptr)
      << "to be read it may be";
}

TEST_F(UmrKeys, windows_share_no_index_with_other_keys_whatever_their_tags) {
  const std::uint32_t window = add_window(WindowType::kType1);
  int draws = 0;
  // The first draw has the window's index with another tag.
  const std::uint32_t other =
      table_.add({.pd = kOwner.pd, .base = bytes_.data(), .iova = 0, .length_bytes = 1, .access = 0},
                 [&] { return draws++ == 0 ? window ^ 0x7f : window ^ 0x7700; });
  EXPECT_EQ(other, window ^ 0x7700);
}

TEST_F(UmrKeys, window_over_two_entries_follows_both) {
  const std::uint32_t window = add_window(WindowType::kType1);
  const std::vector<mlx5::DataSegment> entries{{16, region_, kIova + 50}, {24, region_, kIova}};
  ASSERT_EQ(update(window, kOwner, bind(WindowType::kType1, 1), entries), nullptr);
  EXPECT_EQ(extents(with_tag(window, 1), kIova + 20, 40), (Extents{{50, 16}, {0, 24}}));
}

// As mlx5dv_wr_mr_list asks.
UmrRequest layout(std::uint32_t length_bytes, std::size_t entries) {
  UmrRequest request;
  request.mask = kStateMask | mlx5::kMkeyMaskLength | mlx5::kMkeyMaskLocalWrite;
  request.access = kLocalWrite;
  request.qpn = mlx5::kMkeyAnyQpn;
  request.length_bytes = length_bytes;
  request.translation_entries = static_cast<std::uint32_t>(entries);
  return request;
}

TEST_F(UmrKeys, key_laid_out_as_a_list_has_its_pieces_and_no_need_of_the_right_to_bind) {
  const std::uint32_t below = add_region(kLocalWrite);
  const std::uint32_t key = add_key(4);
  const std::vector<mlx5::DataSegment> entries{{8, below, kIova}, {8, below, kIova + 64}, {}, {}};
  ASSERT_EQ(update(key, kOwner, layout(16, 4), entries), nullptr);
  EXPECT_EQ(extents(key, 0, 16, kLocalWrite), (Extents{{0, 8}, {64, 8}}));
  EXPECT_EQ(extents(key, 4, 8, kLocalWrite), (Extents{{4, 4}, {64, 4}}));
  EXPECT_EQ(extents(key, 0, 17, 0), Extents{});
  EXPECT_EQ(extents(key, 0, 16, kRemoteWrite), Extents{}) << "a right that it was not given";
}

TEST_F(UmrKeys, key_laid_out_as_a_pattern_strides) {
  const std::uint32_t key = add_key(4);
  // 8 of every 10 bytes from 0 and 4 of every 5 from 50, three times.
  const std::vector<mlx5::DataSegment> entries{
      pattern(12, 3, 2), strided(8, 10, kIova), strided(4, 5, kIova + 50), {}};
  ASSERT_EQ(update(key, kOwner, layout(36, 4), entries), nullptr);
  EXPECT_EQ(extents(key, 0, 36, kLocalWrite), (Extents{{0, 8}, {50, 4}, {10, 8}, {55, 4}, {20, 8}, {60, 4}}));
  EXPECT_EQ(extents(key, 22, 4, kLocalWrite), (Extents{{57, 2}, {20, 2}}));
  EXPECT_EQ(extents(key, 36, 1, 0), Extents{});
}

// Lays out each behind each, itself included.
TEST_F(UmrKeys, key_laid_out_again_keeps_nothing_of_the_layout_before) {
  const struct {
    std::uint32_t length_bytes;
    std::vector<mlx5::DataSegment> entries;
    Extents extents;
  } layouts[] = {{24, {{8, region_, kIova}, {16, region_, kIova + 64}}, {{0, 8}, {64, 16}}},
                 {24, {pattern(8, 3, 1), strided(8, 10, kIova + 50)}, {{50, 8}, {60, 8}, {70, 8}}},
                 {12, {{12, region_, kIova + 30}}, {{30, 12}}},
                 {12,
                  {pattern(6, 2, 2), strided(4, 5, kIova), strided(2, 4, kIova + 80)},
                  {{0, 4}, {80, 2}, {5, 4}, {84, 2}}}};
  const std::uint32_t key = add_key(4);
  for (const auto& before : layouts) {
    for (const auto& after : layouts) {
      for (const auto& one : {before, after}) {
        ASSERT_EQ(update(key, kOwner, layout(one.length_bytes, one.entries.size()), one.entries), nullptr);
        EXPECT_EQ(extents(key, 0, one.length_bytes, kLocalWrite), one.extents);
        EXPECT_EQ(extents(key, 0, one.length_bytes + 1, kLocalWrite), Extents{});
      }
    }
  }
}

TEST_F(UmrKeys, key_laid_out_beyond_the_region_below_fails_where_it_is_used) {
  const std::uint32_t key = add_key(4);
  const std::vector<mlx5::DataSegment> entries{{8, region_, kIova}, {8, region_, kIova + 96}};
  ASSERT_EQ(update(key, kOwner, layout(16, 2), entries), nullptr);
  EXPECT_EQ(extents(key, 0, 8, 0), (Extents{{0, 8}}));
  EXPECT_EQ(extents(key, 8, 8, 0), Extents{});
}

TEST_F(UmrKeys, key_laid_out_over_another_that_is_indirect_fails_where_it_is_used) {
  const std::uint32_t window = bound(WindowType::kType1);
  const std::uint32_t key = add_key(1);
  ASSERT_EQ(update(key, kOwner, layout(8, 1), {{8, window, kIova + 24}}), nullptr);
  EXPECT_EQ(extents(key, 0, 8, 0), Extents{});
}

TEST_F(UmrKeys, key_with_a_new_tag_is_not_found_by_the_one_that_was_asked_for_last) {
  const std::uint32_t key = add_key(1);
  ASSERT_EQ(update(key, kOwner, layout(8, 1), {{8, region_, kIova}}), nullptr);
  EXPECT_EQ(extents(key, 8, 1, 0), Extents{}) << "beyond its end, so nothing below was asked for";
  UmrRequest request;
  request.mask = mlx5::kMkeyMaskTag;
  request.tag = 1;
  ASSERT_EQ(update(key, kOwner, request), nullptr);
  EXPECT_EQ(extents(key, 0, 8, 0), Extents{});
  EXPECT_EQ(extents(with_tag(key, 1), 0, 8, 0), (Extents{{0, 8}}));
}

TEST_F(UmrKeys, layout_that_contradicts_itself_is_refused) {
  const std::uint32_t key = add_key(4);
  const struct {
    std::uint32_t length_bytes;
    std::vector<mlx5::DataSegment> entries;
    const char* reason;
  } cases[] = {
      {25, {pattern(12, 2, 1), strided(12, 20, kIova)}, "pattern does not cover"},
      {24, {pattern(12, 2, 2), strided(12, 20, kIova)}, "more entries than came"},
      {24, {pattern(13, 2, 1), strided(12, 20, kIova)}, "not as long as it says"},
      {24, {pattern(0, 2, 0), strided(12, 20, kIova)}, "not as long as it says"},
      {17, {{8, region_, kIova}, {8, region_, kIova}}, "entries do not cover"},
      {8, {5, {8, region_, kIova}}, "more translation entries"},
      {0, {{8, region_, kIova}}, "bound to nothing"},
  };
  for (const auto& one : cases) {
    const char* const reason = update(key, kOwner, layout(one.length_bytes, one.entries.size()), one.entries);
    ASSERT_NE(reason, nullptr) << one.reason;
    EXPECT_NE(std::string(reason).find(one.reason), std::string::npos) << reason;
    EXPECT_EQ(extents(key, 0, 1, 0), Extents{}) << one.reason;
  }
}

TEST_F(UmrKeys, key_is_invalidated_by_any_queue_pair_of_its_domain_and_by_peers_where_they_may) {
  const std::uint32_t key = add_key(4);
  const auto lay_out = [&] { return update(key, kOwner, layout(8, 1), {{8, region_, kIova}}); };
  ASSERT_EQ(lay_out(), nullptr);
  EXPECT_FALSE(table_.invalidate(key, kOwner)) << "it was not made for that";
  EXPECT_NE(update(key, kOtherPd, local_invalidate()), nullptr);
  EXPECT_EQ(update(key, kSamePd, local_invalidate()), nullptr);
  EXPECT_EQ(extents(key, 0, 8, 0), Extents{});
  EXPECT_NE(update(key, kSamePd, local_invalidate()), nullptr) << "it is free";
  ASSERT_EQ(lay_out(), nullptr);
  EXPECT_EQ(extents(key, 0, 8, 0), (Extents{{0, 8}}));
  const std::uint32_t shared = add_key(4, true);
  ASSERT_EQ(update(shared, kOwner, layout(8, 1), {{8, region_, kIova}}), nullptr);
  EXPECT_TRUE(table_.invalidate(shared, kSamePd));
}

}  // namespace umr_keys_test
}  // namespace gdx::softhca
