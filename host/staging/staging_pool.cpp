#include "host/staging/staging_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "base/environment.h"
#include "base/log.h"
#include "base/mapped_pages.h"
#include "base/own_process.h"
#include "base/page_size.h"
#include "base/trace.h"
#include "host/gpu/relaxed_stores.h"
#include "host/ipc/daemon.h"
#include "host/memory/memory.h"
#include "host/staging/credit_service.h"

namespace gdx {
namespace {

constexpr std::uint32_t kLogAlignment = 6;  // alignment of the device memory: 64 B, the smallest slot

using DmHandle = std::unique_ptr<ibv_dm, CallDestroy<ibv_free_dm>>;

CreditRules rules_of(const StagingOptions& options, std::uint64_t pool_bytes) {
  const auto slots = static_cast<std::uint32_t>(pool_bytes / options.slot_bytes);
  return {slots, options.minimum_slots, options.threshold_percent,
          options.shareable ? std::optional(tenant_slots_of(slots)) : std::nullopt};
}

// Memory of a pool, with its addresses for kernels and for the HCA.
struct StagingRegion {
  DmHandle dm;
  MrHandle mr;  // region of `dm`; declared after it, so that it is deregistered before `dm` is freed
  std::optional<Memory> host;
  MappedPages shared;  // the pool of gdxd
  std::byte* base = nullptr;
  std::uint64_t nic_offset = 0;
  std::uint32_t lkey = 0;
};

// Grants local read only, which every key has, because only send queues of this process use it.
constexpr Access kGatherOnly = Access::kLocalRead;

Result<StagingRegion> device_region(const Hca& hca, std::uint64_t bytes) {
  StagingRegion region;
  ibv_alloc_dm_attr attributes{};
  attributes.length = bytes;
  attributes.log_align_req = kLogAlignment;
  region.dm.reset(ibv_alloc_dm(hca.context(), &attributes));
  if (!region.dm) {
    const Status status = errno == ENOMEM || errno == ENOSPC ? Status::kNoMemory : Status::kSystem;
    return fail(
        status,
        fmt::format("HCA {} cannot give {} of its {} bytes of device memory: {}; ask for less, end who "
                    "else holds it, or tell all of them how many they are by {}",
                    hca.name(), bytes, hca.device_memory_bytes(), std::strerror(errno), kProcessesVariable));
  }
  mlx5dv_dm mapping{};
  mlx5dv_obj object{};
  object.dm.in = region.dm.get();
  object.dm.out = &mapping;
  if (const int error = mlx5dv_init_obj(&object, MLX5DV_OBJ_DM); error != 0 || mapping.buf == nullptr) {
    return fail(Status::kSystem,
                fmt::format("cannot map device memory of HCA {}: {}", hca.name(), std::strerror(error)));
  }
  region.mr.reset(ibv_reg_dm_mr(hca.pd(), region.dm.get(), 0, bytes,
                                IBV_ACCESS_ZERO_BASED | static_cast<unsigned>(kGatherOnly)));
  if (!region.mr) {
    return fail(Status::kSystem, fmt::format("HCA {} cannot register its device memory: {}", hca.name(),
                                             std::strerror(errno)));
  }
  region.base = static_cast<std::byte*>(mapping.buf);
  region.lkey = region.mr->lkey;
  return region;
}

// Returns the least size of device memory. It is given out in pages, so that each can be mapped by itself.
std::uint64_t least_bytes(const StagingOptions& options) {
  return std::max<std::uint64_t>(page_bytes(),
                                 options.slot_bytes * std::bit_ceil(std::uint64_t{options.minimum_slots}));
}

// Leases device memory. Without a requested size it takes what other processes have left. Makes one
// allocation, because slots are found by one key and one address.
Result<StagingRegion> lease_device_memory(const Hca& hca, const StagingOptions& options,
                                          std::uint64_t& bytes) {
  const std::uint64_t wanted_bytes = bytes;
  auto region = device_region(hca, bytes);
  const auto may_be_less = [&] {
    return options.pool_bytes == 0 && bytes / 2 >= least_bytes(options) &&
           region.error().status == Status::kNoMemory;
  };
  while (!region && may_be_less()) region = device_region(hca, bytes /= 2);
  if (region && bytes != wanted_bytes) {
    log::warn_of_others(
        "staging of {}: {} bytes instead of {}, since other processes hold the rest of {}; tell all of "
        "them how many they are by {}",
        hca.name(), bytes, wanted_bytes, hca.device_memory_bytes(), kProcessesVariable);
  }
  return region;
}

Result<StagingRegion> host_region(const Hca& hca, std::uint64_t bytes, bool shareable) {
  auto memory = GDX_TRY(shareable ? allocate_shareable_memory(hca, bytes, kGatherOnly)
                                  : allocate_memory(hca, bytes, kGatherOnly));
  StagingRegion region;
  region.base = memory.data();
  region.nic_offset = reinterpret_cast<std::uintptr_t>(memory.data());
  region.lkey = memory.lkey();
  region.host.emplace(std::move(memory));
  return region;
}

Result<StagingOptions> with_environment(const StagingOptions& given) {
  StagingOptions options = given;
  if (options.memory != StagingMemory::kNic || options.pool_bytes != 0 || options.processes != 0)
    return options;
  const auto processes = number_from_environment(kProcessesVariable, 1, kMaxProcessesPerHca);
  if (!processes) return tl::unexpected(processes.error());
  options.processes = static_cast<std::uint32_t>(processes->value_or(1));
  return options;
}

Result<std::uint64_t> pool_bytes_of(const StagingOptions& options, std::uint64_t device_memory_bytes) {
  const bool on_nic = options.memory == StagingMemory::kNic;
  if (on_nic && device_memory_bytes == 0) {
    return fail(Status::kUnsupported,
                "this HCA has no device memory to stage in: use another mode than push");
  }
  std::uint64_t bytes = options.pool_bytes;
  if (bytes == 0 && on_nic) {
    const std::uint64_t part_bytes = device_memory_bytes / std::max(options.processes, 1u);
    if (options.processes > 1 && part_bytes < least_bytes(options)) {
      return fail(
          Status::kInvalidArgument,
          fmt::format("{} processes cannot share {} bytes of device memory: each needs {} slots of {} "
                      "bytes, and a page; use fewer or smaller slots, or fewer processes",
                      options.processes, device_memory_bytes, options.minimum_slots, options.slot_bytes));
    }
    bytes = std::min(kDefaultStagingBytes, std::bit_floor(part_bytes));
  } else if (bytes == 0) {
    bytes = kDefaultBounceBytes;
  }
  if (!std::has_single_bit(bytes)) {
    return fail(Status::kInvalidArgument,
                fmt::format("a staging pool of {} bytes is impossible: use a power of two", bytes));
  }
  if (on_nic && bytes > device_memory_bytes) {
    return fail(Status::kInvalidArgument,
                fmt::format("a staging pool of {} bytes is impossible: this HCA has {} "
                            "bytes of device memory",
                            bytes, device_memory_bytes));
  }
  if (!on_nic && bytes > kMaxBounceBytes) {
    return fail(Status::kInvalidArgument,
                fmt::format("a pool of {} bytes of host memory is impossible: use at most {}", bytes,
                            kMaxBounceBytes));
  }
  return bytes;
}

}  // namespace

struct StagingLease::Pool {
  StagingMemory memory;
  StagingRegion region;
  std::uint64_t bytes;
  std::uint32_t slot_bytes;
  CreditRules rules;
  std::optional<CreditService> service;  // none: gdxd runs the scheduler of this pool
  std::shared_ptr<ipc::Daemon> daemon;
  std::uint32_t number = 0;  // number of the pool at gdxd
  std::shared_ptr<GpuMapping> mapping;

  Pool(const StagingOptions& options, StagingRegion&& its_region, std::uint64_t pool_bytes)
      : memory(options.memory),
        region(std::move(its_region)),
        bytes(pool_bytes),
        slot_bytes(options.slot_bytes),
        rules(rules_of(options, pool_bytes)) {}
  // A child by fork keeps its copy, whose end would wait for a thread that it has not.
  static std::shared_ptr<Pool> make(const StagingOptions& options, StagingRegion&& region,
                                    std::uint64_t bytes) {
    const auto end = [process = OwnProcess()](Pool* pool) {
      if (process.is_here()) delete pool;
    };
    return {new Pool(options, std::move(region), bytes), end};
  }
  ~Pool() {
    if (daemon) (void)daemon->call<ipc::Done>(ipc::ClosePool{number});
  }
  [[nodiscard]] ipc::PoolFigures figures() const {
    if (service) return {service->leased_slots(), service->free_slots(), service->bad_returns()};
    const auto reply = daemon->call<ipc::PoolFigures>(ipc::ReadPool{number});
    return reply ? reply->answer : ipc::PoolFigures{};
  }
};

Result<std::uint64_t> resolve_staging_bytes(const StagingOptions& options,
                                            std::uint64_t device_memory_bytes) {
  if (!std::has_single_bit(options.slot_bytes) || options.slot_bytes < kMinSlotBytes) {
    return fail(Status::kInvalidArgument,
                fmt::format("staging slots of {} bytes are impossible: use a power of two of at least {}",
                            options.slot_bytes, kMinSlotBytes));
  }
  if (options.processes > kMaxProcessesPerHca) {
    return fail(Status::kInvalidArgument,
                fmt::format("{} processes on one HCA are impossible: use at most {}", options.processes,
                            kMaxProcessesPerHca));
  }
  const auto resolved = pool_bytes_of(options, device_memory_bytes);
  if (!resolved) return resolved;
  const std::uint64_t bytes = *resolved;
  if (bytes < options.slot_bytes) {
    return fail(Status::kInvalidArgument,
                fmt::format("a staging pool of {} bytes holds no slot of {} bytes: use smaller slots", bytes,
                            options.slot_bytes));
  }
  GDX_TRY(check_credit_rules(rules_of(options, bytes)));
  return bytes;
}

Result<StagingPool> StagingPool::create(const Hca& hca, const StagingOptions& given) {
  const TraceSpan span("StagingPool::create");
  if (hca.daemon()) return open_by_daemon(hca, given);
  const auto options = GDX_TRY(with_environment(given));
  auto bytes = GDX_TRY(resolve_staging_bytes(options, hca.device_memory_bytes()));
  auto region = GDX_TRY(options.memory == StagingMemory::kNic ? lease_device_memory(hca, options, bytes)
                                                              : host_region(hca, bytes, options.shareable));
  auto pool = StagingLease::Pool::make(options, std::move(region), bytes);
  try {
    pool->service.emplace(pool->rules, hca.name());
  } catch (const std::system_error& error) {
    return fail(
        Status::kNoMemory,
        fmt::format("no thread for the credits of a staging pool: {}; raise the limits on processes and "
                    "memory (ulimit -u, -v)",
                    error.what()));
  }
  return StagingPool(std::move(pool));
}

Result<StagingPool> StagingPool::open_by_daemon(const Hca& hca, const StagingOptions& options) {
  GDX_TRY(resolve_staging_bytes(options, hca.device_memory_bytes()));
  ipc::OpenPool request{};
  request.pool_bytes = options.pool_bytes;
  request.on_host = options.memory == StagingMemory::kHost ? 1 : 0;
  request.slot_bytes = options.slot_bytes;
  request.minimum_slots = options.minimum_slots;
  request.threshold_percent = options.threshold_percent;
  const auto& daemon = hca.daemon();
  auto reply = GDX_TRY(daemon->call<ipc::PoolAnswer>(request));
  const ipc::PoolAnswer& answer = reply.answer;
  auto pool = StagingLease::Pool::make(options, StagingRegion{}, answer.bytes);
  pool->daemon = daemon;  // told of the pool's end, also if something fails below
  pool->number = answer.pool;
  if (reply.files.size() != 1 || answer.within_page >= page_bytes() || answer.bytes > kMaxBounceBytes)
    return fail(Status::kSystem, "gdxd's answer holds no staging memory: restart it");
  StagingRegion& region = pool->region;
  region.shared =
      GDX_TRY(ipc::map_shared(reply.files.front(), answer.map_offset, answer.within_page + answer.bytes));
  region.base = region.shared.get() + answer.within_page;
  region.nic_offset = answer.nic_offset;
  region.lkey = answer.lkey;
  return StagingPool(std::move(pool));
}

Result<StagingLease> StagingPool::lease(const CreditChannel& channel, std::uint32_t at_most,
                                        std::uint32_t tenant) {
  const auto endpoint = GDX_TRY(pool_->service->open(channel, at_most, tenant));
  return StagingLease(pool_, endpoint, std::min(pool_->rules.minimum_slots, at_most));
}

Result<void> StagingPool::map_to(const Gpu& gpu, const std::string& root) {
  if (pool_->memory == StagingMemory::kNic) {
    const RelaxedStores relaxed = relaxed_stores(gpu.pci_bus_id(), gpu.compute_capability(), root);
    if (!relaxed.cause.empty()) {
      return fail(
          Status::kUnsupported,
          fmt::format("kernels of GPU {} cannot push: by {} a doorbell may pass the payload before it; "
                      "use another mode than push, or remedy it: {}",
                      gpu.ordinal(), relaxed.cause, relaxed.fix));
    }
  }
  pool_->mapping = GDX_TRY(gpu.map(pool_->region.base, pool_->bytes));
  return {};
}

std::string StagingPool::map_if_allowed(const Gpu& gpu, const std::string& root) {
  const auto mapped = map_to(gpu, root);
  if (mapped) return {};
  log::warn("kernels of this process do not push: {}", mapped.error().message);
  return mapped.error().message;
}

StagingLease StagingPool::reference(std::uint32_t at_most) {
  return StagingLease(pool_, std::nullopt, std::min(pool_->rules.minimum_slots, at_most));
}
std::uint32_t StagingPool::daemon_number() const { return pool_->number; }
int StagingPool::host_file() const { return pool_->region.host ? pool_->region.host->file() : -1; }
std::byte* StagingPool::base() const { return pool_->region.base; }
std::uint64_t StagingPool::nic_offset() const { return pool_->region.nic_offset; }
std::uint32_t StagingPool::lkey() const { return pool_->region.lkey; }

StagingMemory StagingPool::memory() const { return pool_->memory; }
std::uint64_t StagingPool::bytes() const { return pool_->bytes; }
std::uint32_t StagingPool::slot_bytes() const { return pool_->slot_bytes; }
std::uint32_t StagingPool::slot_count() const { return pool_->rules.slot_count; }
std::uint32_t StagingPool::minimum_slots() const { return pool_->rules.minimum_slots; }
std::uint32_t StagingPool::leased_slots() const { return pool_->figures().leased_slots; }
std::uint32_t StagingPool::free_slots() const { return pool_->figures().free_slots; }
std::uint64_t StagingPool::bad_returns() const { return pool_->figures().bad_returns; }

StagingLease::StagingLease(std::shared_ptr<Pool> pool, std::optional<CreditEndpoint> endpoint,
                           std::uint32_t minimum_slots)
    : pool_(std::move(pool)), endpoint_(endpoint), minimum_slots_(minimum_slots) {}

StagingLease& StagingLease::operator=(StagingLease&& other) noexcept {
  if (this == &other) return *this;
  std::destroy_at(this);
  return *std::construct_at(this, std::move(other));
}

void StagingLease::retire() {
  if (pool_ && endpoint_) pool_->service->retire(*endpoint_);
}

FlightRecord StagingLease::flight() const {
  if (!pool_ || !endpoint_) return {};
  FlightRecord record = pool_->service->flight(*endpoint_);
  const auto pool = pool_->memory == StagingMemory::kNic ? FlightPool::kNic : FlightPool::kHost;
  for (FlightEvent& event : record.events) event.code = static_cast<std::uint8_t>(pool);
  return record;
}

StagingLease::~StagingLease() {
  if (pool_ && endpoint_) pool_->service->destroy(*endpoint_);
}

std::byte* StagingLease::base() const { return pool_ ? pool_->region.base : nullptr; }
std::uint64_t StagingLease::nic_offset() const { return pool_ ? pool_->region.nic_offset : 0; }
std::uint32_t StagingLease::lkey() const { return pool_ ? pool_->region.lkey : 0; }
std::uint32_t StagingLease::slot_bytes() const { return pool_ ? pool_->slot_bytes : 0; }
std::uint32_t StagingLease::slot_count() const { return pool_ ? pool_->rules.slot_count : 0; }

}  // namespace gdx
