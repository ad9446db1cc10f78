#include "host/staging/staging_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

namespace gdx {
namespace {

constexpr std::uint32_t kLogAlignment = 6;  // of the device memory: 64 B, the smallest slot

using DmHandle = std::unique_ptr<ibv_dm, CallDestroy<ibv_free_dm>>;

}  // namespace

struct StagingLease::Pool {
  Pool(DmHandle device_memory, MrHandle region, std::byte* mapped, std::uint64_t pool_bytes,
       std::uint32_t bytes_of_slot)
      : dm(std::move(device_memory)),
        mr(std::move(region)),
        base(mapped),
        bytes(pool_bytes),
        slot_bytes(bytes_of_slot),
        ledger(static_cast<std::uint32_t>(pool_bytes / bytes_of_slot)) {}

  DmHandle dm;
  MrHandle mr;  // after dm: deregistered before it is freed
  std::byte* base;
  std::uint64_t bytes;
  std::uint32_t slot_bytes;
  std::mutex mutex;
  SlotLedger ledger;  // guarded by mutex
};

Result<std::uint64_t> resolve_staging_bytes(const StagingOptions& options,
                                            std::uint64_t device_memory_bytes) {
  if (!std::has_single_bit(options.slot_bytes) || options.slot_bytes < kMinSlotBytes) {
    return fail(Status::kInvalidArgument,
                fmt::format("staging slots of {} bytes are impossible: use a power of two of at least {}",
                            options.slot_bytes, kMinSlotBytes));
  }
  if (device_memory_bytes == 0) {
    return fail(Status::kUnsupported, "this HCA has no device memory to stage in: use pull or inline mode");
  }
  std::uint64_t bytes = options.pool_bytes;
  if (bytes == 0) bytes = std::min(kDefaultStagingBytes, std::bit_floor(device_memory_bytes));
  if (!std::has_single_bit(bytes)) {
    return fail(Status::kInvalidArgument,
                fmt::format("a staging pool of {} bytes is impossible: use a power of two", bytes));
  }
  if (bytes > device_memory_bytes) {
    return fail(Status::kInvalidArgument,
                fmt::format("a staging pool of {} bytes is impossible: this HCA has {} "
                            "bytes of device memory",
                            bytes, device_memory_bytes));
  }
  if (bytes < options.slot_bytes) {
    return fail(Status::kInvalidArgument,
                fmt::format("a staging pool of {} bytes holds no slot of {} bytes: use smaller slots", bytes,
                            options.slot_bytes));
  }
  return bytes;
}

Result<StagingPool> StagingPool::create(const Hca& hca, const StagingOptions& options) {
  const auto bytes = resolve_staging_bytes(options, hca.device_memory_bytes());
  if (!bytes) return tl::unexpected(bytes.error());
  ibv_alloc_dm_attr attributes{};
  attributes.length = *bytes;
  attributes.log_align_req = kLogAlignment;
  DmHandle dm(ibv_alloc_dm(hca.context(), &attributes));
  if (!dm) {
    const Status status = errno == ENOMEM || errno == ENOSPC ? Status::kNoMemory : Status::kSystem;
    return fail(status,
                fmt::format("HCA {} cannot give {} bytes of device memory: {}; ask for less, or end who "
                            "else holds it",
                            hca.name(), *bytes, std::strerror(errno)));
  }
  mlx5dv_dm mapping{};
  mlx5dv_obj object{};
  object.dm.in = dm.get();
  object.dm.out = &mapping;
  if (const int error = mlx5dv_init_obj(&object, MLX5DV_OBJ_DM); error != 0 || mapping.buf == nullptr) {
    return fail(Status::kSystem,
                fmt::format("cannot map device memory of HCA {}: {}", hca.name(), std::strerror(error)));
  }
  // Local read access only, which every key has: nobody but our own send queues uses it.
  MrHandle mr(ibv_reg_dm_mr(hca.pd(), dm.get(), 0, *bytes, IBV_ACCESS_ZERO_BASED));
  if (!mr) {
    return fail(Status::kSystem, fmt::format("HCA {} cannot register its device memory: {}", hca.name(),
                                             std::strerror(errno)));
  }
  return StagingPool(std::make_shared<StagingLease::Pool>(
      std::move(dm), std::move(mr), static_cast<std::byte*>(mapping.buf), *bytes, options.slot_bytes));
}

Result<StagingLease> StagingPool::lease(std::uint32_t slot_count) {
  const std::lock_guard lock(pool_->mutex);
  const auto run = pool_->ledger.take(slot_count);
  if (!run) return tl::unexpected(run.error());
  return StagingLease(pool_, *run);
}

std::uint64_t StagingPool::bytes() const { return pool_->bytes; }
std::uint32_t StagingPool::slot_bytes() const { return pool_->slot_bytes; }
std::uint32_t StagingPool::slot_count() const { return pool_->ledger.total(); }
std::uint32_t StagingPool::leased_slots() const {
  const std::lock_guard lock(pool_->mutex);
  return pool_->ledger.leased();
}
std::uint32_t StagingPool::free_slots() const {
  const std::lock_guard lock(pool_->mutex);
  return pool_->ledger.free();
}

StagingLease::StagingLease(std::shared_ptr<Pool> pool, SlotRun run) : pool_(std::move(pool)), run_(run) {}

StagingLease::StagingLease(StagingLease&& other) noexcept
    : pool_(std::move(other.pool_)), run_(std::exchange(other.run_, {})) {}

StagingLease& StagingLease::operator=(StagingLease&& other) noexcept {
  if (this != &other) {
    give_back();
    pool_ = std::move(other.pool_);
    run_ = std::exchange(other.run_, {});
  }
  return *this;
}

void StagingLease::give_back() {
  if (!pool_) return;
  {
    const std::lock_guard lock(pool_->mutex);
    [[maybe_unused]] const auto returned = pool_->ledger.give_back(run_);
    assert(returned && "a lease came back twice");
  }
  pool_.reset();
  run_ = {};
}

std::byte* StagingLease::base() const { return pool_ ? pool_->base + nic_offset() : nullptr; }
std::uint64_t StagingLease::nic_offset() const {
  return pool_ ? std::uint64_t{run_.first} * pool_->slot_bytes : 0;
}
std::uint32_t StagingLease::lkey() const { return pool_ ? pool_->mr->lkey : 0; }
std::uint32_t StagingLease::slot_bytes() const { return pool_ ? pool_->slot_bytes : 0; }

}  // namespace gdx
