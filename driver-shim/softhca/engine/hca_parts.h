// Parts that the queue pairs of one HCA share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "driver-shim/softhca/engine/completion_queue.h"
#include "driver-shim/softhca/engine/foreign_memory.h"
#include "driver-shim/softhca/engine/hca.h"
#include "driver-shim/softhca/engine/late_writes.h"
#include "driver-shim/softhca/engine/memory_table.h"
#include "driver-shim/softhca/engine/peer_windows.h"
#include "driver-shim/softhca/engine/staging_audit.h"
#include "driver-shim/softhca/engine/wqe_parser.h"
#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca {

class QueuePair;

struct HcaParts {
  HcaConfig config;
  PeerWindows windows;
  std::unique_ptr<wire::Wire> wire;
  std::byte* device_memory = nullptr;
  StagingAudit staging;
  // The WQE that is being taken: its lists are swapped with those of one that has completed.
  SendWqe taken = {};
  MemoryTable memory;
  ForeignMemory foreign;
  HcaCounters counters;
  LateWrites late;
  std::uint64_t now_ns = 0;      // time of the step in progress
  std::uint64_t link_bytes = 0;  // sent so far, with all that a packet costs on a link
  std::atomic<std::uint64_t> failed_queue_pairs{0};
  // A receive completion that waits until its ACK has left, because a program that exits on a completion must
  // not strand its peer.
  struct HeldCompletion {
    QueuePair* qp;
    Completion completion;
    int event_type = -1;  // no completion but an event that must not overtake earlier ones
  };
  std::vector<HeldCompletion> held_completions;
};

}  // namespace gdx::softhca
