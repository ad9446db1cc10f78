// Memory windows of one HCA, bound by WQEs in its rings and used by another over the wire.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

#include "proto/mlx5/umr.h"
#include "tests/unit/engine/node.h"

namespace gdx::softhca::test {
namespace two_hcas_windows_test {

using mlx5::CqeOpcode;
using mlx5::Syndrome;
using mlx5::WqeOpcode;

constexpr std::size_t kOffset = 4096;
constexpr std::uint32_t kLength = 512;
constexpr std::uint8_t kTag = 0xc3;
constexpr UmrKey kWindow{.window = true, .peer_may_invalidate = true, .max_entries = 4};

template <typename Segment>
void append(std::vector<std::byte>& to, const Segment& segment) {
  const auto* at = reinterpret_cast<const std::byte*>(&segment);
  to.insert(to.end(), at, at + sizeof segment);
}

class TwoHcasWithWindows : public testing::Test {
 protected:
  void SetUp() override {
    a.connect(b);
    b.connect(a);
    const Local whole = b.local(0, 1);
    const auto region = b.hca->register_memory({.pd = b.pd,
                                                .base = b.memory.data(),
                                                .iova = whole.address,
                                                .length_bytes = b.memory.size(),
                                                .access = kLocalWrite | kWindowBind});
    ASSERT_TRUE(region);
    region_ = *region;
    const auto window = b.hca->register_memory({.pd = b.pd, .umr = kWindow});
    ASSERT_TRUE(window);
    window_ = *window;
  }
  [[nodiscard]] std::uint32_t bound_key() const { return (window_ & ~0xffu) | kTag; }
  [[nodiscard]] Remote through_window(std::size_t offset) const {
    return {b.remote(kOffset + offset).address, bound_key()};
  }

  static std::vector<std::byte> umr(std::uint8_t flags, std::uint16_t entries, std::uint64_t mask,
                                    const mlx5::MkeyContextSegment& context) {
    mlx5::UmrControlSegment control{};
    control.flags = flags;
    control.translation_octowords = entries;
    control.mkey_mask = mask;
    std::vector<std::byte> segments;
    append(segments, control);
    append(segments, context);
    return segments;
  }
  // As libmlx5 lays it out; `is_inline` or behind a data segment.
  std::uint16_t post_bind(bool is_inline = true, std::uint32_t lkey = 0) {
    mlx5::MkeyContextSegment context{};
    context.access_flags = mlx5::kMkeyRemoteRead | mlx5::kMkeyRemoteWrite | mlx5::kMkeyAtomic;
    context.qpn_tag = b.qpn << 8 | kTag;
    context.start_address = b.remote(kOffset).address;
    context.length_bytes = kLength;
    const std::uint64_t mask = mlx5::kMkeyMaskFree | mlx5::kMkeyMaskTag | mlx5::kMkeyMaskQpn |
                               mlx5::kMkeyMaskLength | mlx5::kMkeyMaskStartAddress |
                               mlx5::kMkeyMaskLocalWrite | mlx5::kMkeyMaskRemoteRead |
                               mlx5::kMkeyMaskRemoteWrite | mlx5::kMkeyMaskAtomic;
    const std::uint8_t flags = mlx5::kUmrTranslationOffset | mlx5::kUmrCheckFree;
    const mlx5::DataSegment entry{kLength, lkey != 0 ? lkey : region_, b.remote(kOffset).address};
    std::vector<std::byte> segments =
        umr(is_inline ? flags | mlx5::kUmrInline : flags, is_inline ? 4 : 1, mask, context);
    if (is_inline) {
      append(segments, entry);
      segments.resize(segments.size() + 3 * sizeof entry);
    } else {
      std::memcpy(b.memory.data(), &entry, sizeof entry);
      const Local list = b.local(0, sizeof entry);
      append(segments, mlx5::DataSegment{list.length_bytes, list.lkey, list.address});
    }
    return b.post_raw(WqeOpcode::kUmr, segments, mlx5::kCompletionAlways, window_);
  }
  std::uint16_t post_invalidate(std::uint32_t rkey) {
    mlx5::MkeyContextSegment context{};
    context.free = mlx5::kMkeyFree;
    context.qpn_tag = mlx5::kMkeyAnyQpn << 8;
    return b.post_raw(WqeOpcode::kUmr,
                      umr(mlx5::kUmrTranslationOffset | mlx5::kUmrInline | mlx5::kUmrCheckQpn, 0,
                          mlx5::kMkeyMaskFree | mlx5::kMkeyMaskTag | mlx5::kMkeyMaskQpn, context),
                      mlx5::kCompletionAlways, rkey);
  }
  void post_send_invalidate(std::uint32_t rkey) {
    std::vector<std::byte> segments;
    const Local from = a.local(0, 16);
    append(segments, mlx5::DataSegment{from.length_bytes, from.lkey, from.address});
    a.post_raw(WqeOpcode::kSendInvalidate, segments, mlx5::kCompletionAlways, rkey);
  }

  Syndrome await_b() {
    b.ring();
    const auto polled = await_send(b, a);
    EXPECT_TRUE(polled) << "no completion";
    return polled ? polled->syndrome : Syndrome::kNone;
  }
  Syndrome await_a() {
    a.ring();
    const auto polled = await_send(a, b);
    EXPECT_TRUE(polled) << "no completion";
    return polled ? polled->syndrome : Syndrome::kNone;
  }
  Syndrome write(std::size_t offset, std::uint32_t length_bytes) {
    a.post_write(a.local(0, length_bytes), through_window(offset));
    return await_a();
  }
  void bind() {
    post_bind();
    ASSERT_EQ(await_b(), Syndrome::kNone);
  }

  Node a;
  Node b;
  std::uint32_t region_ = 0;
  std::uint32_t window_ = 0;
};

TEST_F(TwoHcasWithWindows, window_bound_is_written_read_and_counted_in) {
  std::ranges::fill(std::span(a.memory).first(kLength), std::byte{0x5a});
  bind();
  EXPECT_EQ(write(0, kLength), Syndrome::kNone);
  EXPECT_EQ(b.memory[kOffset], std::byte{0x5a});
  EXPECT_EQ(b.memory[kOffset + kLength - 1], std::byte{0x5a});
  EXPECT_EQ(b.memory[kOffset + kLength], std::byte{0});
  a.post_read(a.local(8192, kLength), through_window(0));
  EXPECT_EQ(await_a(), Syndrome::kNone);
  EXPECT_EQ(a.memory[8192 + kLength - 1], std::byte{0x5a});
  a.post_fetch_add(a.local(16384, 8), through_window(8), 1);
  EXPECT_EQ(await_a(), Syndrome::kNone);
  EXPECT_EQ(b.memory[kOffset + 8], std::byte{0x5b});
}

TEST_F(TwoHcasWithWindows, window_not_bound_is_a_remote_access_error) {
  EXPECT_EQ(write(0, 8), Syndrome::kRemoteAccess);
}

TEST_F(TwoHcasWithWindows, access_beyond_the_window_is_a_remote_access_error) {
  bind();
  EXPECT_EQ(write(1, kLength), Syndrome::kRemoteAccess);
}

TEST_F(TwoHcasWithWindows, translation_behind_a_data_segment_binds_too) {
  post_bind(false);
  ASSERT_EQ(await_b(), Syndrome::kNone);
  EXPECT_EQ(write(0, kLength), Syndrome::kNone);
}

TEST_F(TwoHcasWithWindows, binds_and_invalidations_across_the_rings_end_keep_their_order) {
  for (int i = 0; i < 30; ++i) {  // 5 blocks each time, 64 in the ring
    post_bind();
    post_invalidate(bound_key());
    ASSERT_EQ(await_b(), Syndrome::kNone) << i;
    ASSERT_EQ(await_b(), Syndrome::kNone) << i;
  }
}

TEST_F(TwoHcasWithWindows, binding_to_a_region_without_the_right_is_a_bind_error_that_flushes_the_rest) {
  const std::uint16_t bad = post_bind(true, b.mkey);
  post_invalidate(bound_key());
  b.ring();
  const auto failed = await_send(b, a);
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->opcode, CqeOpcode::kRequesterError);
  EXPECT_EQ(failed->wqe_counter, bad);
  EXPECT_EQ(failed->syndrome, Syndrome::kMemoryWindowBind);
  EXPECT_EQ(await_b(), Syndrome::kFlushed);
  EXPECT_EQ(b.hca->query_qp(b.qpn)->state, QpState::kError);
}

TEST_F(TwoHcasWithWindows, local_invalidation_ends_the_key) {
  bind();
  EXPECT_EQ(write(0, 8), Syndrome::kNone);
  post_invalidate(bound_key());
  EXPECT_EQ(await_b(), Syndrome::kNone);
  EXPECT_EQ(write(0, 8), Syndrome::kRemoteAccess);
}

TEST_F(TwoHcasWithWindows, local_invalidation_of_a_region_is_a_bind_error) {
  post_invalidate(region_);
  EXPECT_EQ(await_b(), Syndrome::kMemoryWindowBind);
}

TEST_F(TwoHcasWithWindows, send_with_invalidate_tells_the_receiver_the_key_and_ends_it) {
  bind();
  b.post_receive(b.local(65536, 64));
  post_send_invalidate(bound_key());
  EXPECT_EQ(await_a(), Syndrome::kNone);
  const auto received = await_receive(b, a);
  ASSERT_TRUE(received);
  EXPECT_EQ(received->opcode, CqeOpcode::kResponderSendInvalidate);
  EXPECT_EQ(received->immediate, bound_key());
  EXPECT_EQ(received->byte_count, 16u);
  EXPECT_EQ(write(0, 8), Syndrome::kRemoteAccess);
}

TEST_F(TwoHcasWithWindows, send_with_invalidate_of_an_old_key_is_a_remote_access_error) {
  bind();
  b.post_receive(b.local(65536, 64));
  post_send_invalidate(window_ == bound_key() ? window_ ^ 1 : window_);
  EXPECT_EQ(await_a(), Syndrome::kRemoteAccess);
  const auto received = await_receive(b, a);
  ASSERT_TRUE(received);
  EXPECT_EQ(received->opcode, CqeOpcode::kResponderError);
}

TEST_F(TwoHcasWithWindows, window_deallocated_while_bound_ends_its_key) {
  bind();
  EXPECT_EQ(b.hca->deregister_memory(window_), 0);
  EXPECT_EQ(b.hca->deregister_memory(window_), EINVAL);
  EXPECT_EQ(write(0, 8), Syndrome::kRemoteAccess);
}

TEST_F(TwoHcasWithWindows, window_needs_its_domain_and_is_no_region) {
  EXPECT_EQ(b.hca->register_memory({.pd = b.pd + 1, .umr = kWindow}).error(), EINVAL);
  const auto own = b.hca->alloc_pd();
  ASSERT_TRUE(own);
  const auto window = b.hca->register_memory({.pd = *own, .umr = kWindow});
  ASSERT_TRUE(window);
  EXPECT_EQ(b.hca->dealloc_pd(*own), EBUSY);
  EXPECT_EQ(b.hca->replace_memory(*window, {.pd = *own, .base = b.memory.data(), .length_bytes = 8}), EINVAL);
  EXPECT_EQ(b.hca->deregister_memory(*window), 0);
  EXPECT_EQ(b.hca->dealloc_pd(*own), 0);
}

// Key of mlx5dv_wr_mr_interleaved, written to by a peer: every second byte.
TEST_F(TwoHcasWithWindows, key_that_lies_in_pieces_is_written_read_and_sent_from) {
  const auto key = b.hca->register_memory({.pd = b.pd, .umr = UmrKey{.max_entries = 4}});
  ASSERT_TRUE(key);
  mlx5::MkeyContextSegment context{};
  context.access_flags = mlx5::kMkeyRemoteRead | mlx5::kMkeyRemoteWrite;
  context.qpn_tag = mlx5::kMkeyAnyQpn << 8 | (*key & 0xff);
  context.length_bytes = 8192;
  std::vector<std::byte> segments = umr(mlx5::kUmrInline, 4,
                                        mlx5::kMkeyMaskFree | mlx5::kMkeyMaskTag | mlx5::kMkeyMaskLength |
                                            mlx5::kMkeyMaskRemoteRead | mlx5::kMkeyMaskRemoteWrite,
                                        context);
  append(segments, mlx5::RepeatBlockSegment{1, mlx5::kRepeatBlockOperation, 8192, 0, 1});
  append(segments, mlx5::RepeatEntrySegment{2, 1, region_, b.remote(kOffset).address});
  segments.resize(segments.size() + 2 * sizeof(mlx5::DataSegment));
  b.post_raw(WqeOpcode::kUmr, segments, mlx5::kCompletionAlways, *key);
  ASSERT_EQ(await_b(), Syndrome::kNone);

  for (std::size_t i = 0; i < 8192; ++i) a.memory[i] = static_cast<std::byte>(i * 7 + 1);
  a.post_write(a.local(0, 8192), {0, *key});
  ASSERT_EQ(await_a(), Syndrome::kNone);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < 8192; ++i) {
    wrong += b.memory[kOffset + 2 * i] != a.memory[i] ? 1 : 0;
    wrong += b.memory[kOffset + 2 * i + 1] != std::byte{0} ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0u);
  a.post_read(a.local(65536, 8192), {0, *key});
  ASSERT_EQ(await_a(), Syndrome::kNone);
  EXPECT_TRUE(std::ranges::equal(std::span(a.memory).first(8192), std::span(a.memory).subspan(65536, 8192)));
  b.post_write({0, 8192, *key}, a.remote(131072));
  ASSERT_EQ(await_b(), Syndrome::kNone);
  EXPECT_TRUE(std::ranges::equal(std::span(a.memory).first(8192), std::span(a.memory).subspan(131072, 8192)));
  a.post_fetch_add(a.local(0, 8), {0, *key}, 1);
  EXPECT_EQ(await_a(), Syndrome::kRemoteAccess) << "an atomic needs its bytes in one piece";
}

}  // namespace two_hcas_windows_test
}  // namespace gdx::softhca::test
