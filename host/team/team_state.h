// Common part of a team and those split from it: world, heap, windows, and the endpoints towards every rank.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "host/gpu/gpu_memory.h"
#include "host/memory/memory.h"
#include "host/team/agreement.h"
#include "host/team/symmetric_heap.h"
#include "host/team/team_options.h"
#include "host/team/team_table.h"

namespace gdx::team {

// Things that the program does not bring itself.
struct OwnParts {
  std::optional<World> world;
  std::optional<Hca> hca;
  std::optional<StagingPool> nic_pool;
  std::optional<StagingPool> host_pool;
};

struct Window {
  Memory memory;
  std::optional<PeerMapping> mapping = std::nullopt;
  std::vector<RemoteMemory> parts = {};  // by rank
};

// Threads: one at a time, except abort().
class TeamState {
 public:
  explicit TeamState(const TeamOptions& options) : options_(options), heap_(0) {}

  // Steps of Team::create, in this order. Each is collective unless it says otherwise.
  [[nodiscard]] Result<void> join();        // returns once all ranks have joined
  [[nodiscard]] Result<void> open_parts();  // this rank alone
  void use(const Hca& hca, World& world, StagingPools pools);
  // Makes the heap and connects all ranks. `opened`: result of this rank's steps so far.
  [[nodiscard]] Result<void> found(const Result<void>& opened);

  // Creates this rank's endpoints towards `rank`, one for each lane, and returns their addresses. Local.
  [[nodiscard]] Result<std::vector<EndpointAddress>> make_endpoints(std::uint32_t rank);
  // Connects them to the peer's endpoints of the same lanes, and lets kernels use them. Local.
  [[nodiscard]] Result<void> connect(std::uint32_t rank, std::span<const EndpointAddress> addresses);

  [[nodiscard]] Result<std::uint64_t> allocate(std::uint64_t bytes, std::uint64_t alignment);
  [[nodiscard]] Result<void> free(const void* pointer);
  [[nodiscard]] Result<void> add_window(void* address, std::uint64_t bytes);
  // Gathers a statement of every rank; `statement.own` may differ.
  [[nodiscard]] Result<std::vector<Statement>> meet(Statement statement, const Result<void>& done = {});

  // Makes records for ranks of the world. Local.
  [[nodiscard]] Result<std::shared_ptr<Table>> make_table(std::vector<std::uint32_t> members);
  [[nodiscard]] TeamHandle handle(const Table& table, std::uint32_t rank) const;
  // "peer unreachable: rank 3, 8 bytes at heap + 0x80; lane 0 towards rank 3: ..."; "ok" while healthy.
  [[nodiscard]] std::string describe_fault(const Table& table) const;
  void abort();

  [[nodiscard]] World& world() { return *world_; }
  [[nodiscard]] const TeamOptions& options() const { return options_; }
  [[nodiscard]] std::span<std::byte> heap_memory() const { return windows_.front().memory.span(); }
  [[nodiscard]] const SymmetricHeap& heap() const { return heap_; }
  [[nodiscard]] TeamAtomics atomics() const { return atomics_; }
  // Zeroed where there is no such endpoint; kernels refuse that one.
  [[nodiscard]] EndpointHandle endpoint_handle(std::uint32_t lane, std::uint32_t rank) const;

 private:
  [[nodiscard]] Result<void> make_local_parts();
  [[nodiscard]] Result<Memory> make_heap();
  [[nodiscard]] Result<void> zero(std::uint64_t offset, std::uint64_t bytes);
  [[nodiscard]] Result<void> map_to_gpu(const Memory& memory);
  [[nodiscard]] Result<void> map_window(Window& window);
  [[nodiscard]] Result<Window> register_own(void* address, std::uint64_t bytes);
  [[nodiscard]] Result<void> connect_all();
  [[nodiscard]] bool is_mapped(std::uint32_t rank) const { return windows_.front().mapping->is_direct(rank); }
  void write_windows(const Table& table) const;
  void write_connection(const Table& table, std::uint32_t index) const;
  [[nodiscard]] std::vector<std::shared_ptr<Table>> tables() const;
  [[nodiscard]] std::uint32_t* words() const { return reinterpret_cast<std::uint32_t*>(words_.data()); }
  [[nodiscard]] std::size_t endpoint_index(std::uint32_t lane, std::uint32_t rank) const {
    return std::size_t{lane} * world_->size() + rank;
  }

  // Members go in reverse order: the endpoints before all that they use.
  OwnParts own_;
  World* world_ = nullptr;
  const Hca* hca_ = nullptr;
  StagingPools pools_;
  TeamOptions options_;
  std::optional<Gpu> gpu_;
  std::optional<GpuMemory> gpu_heap_;
  std::vector<Window> windows_;  // the heap first
  std::vector<std::shared_ptr<GpuMapping>> mappings_;
  SymmetricHeap heap_;
  HostPages words_;  // the abort word, then one of each rank and lane
  std::vector<std::weak_ptr<Table>> tables_;
  TeamAtomics atomics_ = TeamAtomics::kNic;
  std::vector<PeerWay> ways_;                       // by rank, as the records have it
  std::vector<std::optional<Endpoint>> endpoints_;  // by lane, then rank
};

}  // namespace gdx::team
