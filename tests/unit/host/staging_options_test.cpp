#include <gtest/gtest.h>

#include "host/staging/staging_pool.h"

namespace gdx {
namespace {

constexpr std::uint64_t kDeviceBytes = 128 * 1024;

Status status_of(const StagingOptions& options, std::uint64_t device_bytes) {
  const auto bytes = resolve_staging_bytes(options, device_bytes);
  return bytes ? Status::kOk : bytes.error().status;
}

TEST(StagingOptions, defaults_resolve_to_128_kib_or_what_the_hca_has) {
  EXPECT_EQ(resolve_staging_bytes({}, kDeviceBytes).value(), kDeviceBytes);
  EXPECT_EQ(resolve_staging_bytes({}, 1024 * 1024).value(), kDeviceBytes);
  EXPECT_EQ(resolve_staging_bytes({}, 100'000).value(), 65'536u);
}

TEST(StagingOptions, impossible_values_are_refused) {
  EXPECT_EQ(status_of({}, 0), Status::kUnsupported);
  EXPECT_EQ(status_of({.pool_bytes = 3000}, kDeviceBytes), Status::kInvalidArgument);
  EXPECT_EQ(status_of({.pool_bytes = 2 * kDeviceBytes}, kDeviceBytes), Status::kInvalidArgument);
  EXPECT_EQ(status_of({.slot_bytes = 0}, kDeviceBytes), Status::kInvalidArgument);
  EXPECT_EQ(status_of({.slot_bytes = 32}, kDeviceBytes), Status::kInvalidArgument);
  EXPECT_EQ(status_of({.slot_bytes = 96}, kDeviceBytes), Status::kInvalidArgument);
  EXPECT_EQ(status_of({.pool_bytes = 1024, .slot_bytes = 4096}, kDeviceBytes), Status::kInvalidArgument);
  EXPECT_EQ(status_of({.pool_bytes = 1024, .slot_bytes = 64}, kDeviceBytes), Status::kOk);
  EXPECT_EQ(status_of({.minimum_slots = 0}, kDeviceBytes), Status::kOk);
  EXPECT_EQ(status_of({.minimum_slots = 33}, kDeviceBytes), Status::kInvalidArgument);
  EXPECT_EQ(status_of({.minimum_slots = 32}, kDeviceBytes), Status::kOk);
  EXPECT_EQ(status_of({.threshold_percent = 0}, kDeviceBytes), Status::kInvalidArgument);
  EXPECT_EQ(status_of({.threshold_percent = 10'001}, kDeviceBytes), Status::kInvalidArgument);
}

TEST(StagingOptions, processes_share_the_nics_memory_evenly) {
  EXPECT_EQ(resolve_staging_bytes({.processes = 2}, kDeviceBytes).value(), kDeviceBytes / 2);
  EXPECT_EQ(resolve_staging_bytes({.processes = 3}, kDeviceBytes).value(), kDeviceBytes / 4)
      << "a power of two";
  EXPECT_EQ(resolve_staging_bytes({.processes = 32}, kDeviceBytes).value(), kDefaultSlotBytes);
  EXPECT_EQ(resolve_staging_bytes({.processes = 2}, 1024 * 1024).value(), kDefaultStagingBytes);
  EXPECT_EQ(resolve_staging_bytes({.pool_bytes = kDeviceBytes, .processes = 2}, kDeviceBytes).value(),
            kDeviceBytes)
      << "a size that was named is meant";
  EXPECT_EQ(status_of({.processes = 33}, kDeviceBytes), Status::kInvalidArgument);
  EXPECT_EQ(status_of({.processes = 32, .minimum_slots = 2}, kDeviceBytes), Status::kInvalidArgument);
  EXPECT_EQ(status_of({.processes = 32, .slot_bytes = 64}, kDeviceBytes), Status::kOk);
  EXPECT_EQ(status_of({.processes = 33, .slot_bytes = 64}, kDeviceBytes), Status::kInvalidArgument)
      << "less than a page cannot be mapped";
  EXPECT_EQ(status_of({.processes = kMaxProcessesPerHca, .slot_bytes = 64}, 1024 * 1024), Status::kOk);
  EXPECT_EQ(status_of({.processes = 2, .minimum_slots = ~0u}, kDeviceBytes), Status::kInvalidArgument);
  EXPECT_EQ(status_of({.processes = kMaxProcessesPerHca + 1, .slot_bytes = 64}, 1024 * 1024),
            Status::kInvalidArgument);
}

TEST(StagingOptions, host_memory_asks_nothing_of_the_hca) {
  const StagingOptions host = StagingOptions::in_host_memory();
  EXPECT_EQ(resolve_staging_bytes(host, 0).value(), kDefaultBounceBytes);
  StagingOptions spoiled = host;
  spoiled.pool_bytes = 3 << 20;
  EXPECT_EQ(status_of(spoiled, kDeviceBytes), Status::kInvalidArgument);
  spoiled.pool_bytes = 2 * kMaxBounceBytes;
  EXPECT_EQ(status_of(spoiled, kDeviceBytes), Status::kInvalidArgument);
  spoiled.pool_bytes = kDefaultBounceSlotBytes / 2;
  EXPECT_EQ(status_of(spoiled, kDeviceBytes), Status::kInvalidArgument);
}

TEST(StagingLease, empty_lease_has_no_slots_and_may_be_moved) {
  StagingLease lease;
  StagingLease other(std::move(lease));
  other = StagingLease();
  EXPECT_EQ(other.slot_count(), 0u);
  EXPECT_EQ(other.base(), nullptr);
  other.retire();
}

}  // namespace
}  // namespace gdx
