#include "host/daemon/group.h"

#include <fmt/format.h>

#include <utility>

#include "host/daemon/device_file.h"

namespace gdx::daemon {

Result<Quota::Share> Quota::take(std::uint64_t amount) {
  const std::lock_guard lock(mutex_);
  if (amount > most_ - used_) {
    return fail(
        Status::kNoMemory,
        fmt::format(
            "gdxd gives a user no more than {} {}, and {} are in use: end some, or have the limit raised",
            most_, what_, used_));
  }
  used_ += amount;
  return Share(this, amount);
}

std::uint64_t Quota::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

void Quota::give_back(std::uint64_t amount) {
  const std::lock_guard lock(mutex_);
  used_ -= amount;
}

Group::Group(uid_t user, const Limits& limits)
    : clients("clients", limits.group.max_clients),
      endpoints("endpoints", limits.group.max_endpoints),
      regions("registered regions", limits.group.max_regions),
      registered_bytes("registered bytes", limits.group.max_registered_bytes),
      pools("staging pools", limits.group.max_pools),
      user_(user),
      limits_(limits) {}

Result<std::shared_ptr<GroupHca>> Group::open_hca(const HcaOptions& options) {
  const std::lock_guard lock(mutex_);
  const std::tuple key(options.name, options.gid_index ? int{*options.gid_index} : -1, options.without_port);
  std::erase_if(hcas_, [](const auto& entry) { return entry.second.expired(); });
  if (auto open = hcas_[key].lock()) return open;
  auto hca = GDX_TRY(Hca::open(options));
  const int command_file = hca.context()->cmd_fd;
  auto opened = std::make_shared<GroupHca>(GroupHca{std::move(hca), command_file});
  hcas_[key] = opened;
  return opened;
}

Result<std::shared_ptr<GroupPool>> Group::open_pool(const std::shared_ptr<GroupHca>& hca,
                                                    StagingOptions options) {
  options.processes = limits_.pools_per_hca;
  const std::lock_guard lock(mutex_);
  const PoolKey key(hca->hca.name(), options.memory, options.pool_bytes, options.slot_bytes,
                    options.minimum_slots, options.threshold_percent);
  std::erase_if(pools_, [](const auto& entry) { return entry.second.expired(); });
  if (auto open = pools_[key].lock()) return open;
  auto share = GDX_TRY(pools.take(1));
  auto pool = GDX_TRY(StagingPool::create(hca->hca, options));
  const bool on_host = options.memory == StagingMemory::kHost;
  const std::uint64_t offset = on_host ? 0 : GDX_TRY(file_offset_of(pool.base()));
  const int file = on_host ? pool.host_file() : hca->command_file;
  auto opened = std::make_shared<GroupPool>(GroupPool{hca, std::move(pool), std::move(share), file, offset});
  pools_[key] = opened;
  return opened;
}

}  // namespace gdx::daemon
