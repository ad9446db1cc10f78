// Runs a grid of fibers on a few worker threads. Blocks stay on one worker; all blocks are resident,
// so blocks may wait for one another.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "device/exec/scope.h"
#include "proto/status.h"

namespace gdx::exec {

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;

  [[nodiscard]] unsigned count() const { return x * y * z; }
};

struct LaunchConfig {
  Dim3 grid{};
  Dim3 block{};
  // Called when every thread of a worker is waiting; lets whoever the kernel waits for (a NIC in
  // software) run on this core. Returns nonzero when it did something. Null: nobody.
  int (*progress)() = nullptr;
  unsigned workers = 1;
  // What now_ns() reads, for kernels in virtual time. Null: CLOCK_MONOTONIC.
  std::uint64_t (*clock)() = nullptr;
};

struct ThreadContext {
  Dim3 thread_index;
  Dim3 block_index;
  Dim3 block_size;
  Dim3 grid_size;
  std::uint32_t linear_index = 0;  // in the block, x fastest
};

inline constexpr unsigned kMaxBlockThreads = 1024;

// Runs `body` once per thread of the grid and returns when all have returned.
// Errors: kInvalidArgument for an empty grid or block, a block of more than kMaxBlockThreads, or no
// workers; kSystem when every thread left waits at a barrier that cannot complete
// (a divergent barrier: on a GPU this launch would hang), with a line in the log.
// Threads: blocks until done; several launches may run at once on different host threads.
[[nodiscard]] Status run_grid(const LaunchConfig& config, const std::function<void()>& body);

// The rest is for code that runs inside a grid.
[[nodiscard]] const ThreadContext& current_thread();
[[nodiscard]] std::uint32_t warp_size();  // threads in this warp; the last one may be short
[[nodiscard]] std::uint32_t block_threads();
void sync_block();
void sync_warp();
[[nodiscard]] std::atomic<std::uint32_t>& broadcast_slot(Scope scope);

// What a block's bulk stores have in flight. Shared memory, and a hand that copies out of it: bytes are taken
// from a stage when the group is *read*, and are at their destination when it is *done*; until then nobody
// sees them.
struct BulkGroup {
  std::byte* to;
  const std::byte* from;
  std::uint32_t bytes;
  std::vector<std::byte> read;  // empty: not yet
};
struct BulkEngine {
  alignas(16) std::byte stages[kBulkStages][kBulkStageBytes];
  std::vector<BulkGroup> groups;  // of the block's first thread, oldest first
};
[[nodiscard]] BulkEngine& bulk_engine();
[[nodiscard]] std::uint64_t now_ns();
// One turn of a spinning wait: the other threads of the worker run, then `progress`.
void relax();
inline void yield() { relax(); }

}  // namespace gdx::exec
