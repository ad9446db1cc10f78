// Common part of a team and those split from it: world, heap, windows, and the endpoints towards other ranks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "host/bootstrap/caller.h"
#include "host/gpu/gpu_memory.h"
#include "host/memory/memory.h"
#include "host/team/agreement.h"
#include "host/team/connector_service.h"
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
  std::shared_ptr<void> counted = nullptr;  // among the process's teams with a pool of an HCA's memory
};

struct Window {
  Memory memory;
  std::shared_ptr<GpuMapping> on_gpu = nullptr;  // of host memory; ends before the memory does
  std::optional<PeerMapping> mapping = std::nullopt;
  std::vector<RemoteMemory> parts = {};  // by rank
};

// This rank's end of the connection with a rank on a lane.
struct ConnectionEnd {
  std::optional<Endpoint> endpoint;
  PeerWay way = PeerWay::kNone;  // as the records have it
  std::string why_gone;

  // Returns whether kernels may know the endpoint. One that is being connected is the connector's alone.
  [[nodiscard]] bool is_known() const { return endpoint && way != PeerWay::kNone && way != PeerWay::kMapped; }
};

// Threads: one at a time, except abort() and the connector's.
class TeamState : private ConnectorHost {
 public:
  explicit TeamState(const TeamOptions& options) : options_(options), heap_(0) {}

  // Steps of Team::create, in this order. Each is collective unless it says otherwise.
  [[nodiscard]] Result<void> join();        // returns once all ranks have joined
  [[nodiscard]] Result<void> open_parts();  // this rank alone
  void use(const Hca& hca, World& world, StagingPools pools);
  // Makes the heap, starts the connector, and returns the table of all ranks. `opened`: result of this rank's
  // steps so far.
  [[nodiscard]] Result<std::shared_ptr<Table>> found(const Result<void>& opened);

  // Connects to `rank` on all lanes, and waits until `deadline_ns` at most. Local.
  [[nodiscard]] Result<void> connect(std::uint32_t rank, std::uint64_t deadline_ns);

  [[nodiscard]] Result<std::uint64_t> allocate(std::uint64_t bytes, std::uint64_t alignment);
  [[nodiscard]] Result<void> free(const void* pointer);
  [[nodiscard]] Result<void> add_window(void* address, std::uint64_t bytes);
  // Waits until all that kernels had posted before the call is complete, unless the team was aborted. Local.
  // Errors: those of Endpoint::flush, naming the rank that the connection is with.
  [[nodiscard]] Result<void> flush();
  // Gathers a statement of every rank; `statement.own` may differ.
  [[nodiscard]] Result<std::vector<Statement>> meet(Statement statement, const Result<void>& done = {});

  // Makes records for ranks of the world, this one among them, and the handle in them. Local.
  [[nodiscard]] Result<std::shared_ptr<Table>> make_table(std::vector<std::uint32_t> members);
  // "peer unreachable: rank 3, 8 bytes at heap offset 0x80; connection to rank 3, lane 0: ..."; "ok" while
  // healthy.
  [[nodiscard]] std::string describe_fault(const Table& table) const;
  static void clear_fault(const Table& table) { *table.fault() = {}; }
  void abort();

  [[nodiscard]] World& world() { return *world_; }
  [[nodiscard]] Caller& caller() { return caller_; }
  [[nodiscard]] const TeamOptions& options() const { return options_; }
  [[nodiscard]] std::span<std::byte> heap_memory() const { return windows_.front().memory.span(); }
  [[nodiscard]] const SymmetricHeap& heap() const { return heap_; }
  [[nodiscard]] TeamAtomics atomics() const { return atomics_; }
  // Zeroed where no such endpoint is connected; kernels refuse that one.
  [[nodiscard]] EndpointHandle endpoint_handle(std::uint32_t lane, std::uint32_t rank) const;
  [[nodiscard]] std::uint32_t connections(const Table& table) const;

 private:
  // Calls of the connector's thread.
  [[nodiscard]] Result<EndpointAddress> create(std::uint32_t rank, std::uint32_t lane) override;
  [[nodiscard]] Result<void> connect(std::uint32_t rank, std::uint32_t lane,
                                     const EndpointAddress& peer) override;
  void ready(std::uint32_t rank, std::uint32_t lane) override;
  void gone(std::uint32_t rank, std::uint32_t lane, const Error& why) override;

  // Checks that all heaps of this host fit into it, because its ranks take them at once. Ranks meet.
  [[nodiscard]] Result<void> check_heaps(std::uint64_t timeout_ns);
  [[nodiscard]] Result<void> make_local_parts();
  [[nodiscard]] Result<Memory> make_heap();
  [[nodiscard]] Result<void> zero(std::uint64_t offset, std::uint64_t bytes);
  [[nodiscard]] Result<void> map_to_gpu(Window& window) const;
  [[nodiscard]] Result<void> map_window(Window& window);
  [[nodiscard]] Result<Window> register_own(void* address, std::uint64_t bytes);
  [[nodiscard]] Result<void> listen();
  [[nodiscard]] bool has_atomics() const;
  [[nodiscard]] std::string place_of(const TeamFault& fault) const;
  [[nodiscard]] std::string reason_of(const TeamFault& fault, const Table& table) const;
  // Needs mutex_.
  [[nodiscard]] std::string wait_text(const TeamFault& fault, const Table& table) const;
  // Returns all ranks' identities, with which the connector starts once the ways are known.
  [[nodiscard]] Result<std::vector<bootstrap::ConnectorIdentity>> choose_ways();
  [[nodiscard]] Result<void> connect_all();
  [[nodiscard]] bool is_mapped(std::uint32_t rank) const { return windows_.front().mapping->is_direct(rank); }
  void write_window(const Table& table, std::size_t w) const;
  // Calls below need mutex_.
  void write_handle(const Table& table) const;
  // Adds this rank's part of a window to the handle that kernels read meanwhile.
  void show_window(const Table& table, std::uint32_t w) const;
  void write_connection(const Table& table, std::uint32_t lane, std::uint32_t index) const;
  // Takes the end's new way into all tables.
  void set_connection(std::uint32_t rank, std::uint32_t lane, PeerWay way);
  [[nodiscard]] std::vector<std::shared_ptr<Table>> tables() const;
  [[nodiscard]] std::uint32_t* words() const { return reinterpret_cast<std::uint32_t*>(words_.data()); }
  [[nodiscard]] std::atomic_ref<std::uint32_t> abort_word() const {
    return std::atomic_ref<std::uint32_t>(*words());
  }
  [[nodiscard]] std::uint32_t* asked() const { return words() + 1; }
  [[nodiscard]] std::size_t end_index(std::uint32_t lane, std::uint32_t rank) const {
    return std::size_t{lane} * world_->size() + rank;
  }

  Caller caller_;
  // Members go in reverse order: the connector's thread before all that it calls, then the endpoints.
  OwnParts own_;
  World* world_ = nullptr;
  const Hca* hca_ = nullptr;
  StagingPools pools_;
  TeamOptions options_;
  std::uint64_t number_ = 0;  // of rank 0's teams; 0 until all have agreed on it
  std::optional<Gpu> gpu_;
  std::optional<GpuMemory> gpu_heap_;
  std::vector<Window> windows_;  // the heap first
  SymmetricHeap heap_;
  HostPages words_;  // the abort word, then one of each rank and lane
  TeamAtomics atomics_ = TeamAtomics::kNic;
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Table>> tables_;  // guarded by mutex_
  std::vector<ConnectionEnd> ends_;           // by lane, then rank; guarded by mutex_
  std::unique_ptr<ConnectorService> connector_;
  std::shared_ptr<void> on_loss_;
};

}  // namespace gdx::team
