// The ranks of one job, connected over TCP or on one host by local sockets, to exchange addresses and to
// detect lost ranks. Rank 0 listens at the root address, every other rank connects to it, and gathered bytes
// pass through rank 0. Over TCP they recognise each other by the job's secret, which encrypts what they say.
// No payload goes this way. Layouts: proto/bootstrap/messages.h, secret.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/descriptor.h"
#include "base/result.h"
#include "host/bootstrap/secret.h"
#include "proto/bootstrap/messages.h"

namespace gdx {

namespace bootstrap {
class Connection;
class GroupPlace;
}  // namespace bootstrap

inline constexpr char kRankVariable[] = "GDX_RANK";
inline constexpr char kWorldSizeVariable[] = "GDX_WORLD_SIZE";
inline constexpr char kRootVariable[] = "GDX_ROOT";  // HOST:PORT, [IPV6]:PORT or unix:NAME
inline constexpr char kBootstrapTimeoutVariable[] = "GDX_BOOTSTRAP_TIMEOUT_S";

// A program's own allgather: puts the `bytes` bytes at `mine` of every rank to `all`, rank 0's first. Returns
// whether it succeeded.
using Allgather = std::function<bool(const void* mine, void* all, std::size_t bytes)>;
// Returns to every rank the text of rank 0, which others leave empty.
using Tell = std::function<Result<std::string>(const std::string& mine, std::uint64_t deadline_ns)>;

struct WorldOptions {
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  // Address where rank 0 listens, HOST:PORT, [IPV6]:PORT, or unix:NAME on this host; unused when size is 1.
  std::string root = {};
  std::uint64_t timeout_ns = 30'000'000'000;  // bound of join(), and of collectives without their own
  // Tells the others where rank 0 listens, which is then a free port; `root` is unused.
  Tell tell_root = {};
  bool one_host = false;  // with tell_root: ranks meet at a local socket
  // The job's secret, where the program supplies it, or a launcher has carried it from rank 0; and who can
  // read it there. GDX_SECRET_FILE goes before it. Without it join() takes that of `gdx run`.
  bootstrap::Secret::Ptr secret = nullptr;
  std::string secret_readers = {};

  // Reads the options from the environment, the first in this order: GDX_RANK, GDX_WORLD_SIZE and GDX_ROOT;
  // torchrun; PMIx; PMI-1, which srun --mpi=pmi2 speaks, too; variables of srun and of other launchers, which
  // need GDX_ROOT or `tell`. Connects to the launcher where one answers. One rank when there is no launcher.
  // Errors: kInvalidArgument naming the variable, its value and its range, what is missing of those that go
  // together, or two that contradict each other; kUnsupported for a launcher that cannot be used, with the
  // remedy; kTimeout, kPeerGone, kSystem of its connection.
  [[nodiscard]] static Result<WorldOptions> from_environment(Tell tell = {});
  // Returns options by which ranks meet through the program's own allgather, without a launcher's help.
  // Collective: calls `allgather` once, and World::join calls it again. Its time is not bounded here.
  // Errors: kInvalidArgument (rank, size; allgather fails); that of GDX_BOOTSTRAP_TIMEOUT_S.
  [[nodiscard]] static Result<WorldOptions> by_allgather(std::uint32_t rank, std::uint32_t size,
                                                         Allgather allgather);
};

// Tells in one line how from_environment() would find this process's rank, or why it would refuse, whose
// status goes to `refusal`; kOk: it would not. Opens nothing.
[[nodiscard]] std::string describe_launch(Status* refusal = nullptr);

// Threads: one thread at a time.
class World {
 public:
  // Returns once all ranks are connected. `listener`: at rank 0, a socket that listens at options.root
  // already; empty: join() opens it.
  // Errors: kInvalidArgument (rank, size, address; a duplicate rank; ranks that disagree on the size; an
  // unusable secret, or another than rank 0's), kUnsupported (TCP without a secret), kBusy
  // (the port is taken), kTimeout, kVersionMismatch, kPeerGone, kSystem. kTimeout names the ranks that never
  // came.
  [[nodiscard]] static Result<World> join(const WorldOptions& options, Descriptor listener = {});

  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World();

  [[nodiscard]] std::uint32_t rank() const;
  [[nodiscard]] std::uint32_t size() const;
  // Returns this end's address on the connection to rank 0, as "10.0.0.2"; at rank 0, on that to the first
  // rank that came to no loopback address, or the last. A loopback address in a world of one rank, and where
  // the root is unix:NAME.
  [[nodiscard]] std::string address() const;
  // Returns the options with which this rank joined, with the secret that was chosen; null without one.
  [[nodiscard]] const WorldOptions& options() const;

  // Returns every rank's `mine`, rank 0's first. All ranks must contribute equally many bytes. After an error
  // the world is broken, and every later call returns that error.
  // Errors: kPeerGone (naming the rank), kTimeout, kInvalidArgument (sizes differ, or a peer sends out of
  // turn), kInvalidLength (beyond kMaxContributionBytes). The world stays whole after kBusy (another thread
  // is in a call), and kInvalidArgument in a process that was forked from the rank's. kTimeout names the
  // missing ranks at rank 0. At any other rank it names none, and the world ends.
  [[nodiscard]] Result<std::vector<std::byte>> allgather(std::span<const std::byte> mine,
                                                         std::uint64_t timeout_ns);
  // Returns once every rank has called it. Errors: those of allgather.
  [[nodiscard]] Result<void> barrier(std::uint64_t timeout_ns);

  // Goes on with a barrier without waiting, the same one until it has ended: no other collective may come
  // between. Returns whether every rank has called it. Errors: those of allgather.
  [[nodiscard]] Result<bool> poll_barrier();

  // Gathers one value of each rank, indexed by rank. Errors: those of allgather.
  template <typename T>
  [[nodiscard]] Result<std::vector<T>> allgather_value(const T& mine, std::uint64_t timeout_ns) {
    return allgather_values(std::vector<T>{mine}, timeout_ns);
  }
  // Gathers equally many values of each rank, rank 0's first. Errors: those of allgather.
  template <typename T>
  [[nodiscard]] Result<std::vector<T>> allgather_values(const std::vector<T>& mine,
                                                        std::uint64_t timeout_ns) {
    static_assert(std::is_trivially_copyable_v<T>);
    auto bytes = GDX_TRY(allgather(std::as_bytes(std::span(mine)), timeout_ns));
    std::vector<T> values(size() * mine.size());
    std::memcpy(static_cast<void*>(values.data()), bytes.data(), bytes.size());
    return values;
  }

  // Checks without waiting that every rank is connected. Rank 0 reports a loss to the other ranks, if rank 0
  // calls poll_peers or a collective at intervals.
  // Errors: kPeerGone naming the rank; any error that broke the world before.
  [[nodiscard]] Result<void> poll_peers();

 private:
  friend class bootstrap::GroupPlace;
  struct Impl;
  // Makes the world of ranks that are connected, as join() would.
  static World of(const WorldOptions& options, std::vector<bootstrap::Connection> members);
  explicit World(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gdx
