#include "host/programs/daemon/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "host/hca/hca_events.h"
#include "host/programs/daemon/device_file.h"

namespace gdx::daemon {
namespace {

// Returns true for an address of the HCA's port, and where that cannot be read.
bool leads_back(const Hca& hca, const EndpointAddress& peer) {
  ibv_port_attr attributes{};
  if (ibv_query_port(hca.context(), hca.port(), &attributes) != 0) return true;
  // By a FLID packets go out to that LID, whatever the peer says of its own.
  const auto is_own = [&](std::uint16_t lid) {
    return attributes.lid != 0 && (lid ^ attributes.lid) >> attributes.lmc == 0;
  };
  if (is_own(peer.lid) || is_own(flid_of(peer.gid))) return true;
  for (int index = 0; index < attributes.gid_tbl_len; ++index) {
    ibv_gid gid{};
    if (ibv_query_gid(hca.context(), hca.port(), index, &gid) == 0 &&
        std::equal(std::begin(gid.raw), std::end(gid.raw), std::begin(peer.gid)))
      return true;
  }
  return false;
}

}  // namespace

Result<Quota::Share> Quota::take(std::uint64_t amount) {
  Share of_whole = whole_ != nullptr ? GDX_TRY(whole_->take(amount)) : Share{};
  const std::lock_guard lock(mutex_);
  if (amount > most_ - used_) {
    return fail(
        Status::kNoMemory,
        fmt::format(
            "gdxd gives a user no more than {} {}, and {} are in use: end some, or have the limit raised",
            most_, what_, used_));
  }
  used_ += amount;
  of_whole.leave();
  return Share(this, amount);
}

std::uint64_t Quota::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

void Quota::give_back(std::uint64_t amount) {
  if (whole_ != nullptr) whole_->give_back(amount);
  const std::lock_guard lock(mutex_);
  used_ -= amount;
}

std::uint64_t Rate::take(std::uint64_t now_ns) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t idle_ns = now_ns > kSecondNs ? now_ns - kSecondNs : 0;
  next_ns_ = std::min(std::max(next_ns_, idle_ns) + interval_ns_, now_ns + longest_ns_);
  return next_ns_ > now_ns ? next_ns_ - now_ns : 0;
}

Owner::Owner(uid_t the_user, const GroupLimits& limits)
    : user(the_user),
      clients("clients", limits.max_clients),
      endpoints("endpoints", limits.max_endpoints),
      regions("registered regions", limits.max_regions),
      registered_bytes("registered bytes", limits.max_registered_bytes),
      pools("staging pools", limits.max_pools),
      requests(limits.max_requests_per_s, limits.max_clients),
      max_nic_pools_(limits.max_nic_pools) {}

Quota& Owner::nic_pools(const std::string& hca) {
  const std::lock_guard lock(mutex_);
  const auto what = [&] {
    return fmt::format("staging pools in the memory of {} (pools of equal options count once)", hca);
  };
  const auto found = nic_pools_.find(hca);
  return found != nic_pools_.end() ? found->second
                                   : nic_pools_.try_emplace(hca, what(), max_nic_pools_).first->second;
}

Group::Group(uid_t user, const Limits& limits, std::shared_ptr<Owner> owner)
    : owner_(owner ? std::move(owner) : std::make_shared<Owner>(user, limits.group)),
      clients("clients", limits.group.max_clients, &owner_->clients),
      endpoints("endpoints", limits.group.max_endpoints, &owner_->endpoints),
      regions("registered regions", limits.group.max_regions, &owner_->regions),
      registered_bytes("registered bytes", limits.group.max_registered_bytes, &owner_->registered_bytes),
      pools("staging pools", limits.group.max_pools, &owner_->pools),
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
  if (const auto found = hcas_.find(key); found != hcas_.end()) {
    if (!found->second.thing->failed) return use(hcas_, key);
    return fail(Status::kBusy, fmt::format("HCA {} has failed, and its objects are being ended: try again",
                                           found->second.thing->hca.name()));
  }
  auto hca = GDX_TRY(Hca::open(options));
  auto file = GDX_TRY(file_for_clients(hca.context()->cmd_fd));
  auto bytes = GDX_TRY(registered_bytes.take(fillable_bytes(file)));
  hcas_[key].thing = std::make_unique<GroupHca>(GroupHca{std::move(file), std::move(bytes), std::move(hca)});
  return use(hcas_, key);
}

std::shared_ptr<void> Group::list_queue_pair(const std::string& hca, std::uint32_t qpn) {
  std::unique_lock lock(queue_pairs_mutex_);
  const auto listed = queue_pairs_.emplace(hca, qpn);
  lock.unlock();  // removal runs below where no memory is left
  return {nullptr, [this, listed](std::nullptr_t) {
            const std::lock_guard removal(queue_pairs_mutex_);
            queue_pairs_.erase(listed);
          }};
}

bool Group::has_queue_pair(const std::string& hca, std::uint32_t qpn) const {
  const std::lock_guard lock(queue_pairs_mutex_);
  return queue_pairs_.contains({hca, qpn});
}

// Permits only queue pairs of this group as peers within one HCA. A packet names no sending queue pair
// (IBA 9.2). So any queue pair of the peer's HCA can send to an RC one. The receiver's protection domain
// checks their keys.
Result<void> Group::check_peer(const Hca& hca, const EndpointAddress& peer) const {
  if (has_queue_pair(hca.name(), peer.qpn) || !leads_back(hca, peer)) return {};
  return fail(Status::kNotFound,
              fmt::format("gdxd has no queue pair {:#x} of this user at HCA {}: within one HCA, endpoints of "
                          "one user connect, both through gdxd",
                          peer.qpn, hca.name()));
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
  auto nic = on_host ? Quota::Share{} : GDX_TRY(owner_->nic_pools(hca->hca.name()).take(1));
  auto count = GDX_TRY(pools.take(1));
  auto share = GDX_TRY(registered_bytes.take(on_host ? bytes : 0));
  auto pool = GDX_TRY(StagingPool::create(hca->hca, options));
  const std::uint64_t offset = on_host ? 0 : GDX_TRY(file_offset_of(pool.base()));
  const int file = on_host ? pool.host_file() : hca->command_file.value();
  pools_[key].thing = std::make_unique<GroupPool>(
      GroupPool{hca, std::move(pool), std::move(count), std::move(share), std::move(nic), file, offset});
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

bool Group::has_failed(const GroupHca& hca) const {
  const std::lock_guard lock(mutex_);
  return hca.failed;
}

std::vector<HcaEvent> Group::take_events() {
  std::vector<HcaEvent> events;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return events;
  for (const auto& [key, used] : hcas_) {
    while (const auto event = used.thing->hca.events()->next()) {
      used.thing->failed = *event == ipc::Event::kHcaFailed;
      events.push_back({use(hcas_, key), *event});
    }
  }
  return events;
}

}  // namespace gdx::daemon
