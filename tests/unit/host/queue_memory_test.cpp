#include "host/queue/queue_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/holes.h"
#include "base/page_size.h"

namespace gdx {
namespace queue_memory_test {

TEST(QueueMemory, fresh_completion_queue_holds_no_valid_entry) {
  const auto memory = QueueMemory::allocate(128, 32);
  ASSERT_TRUE(memory);
  for (int i = 0; i < 128; ++i) {
    const std::uint8_t op_own = memory->completion_queue()[i].op_own;
    EXPECT_EQ(op_own >> mlx5::kCqeOpcodeShift, static_cast<int>(mlx5::CqeOpcode::kInvalid));
    EXPECT_EQ(op_own & mlx5::kCqeOwnerMask, 1) << "the owner bit must be that of the pass before the first";
  }
}

TEST(QueueMemory, parts_lie_on_their_own_pages_in_one_range) {
  for (const std::uint32_t blocks : {16u, 64u, 128u, 32768u}) {
    const auto memory = QueueMemory::allocate(blocks, 32);
    ASSERT_TRUE(memory);
    const std::size_t ring_bytes = std::size_t{blocks} * mlx5::kWqeBasicBlockBytes;
    EXPECT_EQ(memory->completion_queue_offset() % page_bytes(), 0u);
    EXPECT_GE(memory->completion_queue_offset(), ring_bytes);
    EXPECT_GE(memory->queue_pair_record_offset(), memory->completion_queue_offset() + ring_bytes);
    EXPECT_EQ(memory->registered_bytes() % page_bytes(), 0u);
    const auto* grants = reinterpret_cast<const std::byte*>(memory->staging_credits().channel().grants);
    EXPECT_GE(grants, memory->base() + memory->registered_bytes()) << "the HCA need not see credits";
    EXPECT_EQ(reinterpret_cast<std::byte*>(memory->control()->queue_pair_record),
              memory->base() + memory->queue_pair_record_offset());
    StagingHandle staging{};
    memory->staging_credits().describe(staging);
    EXPECT_EQ(reinterpret_cast<std::byte*>(staging.held), memory->base() + memory->registered_bytes())
        << "nor the slots held";
    const auto all = memory->host_memory();
    EXPECT_EQ(all.data(), memory->base());
    EXPECT_LE(reinterpret_cast<std::byte*>(staging.returned_slots + 32), all.data() + all.size());
  }
}

// 512 held slots or 1024 granted ones fill a page.
TEST(QueueMemory, credit_areas_of_two_pools_share_no_byte) {
  const std::pair<std::uint32_t, std::uint32_t> counts[] = {{0, 64}, {64, 0}, {32, 64}, {4096, 1}, {1, 4096}};
  for (const auto& [slots, bounces] : counts) {
    SCOPED_TRACE(testing::Message() << slots << " slots and " << bounces << " that bounce");
    const auto memory = QueueMemory::allocate(64, slots, bounces);
    ASSERT_TRUE(memory);
    std::vector<std::span<const std::byte>> parts{
        {memory->base(), memory->registered_bytes()}};  // rings and records
    const auto add = [&](const CreditArea& area, std::uint32_t count) {
      if (count == 0) return;
      StagingHandle pool{};
      area.describe(pool);
      parts.push_back(std::as_bytes(std::span(pool.held, count)));
      parts.push_back(std::as_bytes(std::span(pool.granted_slots, count)));
      parts.push_back(std::as_bytes(std::span(pool.returned_slots, count)));
      parts.push_back(std::as_bytes(std::span(pool.grants, 1)));
      parts.push_back(std::as_bytes(std::span(pool.requests, 1)));
    };
    add(memory->staging_credits(), slots);
    add(memory->bounce_credits(), bounces);
    std::ranges::sort(parts, {}, [](const auto& part) { return part.data(); });
    const auto all = memory->host_memory();
    const std::byte* end = all.data();
    for (const auto& part : parts) {
      EXPECT_GE(part.data(), end);
      end = part.data() + part.size();
    }
    EXPECT_LE(end, all.data() + all.size());
  }
}

// gdxd reads what its client may take away at any time.
TEST(QueueMemory, holes_in_the_rings_of_another_process_are_told_and_end_nobody) {
  const auto owned = QueueMemory::allocate_in_file(64, 0, 0);
  ASSERT_TRUE(owned);
  const std::size_t bytes = owned->host_memory().size();
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, owned->file(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const auto adopted =
      QueueMemory::adopt(MappedPages(static_cast<std::byte*>(mapped), Unmap{bytes}), 64, 0, 0);
  ASSERT_TRUE(adopted);
  ASSERT_TRUE(refuse_holes(adopted->base(), adopted->queue_pair_record_offset())) << std::strerror(errno);
  EXPECT_TRUE(adopted->load_blocks(64, 0, 16));
  ASSERT_EQ(
      fallocate(owned->file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(adopted->load_blocks(64, 0, 16).error().status, Status::kUnsupported);
  EXPECT_EQ(adopted->load_completions(64, 0, 16).error().status, Status::kUnsupported);
  EXPECT_TRUE(adopted->load_state()) << "gdxd's own words come back as a page of its own";
}

}  // namespace queue_memory_test
}  // namespace gdx
