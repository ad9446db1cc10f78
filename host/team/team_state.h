// Common part of a team and those split from it: the ranks' world, the windows, and the connections.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "host/bootstrap/caller.h"
#include "host/team/agreement.h"
#include "host/team/connections.h"
#include "host/team/provider.h"
#include "host/team/team_options.h"
#include "host/team/team_table.h"
#include "host/team/windows.h"

namespace gdx::team {

// Things that the program does not bring itself.
struct OwnParts {
  std::optional<World> world;
  std::optional<Hca> hca;
  std::optional<StagingPool> nic_pool;
  std::optional<StagingPool> host_pool;
  std::shared_ptr<void> counted = nullptr;  // among the process's teams with a pool of an HCA's memory
};

// Threads: one at a time, except abort().
class TeamState {
 public:
  explicit TeamState(const TeamOptions& options) : options_(options) {}

  // Steps of Team::create, in this order. Each is collective unless it says otherwise.
  [[nodiscard]] Result<void> join();        // returns once all ranks have joined
  [[nodiscard]] Result<void> open_parts();  // this rank alone
  void use(World& world) { world_ = &world; }
  void use(const Hca& hca, World& world, StagingPools pools);
  // Makes the heap, starts the connections, and returns the table of all ranks. `opened`: result of this
  // rank's steps so far.
  [[nodiscard]] Result<std::shared_ptr<Table>> establish(const Result<void>& opened);

  [[nodiscard]] Result<std::uint64_t> allocate(std::uint64_t bytes, std::uint64_t alignment);
  [[nodiscard]] Result<void> free(const void* pointer);
  [[nodiscard]] Result<void> add_window(void* address, std::uint64_t bytes);
  // Gathers a statement of every rank; `statement.own` may differ.
  [[nodiscard]] Result<std::vector<Statement>> meet(Statement statement, const Result<void>& done = {});

  // Makes records for ranks of the world, this one among them, and the handle in them. Local.
  [[nodiscard]] Result<std::shared_ptr<Table>> make_table(std::vector<std::uint32_t> members);
  [[nodiscard]] std::string describe_fault(const Table& table) const;
  void clear_fault(const Table& table) const;

  [[nodiscard]] World& world() { return *world_; }
  [[nodiscard]] Caller& caller() { return caller_; }
  [[nodiscard]] const TeamOptions& options() const { return options_; }
  [[nodiscard]] const Windows& windows() const { return *windows_; }
  [[nodiscard]] Connections& connections() { return *connections_; }
  [[nodiscard]] TeamAtomics atomics() const { return atomics_; }

 private:
  struct Introduction;

  [[nodiscard]] Result<void> open_connections();
  [[nodiscard]] Result<std::vector<Introduction>> introduce();
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
  void write_handle(const Table& table) const;

  Caller caller_;
  // Members go in reverse order: the connections before all that they use.
  OwnParts own_;
  World* world_ = nullptr;
  const Hca* hca_ = nullptr;
  StagingPools pools_;
  TeamOptions options_;
  std::optional<ProviderChoice> choice_;
  std::string provider_;      // empty: ranks that are not mapped are reached by an HCA
  std::uint64_t number_ = 0;  // of rank 0's teams; 0 until all have agreed on it
  std::optional<Gpu> gpu_;
  std::optional<Windows> windows_;
  TeamAtomics atomics_ = TeamAtomics::kNic;
  std::unique_ptr<Connections> connections_;
};

}  // namespace gdx::team
