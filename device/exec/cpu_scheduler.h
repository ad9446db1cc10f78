// Runs a grid of fibers on a few worker threads. Blocks stay on one worker; all blocks are resident,
// so blocks may wait for one another.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "device/exec/cpu_stream.h"
#include "device/exec/scope.h"
#include "proto/status.h"

namespace gdx::exec {

struct Dim3 {
  unsigned x;
  unsigned y;
  unsigned z;

  // Converts implicitly, as CUDA's dim3 does.
  constexpr Dim3(unsigned width = 1, unsigned height = 1, unsigned depth = 1)
      : x(width), y(height), z(depth) {}
  [[nodiscard]] unsigned count() const { return x * y * z; }
  // Returns the indexes of element `linear` of so many.
  [[nodiscard]] Dim3 place(unsigned linear) const { return {linear % x, linear / x % y, linear / x / y}; }
};

struct LaunchConfig {
  Dim3 grid{};
  Dim3 block{};
  std::uint32_t shared_bytes = 0;  // of gdx_dynamic_shared(), for each block
  Stream stream = nullptr;         // earlier work of it comes first; null: on the thread that launches
  bool cooperative = false;        // not used: all blocks always run at once
  // Called when every thread of a worker is waiting. Drives a NIC in software on this core, for which the
  // kernel waits. Returns the number of things done. A worker yields its core now and then when calls do
  // nothing for long. It yields after each negative result, because another process then drives the NIC.
  // Null: the kernel waits for nothing on this core.
  int (*progress)() = nullptr;
  unsigned workers = 1;
  // Clock of now_ns(), for kernels in virtual time. Null: CLOCK_MONOTONIC.
  std::uint64_t (*clock)() = nullptr;
  // Returns whether a block whose threads all wait may find something new, by its index. Otherwise it has no
  // turn. For kernels in virtual time, whose world knows what has changed. Null: every block may.
  bool (*may_find_news)(unsigned block) = nullptr;
};

struct ThreadContext {
  Dim3 thread_index;
  Dim3 block_index;
  Dim3 block_size;
  Dim3 grid_size;
  std::uint32_t linear_index = 0;  // in the block, x fastest
};

inline constexpr std::uint32_t kAllLanes = 0xffffffffu;
inline constexpr unsigned kMaxBlockThreads = 1024;
// Source: CUDA C++ Programming Guide, "Compute Capabilities", shared memory of a block of sm_90.
inline constexpr std::uint32_t kMaxSharedBytes = 227 * 1024;

// Runs `body` once per thread of the grid and returns when all have returned.
// Errors: kInvalidArgument for an empty grid or block, a block of more than kMaxBlockThreads, more than
// kMaxSharedBytes, or no workers; kSystem, with a line on stderr, in three cases:
//  - Every thread left waits at a divergent barrier, which cannot complete. On a GPU this launch would hang.
//  - A block of a program with static shared variables gets no host thread.
//  - A kernel made a store that a NIC refuses (device/exec/nic_stores.h).
// Threads: blocks until done; several launches may run at once on different host threads.
[[nodiscard]] Status run_grid(const LaunchConfig& config, const std::function<void()>& body);

// The rest is for code that runs inside a grid.
[[nodiscard]] const ThreadContext& current_thread();
[[nodiscard]] const ThreadContext& first_thread(Scope scope);  // of this thread's warp or block
[[nodiscard]] std::uint32_t warp_size();  // threads in this warp; the last one may be short
[[nodiscard]] std::uint32_t block_threads();
void sync_block();
// Meets the lanes of `lanes`, which all give the same.
void sync_warp(std::uint32_t lanes = kAllLanes);
// Thread 0 of the scope waits until every thread has called; the others return at once. What they stored
// before is visible to thread 0 afterwards.
void sync_leader(Scope scope);
// Notes that this thread makes the call `name`, whose pointer tells calls apart, with `arguments`, a mix of
// them.
void note_call(Scope scope, const char* name, std::uint64_t arguments);
// Returns whether the newest calls that all threads of the scope have noted are alike. Else it names one that
// is not, on stderr. For thread 0, after sync_leader.
[[nodiscard]] bool calls_agree(Scope scope);
// A word of the scope for one exchange, which one barrier ends. Every thread of the scope requests it once an
// exchange. The next exchange uses another word, so after its barrier all threads have read this word.
[[nodiscard]] std::atomic<std::uint32_t>& broadcast_slot(Scope scope);
// One exchange between the lanes of `lanes`, which all give the same; lanes that have returned are not waited
// for. Returns the value of lane `source`, this thread's own where that lane takes no part. Orders no memory.
[[nodiscard]] std::uint64_t exchange(std::uint32_t lanes, std::uint64_t value, std::uint32_t source);
// Exchanges votes and returns the lanes that vote yes.
[[nodiscard]] std::uint32_t ballot(std::uint32_t lanes, bool yes);

// Returns LaunchConfig::shared_bytes of memory, which the threads of a block share.
[[nodiscard]] std::byte* dynamic_shared();
// From now on each block has a host thread of its own, and with it its own thread_local variables. Blocks of
// a worker still run one at a time.
bool note_shared_variables();

// Bulk stores of a block in flight. They model shared memory, and a copy unit behind it. Bytes leave a
// stage when the group is *read*, and reach their destination when it is *done*. Before that they are visible
// to no thread.
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
// Notes a rung doorbell. The first after all threads have waited is served at this round's end, as by an idle
// NIC. Later ones are served when all wait again, because one core serves both. Outside a grid it does
// nothing.
void wake_nic();
[[nodiscard]] std::uint64_t now_ns();
// One turn of a spinning wait: the other threads of the worker run, then `progress`.
void relax();
inline void yield() { relax(); }
// Gives the other threads a turn after every few calls, because a loop may wait by them. Outside a grid:
// nothing.
void pause_now_and_then();

}  // namespace gdx::exec
