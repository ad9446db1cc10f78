// Common part of a team and those split from it: the ranks' world, the windows, and the connections.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "host/bootstrap/caller.h"
#include "host/bootstrap/group_place.h"
#include "host/team/agreement.h"
#include "host/team/connections.h"
#include "host/team/provider.h"
#include "host/team/team_options.h"
#include "host/team/team_table.h"
#include "host/team/windows.h"

namespace gdx::team {

// Parts that Team::create makes because the program does not bring them itself. They end with the team.
struct OwnParts {
  std::optional<World> world;
  std::optional<Hca> hca;
  std::optional<StagingPool> nic_pool;
  std::optional<StagingPool> host_pool;
  // Counts the team among those of the process that have a pool in an HCA's memory, while it exists.
  std::shared_ptr<void> counted = nullptr;
};

// Ranks that make collective calls together: all of them, or those of a team that was made of another.
struct Group {
  Caller caller;
  std::optional<World> own_world = std::nullopt;  // has a value for a team of some ranks
  World* world = nullptr;
  std::shared_ptr<Table> table = nullptr;  // null until the team is made, and once it is closed
  std::uint64_t number = 0;                // from the first rank of a team of some; 0 for all
  std::uint64_t splits = 0;
  std::set<std::uint64_t> pieces = {};  // offsets of its pieces of the heap

  [[nodiscard]] bool is_part() const { return own_world.has_value(); }
};

// Threads: calls of one group one at a time, those of several groups at once, and abort() at any time.
class TeamState {
 public:
  explicit TeamState(const TeamOptions& options) : options_(options) {}

  // Steps of Team::create, in this order. Each is collective unless it says otherwise.
  [[nodiscard]] Result<void> join();        // returns once all ranks have joined
  [[nodiscard]] Result<void> open_parts();  // opens this rank's parts, without meeting others
  void use(World& world) { world_ = &world; }
  void use(const Hca& hca, World& world, StagingPools pools);
  // Makes the heap, starts the connections, and returns the group of all ranks. `opened`: result of this
  // rank's steps so far.
  [[nodiscard]] Result<std::shared_ptr<Group>> establish(const Result<void>& opened);

  // Returns the group of `members`, ranks of the world in the new order, once they all make it under `key`.
  // Threads: any. Errors: those of GroupPlace::meet, allocate and Table::create.
  [[nodiscard]] Result<std::shared_ptr<Group>> make_part(const bootstrap::GroupKey& key,
                                                         std::vector<std::uint32_t> members);
  // Ends a part, and gives its memory back once no rank of it uses that any more. Errors: those of meet.
  [[nodiscard]] Result<void> close_part(Group& group);

  // The next five calls are collective over the group.
  [[nodiscard]] Result<std::uint64_t> allocate(Group& group, std::uint64_t bytes, std::uint64_t alignment);
  [[nodiscard]] Result<void> free(Group& group, const void* pointer);
  [[nodiscard]] Result<void> add_window(void* address, std::uint64_t bytes);
  // Completes what kernels had posted to the group's ranks, and meets them.
  [[nodiscard]] Result<void> complete(Group& group, Call call);
  // Gathers a statement of every rank; `statement.own` may differ.
  [[nodiscard]] Result<std::vector<Statement>> meet(Group& group, Statement statement,
                                                    const Result<void>& done = {});

  [[nodiscard]] std::uint64_t bytes_free() const;
  [[nodiscard]] std::string describe_fault(const Table& table) const;
  void clear_fault(const Table& table) const;

  [[nodiscard]] World& world() { return *world_; }
  [[nodiscard]] const TeamOptions& options() const { return options_; }
  [[nodiscard]] const Windows& windows() const { return *windows_; }
  [[nodiscard]] Connections& connections() { return *connections_; }
  [[nodiscard]] TeamAtomics atomics() const { return atomics_; }

 private:
  struct Introduction;

  [[nodiscard]] Result<void> open_connections();
  [[nodiscard]] Result<std::vector<Introduction>> introduce();
  void start_groups(const std::vector<Introduction>& all);
  [[nodiscard]] Result<void> check_heaps(const std::vector<Introduction>& all) const;
  [[nodiscard]] Result<void> make_heap();
  [[nodiscard]] bool has_atomics() const;
  // Takes the provider that all ranks' choices lead to, in place of the HCA.
  [[nodiscard]] Result<void> choose_provider(const std::vector<Introduction>& all);
  [[nodiscard]] Result<std::vector<bool>> choose_ways();
  // Starts the poster, with the heap as its window. Collective.
  [[nodiscard]] Result<std::unique_ptr<Poster>> start_poster(const std::vector<Introduction>& all);
  // Lets the poster know all ranks' windows. Collective; a failure of this rank alone is for the next
  // meeting.
  [[nodiscard]] Result<void> exchange_cards(Poster& poster);
  [[nodiscard]] Result<std::shared_ptr<Table>> connect_ranks(const std::vector<Introduction>& all,
                                                             const std::vector<bool>& mapped,
                                                             std::unique_ptr<Poster> poster);
  void log_ways(const std::vector<bool>& mapped) const;
  // Makes records for ranks of the world, this one among them, and the handle in them. `area` lies at
  // `area_at` of the first window. Local.
  [[nodiscard]] Result<std::shared_ptr<Table>> make_table(std::vector<std::uint32_t> members,
                                                          const Windows::Area& area, std::uint64_t area_at);
  // Writes the handle of a table. `first` is the table of all ranks, whose endpoints share the pools.
  void write_handle(const Table& table, const Table& first, const Windows::Area& area,
                    std::byte* area_at) const;
  [[nodiscard]] Result<std::vector<Statement>> meet(Statement statement, const Result<void>& done = {}) {
    return meet(*first_, statement, done);
  }
  // Zeroes pieces, and frees them once all ranks of the group have done so.
  [[nodiscard]] Result<void> free_pieces(Group& group, const std::set<std::uint64_t>& pieces);

  // Members go in reverse order: the connections before all that they use.
  OwnParts own_;
  World* world_ = nullptr;
  std::shared_ptr<Group> first_ = std::make_shared<Group>();  // group of all ranks
  const Hca* hca_ = nullptr;
  StagingPools pools_;
  TeamOptions options_;
  std::optional<ProviderChoice> choice_;
  std::string provider_;      // empty: ranks that are not mapped are reached by an HCA
  std::uint64_t number_ = 0;  // number among rank 0's teams; 0 until all ranks have agreed on it
  std::optional<Gpu> gpu_;
  std::unique_ptr<bootstrap::GroupPlace> groups_;
  // Guards the heap's pieces, and which tables and windows there are, among groups.
  mutable std::mutex mutex_;
  std::optional<Windows> windows_;
  TeamAtomics atomics_ = TeamAtomics::kNic;
  std::unique_ptr<Connections> connections_;
};

}  // namespace gdx::team
