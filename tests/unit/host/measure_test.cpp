// Measurement of `gdx calibrate` on the software HCA, by kernels of the CPU layer. With a fake GPU they
// replace its kernels, which reach host memory alike.
#include "host/programs/calibrate/measure.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "host/hca/hca.h"
#include "host/memory/gpu_registration.h"
#include "host/memory/memory.h"
#include "host/queue/endpoint.h"
#include "host/staging/progress.h"

namespace gdx::calibration {
namespace measure_test {

using testing::AllOf;
using testing::HasSubstr;

class Measure : public ::testing::Test {
 protected:
  void SetUp() override {
    auto hca = Hca::open();
    ASSERT_TRUE(hca) << hca.error().message;
    hca_ = std::make_unique<Hca>(std::move(*hca));
  }
  void TearDown() override {
    unsetenv(kDoorbellVariable);
    unsetenv(kGpuRegistrationVariable);
    unsetenv("GDX_FAKE_CUDA_DMABUF");
    unsetenv("GDX_FAKE_CUDA_PEER_MAPPING");
  }

  std::unique_ptr<Hca> hca_;
  MeasureOptions quick_{.max_bytes = kMinMaxBytes, .rounds = 2};
};

TEST_F(Measure, every_size_and_mode_has_a_median_within_its_spread) {
  const auto measured = measure_modes(*hca_, nullptr, quick_);
  ASSERT_TRUE(measured) << measured.error().message;
  EXPECT_EQ(measured->payload, Placement::kHost);
  EXPECT_EQ(measured->measured_on, "the software HCA, CPU kernels");
  std::vector<std::uint64_t> sizes;
  for (const MeasuredSize& size : measured->sizes) {
    sizes.push_back(size.bytes);
    for (std::size_t mode = 0; mode < size.ns.size(); ++mode) {
      if (kTableModeNames[mode] == "inline" && size.bytes > kMaxAutoInlineBytes) continue;
      ASSERT_TRUE(size.ns[mode]) << size.bytes << " " << kTableModeNames[mode];
      EXPECT_LE(size.spread[mode].least_ns, *size.ns[mode]);
      EXPECT_GE(size.spread[mode].most_ns, *size.ns[mode]);
      EXPECT_GT(size.spread[mode].least_ns, 0);
    }
    EXPECT_EQ(size.ns[0].has_value(), size.bytes <= kMaxAutoInlineBytes) << size.bytes;
  }
  EXPECT_THAT(sizes, testing::ElementsAre(8, 16, 28, 32, 64, 128, 220, 256, 512, 1024, 2048, 4096));
  EXPECT_EQ(measured->copies + measured->whole_copies, 0u);
}

TEST_F(Measure, impossible_options_are_named_with_their_range) {
  const auto refusal = [&](const MeasureOptions& options) {
    const auto checked = check_measure_options(options);
    EXPECT_TRUE(checked || checked.error().status == Status::kInvalidArgument);
    return checked ? std::string() : checked.error().message;
  };
  for (const std::uint64_t bytes : {kMinMaxBytes, 2 * kMinMaxBytes, kMaxMaxBytes})
    EXPECT_EQ(refusal({.max_bytes = bytes}), "") << bytes;
  for (const std::uint64_t bytes : {std::uint64_t{0}, kMinMaxBytes / 2, kMinMaxBytes + 8, 2 * kMaxMaxBytes})
    EXPECT_EQ(refusal({.max_bytes = bytes}),
              fmt::format("--max-bytes: '{}': use a power of two from 4096 to 1073741824", bytes));
  for (const std::uint32_t rounds : {1u, 1000u}) EXPECT_EQ(refusal({.rounds = rounds}), "");
  for (const std::uint32_t rounds : {0u, 1001u})
    EXPECT_EQ(refusal({.rounds = rounds}),
              fmt::format("--rounds: '{}': use a whole number from 1 to 1000", rounds));
  quick_.slot_count = 33;
  EXPECT_EQ(measure_modes(*hca_, nullptr, quick_).error().message,
            "--slots: '33': use at most 32, which the pool has");
  quick_.slot_count = 32;
  quick_.bounce_slot_count = 65;
  EXPECT_EQ(measure_modes(*hca_, nullptr, quick_).error().message,
            "--bounce-slots: '65': use at most 64, which the pool has");
}

TEST_F(Measure, probe_is_described_by_its_end) {
  EXPECT_EQ(describe(BlueFlameProbe{Status::kOk, 200, 150}), "150 of 200 copies used");
  EXPECT_EQ(describe(BlueFlameProbe{Status::kUnsupported, 200, 150}), "not offered here");
  EXPECT_EQ(describe(BlueFlameProbe{Status::kTimeout, 200, 150}), "failed: timed out");
}

TEST_F(Measure, shape_is_that_of_the_endpoint_that_was_asked_for) {
  quick_.slot_count = 8;
  quick_.slot_bytes = 2048;
  quick_.bounce_slot_count = 3;
  quick_.bounce_slot_bytes = 8192;
  const auto measured = measure_modes(*hca_, nullptr, quick_);
  ASSERT_TRUE(measured) << measured.error().message;
  EXPECT_EQ(
      measured->shape,
      (QueueShape{.slot_count = 8, .slot_bytes = 2048, .bounce_slot_count = 3, .bounce_slot_bytes = 8192}));
}

TEST_F(Measure, blueflame_is_probed_before_it_is_measured) {
  const auto plain = measure_modes(*hca_, nullptr, quick_);
  ASSERT_TRUE(plain) << plain.error().message;
  EXPECT_FALSE(plain->shape.blueflame);
  EXPECT_EQ(plain->copies, 0u);
  setenv(kDoorbellVariable, "blueflame", 1);
  const auto measured = measure_modes(*hca_, nullptr, quick_);
  ASSERT_TRUE(measured) << measured.error().message;
  EXPECT_TRUE(measured->shape.blueflame);
  EXPECT_EQ(measured->copies, 200u);
  EXPECT_GE(measured->whole_copies, 100u);
  EXPECT_LE(measured->whole_copies, 200u);
}

TEST_F(Measure, probe_passes_where_half_of_the_copies_arrive_whole) {
  EXPECT_TRUE(judge("mlx5_0", {Status::kOk, 200, 200}));
  EXPECT_TRUE(judge("mlx5_0", {Status::kOk, 200, 100}));
  EXPECT_EQ(
      judge("mlx5_0", {Status::kOk, 200, 99}).error().message,
      "the probe of BlueFlame on HCA mlx5_0 failed: 99 of 200 copies arrived whole; use plain doorbells "
      "(GDX_DOORBELL=plain)");
  const auto ended = judge("mlx5_0", {Status::kTimeout, 200, 200});
  EXPECT_EQ(ended.error().status, Status::kUnsupported);
  EXPECT_THAT(ended.error().message, HasSubstr("failed: timed out"));
}

// A put is posted, and its completion alone is an error.
TEST_F(Measure, put_that_the_peer_refuses_ends_the_kernel_of_each_mode) {
  auto nic = StagingPool::create(*hca_);
  auto host = StagingPool::create(*hca_, StagingOptions::in_host_memory());
  const auto memory = allocate_memory(*hca_, 4096);
  ASSERT_TRUE(nic && host && memory);
  EndpointOptions options;
  options.timeout_ns = 120'000'000'000;  // never reached unless the test fails
  options.slot_count = options.bounce_slot_count = 4;
  for (const bool refused : {false, true}) {
    for (std::size_t mode = 0; mode < kTableModeNames.size(); ++mode) {
      auto endpoint = Endpoint::create(*hca_, {&*nic, &*host}, options);
      auto peer = Endpoint::create(*hca_, {}, {});
      ASSERT_TRUE(endpoint && peer);
      ASSERT_TRUE(endpoint->connect(peer->address()) && peer->connect(endpoint->address()));
      RemoteMemory to = memory->remote() + 2048;
      if (refused) to.rkey = memory->rkey() ^ 0x5a;
      PutTimes times{};
      EXPECT_EQ(time_puts(static_cast<TableMode>(mode), endpoint->handle(), to, memory->local(), 64, 3,
                          &times, progress),
                Status::kOk);
      EXPECT_EQ(times.status, refused ? Status::kRemoteAccess : Status::kOk) << kTableModeNames[mode];
      EXPECT_GT(times.total_ns, 0u);
    }
  }
}

TEST_F(Measure, with_a_gpu_what_its_kernels_reach_is_mapped_and_it_is_named) {
  const auto gpu = Gpu::open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  quick_.payload = Placement::kHost;
  const auto measured = measure_modes(*hca_, &*gpu, quick_);
  ASSERT_TRUE(measured) << measured.error().message;
  EXPECT_EQ(measured->payload, Placement::kHost);
  EXPECT_EQ(measured->measured_on, "the software HCA, kernels of Fake GPU");
  EXPECT_EQ(Gpu::in_use().size(), 1u) << "nothing was mapped";
}

TEST_F(Measure, push_that_is_refused_is_left_out_and_the_rest_is_measured) {
  const auto gpu = Gpu::open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  quick_.payload = Placement::kHost;
  setenv("GDX_FAKE_CUDA_PEER_MAPPING", "0", 1);
  const auto measured = measure_modes(*hca_, &*gpu, quick_);
  ASSERT_TRUE(measured) << measured.error().message;
  EXPECT_EQ(measured->shape.slot_count, 0u);
  for (const MeasuredSize& size : measured->sizes) {
    for (std::size_t mode = 0; mode < size.ns.size(); ++mode) {
      const bool possible = kTableModeNames[mode] != "push" &&
                            (kTableModeNames[mode] != "inline" || size.bytes <= kMaxAutoInlineBytes);
      EXPECT_EQ(size.ns[mode].has_value(), possible) << size.bytes << " " << kTableModeNames[mode];
    }
  }
}

TEST_F(Measure, payload_in_gpu_memory_that_the_hca_cannot_reach_says_how_to_do_without) {
  const auto gpu = Gpu::open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  setenv("GDX_FAKE_CUDA_DMABUF", "0", 1);
  setenv(kGpuRegistrationVariable, "dmabuf", 1);
  const auto measured = measure_modes(*hca_, &*gpu, quick_);
  ASSERT_FALSE(measured);
  EXPECT_THAT(measured.error().message, AllOf(HasSubstr("dmabuf"), HasSubstr("--payload host")));
}

TEST_F(Measure, payload_in_gpu_memory_needs_a_gpu) {
  quick_.payload = Placement::kGpu;
  const auto measured = measure_modes(*hca_, nullptr, quick_);
  ASSERT_FALSE(measured);
  EXPECT_EQ(measured.error().status, Status::kInvalidArgument);
}

}  // namespace measure_test
}  // namespace gdx::calibration
