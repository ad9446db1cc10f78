#include "host/staging/staging_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/trace.h"
#include "host/staging/credit_service.h"

namespace gdx {
namespace {

constexpr std::uint32_t kLogAlignment = 6;  // of the device memory: 64 B, the smallest slot

using DmHandle = std::unique_ptr<ibv_dm, CallDestroy<ibv_free_dm>>;

CreditRules rules_of(const StagingOptions& options, std::uint64_t pool_bytes) {
  return {static_cast<std::uint32_t>(pool_bytes / options.slot_bytes), options.minimum_slots,
          options.threshold_percent};
}

}  // namespace

struct StagingLease::Pool {
  Pool(DmHandle device_memory, MrHandle region, std::byte* mapped, std::uint64_t pool_bytes,
       std::uint32_t bytes_of_slot, const CreditRules& credit_rules, const std::string& hca_name)
      : dm(std::move(device_memory)),
        mr(std::move(region)),
        base(mapped),
        bytes(pool_bytes),
        slot_bytes(bytes_of_slot),
        rules(credit_rules),
        service(credit_rules, hca_name) {}

  DmHandle dm;
  MrHandle mr;  // after dm: deregistered before it is freed
  std::byte* base;
  std::uint64_t bytes;
  std::uint32_t slot_bytes;
  CreditRules rules;
  CreditService service;
  std::shared_ptr<GpuMapping> mapping;
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
  if (const auto checked = check_credit_rules(rules_of(options, bytes)); !checked) {
    return tl::unexpected(checked.error());
  }
  return bytes;
}

Result<StagingPool> StagingPool::create(const Hca& hca, const StagingOptions& options) {
  const TraceSpan span("StagingPool::create");
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
      std::move(dm), std::move(mr), static_cast<std::byte*>(mapping.buf), *bytes, options.slot_bytes,
      rules_of(options, *bytes), hca.name()));
}

Result<StagingLease> StagingPool::lease(const CreditChannel& channel, std::uint32_t at_most) {
  const auto endpoint = pool_->service.open(channel, at_most);
  if (!endpoint) return tl::unexpected(endpoint.error());
  return StagingLease(pool_, *endpoint, std::min(pool_->rules.minimum_slots, at_most));
}

Result<void> StagingPool::map_to(const Gpu& gpu) {
  auto mapped = gpu.map(pool_->base, pool_->bytes);
  if (!mapped) return tl::unexpected(mapped.error());
  pool_->mapping = std::move(*mapped);
  return {};
}

StagingLease StagingPool::trespass() { return StagingLease(pool_, std::nullopt, 0); }

std::uint64_t StagingPool::bytes() const { return pool_->bytes; }
std::uint32_t StagingPool::slot_bytes() const { return pool_->slot_bytes; }
std::uint32_t StagingPool::slot_count() const { return pool_->rules.slot_count; }
std::uint32_t StagingPool::leased_slots() const { return pool_->service.leased_slots(); }
std::uint32_t StagingPool::free_slots() const { return pool_->service.free_slots(); }
std::uint64_t StagingPool::bad_returns() const { return pool_->service.bad_returns(); }

StagingLease::StagingLease(std::shared_ptr<Pool> pool, std::optional<CreditEndpoint> endpoint,
                           std::uint32_t minimum_slots)
    : pool_(std::move(pool)), endpoint_(endpoint), minimum_slots_(minimum_slots) {}

StagingLease::StagingLease(StagingLease&& other) noexcept
    : pool_(std::move(other.pool_)), endpoint_(other.endpoint_), minimum_slots_(other.minimum_slots_) {}

StagingLease& StagingLease::operator=(StagingLease&& other) noexcept {
  if (this != &other) {
    end();
    pool_ = std::move(other.pool_);
    endpoint_ = other.endpoint_;
    minimum_slots_ = other.minimum_slots_;
  }
  return *this;
}

void StagingLease::retire() {
  if (pool_ && endpoint_) pool_->service.retire(*endpoint_);
}

void StagingLease::end() {
  if (pool_ && endpoint_) pool_->service.destroy(*endpoint_);
  pool_.reset();
}

std::byte* StagingLease::base() const { return pool_ ? pool_->base : nullptr; }
std::uint64_t StagingLease::nic_offset() const { return 0; }  // the region is zero-based
std::uint32_t StagingLease::lkey() const { return pool_ ? pool_->mr->lkey : 0; }
std::uint32_t StagingLease::slot_bytes() const { return pool_ ? pool_->slot_bytes : 0; }
std::uint32_t StagingLease::slot_count() const { return pool_ ? pool_->rules.slot_count : 0; }

}  // namespace gdx
