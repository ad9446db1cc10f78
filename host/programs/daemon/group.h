// Processes of one user, which trust each other. They share an HCA's context and protection domain and its
// staging pools, so one of them can damage another's data. Groups share none of these.
#pragma once

#include <sys/types.h>
#include <atomic>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/result.h"
#include "host/hca/hca.h"
#include "host/programs/daemon/limits.h"
#include "host/queue/endpoint_address.h"
#include "host/staging/staging_pool.h"
#include "proto/ipc/messages.h"

namespace gdx::daemon {

// Limit on what a group has of one kind of thing. What a group takes counts in its owner's quota, the
// `whole`, too.
class Quota {
 public:
  Quota(std::string what, std::uint64_t most, Quota* whole = nullptr)
      : what_(std::move(what)), most_(most), whole_(whole) {}

  // A part of the quota, which goes back with it.
  class Share {
   public:
    Share() = default;
    Share(Quota* quota, std::uint64_t amount) : quota_(quota), amount_(amount) {}
    Share(Share&& other) noexcept : quota_(std::exchange(other.quota_, nullptr)), amount_(other.amount_) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(quota_, other.quota_);
      std::swap(amount_, other.amount_);
      return *this;
    }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() {
      if (quota_ != nullptr) quota_->give_back(amount_);
    }
    // Gives the part up without giving it back. The quota that took it gives it back with a part of its own.
    void leave() { quota_ = nullptr; }

   private:
    Quota* quota_ = nullptr;
    std::uint64_t amount_ = 0;
  };

  // Errors: kNoMemory naming the quota and its limit. Threads: any.
  [[nodiscard]] Result<Share> take(std::uint64_t amount);
  [[nodiscard]] std::uint64_t used() const;

 private:
  void give_back(std::uint64_t amount);

  std::string what_;
  std::uint64_t most_;
  Quota* whole_;
  mutable std::mutex mutex_;
  std::uint64_t used_ = 0;
};

// Limit on how often a group does something: so often a second, and a second's worth at once.
class Rate {
 public:
  Rate(std::uint32_t per_s, std::uint32_t most_waiting)
      : interval_ns_(kSecondNs / per_s), longest_ns_(most_waiting * interval_ns_) {}
  // Takes a turn, and returns the time until it comes: at most that of `most_waiting` turns, since turns of
  // those who have gone count, too.
  [[nodiscard]] std::uint64_t take(std::uint64_t now_ns);

 private:
  static constexpr std::uint64_t kSecondNs = 1'000'000'000;
  std::uint64_t interval_ns_;
  std::uint64_t longest_ns_;
  std::mutex mutex_;
  std::uint64_t next_ns_ = 0;  // time of the next turn if all turns of the last second were taken
};

// Limits of one user together with all ids of its ranges in /etc/subuid. Threads: any.
class Owner {
 public:
  Owner(uid_t user, const GroupLimits& limits);
  // Returns the quota of an HCA's memory.
  [[nodiscard]] Quota& nic_pools(const std::string& hca);

  const uid_t user;
  Quota clients;
  Quota endpoints;
  Quota regions;
  Quota registered_bytes;
  Quota pools;
  Rate requests;

 private:
  std::uint32_t max_nic_pools_;
  std::mutex mutex_;
  std::map<std::string, Quota> nic_pools_;  // guarded by the mutex
};

// An HCA that the group has open. It is closed with the group's last client that uses it.
struct GroupHca {
  Descriptor command_file;  // file of the context, for clients to map; closed after the context has ended
  Quota::Share bytes;       // share for the bytes of that file, which clients can fill
  Hca hca;
  bool failed = false;  // guarded by the group's mutex
};

struct HcaEvent {
  std::shared_ptr<GroupHca> hca;
  ipc::Event event;
};

struct GroupPool {
  std::shared_ptr<GroupHca> hca;  // outlives the pool
  StagingPool pool;
  Quota::Share count;
  Quota::Share bytes;    // share of the quota of host memory
  Quota::Share nic;      // a part of the NIC's
  int file;              // file for clients to map
  std::uint64_t offset;  // place of the pool in that memory
};

// Threads: any.
class Group {
 public:
  // `owner`: of this user's id; null: the user is its own, and has no other group.
  Group(uid_t user, const Limits& limits, std::shared_ptr<Owner> owner = nullptr);

  // Errors: those of Hca::open; kBusy while clients of a failed one end; kNoMemory beyond the quota.
  [[nodiscard]] Result<std::shared_ptr<GroupHca>> open_hca(const HcaOptions& options);
  // Returns the pool of these options, made at its first use. Errors: those of StagingPool::create; kNoMemory
  // beyond the quota.
  [[nodiscard]] Result<std::shared_ptr<GroupPool>> open_pool(const std::shared_ptr<GroupHca>& hca,
                                                             StagingOptions options);

  struct PoolFigures {
    std::string hca;
    StagingMemory memory;
    std::uint64_t bytes;
    std::uint32_t slots;
    std::uint32_t leased_slots;
    std::uint64_t bad_returns;
  };
  [[nodiscard]] std::vector<PoolFigures> pool_figures() const;
  [[nodiscard]] std::vector<std::shared_ptr<GroupHca>> open_hcas();
  // Returns what the HCAs have told since the last call. Does not wait: while one is opened, nothing.
  [[nodiscard]] std::vector<HcaEvent> take_events();
  // Lists a queue pair of an HCA as the group's, until the returned object ends.
  [[nodiscard]] std::shared_ptr<void> list_queue_pair(const std::string& hca, std::uint32_t qpn);
  // Errors: kNotFound for a peer at `hca` itself that is not of the group.
  [[nodiscard]] Result<void> check_peer(const Hca& hca, const EndpointAddress& peer) const;
  // Returns whether its failure has been taken.
  [[nodiscard]] bool has_failed(const GroupHca& hca) const;

  [[nodiscard]] uid_t user() const { return user_; }
  [[nodiscard]] const std::shared_ptr<Owner>& owner() const { return owner_; }
  [[nodiscard]] const GroupLimits& limits() const { return limits_.group; }
  [[nodiscard]] std::uint32_t pools_per_hca() const { return limits_.pools_per_hca; }

 private:
  std::shared_ptr<Owner> owner_;  // outlives the quotas

 public:
  std::atomic<std::uint32_t> last_tenant{0};  // numbers the programs, for pools that they share
  Quota clients;
  Quota endpoints;
  Quota regions;
  Quota registered_bytes;
  Quota pools;
  Rate fault_warnings{1, 1};  // two seconds of none end a pause

 private:
  [[nodiscard]] bool has_queue_pair(const std::string& hca, std::uint32_t qpn) const;

  // The HCA, where the memory is, and the pool's rules.
  using PoolKey =
      std::tuple<const GroupHca*, StagingMemory, std::uint64_t, std::uint32_t, std::uint32_t, std::uint32_t>;
  // The name of the HCA, its GID index, and whether it was opened without its port.
  using HcaKey = std::tuple<std::string, int, bool>;
  template <typename Thing>
  struct Used {
    std::unique_ptr<Thing> thing;
    std::size_t users = 0;
  };
  template <typename Key, typename Thing>
  std::shared_ptr<Thing> use(std::map<Key, Used<Thing>>& things, const Key& key);
  Result<HcaKey> key_of(const HcaOptions& options);

  uid_t user_;
  Limits limits_;
  mutable std::mutex queue_pairs_mutex_;
  std::multiset<std::pair<std::string, std::uint32_t>> queue_pairs_;  // HCA and QPN
  // Things begin and end under it, so that none is made while its forerunner still has the memory.
  // Recursive: a use that finds no memory for its count ends at once.
  mutable std::recursive_mutex mutex_;
  std::map<HcaKey, Used<GroupHca>> hcas_;
  std::map<PoolKey, Used<GroupPool>> pools_;
};

}  // namespace gdx::daemon
