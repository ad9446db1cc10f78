// Memory of a GPU by the fake driver: the host's accesses fault, and copies happen when they are waited for.
#include "host/gpu/gpu_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "host/queue/queue_memory.h"
#include "tests/open_files.h"

namespace gdx {
namespace gpu_memory_test {

Gpu open_gpu() {
  auto gpu = Gpu::open();
  EXPECT_TRUE(gpu) << gpu.error().message;
  return *gpu;
}

TEST(GpuMemory, pages_are_its_own_and_hold_what_was_written) {
  auto memory = GpuMemory::allocate(open_gpu(), 100'000);
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->address()) % kGpuPageBytes, 0u);
  EXPECT_EQ(memory->bytes(), 2 * kGpuPageBytes);
  ASSERT_TRUE(memory->write(0, std::vector<std::byte>(memory->bytes(), std::byte{7})));
  const std::array<std::byte, 3> three{std::byte{1}, std::byte{2}, std::byte{3}};
  ASSERT_TRUE(memory->write(memory->bytes() - 4, three));
  std::array<std::byte, 5> back{};
  ASSERT_TRUE(memory->read(memory->bytes() - 5, back));
  EXPECT_THAT(back,
              ::testing::ElementsAre(std::byte{7}, std::byte{1}, std::byte{2}, std::byte{3}, std::byte{7}));
}

TEST(GpuMemory, range_beyond_the_end_is_refused) {
  auto memory = GpuMemory::allocate(open_gpu(), 1);
  ASSERT_TRUE(memory) << memory.error().message;
  std::array<std::byte, 2> two{};
  EXPECT_EQ(memory->read(kGpuPageBytes - 1, two).error().status, Status::kInvalidArgument);
  EXPECT_EQ(memory->write(~std::size_t{0}, two).error().status, Status::kInvalidArgument);
  EXPECT_EQ(memory->read(kGpuPageBytes + 1, std::span(two).first(0)).error().status,
            Status::kInvalidArgument);
  EXPECT_EQ(GpuMemory::allocate(open_gpu(), 0).error().status, Status::kInvalidArgument);
}

TEST(GpuMemory, memory_that_ends_is_given_back) {
  const Gpu gpu = open_gpu();
  static_cast<void>(GpuMemory::allocate(gpu, 1));  // opens what the driver opens once
  const std::size_t before = test::open_files();
  {
    const auto memory = GpuMemory::allocate(gpu, 1);
    ASSERT_TRUE(memory) << memory.error().message;
    EXPECT_GT(test::open_files(), before) << "the fake driver's memory is a file";
  }
  EXPECT_EQ(test::open_files(), before);
}

TEST(GpuMemory, more_than_there_is_is_no_memory) {
  const auto memory = GpuMemory::allocate(open_gpu(), std::size_t{1} << 62);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().status, Status::kNoMemory);
}

TEST(QueueMemoryOfGpu, holds_the_queue_and_leaves_to_the_host_what_the_host_writes) {
  const Gpu gpu = open_gpu();
  auto memory = QueueMemory::allocate(64, 32, 16, &gpu);
  ASSERT_TRUE(memory) << memory.error().message;
  const auto in_host = [&](const void* at) {
    const auto all = memory->host_memory();
    return at >= all.data() && at < all.data() + all.size();
  };
  StagingHandle staging{};
  memory->staging_credits().describe(staging);
  EXPECT_FALSE(in_host(memory->send_queue()));
  EXPECT_FALSE(in_host(memory->control()));
  EXPECT_FALSE(in_host(staging.held));
  for (const void* const shared :
       {static_cast<const void*>(staging.grants), static_cast<const void*>(staging.requests),
        static_cast<const void*>(staging.granted_slots + 31),
        static_cast<const void*>(staging.returned_slots + 31),
        static_cast<const void*>(&memory->host().abort), static_cast<const void*>(&memory->host().scratch)}) {
    EXPECT_TRUE(in_host(shared));
  }
  EXPECT_EQ(memory->load_state()->producer, 0u) << "cleared";
  QueueState state{};
  state.producer = 77;
  ASSERT_TRUE(memory->store_state(state));
  EXPECT_EQ(memory->load_state()->producer, 77u);
}

}  // namespace gpu_memory_test
}  // namespace gdx
