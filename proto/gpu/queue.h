// The endpoint's layout, which host and device share. The host fills EndpointHandle once; kernels take it by
// value, so that its fields arrive as kernel parameters and cost no load.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/byte_order.h"
#include "proto/gpu/mode_table.h"
#include "proto/gpu/staging.h"
#include "proto/mlx5/cqe.h"
#include "proto/mlx5/wqe.h"
#include "proto/status.h"

namespace gdx {

// Must rise on every change of a struct in proto/gpu, because kernels refuse a handle of another version.
inline constexpr std::uint32_t kQueueLayoutVersion = 10;

// Memory of the queue, which decides the scope of every release on the posting path.
enum class Placement : std::uint32_t { kHost = 0, kGpu = 1 };

// Owners of the posting right: one thread, warp or block at a time without atomics, or any threads of a GPU.
enum class Sharing : std::uint32_t { kExclusive = 0, kShared = 1 };

// The owner word of an endpoint tells who may post. It stays readable after the endpoint's end, so that a
// kernel with an old handle is refused.
//
//   owner_free        connected; no kernel has it open, or it is shared
//   owner_free + n    n kernel scopes have the exclusive endpoint open, or are being refused
//   anything else     not connected yet, or destroyed
inline constexpr std::uint64_t kMostOpeners = 1u << 31;

// First failure of an endpoint; all zero while it is healthy.
struct EndpointFault {
  Status status;
  std::uint8_t syndrome;  // mlx5::Syndrome, of the first error CQE
  std::uint8_t vendor_syndrome;
  std::uint16_t wqe_counter;  // of the work request that failed
};

struct QueueState;

// Sentinel for abort_polled_ns: abort observed, stop polling.
inline constexpr std::uint64_t kAbortSeen = ~std::uint64_t{0};

struct EndpointHandle {
  std::uint32_t layout_version;
  std::uint32_t qpn;
  mlx5::WqeBasicBlock* send_queue;  // 1 << log_send_queue blocks
  mlx5::Cqe64* completion_queue;    // 1 << log_completion_queue entries, at least as many as blocks
  Be32* send_record;                // the send half of the doorbell record
  std::uint64_t* doorbell;          // the UAR's doorbell register
  std::uint64_t* scratch;           // 8 B for results of the NIC that no caller needs
  QueueState* state;
  std::uint64_t* owner;  // right to post: see above
  std::uint64_t owner_free;
  const std::uint32_t* abort;    // nonzero: waits return kAborted; null: cannot be aborted
  std::uint64_t timeout_ns;      // bound of every wait on this endpoint
  std::uint64_t probe_after_ns;  // period after which a wait on a signal probes the peer
  std::uint32_t scratch_lkey;
  std::uint32_t log_send_queue;
  std::uint32_t log_completion_queue;
  Placement placement;
  std::uint32_t signal_fence;  // of signals: kFenceStrongOrdering if packets may be reordered, or 0
  // Bytes of each half of `doorbell`, if that is a BlueFlame register of this endpoint's own; else 0. Writes
  // alternate between the two halves, and take a WQE of one block with the doorbell.
  std::uint32_t blueflame_half_bytes;
  Sharing sharing;
  std::uint32_t reserved;
  StagingHandle staging;  // memory of the NIC, for pushes
  StagingHandle bounce;   // host memory that the NIC fetches from
  ModeTable modes;        // of Mode::kAuto
};

// The credits of a shared endpoint, of one pool. They replace `filled` and `ready` of its StagingState; the
// thread that set `busy` owns the other counters there. Cumulative modulo 2^32.
struct SharedCredits {
  std::uint64_t use;      // filled, in the low half, and ready: see StagingState
  std::uint32_t busy;     // nonzero while a thread reads completions and grants
  std::uint32_t arrived;  // threads that have begun to wait for a credit; each one's ticket
  std::uint32_t left;     // threads that have ended their wait, with or without a credit
  std::uint32_t reserved;
};

// Blocks ahead of `published` whose threads may mark them as stored.
inline constexpr std::uint32_t kMarkedBlocks = 512;

// The counters of a shared endpoint, cumulative modulo 2^32. completed <= published <= reserved. After a
// failure `reserved` is far ahead, so that no thread finds room.
struct SharedState {
  std::uint32_t reserved;   // WQEBBs handed out
  std::uint32_t published;  // WQEBBs in the doorbell record; the thread that reserved from here has the turn
  std::uint32_t completed;  // WQEBBs known to be complete
  std::uint32_t failure;    // 0; 1: a thread is writing QueueState::fault; 2: written
  SharedCredits staging;
  SharedCredits bounce;
  std::uint64_t probed_ns;  // time of the last probe
  std::uint32_t claimed;    // WQEBBs that the thread with the turn publishes at least, if it does for others
  std::uint32_t unused;
  // Ring by index of the first WQEBB of a post: number of its WQEBBs once they are stored; 0: not stored yet,
  // published, or published by its own thread.
  std::uint32_t marks[kMarkedBlocks];
};

// The mutable half. A kernel keeps counters that posting changes in registers, and writes them back when it
// closes the endpoint. Counters that only waiting changes are always here. "When closed" marks the former.
struct QueueState {
  std::uint32_t producer;     // WQEBBs posted, cumulative; when closed
  std::uint32_t completed;    // index of the newest completed WQE, plus one, cumulative
  std::uint32_t last_wqe;     // index of the newest posted WQE; when closed
  std::uint32_t cq_consumer;  // CQEs taken, cumulative
  StagingState staging;       // `filled`: when closed
  EndpointFault fault;
  std::uint64_t messages;     // operations posted by the user, of any kind; when closed
  std::uint64_t deadline_ns;  // of the call that waits
  SharedState shared;         // instead of the counters above, on a shared endpoint
  StagingState bounce;        // always current, because only waits change it
  std::uint32_t rung;         // WQEBBs that a doorbell has covered; when closed
  std::uint32_t reserved;
  std::uint64_t abort_polled_ns;  // time of the last read of the abort word, or kAbortSeen
  EndpointHandle handle;          // copy for code out of line, which cannot read a kernel's parameters
};

static_assert(sizeof(EndpointFault) == 8 &&
              sizeof(QueueState) == 216 + 4 * kMarkedBlocks + sizeof(EndpointHandle));

}  // namespace gdx
