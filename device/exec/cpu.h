// The CPU execution layer. A kernel's threads are fibers, because barriers, shuffles and spinning waits must
// mean what they mean on a GPU. Each fiber is a thread to ThreadSanitizer: a missing barrier
// is a reported race. cuda_names.h spells it as CUDA does.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "device/exec/atomic_ref.h"
#include "device/exec/cpu_scheduler.h"
#include "device/exec/nic_stores.h"
#include "proto/byte_order.h"
#include "proto/gpu/queue.h"
#include "proto/gpu/team.h"
#include "proto/mapping_order.h"
#include "proto/status.h"

#define GDX_DEVICE inline
#define GDX_OUT_OF_LINE [[gnu::noinline]] inline

namespace gdx::exec {

inline constexpr bool kOnGpu = false;
inline constexpr bool kComparesCalls = true;

struct Halves {
  std::uint32_t low;
  std::uint32_t high;
};

struct alignas(16) Segment {
  std::uint32_t words[4];
};

template <Scope S>
std::uint32_t thread_rank() {
  if constexpr (S == Scope::kThread) return 0;
  const ThreadContext& self = current_thread();
  return S == Scope::kWarp ? self.linear_index % kWarpThreads : self.linear_index;
}

template <Scope S>
std::uint32_t thread_count() {
  if constexpr (S == Scope::kThread) return 1;
  return S == Scope::kWarp ? warp_size() : block_threads();
}

template <Scope S>
void sync() {
  if constexpr (S != Scope::kThread) note_gather(S);
  if constexpr (S == Scope::kWarp) sync_warp();
  if constexpr (S == Scope::kBlock) sync_block();
}

template <Scope S>
void gather(bool all_wait = false) {
  if constexpr (S == Scope::kThread) return;
  if (all_wait) return sync<S>();
  note_gather(S);
  sync_leader(S);
}

template <Scope S>
bool calls_agree() {
  if constexpr (S == Scope::kThread) return true;
  return calls_agree(S);
}

template <Scope S>
std::uint32_t broadcast(std::uint32_t value) {
  if constexpr (S == Scope::kThread) return value;
  std::atomic<std::uint32_t>& slot = broadcast_slot(S);
  if (thread_rank<S>() == 0) slot.store(value, std::memory_order_relaxed);
  sync<S>();
  return slot.load(std::memory_order_relaxed);
}

// Byte i of the result is byte (Selector >> 4 * i & 7) of the eight bytes `high:low`.
template <std::uint32_t Selector>
std::uint32_t permute_bytes(std::uint32_t low, std::uint32_t high) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(high) << 32 | low;
  std::uint32_t out = 0;
  for (std::uint32_t i = 0; i < 4; ++i) {
    out |= static_cast<std::uint32_t>(bytes >> 8 * (Selector >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return out;
}

inline std::uint32_t swap_bytes(std::uint32_t v) { return byte_swap(v); }

// Broadcasts a value without ordering memory.
template <Scope S>
std::uint32_t shuffle(std::uint32_t value) {
  static_assert(S == Scope::kWarp);
  return static_cast<std::uint32_t>(exchange(kAllLanes, value, 0));
}

// Does `condition` hold in any thread of the warp?
template <Scope S>
bool any(bool condition) {
  static_assert(S == Scope::kWarp);
  return ballot(kAllLanes, condition) != 0;
}

// Threads of a warp that hold a condition.
struct Lanes {
  std::uint32_t count;   // of the warp
  std::uint32_t before;  // of lower rank than this thread
};
inline Lanes lanes_with(bool condition) {
  const std::uint32_t lanes = ballot(kAllLanes, condition);
  const std::uint32_t before = lanes & ((1u << thread_rank<Scope::kWarp>()) - 1);
  return {static_cast<std::uint32_t>(__builtin_popcount(lanes)),
          static_cast<std::uint32_t>(__builtin_popcount(before))};
}

inline Halves split(std::uint64_t v) {
  return {static_cast<std::uint32_t>(v), static_cast<std::uint32_t>(v >> 32)};
}
inline std::uint64_t join(std::uint32_t low, std::uint32_t high) {
  return static_cast<std::uint64_t>(high) << 32 | low;
}

template <int Offset = 0>
void store_segment(void* to, const Segment& segment) {
  note_store(static_cast<std::byte*>(to) + Offset, sizeof segment);
  std::memcpy(__builtin_assume_aligned(static_cast<std::byte*>(to) + Offset, 16), &segment, sizeof segment);
}

inline void store_word(void* to, std::uint32_t value) {
  note_store(to, sizeof value);
  std::memcpy(to, &value, sizeof value);
}

// Orders stores to write-combining memory (a real NIC's staging memory and doorbell pages, seen from a CPU)
// before what follows. A release does not: it orders ordinary memory only.
inline void write_combining_barrier() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#elif defined(__aarch64__)
  asm volatile("dmb oshst" ::: "memory");
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// The release is on the atomic itself, not a fence before it: ThreadSanitizer does not model fences.
template <Placement P>
void store_release(Be32* to, Be32 value) {
  note_release(P);
  note_record(to);
  write_combining_barrier();
  release_to_mappings(Toward::kHca);
  AtomicRef<std::uint32_t>(to->raw).store(value.raw, std::memory_order_release);
}

// A word that another agent of the system (the host's scheduler) will acquire.
inline void publish(std::uint32_t* to, std::uint32_t value) {
  AtomicRef<std::uint32_t>(*to).store(value, std::memory_order_release);
}

// The same of 8 B, and of values that need not be aligned, for a peer's kernel.
inline void publish(std::uint64_t* to, std::uint64_t value) {
  write_combining_barrier();
  AtomicRef<std::uint64_t>(*to).store(value, std::memory_order_release);
}
template <typename T>
void publish_value(std::byte* to, T value) {
  note_store(to, sizeof value);
  write_combining_barrier();
  if (reinterpret_cast<std::uintptr_t>(to) % sizeof(T) != 0) {
    std::memcpy(to, &value, sizeof value);
  } else {
    AtomicRef<T>(*reinterpret_cast<T*>(to)).store(value, std::memory_order_release);
  }
}

// Words that processors and GPUs of the whole system change. Both return what was there.
inline std::uint64_t fetch_add_in_system(std::uint64_t* to, std::uint64_t n) {
  return AtomicRef<std::uint64_t>(*to).fetch_add(n, std::memory_order_acq_rel);
}
inline std::uint64_t compare_swap_in_system(std::uint64_t* to, std::uint64_t expected,
                                            std::uint64_t desired) {
  AtomicRef<std::uint64_t>(*to).compare_exchange_strong(expected, desired, std::memory_order_acq_rel);
  return expected;
}

template <Placement P>
void ring(std::uint64_t* doorbell, std::uint64_t value) {
  note_release(P);
  note_doorbell(doorbell, value);
  write_combining_barrier();
  AtomicRef<std::uint64_t>(*doorbell).store(value, std::memory_order_release);
  write_combining_barrier();  // out of the buffer now, not when it happens to fill
  wake_nic();
}

// Stores a doorbell with its WQE of one block in one store, as TMA does. For the leader of S, after a
// fence_release. The doorbell's own 8 B go last, so that an agent that sees them in memory sees the rest. In
// a write-combining buffer the order is of no account.
template <Scope S>
void store_blueflame(std::uint64_t* half, const Segment (&wqe)[4]) {
  std::uint64_t words[8];
  static_assert(sizeof words == sizeof wqe);
  std::memcpy(words, wqe, sizeof wqe);
  note_doorbell(half, words[0]);
  for (int i = 1; i < 8; ++i) {
    AtomicRef<std::uint64_t>(half[i]).store(words[i], std::memory_order_relaxed);
  }
  AtomicRef<std::uint64_t>(half[0]).store(words[0], std::memory_order_release);
  write_combining_barrier();
  wake_nic();
}

// Loads a segment that this thread has stored.
inline Segment load_segment(const void* from) {
  Segment segment;
  std::memcpy(&segment, from, sizeof segment);
  return segment;
}

// Loads 16 B at a fixed distance from `from`, as two words of 8 B.
struct Pair {
  std::uint64_t first;
  std::uint64_t second;
};
template <int Offset = 0>
Pair load_pair(const void* from) {
  Pair pair;
  std::memcpy(&pair, static_cast<const std::byte*>(from) + Offset, sizeof pair);
  return pair;
}

// Orders what this thread has stored, and what it has acquired from others, before its later stores.
template <Placement P>
void fence_release() {
  note_release(P);
  write_combining_barrier();
}

// Each is ordered as if a fence_release stood before it, because ThreadSanitizer does not model fences.
inline void store_counter(std::uint32_t* to, std::uint32_t value) {
  note_counter(to, value);
  AtomicRef<std::uint32_t>(*to).store(value, std::memory_order_release);
}
inline void store_record(Be32* to, Be32 value) {
  note_record(to);
  release_to_mappings(Toward::kHca);
  AtomicRef<std::uint32_t>(to->raw).store(value.raw, std::memory_order_release);
}
inline void store_doorbell(std::uint64_t* doorbell, std::uint64_t value) {
  note_doorbell(doorbell, value);
  AtomicRef<std::uint64_t>(*doorbell).store(value, std::memory_order_release);
  write_combining_barrier();
  wake_nic();
}

// Stores one of the four pieces of a doorbell with its WQE. Under the recorder no two pieces become one
// write: the first rings without a copy, and the others announce nothing.
inline void store_blueflame_piece(std::uint64_t* half, const Segment (&wqe)[4], std::uint32_t piece) {
  std::uint64_t words[2];
  std::memcpy(words, &wqe[piece], sizeof words);
  if (nic_stores == nullptr) {
    AtomicRef<std::uint64_t>(half[2 * piece + 1]).store(words[1], std::memory_order_relaxed);
    if (piece != 0) AtomicRef<std::uint64_t>(half[2 * piece]).store(words[0], std::memory_order_relaxed);
  }
  if (piece == 0) store_doorbell(half, words[0]);
}

// Counters that the threads of one GPU share.
inline std::uint32_t load_counter(const std::uint32_t* from) {
  return AtomicRef<std::uint32_t>(*const_cast<std::uint32_t*>(from)).load(std::memory_order_acquire);
}
inline std::uint64_t load_counter(const std::uint64_t* from) {
  return AtomicRef<std::uint64_t>(*const_cast<std::uint64_t*>(from)).load(std::memory_order_acquire);
}
// Acquires by itself, because ThreadSanitizer does not model the fence_acquire after it.
inline std::uint32_t load_before_fence(const std::uint32_t* from) { return load_counter(from); }
inline void fence_acquire() {}
inline std::uint32_t fetch_add(std::uint32_t* to, std::uint32_t n) {
  return AtomicRef<std::uint32_t>(*to).fetch_add(n, std::memory_order_relaxed);
}
// Adds without a result. A release by itself, because ThreadSanitizer does not model an earlier
// fence_release.
inline void count_in(std::uint64_t* to, std::int64_t n) {
  AtomicRef<std::uint64_t>(*to).fetch_add(static_cast<std::uint64_t>(n), std::memory_order_acq_rel);
}
// Returns what was there.
inline std::uint32_t compare_swap(std::uint32_t* to, std::uint32_t expected, std::uint32_t desired) {
  AtomicRef<std::uint32_t>(*to).compare_exchange_strong(expected, desired, std::memory_order_acq_rel);
  return expected;
}

inline std::uint64_t compare_swap(std::uint64_t* to, std::uint64_t expected, std::uint64_t desired) {
  AtomicRef<std::uint64_t>(*to).compare_exchange_strong(expected, desired, std::memory_order_acq_rel);
  return expected;
}

inline std::uint64_t load_acquire(const std::uint64_t* from) {
  const std::uint64_t value =
      AtomicRef<std::uint64_t>(*const_cast<std::uint64_t*>(from)).load(std::memory_order_acquire);
  acquire_from_mappings(Toward::kKernel);
  return value;
}
// A word that carries no data with it: no ordering is wanted.
inline std::uint32_t load_flag(const std::uint32_t* from) {
  return AtomicRef<std::uint32_t>(*const_cast<std::uint32_t*>(from)).load(std::memory_order_relaxed);
}

// Thread r's part of `bytes`: [begin, end), the r-th of n runs of whole 16 B pieces. On a GPU threads take
// pieces in turn, so that a warp's accesses meet in lines; a processor's caches want runs.
struct Run {
  std::uint64_t begin;
  std::uint64_t end;
};
inline constexpr std::uint64_t kShortRun = 256;  // the least where there is a choice
template <Scope S>
Run run_of(std::uint64_t bytes) {
  constexpr std::uint64_t kPiece = sizeof(Segment);
  const std::uint64_t turn = kPiece * thread_count<S>();
  // No division for a slot of a warp: it takes longer than the copy.
  const std::uint64_t run =
      bytes <= kShortRun / kPiece * turn ? kShortRun : kPiece * ((bytes + turn - 1) / turn);
  const std::uint64_t begin = run * thread_rank<S>();
  return {begin < bytes ? begin : bytes, begin + run < bytes ? begin + run : bytes};
}

// Each thread copies its run; a lone thread all.
template <Scope S>
void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  const Run run = run_of<S>(bytes);
  if (run.begin == run.end) return;
  note_store(to + run.begin, run.end - run.begin);
  std::memcpy(to + run.begin, from + run.begin, run.end - run.begin);
}

// In one aligned store, as a NIC's memory requires. Volatile, since a compiler turns loops of plain stores
// into calls of memcpy, which may store bytes.
inline void store_piece(std::byte* to, const Segment& piece) {
  using Vector [[gnu::vector_size(16), gnu::may_alias]] = std::uint32_t;
  Vector words;
  std::memcpy(&words, &piece, sizeof words);
  *reinterpret_cast<volatile Vector*>(to) = words;
}

// As copy, to a slot of staging memory; zeros follow up to the next multiple of 16 B.
template <Scope S>
void fill_slot(std::byte* slot, const std::byte* from, std::uint32_t bytes) {
  const Run run = run_of<S>(bytes);
  if (run.begin == run.end) return;
  note_store(slot + run.begin,
             (run.end - run.begin + sizeof(Segment) - 1) / sizeof(Segment) * sizeof(Segment));
  std::uint64_t at = run.begin;
  for (; at + sizeof(Segment) <= run.end; at += sizeof(Segment))
    store_piece(slot + at, load_segment(from + at));
  if (at == run.end) return;
  Segment tail{};
  std::memcpy(&tail, from + at, run.end - at);
  store_piece(slot + at, tail);
}

// TMA's part: what store() is given nobody sees before wait(), and only what has left a stage makes room in
// it. As a GPU's, a group that nobody waits for need never arrive.
class BulkStores {
 public:
  static constexpr bool by_tma() { return true; }
  void store(std::byte* to, const std::byte* from, std::uint64_t bytes) {
    BulkEngine& engine = bulk_engine();
    for (std::uint64_t at = 0; at < bytes; at += kBulkStageBytes) {
      const auto n = static_cast<std::uint32_t>(bytes - at < kBulkStageBytes ? bytes - at : kBulkStageBytes);
      const std::uint32_t padded = (n + 15) & ~15u;
      std::byte* const stage = engine.stages[next_];
      next_ ^= 1;
      if (leads()) read_all_but(1);
      sync<Scope::kBlock>();
      fill_slot<Scope::kBlock>(stage, from + at, n);
      sync<Scope::kBlock>();
      if (leads()) engine.groups.push_back({to + at, stage, padded, {}});
    }
  }
  void wait() {
    read_all_but(0);
    for (const BulkGroup& group : bulk_engine().groups) {
      note_store(group.to, group.bytes);
      for (std::uint32_t at = 0; at < group.bytes; at += sizeof(Segment)) {
        store_piece(group.to + at, load_segment(group.read.data() + at));
      }
    }
    bulk_engine().groups.clear();
  }

 private:
  static bool leads() { return thread_rank<Scope::kBlock>() == 0; }
  static void read_all_but(std::size_t newest) {
    std::vector<BulkGroup>& groups = bulk_engine().groups;
    for (std::size_t i = 0; i + newest < groups.size(); ++i) {
      if (groups[i].read.empty()) groups[i].read.assign(groups[i].from, groups[i].from + groups[i].bytes);
    }
  }

  std::uint32_t next_ = 0;
};

inline std::uint64_t now_cycles() { return now_ns(); }

// Kernels add up their threads' counts with it; relaxed.
inline void add(std::uint64_t* to, std::uint64_t value) {
  AtomicRef<std::uint64_t>(*to).fetch_add(value, std::memory_order_relaxed);
}

// Returns the progress function that a kernel's first argument brings with it, if that is a team.
using ProgressFunction = int (*)();
inline ProgressFunction progress_of() { return nullptr; }
template <typename First, typename... Rest>
ProgressFunction progress_of(const First& first, const Rest&... /*unused*/) {
  if constexpr (std::is_same_v<First, TeamHandle>) return first.progress;
  return nullptr;
}

// Returns whether a kernel's first argument is the team of the process from which this one was forked: the
// host takes the progress function from the copies of its handles in a child.
inline bool is_of_parent() { return false; }
template <typename First, typename... Rest>
bool is_of_parent(const First& first, const Rest&... /*unused*/) {
  if constexpr (std::is_same_v<First, TeamHandle>)
    return first.progress != nullptr && first.copy->progress == nullptr;
  return false;
}

// Makes a word of 8 B, zero, that the host and kernels reach. Errors: none on this layer.
[[nodiscard]] inline Status make_word(std::uint64_t** word) {
  *word = std::make_unique<std::uint64_t>(0).release();
  return Status::kOk;
}
inline void free_word(std::uint64_t* word) { const std::unique_ptr<std::uint64_t> ends(word); }

// Launches a kernel on the configuration's stream, and returns before it has run. Arguments are copied.
// Errors: kInvalidArgument without a stream, and, with a line on stderr, in a process that was forked from
// the one of the stream or of the team that is the first argument. The kernel's own are told by
// synchronize().
template <typename Kernel, typename... Args>
[[nodiscard]] Status launch_async(const LaunchConfig& config, Kernel kernel, const Args&... args) {
  if (is_of_parent(args...)) return refuse_in_child();
  LaunchConfig complete = config;
  if (complete.progress == nullptr) complete.progress = progress_of(args...);
  // Any, so that a kernel that waits for one of another stream yields its core.
  if (complete.progress == nullptr) complete.progress = [] { return 0; };
  return enqueue(config.stream, [=] { return run_grid(complete, [&] { kernel(args...); }); });
}

// Runs a kernel to its end, on the configuration's stream or on this thread. Errors: run_grid's; on a stream
// those of launch_async() and synchronize(); kInvalidArgument in a forked process, as there.
template <typename Kernel, typename... Args>
[[nodiscard]] Status launch(const LaunchConfig& config, Kernel kernel, const Args&... args) {
  if (config.stream != nullptr) {
    const Status launched = launch_async(config, kernel, args...);
    return launched == Status::kOk ? synchronize(config.stream) : launched;
  }
  if (is_of_parent(args...)) return refuse_in_child();
  LaunchConfig complete = config;
  if (complete.progress == nullptr) complete.progress = progress_of(args...);
  return run_grid(complete, [&] { kernel(args...); });
}

}  // namespace gdx::exec

namespace gdx {

// Returns LaunchConfig::shared_bytes of memory, one array for each block. Its first content is not defined.
template <typename T>
T* gdx_dynamic_shared() {
  static_assert(alignof(T) <= exec::kSharedAlignment);
  return reinterpret_cast<T*>(exec::dynamic_shared());
}

}  // namespace gdx

using gdx::gdx_dynamic_shared;
