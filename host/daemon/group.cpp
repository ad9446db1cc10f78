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

// The last user ends the thing under the mutex; what that held in turn ends after it.
template <typename Key, typename Thing>
std::shared_ptr<Thing> Group::use(std::map<Key, Used<Thing>>& things, const Key& key) {
  Used<Thing>& used = things.at(key);
  ++used.users;
  return std::shared_ptr<Thing>(used.thing.get(), [this, &things, key](Thing* thing) {
    std::shared_ptr<GroupHca> below;
    const std::lock_guard lock(mutex_);
    Used<Thing>& left = things.at(key);
    if (--left.users != 0) return;
    if constexpr (std::is_same_v<Thing, GroupPool>) below = std::move(thing->hca);
    things.erase(key);
  });
}

Result<Group::HcaKey> Group::key_of(const HcaOptions& options) {
  HcaKey key(options.name, options.gid_index ? int{*options.gid_index} : -1, options.without_port);
  if (!options.name.empty()) return key;
  const auto names = GDX_TRY(list_hcas());
  if (names.size() == 1) std::get<0>(key) = names.front();
  return key;
}

Result<std::shared_ptr<GroupHca>> Group::open_hca(const HcaOptions& options) {
  const std::lock_guard lock(mutex_);
  const HcaKey key = GDX_TRY(key_of(options));
  if (hcas_.contains(key)) return use(hcas_, key);
  auto hca = GDX_TRY(Hca::open(options));
  auto file = GDX_TRY(file_for_clients(hca.context()->cmd_fd));
  hcas_[key].thing = std::make_unique<GroupHca>(GroupHca{std::move(hca), std::move(file)});
  return use(hcas_, key);
}

Result<std::shared_ptr<GroupPool>> Group::open_pool(const std::shared_ptr<GroupHca>& hca,
                                                    StagingOptions options) {
  options.processes = limits_.pools_per_hca;
  options.shareable = true;
  const std::lock_guard lock(mutex_);
  const PoolKey key(hca.get(), options.memory, options.pool_bytes, options.slot_bytes, options.minimum_slots,
                    options.threshold_percent);
  if (pools_.contains(key)) return use(pools_, key);
  const bool on_host = options.memory == StagingMemory::kHost;
  const auto bytes = GDX_TRY(resolve_staging_bytes(options, hca->hca.device_memory_bytes()));
  auto count = GDX_TRY(pools.take(1));
  auto share = GDX_TRY(registered_bytes.take(on_host ? bytes : 0));
  auto pool = GDX_TRY(StagingPool::create(hca->hca, options));
  const std::uint64_t offset = on_host ? 0 : GDX_TRY(file_offset_of(pool.base()));
  const int file = on_host ? pool.host_file() : hca->command_file.value();
  pools_[key].thing = std::make_unique<GroupPool>(
      GroupPool{hca, std::move(pool), std::move(count), std::move(share), file, offset});
  return use(pools_, key);
}

std::vector<Group::PoolFigures> Group::pool_figures() const {
  const std::lock_guard lock(mutex_);
  std::vector<PoolFigures> figures;
  figures.reserve(pools_.size());
  for (const auto& [key, used] : pools_) {
    const StagingPool& pool = used.thing->pool;
    figures.push_back({used.thing->hca->hca.name(), pool.memory(), pool.bytes(), pool.slot_count(),
                       pool.leased_slots(), pool.bad_returns()});
  }
  return figures;
}

std::vector<std::shared_ptr<GroupHca>> Group::open_hcas() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<GroupHca>> all;
  all.reserve(hcas_.size());
  for (const auto& [key, used] : hcas_) all.push_back(use(hcas_, key));
  return all;
}

}  // namespace gdx::daemon
