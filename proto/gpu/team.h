// A team for kernels: ranks with a symmetric heap, and one record for each peer and lane. A kernel takes the
// handle by value. The records stay in memory, because a team may have thousands and the host changes them
// while kernels run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/byte_order.h"
#include "proto/gpu/command_ring.h"
#include "proto/gpu/queue.h"

namespace gdx {

// Must rise on every change of a struct here, because kernels refuse a handle of another version.
inline constexpr std::uint32_t kTeamLayoutVersion = 5;

// Windows of a team. Window 0 is the symmetric heap.
inline constexpr std::uint32_t kMaxTeamWindows = 8;

// Ways to a peer. A record's way only rises, until the peer is gone.
//
//   kNone ----> kNative                 connected through the NIC
//   kMapped --> kDirect                 mapped from the start; connected when first needed
//   any ------> kGone                   the connection failed: calls return kPeerUnreachable
//   kDirect --> kMapped                 it failed where processors do the atomics, and the rank is there
//   kProxied                            from the start; all ranks of a team have it, or none
//
// A further way takes the next number.
enum class PeerWay : std::uint32_t {
  kNone = 0,    // not connected: a call asks for a connection and waits
  kNative = 1,  // the kernel posts to the NIC
  kMapped = 2,  // loads and stores; no queue pair yet
  kDirect = 3,  // loads and stores, with a queue pair for probes and for the NIC's atomics
  kGone = 4,
  // Commands to a thread of the host, which posts them. Puts are stores where the rank's windows are
  // mapped; gets, signals and atomics are commands all the same, in one order.
  kProxied = 5,
};

// A peer's part of a window.
struct TeamPeerWindow {
  std::uint64_t address;  // at the peer's NIC
  Be32 rkey;
  std::uint32_t reserved;
  std::byte* mapped;  // the same bytes in this process; null unless kernels reach them by loads and stores
};

// The record of one peer on one lane. The host writes `way` last, by the first word of 8 B. The rows of 16 B
// after it are copies, from which a put loads all that it needs.
struct alignas(16) TeamPeer {
  PeerWay way;
  Be32 heap_rkey;
  std::uint32_t* asked;         // host memory: a kernel stores 1 when it needs the connection
  std::uint64_t heap_distance;  // of the heap at the peer's NIC from this rank's, modulo 2^64
  QueueState* state;
  mlx5::WqeBasicBlock* send_queue;
  Be32* send_record;
  std::uint64_t* doorbell;
  std::uint32_t queue_pair_word;  // as a WQE's second word
  std::uint32_t block_mask;       // of the send queue
  TeamPeerWindow windows[kMaxTeamWindows];
  EndpointHandle endpoint;            // shared; valid when the way is kNative or kDirect
  const CommandRingHandle* commands;  // of the lane; null unless the way is kProxied
  std::uint32_t command_rank;         // of the peer in commands, which is that in the world
  std::uint32_t reserved;

  // Returns the record's first word with `new_way`. The host stores it at once, last, with a release.
  [[nodiscard]] constexpr std::uint64_t first_word(PeerWay new_way) const {
    return std::uint64_t{heap_rkey.raw} << 32 | static_cast<std::uint32_t>(new_way);
  }
  // Fills in the endpoint and the rows' copies, all but `way`.
  constexpr void set_endpoint(const EndpointHandle& handle) {
    endpoint = handle;
    queue_pair_word = byte_swap(handle.qpn << mlx5::kQpnShift | mlx5::kPutSegments);
    block_mask = (1u << handle.log_send_queue) - 1;
    state = handle.state;
    send_queue = handle.send_queue;
    send_record = handle.send_record;
    doorbell = handle.doorbell;
  }
  // Fills in a window, and the heap's copies in the rows. `own` is this rank's part. `way` stays.
  void set_window(std::size_t index, const TeamPeerWindow& window, const std::byte* own) {
    windows[index] = window;
    if (index != 0) return;
    heap_distance = window.address - reinterpret_cast<std::uint64_t>(own);
    heap_rkey = window.rkey;
  }
};

// This rank's part of a window.
struct TeamWindow {
  std::byte* address;
  std::uint64_t bytes;
  Be32 lkey;
  std::uint32_t reserved;
};

// Path of all atomic changes of words, of signals that add among them. Processors' atomics, a NIC's and those
// of an agent's thread are not atomic with each other.
enum class TeamAtomics : std::uint32_t {
  kProcessor = 0,  // every rank is mapped by every other
  kNic = 1,        // for mapped ranks and for this rank, too
  kAgent = 2,      // the poster of the rank that has the word: of every rank, this one and mapped ones, too
};

// Rank of a wait that names none, and so probes none.
inline constexpr std::uint32_t kAnyTeamRank = ~std::uint32_t{0};

// Bytes in the fault of a call whose threads gave it different arguments, so that it named no one memory.
inline constexpr std::uint64_t kArgumentsDiffer = ~std::uint64_t{0};

// First call that was refused or failed on the team, for messages; all zero while there is none.
struct TeamFault {
  Status status;
  std::uint32_t rank;
  std::uint64_t address;  // that the call named, of this rank; 0: it named none
  std::uint64_t bytes;    // of the call; of a wait the value that it compared with
  std::uint32_t taken;    // nonzero: a call has claimed the record
  std::uint32_t waited;   // 1 + enum Compare: the call waited for the word at `address`; 0: it did not
};

struct TeamHandle {
  std::uint32_t layout;  // team_layout()
  std::uint32_t rank;    // of this process
  std::uint32_t size;
  std::uint32_t lanes;
  TeamAtomics atomics;
  std::uint32_t window_count;
  std::uint32_t pool_peer_count;  // of `pool_peers`
  std::uint32_t most_bytes;       // longest put within the heap: 1 GiB, or the heap's size if that is less
  TeamPeer* peers;                // of lane 0, by rank; `size` records for each lane
  TeamFault* fault;
  const std::uint32_t* abort;  // nonzero: waits return kAborted
  std::uint64_t timeout_ns;    // bound of a wait for a connection, and of a wait on a signal
  std::uint64_t probe_after_ns;
  int (*progress)();  // gdx::progress, for launches on the CPU layer
  // Records of all endpoints that lease slots from the team's pools: of the first team, on all lanes.
  const TeamPeer* pool_peers;
  // Words and scratch of collective calls, of the handle's first lane, in the first window.
  std::byte* area;
  std::uint32_t area_bytes;     // of each lane
  std::uint32_t scratch_bytes;  // of these, at their end
  const TeamHandle* copy;  // in memory, itself included, for code out of line: that cannot read parameters
  TeamWindow windows[kMaxTeamWindows];

  // Returns the team as calls on lane `lane` use it. A lane that does not exist leaves no ranks.
  [[nodiscard]] constexpr TeamHandle on_lane(std::uint32_t lane) const {
    TeamHandle handle = *this;
    if (lane >= lanes) {
      handle.size = 0;
      handle.peers = nullptr;
    } else {
      handle.peers += std::size_t{lane} * size;
      if (area != nullptr) handle.area += std::size_t{lane} * area_bytes;
      handle.lanes = 1;
    }
    return handle;
  }
};

// Version and placement in one word, because each call compares it.
constexpr std::uint32_t team_layout(Placement placement) {
  return kTeamLayoutVersion << 16 | kQueueLayoutVersion << 8 | static_cast<std::uint32_t>(placement);
}

static_assert(sizeof(TeamPeerWindow) == 24 && sizeof(TeamWindow) == 24 && sizeof(TeamFault) == 32);
static_assert(offsetof(TeamPeer, state) == 24 && offsetof(TeamPeer, windows) == 64);

}  // namespace gdx
