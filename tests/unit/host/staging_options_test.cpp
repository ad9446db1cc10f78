#include <gtest/gtest.h>

#include <string>

#include "host/staging/staging_pool.h"

namespace gdx {
namespace staging_options_test {

constexpr std::uint64_t kDeviceBytes = 128 * 1024;

Status status_of(const StagingOptions& options, std::uint64_t device_bytes) {
  const auto bytes = resolve_staging_bytes(options, device_bytes);
  return bytes ? Status::kOk : bytes.error().status;
}

TEST(StagingOptions, defaults_resolve_to_128_kib_or_what_the_hca_has) {
  EXPECT_EQ(resolve_staging_bytes({}, kDeviceBytes).value(), kDeviceBytes);
  EXPECT_EQ(resolve_staging_bytes({}, 1024 * 1024).value(), kDeviceBytes);
  EXPECT_EQ(resolve_staging_bytes({}, 100'000).value(), 65'536u);
  const StagingOptions own;
  EXPECT_EQ(own.minimum_slots, 1u);
  EXPECT_EQ(own.threshold_percent, 100u);
  EXPECT_EQ(own.slot_bytes, 4096u);
  EXPECT_EQ(StagingOptions::in_host_memory().slot_bytes, 65'536u);
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

// Refusals name the value and its bounds.
TEST(StagingOptions, refusals_have_their_reason) {
  const auto said = [](const StagingOptions& options, std::uint64_t device_bytes = kDeviceBytes) {
    const auto bytes = resolve_staging_bytes(options, device_bytes);
    return bytes ? std::to_string(*bytes) : bytes.error().message;
  };
  EXPECT_EQ(said({}, 0), "this HCA has no device memory to stage in: use another mode than push");
  EXPECT_EQ(said({.slot_bytes = 32}),
            "staging slots of 32 bytes are impossible: use a power of two of at least 64");
  EXPECT_EQ(said({.pool_bytes = 4096, .slot_bytes = 4096}), "4096");
  EXPECT_EQ(said({.pool_bytes = 1024, .slot_bytes = 2048}),
            "a staging pool of 1024 bytes holds no slot of 2048 bytes: use smaller slots");
  EXPECT_EQ(said({.pool_bytes = 3000}), "a staging pool of 3000 bytes is impossible: use a power of two");
  EXPECT_EQ(said({.pool_bytes = 2 * kDeviceBytes}),
            "a staging pool of 262144 bytes is impossible: this HCA has 131072 bytes of device memory");
  EXPECT_EQ(said({.processes = 257}), "257 processes on one HCA are impossible: use at most 256");
  EXPECT_EQ(said({.processes = 32, .minimum_slots = 2}),
            "32 processes cannot share 131072 bytes of device memory: each needs 2 slots of 4096 bytes, and "
            "a page; use fewer or smaller slots, or fewer processes");
  EXPECT_EQ(said({.minimum_slots = 33}),
            "a minimum of 33 staging slots per endpoint is impossible: use 0 to the pool's 32");
  EXPECT_EQ(said({.threshold_percent = 0}),
            "a threshold of 0 percent of the free staging slots is impossible: use 1 to 10000");
  StagingOptions host = StagingOptions::in_host_memory();
  host.pool_bytes = kMaxBounceBytes;
  EXPECT_EQ(said(host, 0), "1073741824");
  host.pool_bytes = 2 * kMaxBounceBytes;
  EXPECT_EQ(said(host, 0), "a pool of 2147483648 bytes of host memory is impossible: use at most 1073741824");
  EXPECT_EQ(host.leased_by_use().minimum_slots, 0u);
  EXPECT_EQ(host.leased_by_use().pool_bytes, host.pool_bytes);
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
  EXPECT_EQ(other.slot_bytes(), 0u);
  EXPECT_EQ(other.minimum_slots(), 0u);
  EXPECT_EQ(other.lkey(), 0u);
  EXPECT_EQ(other.nic_offset(), 0u);
  EXPECT_EQ(other.base(), nullptr);
  EXPECT_TRUE(other.flight().events.empty());
  other.retire();
}

}  // namespace staging_options_test
}  // namespace gdx
