// A team: ranks with a symmetric heap. Kernels name a peer by its rank, and its memory by an own pointer.
//
//   using gdx::program::or_exit;
//   gdx::Team team = or_exit(gdx::Team::create({.heap_bytes = 64 << 20}));
//   float* x = or_exit(team.allocate<float>(n));
//   run_my_kernel(team.handle(), x, n);
//
// Collective calls are made by all ranks, with equal arguments and in equal order, by one thread of each at a
// time. A call that fails or differs at one rank fails at all ranks and names that one. Two calls are refused
// at the rank that makes them alone, and the team goes on: a call that another thread makes meanwhile is
// kBusy, and one in a process that was forked from the rank's is kInvalidArgument. This holds for each team
// by itself: a team and its subteam may be called by two threads at once. docs/teams.md gives the reasons.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "host/team/symmetric_heap.h"
#include "host/team/team_options.h"
#include "proto/gpu/team.h"

namespace gdx {

// Threads: one at a time, except abort(), which any thread may call while a kernel runs, and subteam().
class Team {
 public:
  // Joins the world of `gdx run`, or of one rank. Opens an HCA and makes pools, or a provider of libfabric
  // (TeamOptions::provider). Makes the heap. Starts a thread that connects ranks once they need it, or one
  // that posts for kernels. Collective. Errors: kInvalidArgument naming the option, its value and its range,
  // or the rank whose heap_bytes or lanes or providers differ; kUnsupported where a process holds two copies
  // of gdx, without libfabric, and for what a provider cannot do; kNotFound for a provider that is not here;
  // those of World::join, Hca::open, StagingPool::create, allocate_shareable_memory, Gpu::open,
  // PeerMapping::exchange, ConnectorService::listen; with connect_all those of connect().
  [[nodiscard]] static Result<Team> create(const TeamOptions& options = {});
  // Joins no world, but takes the program's own, which must outlive the team and stay where it is. Errors:
  // those of the first create(), but for the world's.
  [[nodiscard]] static Result<Team> create(World& world, const TeamOptions& options);
  // Takes the program's own parts, which must outlive the team and stay where they are. Errors: those of the
  // first create(), but for the parts.
  [[nodiscard]] static Result<Team> create(const Hca& hca, World& world, StagingPools pools,
                                           const TeamOptions& options = {});

  Team(Team&&) noexcept;
  Team& operator=(Team&&) noexcept;
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  // Closes the team, and logs an error of close(). Closes nothing in a process that was forked from the
  // rank's.
  ~Team();

  // Waits as barrier() does, and then ends this rank's part in any case. No kernel may use the team any more.
  // Teams that were made of it by split() or subteam() end with it, and closing one of those after it is
  // local. Closed before, such a team gives its memory back, unless a rank was lost. Collective; a second
  // call does nothing. Errors: those of barrier(), naming the lost rank.
  [[nodiscard]] Result<void> close();

  // Returns zeroed memory for `count` objects, at the same heap offset at every rank. Collective.
  // Errors: kInvalidArgument (count 0; ranks differ: names one); kNoMemory with the bytes left; those of
  // World::allgather.
  template <typename T>
  [[nodiscard]] Result<T*> allocate(std::size_t count) {
    static_assert(alignof(T) <= kMaxHeapAlignment);
    constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / sizeof(T);
    const std::uint64_t bytes = count > kMost ? std::numeric_limits<std::uint64_t>::max() : count * sizeof(T);
    void* const memory = GDX_TRY(allocate_bytes(bytes, alignof(T)));
    return static_cast<T*>(memory);
  }
  // Allocates `bytes` as allocate does. Takes `alignment` of 1 to kMaxHeapAlignment; every piece is aligned
  // to kHeapAlignment at least. Errors: those of allocate.
  [[nodiscard]] Result<void*> allocate_bytes(std::uint64_t bytes, std::uint64_t alignment = kHeapAlignment);
  // Frees what allocate of this team returned, once no rank uses it any more. Collective. Errors:
  // kInvalidArgument (not such a piece; ranks differ); those of allocate.
  [[nodiscard]] Result<void> free(void* pointer);

  // Adds a window: memory outside the heap, of equal size at every rank. It must stay mapped until the team
  // is closed: what a program maps at its place meanwhile is written by late puts, and over libfabric a put
  // to memory that is gone ends this process. Kernels may run meanwhile. Calls with a handle that was taken
  // before may refuse the window. Collective. Errors: those of register_memory; kInvalidArgument (an eighth
  // window, overlap, ranks differ); kUnsupported where a rank is direct and the window cannot be mapped, and
  // in a team of some ranks, which has the windows of the first.
  [[nodiscard]] Result<void> register_window(void* address, std::uint64_t bytes);

  // Returns everything a kernel needs, by value. Valid until the team is closed; then kernels' calls are
  // kInvalidArgument.
  [[nodiscard]] TeamHandle handle() const;

  [[nodiscard]] std::uint32_t rank() const;
  [[nodiscard]] std::uint32_t size() const;
  // This rank's heap. In GPU memory the host must not touch it.
  [[nodiscard]] std::span<std::byte> heap() const;
  // Its pages, which stay mapped in this process while a copy of this lives, also when the team has ended.
  // Null in GPU memory, and once the team is closed.
  [[nodiscard]] std::shared_ptr<std::byte> heap_pages() const;
  // Of this rank's heap, from which all teams of this one allocate.
  [[nodiscard]] std::uint64_t bytes_free() const;
  [[nodiscard]] TeamAtomics atomics() const;
  // Connects to `rank` on all lanes, as a kernel's first call would, and waits for TeamOptions::timeout_ns at
  // most. Local. Errors: kInvalidArgument (no such rank); kTimeout; kAborted; kPeerUnreachable and
  // other reasons for which the rank is gone.
  [[nodiscard]] Result<void> connect(std::uint32_t rank);
  // Returns the way to `rank` on a lane; kNone for other numbers.
  [[nodiscard]] PeerWay way(std::uint32_t rank, std::uint32_t lane = 0) const;
  // Returns the number of endpoints towards ranks of this team, those being connected among them.
  [[nodiscard]] std::uint32_t connections() const;
  // Returns the shared endpoint towards `rank`, for device::SharedEndpoint. A zeroed one, which kernels
  // refuse, where none is connected.
  [[nodiscard]] EndpointHandle endpoint(std::uint32_t lane, std::uint32_t rank) const;
  // Describes the first call that failed since create, split or clear_fault, and every connection that did,
  // by rank; "ok" while there is none. Of a wait it tells the word, the value and the time, and whether the
  // rank that did not signal still answers. Call it when no kernel runs on the team.
  [[nodiscard]] std::string describe_fault() const;
  // Forgets the call that failed, so that the next one is described. Failed connections remain. Call it when
  // no kernel runs on the team.
  void clear_fault();

  // Makes every wait of a kernel or of connect() return kAborted, on this team and those that share its
  // endpoints.
  void abort();
  // Returns once every rank has called it, and all that its kernels had posted before is complete: a kernel
  // or host thread that starts afterwards reads, at any rank, what kernels that had ended before their rank's
  // call put there. Takes TeamOptions::timeout_ns at most. After abort() nothing is waited for but the ranks.
  // Collective. Errors: those of agreement; kInvalidArgument where kernels of a rank gave a collective call
  // another count, type, root or reduction, or made an all-reduce in place, or a call through a piece of the
  // heap, where others did not; the failure of a connection, naming both ranks.
  [[nodiscard]] Result<void> barrier();
  // Returns the team of `ranks`, numbered in their order, this rank among them. It allocates from this team's
  // heap, and shares its endpoints, pools and windows; an area of a 64th of the heap at most, and of 128 KiB
  // for each lane, serves its kernels' collective calls. It ends with this team. A rank may be in any number
  // of such teams. A rank that is lost ends the calls of its own teams only.
  // Collective over `ranks` alone: the others need not call. Those that are in two teams of one `tag` make
  // them in the same order, and threads that make teams at once give them tags of their own.
  // Threads: any number at once, also while another is in a call of this team, but close().
  // Errors: kInvalidArgument where it is made, for a rank that does not exist or is there twice, and where
  // this rank is not among them; kInvalidArgument at all that have come, where the lists of one tag differ;
  // kTimeout after TeamOptions::timeout_ns, naming ranks that did not come; kPeerGone; those of allocate.
  [[nodiscard]] Result<Team> subteam(std::span<const std::uint32_t> ranks, std::uint64_t tag = 0);
  // Returns the team of the ranks of equal `colour`, ordered by `key`, then rank, as subteam() makes it.
  // Collective over this team. Errors: those of World::allgather and subteam().
  [[nodiscard]] Result<Team> split(std::uint32_t colour, std::uint32_t key);

 private:
  struct Impl;
  explicit Team(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gdx
