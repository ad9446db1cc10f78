// The endpoint as host and device agree on it. The host fills EndpointHandle once; kernels take it by
// value, so that its fields arrive as kernel parameters and cost no load.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/byte_order.h"
#include "proto/gpu/staging.h"
#include "proto/mlx5/cqe.h"
#include "proto/mlx5/wqe.h"
#include "proto/status.h"

namespace gdx {

// Raise on every change of a struct in proto/gpu; kernels refuse a handle of another version.
inline constexpr std::uint32_t kQueueLayoutVersion = 2;

// Where queue memory lives decides the scope of every release on the posting path.
enum class Placement : std::uint32_t { kHost = 0, kGpu = 1 };

// What went wrong on an endpoint, first cause only; all zero while it is healthy.
struct EndpointFault {
  Status status;
  std::uint8_t syndrome;  // mlx5::Syndrome, of the first error CQE
  std::uint8_t vendor_syndrome;
  std::uint16_t wqe_counter;  // of the work request that failed
};

// The mutable half: written back when a kernel closes its endpoint, read when the next one opens it.
struct QueueState {
  std::uint32_t producer;     // WQEBBs posted, cumulative
  std::uint32_t completed;    // index of the newest completed WQE, plus one, cumulative
  std::uint32_t last_wqe;     // index of the newest posted WQE
  std::uint32_t cq_consumer;  // CQEs taken, cumulative
  StagingState staging;
  EndpointFault fault;
  std::uint64_t messages;  // operations posted by the user, of any kind
};

struct EndpointHandle {
  std::uint32_t layout_version;
  std::uint32_t qpn;
  mlx5::WqeBasicBlock* send_queue;  // 1 << log_send_queue blocks
  mlx5::Cqe64* completion_queue;    // 1 << log_completion_queue entries, never fewer than blocks
  Be32* send_record;                // the send half of the doorbell record
  std::uint64_t* doorbell;          // the UAR's doorbell register
  std::uint64_t* scratch;           // 8 B where the NIC drops results nobody wants
  QueueState* state;
  const std::uint32_t* abort;    // nonzero: waits return kAborted; null: cannot be aborted
  std::uint64_t timeout_ns;      // bound of every wait on this endpoint
  std::uint64_t probe_after_ns;  // a wait on a signal asks the peer for life after this long
  std::uint32_t scratch_lkey;
  std::uint32_t log_send_queue;
  std::uint32_t log_completion_queue;
  Placement placement;
  std::uint32_t signal_fence;  // of signals: kFenceStrongOrdering where packets may be reordered, or 0
  // Not 0: `doorbell` is a BlueFlame register of this endpoint's own, of two halves of so many bytes that
  // writes alternate between, and takes a WQE of one block with the doorbell.
  std::uint32_t blueflame_half_bytes;
  StagingHandle staging;
};

static_assert(sizeof(EndpointFault) == 8 && sizeof(QueueState) == 56);

}  // namespace gdx
