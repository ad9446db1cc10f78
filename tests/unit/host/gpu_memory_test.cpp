// Memory of a GPU by the fake driver: the host's accesses fault, and copies happen when they are waited for.
#include "host/gpu/gpu_memory.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <vector>

#include "host/queue/queue_memory.h"
#include "tests/open_files.h"

namespace gdx {
namespace gpu_memory_test {

constexpr std::size_t kUnit = 2u << 20;  // of the fake driver's cuMemCreate

Gpu open_gpu() {
  auto gpu = Gpu::open();
  EXPECT_TRUE(gpu) << gpu.error().message;
  return *gpu;
}

// Returns the number of address ranges that are reserved.
std::size_t reserved_ranges() {
  const auto ask = reinterpret_cast<std::size_t (*)()>(
      dlsym(dlopen("libcuda.so.1", RTLD_NOW), "gdx_fake_cuda_reserved_ranges"));
  EXPECT_NE(ask, nullptr);
  return ask == nullptr ? 0 : ask();
}

// By cuMemCreate, or by cuMemAlloc on a driver without the other.
class GpuMemoryByEach : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    setenv(kVmm, GetParam(), 1);
    EXPECT_EQ(open_gpu().creates_rdma_memory(), by_cumemcreate());
    static_cast<void>(GpuMemory::allocate(open_gpu(), 1));  // opens what the driver opens once
  }
  void TearDown() override { unsetenv(kVmm); }
  [[nodiscard]] static bool by_cumemcreate() { return *GetParam() == '1'; }

 private:
  static constexpr char kVmm[] = "GDX_FAKE_CUDA_VMM";
};
INSTANTIATE_TEST_SUITE_P(Drivers, GpuMemoryByEach, ::testing::Values("1", "0"),
                         [](const auto& one) { return *one.param == '1' ? "vmm" : "plain"; });

TEST_P(GpuMemoryByEach, pages_are_its_own_and_hold_what_was_written) {
  auto memory = GpuMemory::allocate(open_gpu(), 100'000);
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_EQ(reserved_ranges(), by_cumemcreate() ? 1u : 0u);
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

TEST_P(GpuMemoryByEach, range_beyond_the_end_is_refused) {
  auto memory = GpuMemory::allocate(open_gpu(), 1);
  ASSERT_TRUE(memory) << memory.error().message;
  std::array<std::byte, 2> two{};
  EXPECT_EQ(memory->read(kGpuPageBytes - 1, two).error().status, Status::kInvalidArgument);
  EXPECT_EQ(memory->write(~std::size_t{0}, two).error().status, Status::kInvalidArgument);
  EXPECT_EQ(memory->read(kGpuPageBytes + 1, std::span(two).first(0)).error().status,
            Status::kInvalidArgument);
  EXPECT_EQ(GpuMemory::allocate(open_gpu(), 0).error().status, Status::kInvalidArgument);
}

TEST_P(GpuMemoryByEach, memory_that_ends_is_given_back) {
  const Gpu gpu = open_gpu();
  const std::size_t before = test::open_files();
  {
    const auto memory = GpuMemory::allocate(gpu, 1);
    ASSERT_TRUE(memory) << memory.error().message;
    EXPECT_GT(test::open_files(), before) << "the fake driver's memory is a file";
  }
  EXPECT_EQ(test::open_files(), before);
  EXPECT_EQ(reserved_ranges(), 0u);
}

TEST_P(GpuMemoryByEach, more_than_there_is_is_no_memory_and_leaves_none_taken) {
  const Gpu gpu = open_gpu();
  const std::size_t before = test::open_files();
  const auto memory = GpuMemory::allocate(gpu, std::size_t{1} << 62);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().status, Status::kNoMemory);
  EXPECT_EQ(test::open_files(), before);
  EXPECT_EQ(reserved_ranges(), 0u);
}

// Copies stand for kernels, which the fake driver has none of.
TEST_P(GpuMemoryByEach, memory_ends_after_what_the_gpu_does_with_it) {
  const Gpu gpu = open_gpu();
  auto memory = std::make_unique<Result<GpuMemory>>(GpuMemory::allocate(gpu, 1));
  ASSERT_TRUE(*memory) << memory->error().message;
  std::array<std::byte, 1> back{};
  ASSERT_TRUE((*memory)->write(0, std::array{std::byte{7}}));
  const cuda::Functions& call = gpu.driver().call;
  CUstream stream = nullptr;
  const auto at = reinterpret_cast<CUdeviceptr>((*memory)->address());
  ASSERT_EQ(gpu.run([&] { return call.stream_create(&stream, CU_STREAM_NON_BLOCKING); }), CUDA_SUCCESS);
  ASSERT_EQ(gpu.run([&] { return call.memcpy_dtoh_async(back.data(), at, 1, stream); }), CUDA_SUCCESS);
  memory.reset();
  EXPECT_EQ(back.front(), std::byte{7});
  ASSERT_EQ(gpu.run([&] { return call.stream_destroy(stream); }), CUDA_SUCCESS);
}

TEST_P(GpuMemoryByEach, granularity_is_asked_of_the_driver) {
  setenv("GDX_FAKE_CUDA_GRANULARITY", "8388608", 1);
  const auto memory = GpuMemory::allocate(open_gpu(), kUnit);
  unsetenv("GDX_FAKE_CUDA_GRANULARITY");
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_EQ(memory->bytes(), kUnit);
}

TEST(GpuMemory, private_pieces_share_an_allocation_which_ends_with_the_last) {
  const Gpu gpu = open_gpu();
  const auto piece = [&](std::size_t bytes, GpuUse use = GpuUse::kPrivate) {
    auto made = GpuMemory::allocate(gpu, bytes, use);
    EXPECT_TRUE(made) << made.error().message;
    return std::make_unique<GpuMemory>(std::move(*made));
  };
  auto first = piece(1);
  auto second = piece(kUnit - 2 * kGpuPageBytes);
  EXPECT_EQ(second->address(), first->address() + kGpuPageBytes);
  EXPECT_EQ(reserved_ranges(), 1u);
  auto alone = piece(1, GpuUse::kShared);
  EXPECT_EQ(reserved_ranges(), 2u) << "a peer maps all of it";
  auto last = piece(kGpuPageBytes);
  EXPECT_EQ(last->address(), second->address() + second->bytes()) << "up to the end";
  first.reset();
  auto next = piece(1);
  EXPECT_EQ(reserved_ranges(), 3u) << "no piece is used again";
  second.reset();
  ASSERT_TRUE(last->write(0, std::array{std::byte{7}}));
  last.reset();
  EXPECT_EQ(reserved_ranges(), 2u);
  next.reset();
  alone.reset();
  EXPECT_EQ(reserved_ranges(), 0u);
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
