#include "host/queue/queue_memory.h"

#include <gtest/gtest.h>

namespace gdx {
namespace {

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
    EXPECT_EQ(memory->completion_queue_offset() % kQueuePageBytes, 0u);
    EXPECT_GE(memory->completion_queue_offset(), ring_bytes);
    EXPECT_GE(memory->queue_pair_record_offset(), memory->completion_queue_offset() + ring_bytes);
    EXPECT_EQ(memory->registered_bytes() % kQueuePageBytes, 0u);
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

}  // namespace
}  // namespace gdx
