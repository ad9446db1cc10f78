// This rank's ends of a team's connections, one of each rank and lane, and the records in which kernels see
// them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "host/direct/peer_mapping.h"
#include "host/poster/poster.h"
#include "host/team/connector_service.h"
#include "host/team/process_watch.h"
#include "host/team/team_options.h"
#include "host/team/team_table.h"

namespace gdx::team {

// Returns the time within which a rank is connected, or answers, or is given up. A kernel asks at once, or
// after a silence, and is to report an unreachable rank before its own timeout. `options` are complete.
[[nodiscard]] std::uint64_t deadline_of(const EndpointOptions& options);

// Threads: one at a time, except abort() and the connector's, beside kernels.
class Connections final : private ConnectorHost {
 public:
  // Listens for other ranks' connectors, with an HCA. `options` are complete; they and `hca`, null without
  // one, outlive this object. Errors: those of HostPages::allocate, Hca::on_loss, ConnectorService::listen.
  [[nodiscard]] static Result<std::unique_ptr<Connections>> listen(const Hca* hca, StagingPools pools,
                                                                   const TeamOptions& options,
                                                                   const std::optional<Gpu>& gpu,
                                                                   const World& world);
  ~Connections() override;
  [[nodiscard]] bootstrap::ConnectorIdentity identity() const {
    return connector_ ? connector_->identity() : bootstrap::ConnectorIdentity{};
  }
  // Starts to serve kernels and other ranks. `identities`, `mapped`: by rank. Errors: those of
  // ConnectorService::start.
  [[nodiscard]] Result<void> start(std::span<const bootstrap::ConnectorIdentity> identities,
                                   const std::vector<bool>& mapped, TeamAtomics atomics);
  // Gives up the HCA with which this object listens: its loss is none of the team's any more.
  void leave_hca();
  // Lets kernels reach all ranks by this poster, whose windows may be mapped. Errors: those of Gpu::map.
  [[nodiscard]] Result<void> start_proxied(const std::vector<bool>& mapped, std::unique_ptr<Poster> poster);
  // Lets kernels reach all ranks by loads and stores alone. A rank is gone once its process has ended.
  // Errors: those of ProcessWatch::start.
  [[nodiscard]] Result<void> start_mapped(const PeerMapping& mapping);
  // Returns the poster; null if no rank is proxied.
  [[nodiscard]] Poster* poster() const { return poster_.get(); }
  // Words by lane, then rank, by which kernels ask for a connection or a probe.
  [[nodiscard]] std::uint32_t* asked() const { return words() + 1; }

  // Connects to `rank` on all lanes, and waits until `deadline_ns` at most. Errors: those of
  // ConnectorService::connect.
  [[nodiscard]] Result<void> connect(std::uint32_t rank, std::uint64_t deadline_ns);
  [[nodiscard]] Result<void> connect_all();
  // Waits until all that kernels had posted to `ranks` before the call is complete, unless the team was
  // aborted. Errors: those of Endpoint::flush, naming the rank that the connection is with.
  [[nodiscard]] Result<void> flush(std::span<const std::uint32_t> ranks);
  void abort();

  // Writes the ends' records of a table, and all that follows from later changes.
  void add(const std::shared_ptr<Table>& table);
  // Calls `change` for every table that is in use, while no record changes otherwise.
  template <typename Change>
  void for_each_table(const Change& change) const {
    const std::lock_guard lock(mutex_);
    for (const auto& table : tables()) change(*table);
  }
  // Returns the table of all ranks.
  [[nodiscard]] std::shared_ptr<Table> first_table() const;

  // Returns nonzero once waits of kernels are to return kAborted.
  [[nodiscard]] const std::uint32_t* abort_word() const { return words(); }
  // Zeroed where no such endpoint is connected; kernels refuse that one.
  [[nodiscard]] EndpointHandle endpoint_handle(std::uint32_t lane, std::uint32_t rank) const;
  [[nodiscard]] std::uint32_t count(const Table& table) const;
  // Returns whether an endpoint towards `rank` works, so that a wait has probed its NIC.
  [[nodiscard]] bool answers(std::uint32_t rank) const;
  // Describes each connection that failed: "connection to rank 3, lane 0: ...; endpoint towards ..."; empty
  // without one.
  [[nodiscard]] std::string describe_failures(const Table& table) const;
  // Forgets the first call that failed on each ring of commands.
  void clear_faults() const;

 private:
  struct End {
    std::optional<Endpoint> endpoint;
    PeerWay way = PeerWay::kNone;  // way that the records show
    std::string why_gone;

    // Returns whether kernels may know the endpoint. One that is being connected is the connector's alone.
    [[nodiscard]] bool is_known() const {
      return endpoint && way != PeerWay::kNone && way != PeerWay::kMapped;
    }
    [[nodiscard]] bool works() const { return is_known() && endpoint->fault().status == Status::kOk; }
  };

  Connections(const Hca* hca, StagingPools pools, const TeamOptions& options, const std::optional<Gpu>& gpu,
              const World& world);

  // Calls of the connector's thread.
  [[nodiscard]] Result<EndpointAddress> create(std::uint32_t rank, std::uint32_t lane) override;
  [[nodiscard]] Result<void> connect(std::uint32_t rank, std::uint32_t lane,
                                     const EndpointAddress& peer) override;
  void ready(std::uint32_t rank, std::uint32_t lane) override;
  void gone(std::uint32_t rank, std::uint32_t lane, const Error& why) override;

  void process_ended(std::uint32_t rank);
  [[nodiscard]] Result<void> check_without_hca(std::uint32_t rank) const;
  // Returns the end's endpoint once kernels know it, which then stays until the team ends; else null.
  [[nodiscard]] const Endpoint* known_endpoint(std::uint32_t lane, std::uint32_t rank) const;
  // Calls below need mutex_.
  void write(const Table& table, std::uint32_t lane, std::uint32_t index) const;
  // Takes the end's new way into all tables.
  void set_way_of(std::uint32_t rank, std::uint32_t lane, PeerWay way);
  [[nodiscard]] std::vector<std::shared_ptr<Table>> tables() const;

  void ask(std::uint32_t rank, std::uint32_t lane) const;
  [[nodiscard]] std::uint32_t* words() const { return reinterpret_cast<std::uint32_t*>(words_.data()); }
  [[nodiscard]] bool is_aborted() const {
    return std::atomic_ref(*words()).load(std::memory_order_relaxed) != 0;
  }
  void set_abort() const { std::atomic_ref(*words()).store(1, std::memory_order_release); }
  [[nodiscard]] End& end(std::uint32_t lane, std::uint32_t rank) {
    return ends_[std::size_t{lane} * size_ + rank];
  }
  [[nodiscard]] const End& end(std::uint32_t lane, std::uint32_t rank) const {
    return ends_[std::size_t{lane} * size_ + rank];
  }

  // Members go in reverse order: the connector's thread before all that it calls, then the endpoints.
  const Hca* hca_;
  StagingPools pools_;
  const TeamOptions* options_;
  std::optional<Gpu> gpu_;
  std::uint32_t rank_;
  std::uint32_t size_;
  std::vector<bool> mapped_;  // by rank
  TeamAtomics atomics_ = TeamAtomics::kNic;
  HostPages words_;  // the abort word, then one of each rank and lane
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Table>> tables_;  // guarded by mutex_
  std::vector<End> ends_;                     // by lane, then rank; guarded by mutex_
  std::unique_ptr<ConnectorService> connector_;
  bool serves_ = false;                      // the connector does
  std::unique_ptr<ProcessWatch> processes_;  // watches mapped ranks, in a team without an HCA and a poster
  std::unique_ptr<Poster> poster_;
  std::shared_ptr<GpuMapping> rings_on_gpu_;  // ends before the rings do
  std::shared_ptr<void> on_loss_;
};

}  // namespace gdx::team
