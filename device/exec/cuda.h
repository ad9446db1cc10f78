// The CUDA execution layer. Queue memory is addressed in the .global state space. A generic pointer would
// make the compiler test for shared and local memory on every access. Source: PTX ISA 8.x, "Memory
// Consistency Model", st, ld, fence, st.mmio.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "device/exec/scope.h"
#include "proto/byte_order.h"
#include "proto/gpu/queue.h"
#include "proto/status.h"

#define GDX_DEVICE __device__ __forceinline__
#define GDX_OUT_OF_LINE inline __device__ __noinline__

// Informs libgdx that this program's kernels run on a GPU (host/gpu/gpu.h). Weak, because many files define
// it.
extern "C" [[gnu::weak, gnu::used]] const int gdx_kernels_are_cuda;
extern "C" const int gdx_kernels_are_cuda = 1;

namespace gdx::exec {

inline constexpr bool kOnGpu = true;
#ifdef GDX_CHECK_ARGUMENTS
inline constexpr bool kComparesCalls = true;
#else
inline constexpr bool kComparesCalls = false;
#endif

struct Halves {
  std::uint32_t low;
  std::uint32_t high;
};

struct alignas(16) Segment {
  std::uint32_t words[4];
};

GDX_DEVICE std::uint32_t linear_thread() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
GDX_DEVICE std::uint32_t block_threads() { return blockDim.x * blockDim.y * blockDim.z; }

template <Scope S>
GDX_DEVICE std::uint32_t thread_rank() {
  if constexpr (S == Scope::kThread) return 0;
  if constexpr (S == Scope::kWarp) return linear_thread() % kWarpThreads;
  return linear_thread();
}

template <Scope S>
GDX_DEVICE std::uint32_t thread_count() {
  if constexpr (S == Scope::kThread) return 1;
  if constexpr (S == Scope::kWarp) {
    const std::uint32_t left = block_threads() - linear_thread() / kWarpThreads * kWarpThreads;
    return left < kWarpThreads ? left : kWarpThreads;
  }
  return block_threads();
}

// Mask of a full warp. Lanes that a short last warp lacks count as exited, which these operations permit. An
// exact mask would cost five instructions at each operation.
inline constexpr unsigned kWarpMask = 0xffffffffu;

template <Scope S>
GDX_DEVICE void sync() {
  if constexpr (S == Scope::kWarp) __syncwarp(kWarpMask);
  if constexpr (S == Scope::kBlock) __syncthreads();
}

template <Scope S>
GDX_DEVICE void gather(bool /*all_wait*/ = false) {
  sync<S>();
}

// Ends the kernel where threads of a scope make a call with different arguments. `arguments`: a mix of them.
GDX_DEVICE void note_call(Scope scope, const char* name, std::uint64_t arguments) {
  int equal = 1;
  __match_all_sync(kWarpMask, static_cast<unsigned long long>(arguments), &equal);
  if (scope == Scope::kBlock) {
    __shared__ std::uint64_t first;
    if (linear_thread() == 0) first = arguments;
    __syncthreads();
    equal = __syncthreads_and(first == arguments);
  }
  if (equal != 0) return;
  printf("gdx: %s: thread %u of block %u is in a scope whose threads give different arguments\n", name,
         linear_thread(), blockIdx.x);
  __trap();
}
template <Scope S>
GDX_DEVICE constexpr bool calls_agree() {
  return true;
}

template <Scope S>
GDX_DEVICE std::uint32_t broadcast(std::uint32_t value) {
  if constexpr (S == Scope::kThread) return value;
  if constexpr (S == Scope::kWarp) {
    // Adds a barrier, because a shuffle orders no memory. The barrier passes on the leader's acquired stores.
    __syncwarp(kWarpMask);
    return __shfl_sync(kWarpMask, value, 0);
  }
  __shared__ std::uint32_t slot;
  if (thread_rank<S>() == 0) slot = value;
  __syncthreads();
  const std::uint32_t decided = slot;
  __syncthreads();  // every thread has read the slot before a later call overwrites it
  return decided;
}

// Threads of a warp that hold a condition.
struct Lanes {
  std::uint32_t count;   // of the warp
  std::uint32_t before;  // of lower rank than this thread
};
GDX_DEVICE Lanes lanes_with(bool condition) {
  const std::uint32_t lanes = __ballot_sync(kWarpMask, condition);
  return {static_cast<std::uint32_t>(__popc(lanes)),
          static_cast<std::uint32_t>(__popc(lanes & ((1u << thread_rank<Scope::kWarp>()) - 1)))};
}

// Permutes bytes: byte i of the result is byte (Selector >> 4 * i & 7) of the eight bytes `high:low`.
template <std::uint32_t Selector>
GDX_DEVICE std::uint32_t permute_bytes(std::uint32_t low, std::uint32_t high) {
  std::uint32_t permuted;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(permuted) : "r"(low), "r"(high), "n"(Selector));
  return permuted;
}

// Swaps bytes in one instruction, because the compiler does not always reduce shifts and masks to it.
GDX_DEVICE std::uint32_t swap_bytes(std::uint32_t v) { return permute_bytes<0x0123>(v, 0); }

// Broadcasts a value without ordering memory.
template <Scope S>
GDX_DEVICE std::uint32_t shuffle(std::uint32_t value) {
  static_assert(S == Scope::kWarp);
  return __shfl_sync(kWarpMask, value, 0);
}

// Returns whether `condition` holds in any thread of the warp.
template <Scope S>
GDX_DEVICE bool any(bool condition) {
  static_assert(S == Scope::kWarp);
  return __any_sync(kWarpMask, condition) != 0;
}

GDX_DEVICE Halves split(std::uint64_t v) {
  Halves halves;
  asm("mov.b64 {%0, %1}, %2;" : "=r"(halves.low), "=r"(halves.high) : "l"(v));
  return halves;
}
GDX_DEVICE std::uint64_t join(std::uint32_t low, std::uint32_t high) {
  std::uint64_t v;
  asm("mov.b64 %0, {%1, %2};" : "=l"(v) : "r"(low), "r"(high));
  return v;
}

GDX_DEVICE std::uint64_t global_address(const void* p) { return __cvta_generic_to_global(p); }

// Stores 16 B at a fixed distance from `to`, which costs no instruction.
template <int Offset = 0>
GDX_DEVICE void store_segment(void* to, const Segment& s) {
  asm volatile("st.relaxed.sys.global.v4.b32 [%0+%5], {%1, %2, %3, %4};" ::"l"(global_address(to)),
               "r"(s.words[0]), "r"(s.words[1]), "r"(s.words[2]), "r"(s.words[3]), "n"(Offset)
               : "memory");
}

GDX_DEVICE void store_word(void* to, std::uint32_t value) {
  asm volatile("st.relaxed.sys.global.b32 [%0], %1;" ::"l"(global_address(to)), "r"(value) : "memory");
}

// Uses GPU scope when the NIC will read GPU memory alone, because its reads meet the stores in the L2. Uses
// system scope when any of it is in host or NIC memory.
template <Placement P>
GDX_DEVICE void store_release(Be32* to, Be32 value) {
  if constexpr (P == Placement::kGpu) {
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(global_address(to)), "r"(value.raw) : "memory");
  } else {
    asm volatile("st.release.sys.global.b32 [%0], %1;" ::"l"(global_address(to)), "r"(value.raw) : "memory");
  }
}

// Stores a word that another agent of the system (the host's scheduler) will acquire.
GDX_DEVICE void publish(std::uint32_t* to, std::uint32_t value) {
  asm volatile("st.release.sys.global.b32 [%0], %1;" ::"l"(global_address(to)), "r"(value) : "memory");
}

template <Placement P>
GDX_DEVICE void fence_release() {
#if __CUDA_ARCH__ >= 900
  if constexpr (P == Placement::kGpu) asm volatile("fence.release.gpu;" ::: "memory");
  if constexpr (P == Placement::kHost) asm volatile("fence.release.sys;" ::: "memory");
#else  // older ones cannot do half a fence
  if constexpr (P == Placement::kGpu) asm volatile("fence.acq_rel.gpu;" ::: "memory");
  if constexpr (P == Placement::kHost) asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

// Stores 8 B, or a value that need not be aligned, for a peer's kernel.
GDX_DEVICE void publish(std::uint64_t* to, std::uint64_t value) {
  asm volatile("st.release.sys.global.b64 [%0], %1;" ::"l"(global_address(to)), "l"(value) : "memory");
}
template <typename T>
GDX_DEVICE void publish_value(std::byte* to, T value) {
  fence_release<Placement::kHost>();
  if (reinterpret_cast<std::uint64_t>(to) % sizeof(T) == 0) {
    *reinterpret_cast<volatile T*>(to) = value;  // PTX: st.volatile is relaxed, of system scope
    return;
  }
  const auto bits = static_cast<std::uint64_t>(value);
  auto* const bytes = reinterpret_cast<volatile std::uint8_t*>(to);
  for (unsigned i = 0; i < sizeof(T); ++i) bytes[i] = static_cast<std::uint8_t>(bits >> 8 * i);
}

// Change words that processors and GPUs of the whole system change. Both return the old value.
GDX_DEVICE std::uint64_t fetch_add_in_system(std::uint64_t* to, std::uint64_t n) {
  std::uint64_t old;
  asm volatile("atom.acq_rel.sys.global.add.u64 %0, [%1], %2;"
               : "=l"(old)
               : "l"(global_address(to)), "l"(n)
               : "memory");
  return old;
}
GDX_DEVICE std::uint64_t compare_swap_in_system(std::uint64_t* to, std::uint64_t expected,
                                                std::uint64_t desired) {
  std::uint64_t old;
  asm volatile("atom.acq_rel.sys.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(old)
               : "l"(global_address(to)), "l"(expected), "l"(desired)
               : "memory");
  return old;
}

// Stores for use after a fence_release, with which they form a release.
GDX_DEVICE void store_counter(std::uint32_t* to, std::uint32_t value) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(global_address(to)), "r"(value) : "memory");
}
GDX_DEVICE void store_record(Be32* to, Be32 value) { store_word(to, value.raw); }
// Stores a doorbell. st.mmio keeps the store whole and in place.
GDX_DEVICE void store_doorbell(std::uint64_t* doorbell, std::uint64_t value) {
  asm volatile("st.mmio.relaxed.sys.global.b64 [%0], %1;" ::"l"(global_address(doorbell)), "l"(value)
               : "memory");
}

// Operations on counters that the threads of one GPU share.
GDX_DEVICE std::uint32_t load_counter(const std::uint32_t* from) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(global_address(from)) : "memory");
  return value;
}
GDX_DEVICE std::uint64_t load_counter(const std::uint64_t* from) {
  std::uint64_t value;
  asm volatile("ld.acquire.gpu.global.b64 %0, [%1];" : "=l"(value) : "l"(global_address(from)) : "memory");
  return value;
}
// Loads for use before a fence_acquire, with which they form an acquire. Several loads wait for memory at
// once.
GDX_DEVICE std::uint32_t load_before_fence(const std::uint32_t* from) {
  std::uint32_t value;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(global_address(from)) : "memory");
  return value;
}
GDX_DEVICE void fence_acquire() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.acquire.gpu;" ::: "memory");
#else
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}
GDX_DEVICE std::uint32_t fetch_add(std::uint32_t* to, std::uint32_t n) {
  std::uint32_t old;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(global_address(to)), "r"(n)
               : "memory");
  return old;
}
// Adds without a result, as a reduction; after a fence_release it is a release.
GDX_DEVICE void count_in(std::uint64_t* to, std::int64_t n) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(global_address(to)), "l"(n) : "memory");
}
// Compares and swaps; returns the old value.
GDX_DEVICE std::uint32_t compare_swap(std::uint32_t* to, std::uint32_t expected, std::uint32_t desired) {
  std::uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.cas.b32 %0, [%1], %2, %3;"
               : "=r"(old)
               : "l"(global_address(to)), "r"(expected), "r"(desired)
               : "memory");
  return old;
}

GDX_DEVICE std::uint64_t compare_swap(std::uint64_t* to, std::uint64_t expected, std::uint64_t desired) {
  std::uint64_t old;
  asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(old)
               : "l"(global_address(to)), "l"(expected), "l"(desired)
               : "memory");
  return old;
}

// Rings; the fence orders the doorbell record before the doorbell.
template <Placement P>
GDX_DEVICE void ring(std::uint64_t* doorbell, std::uint64_t value) {
  fence_release<P>();
  store_doorbell(doorbell, value);
}

// Stores one of the four pieces of a doorbell with its WQE, for probes. No publication states whether a GPU
// joins such stores, of a thread or of a warp's lanes, into one write.
GDX_DEVICE void store_blueflame_piece(std::uint64_t* half, const Segment (&wqe)[4], std::uint32_t piece) {
  store_segment(half + 2 * piece, wqe[piece]);
}

// Loads a segment that this thread has stored.
GDX_DEVICE Segment load_segment(const void* from) {
  Segment s;
  asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(s.words[0]), "=r"(s.words[1]), "=r"(s.words[2]), "=r"(s.words[3])
               : "l"(global_address(from))
               : "memory");
  return s;
}

// Loads 16 B at a fixed distance from `from`, as two words of 8 B.
struct Pair {
  std::uint64_t first;
  std::uint64_t second;
};
template <int Offset = 0>
GDX_DEVICE Pair load_pair(const void* from) {
  Pair pair;
  asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2+%3];"
               : "=l"(pair.first), "=l"(pair.second)
               : "l"(global_address(from)), "n"(Offset));
  return pair;
}

GDX_DEVICE std::uint64_t load_acquire(const std::uint64_t* from) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.b64 %0, [%1];" : "=l"(value) : "l"(global_address(from)) : "memory");
  return value;
}
// Loads a word that carries no data with it, so no ordering is needed.
GDX_DEVICE std::uint32_t load_flag(const std::uint32_t* from) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.b32 %0, [%1];" : "=r"(value) : "l"(global_address(from)) : "memory");
  return value;
}

// Loads 16 B from an address of any alignment, in loads as wide as it allows. For fewer `bytes` it fills with
// zeros and reads nothing beyond.
GDX_DEVICE uint4 load_piece(const std::byte* from, std::uint32_t bytes = 16) {
  const auto address = reinterpret_cast<std::uint64_t>(from);
  const bool whole = bytes >= 16;
  if (whole && (address & 15) == 0) return *reinterpret_cast<const uint4*>(from);
  std::uint32_t words[4]{};
  if (whole && (address & 3) == 0) {
    const auto* source = reinterpret_cast<const std::uint32_t*>(from);
    for (unsigned i = 0; i < 4; ++i) words[i] = source[i];
  } else {
    const auto* source = reinterpret_cast<const std::uint8_t*>(from);
#pragma unroll
    for (unsigned i = 0; i < 16; ++i) {
      if (i < bytes) words[i / 4] |= static_cast<std::uint32_t>(source[i]) << 8 * (i % 4);
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

// Copies: thread r of n takes the 16 B pieces r, r+n, r+2n, ... Neighbours store neighbouring pieces, which
// leave the GPU as one write. All stores but those at the ends are of 16 B, whatever the source's alignment.
// A store to the NIC crosses the bus alone, a load rarely does.
template <Scope S>
GDX_DEVICE void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  const std::uint32_t rank = thread_rank<S>();
  const std::uint32_t count = thread_count<S>();
  const std::uint64_t unaligned = -reinterpret_cast<std::uint64_t>(to) & 15;
  const std::uint64_t head = unaligned < bytes ? unaligned : bytes;
  const std::uint64_t tail = head + ((bytes - head) & ~std::uint64_t{15});
  for (std::uint64_t i = rank; i < head; i += count) to[i] = from[i];
  for (std::uint64_t i = head + 16 * rank; i < tail; i += 16 * count) {
    *reinterpret_cast<uint4*>(to + i) = load_piece(from + i);
  }
  for (std::uint64_t i = tail + rank; i < bytes; i += count) to[i] = from[i];
}

// Copies to a slot of staging memory, with zeros up to the next multiple of 16 B. No store is narrower,
// because NIC memory takes aligned words only. Source: rdma-core, mlx5_access_dm in providers/mlx5/mlx5.c.
template <Scope S>
GDX_DEVICE void fill_slot(std::byte* slot, const std::byte* from, std::uint32_t bytes) {
  for (std::uint32_t i = 16 * thread_rank<S>(); i < bytes; i += 16 * thread_count<S>()) {
    *reinterpret_cast<uint4*>(slot + i) = load_piece(from + i, bytes - i);
  }
}

// No recorder checks a GPU's stores.
GDX_DEVICE void watch_endpoint(const EndpointHandle& /*handle*/) {}

// Stores of a block by TMA. The block's threads fill a stage in shared memory; the first thread hands it to
// the copy unit and continues. From sm_90 on; older GPUs store 16 B.
//  - Each thread orders its stores to the stage before the async proxy (fence.proxy.async, all state
//    spaces). That also orders earlier ordinary accesses to the destination. Then the block meets.
//  - A stage is filled again only after it was read (wait_group.read). The first thread waits for that before
//    the block meets.
//  - wait() makes the bytes visible to the first thread as its own stores, because a completed bulk copy
//    implies a proxy fence. So its later release covers them, at the scope of the memory they are in.
//    Without wait() no fence of a thread orders them.
// Destinations are 16 B aligned and of state space .global. PTX does not define which memory may be mapped
// there. TMA reaches a NIC's BAR in practice only, so callers must request it by name. Source: PTX ISA 8.x,
// "cp.async.bulk", "Async proxy", "fence.proxy.async", "cp.async.bulk.wait_group".
class BulkStores {
 public:
  GDX_DEVICE static constexpr bool by_tma() {
#if __CUDA_ARCH__ >= 900
    return true;
#else
    return false;
#endif
  }
  // All threads. Stores up to the next multiple of 16 B; `to` must have room for that.
  GDX_DEVICE void store(std::byte* to, const std::byte* from, std::uint64_t bytes) {
#if __CUDA_ARCH__ >= 900
    __shared__ alignas(128) std::byte stages[kBulkStages][kBulkStageBytes];
    const std::uint32_t rank = thread_rank<Scope::kBlock>();
    for (std::uint64_t at = 0; at < bytes; at += kBulkStageBytes) {
      const std::uint32_t n =
          bytes - at < kBulkStageBytes ? static_cast<std::uint32_t>(bytes - at) : kBulkStageBytes;
      const std::uint32_t padded = (n + 15) & ~15u;
      std::byte* const stage = stages[next_];
      next_ ^= 1;
      if (rank == 0) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kBulkStages - 1) : "memory");
      __syncthreads();
      fill_slot<Scope::kBlock>(stage, from + at, n);
      asm volatile("fence.proxy.async;" ::: "memory");
      __syncthreads();
      if (rank != 0) continue;
      asm volatile(
          "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n\t"
          "cp.async.bulk.commit_group;" ::"l"(global_address(to + at)),
          "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(stage))), "r"(padded)
          : "memory");
    }
#else
    fill_slot<Scope::kBlock>(to, from, static_cast<std::uint32_t>(bytes));
#endif
  }
  // The first thread: waits until every earlier store has reached its destination.
  GDX_DEVICE void wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
  }

 private:
  std::uint32_t next_ = 0;
};

// Stores a doorbell with its WQE of one block in one store of 64 B, by TMA. For the leader of S, after a
// fence_release, where BulkStores::by_tma() holds. The proxy fence orders the stage and the earlier stores
// before the copy. Returns when the copy is complete, so that no later doorbell overtakes it.
// Takes 64 B of shared memory for a block, or for each of its up to 32 warps.
template <Scope S>
GDX_DEVICE void store_blueflame(std::uint64_t* half, const Segment (&wqe)[4]) {
  static_assert(S != Scope::kThread, "a stage for every thread of a block would fill the shared memory");
#if __CUDA_ARCH__ >= 900
  __shared__ alignas(128) uint4 stages[S == Scope::kBlock ? 1 : kMostWarps][4];
  uint4* const stage = stages[S == Scope::kBlock ? 0 : linear_thread() / kWarpThreads];
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    stage[i] = {wqe[i].words[0], wqe[i].words[1], wqe[i].words[2], wqe[i].words[3]};
  }
  asm volatile("fence.proxy.async;" ::: "memory");
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n\t"
      "cp.async.bulk.commit_group;\n\t"
      "cp.async.bulk.wait_group 0;" ::"l"(global_address(half)),
      "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(stage))), "n"(sizeof wqe)
      : "memory");
#endif
}

// Adds atomically, relaxed, so that kernels can sum their threads' counts.
GDX_DEVICE void add(std::uint64_t* to, std::uint64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}

GDX_DEVICE std::uint64_t now_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
// Cycles of this multiprocessor; nanoseconds on the CPU layer.
GDX_DEVICE std::uint64_t now_cycles() {
  std::uint64_t cycles;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
  return cycles;
}

// Does nothing, because threads of a GPU run beside one another.
GDX_DEVICE void yield() {}

GDX_DEVICE void relax() { __nanosleep(20); }

}  // namespace gdx::exec

namespace gdx {

// Returns LaunchConfig::shared_bytes of shared memory. Its first content is not defined.
template <typename T>
GDX_DEVICE T* gdx_dynamic_shared() {
  static_assert(alignof(T) <= exec::kSharedAlignment);
  extern __shared__ __align__(exec::kSharedAlignment) std::byte gdx_dynamic_shared_bytes[];
  return reinterpret_cast<T*>(gdx_dynamic_shared_bytes);
}

}  // namespace gdx

using gdx::gdx_dynamic_shared;
