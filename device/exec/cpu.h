// The CPU execution layer: a kernel's threads are fibers, so that barriers, shuffles and spinning
// waits mean what they mean on a GPU. Each fiber is a thread to ThreadSanitizer: a missing barrier
// is a reported race. Spelled as in CUDA, so that the same .cu file compiles as C++.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

#include "device/exec/cpu_scheduler.h"
#include "proto/byte_order.h"
#include "proto/gpu/queue.h"
#include "proto/status.h"

#define GDX_DEVICE inline
#define __global__
#define __device__
#define threadIdx (::gdx::exec::current_thread().thread_index)
#define blockIdx (::gdx::exec::current_thread().block_index)
#define blockDim (::gdx::exec::current_thread().block_size)
#define gridDim (::gdx::exec::current_thread().grid_size)
#define __syncthreads() ::gdx::exec::sync_block()
#define __syncwarp() ::gdx::exec::sync_warp()

namespace gdx::exec {

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
  if constexpr (S == Scope::kWarp) sync_warp();
  if constexpr (S == Scope::kBlock) sync_block();
}

template <Scope S>
std::uint32_t broadcast(std::uint32_t value) {
  if constexpr (S == Scope::kThread) return value;
  std::atomic<std::uint32_t>& slot = broadcast_slot(S);
  if (thread_rank<S>() == 0) slot.store(value, std::memory_order_relaxed);
  sync<S>();
  const std::uint32_t decided = slot.load(std::memory_order_relaxed);
  sync<S>();  // nobody may overwrite the slot before all have read it
  return decided;
}

inline void store_segment(void* to, const Segment& segment) {
  std::memcpy(__builtin_assume_aligned(to, 16), &segment, sizeof segment);
}

inline void store_word(void* to, std::uint32_t value) { std::memcpy(to, &value, sizeof value); }

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
template <Placement>
void store_release(Be32* to, std::uint32_t value) {
  write_combining_barrier();
  std::atomic_ref<std::uint32_t>(to->raw).store(byte_swap(value), std::memory_order_release);
}

// A word that another agent of the system (the host's scheduler) will acquire.
inline void publish(std::uint32_t* to, std::uint32_t value) {
  std::atomic_ref<std::uint32_t>(*to).store(value, std::memory_order_release);
}

template <Placement>
void ring(std::uint64_t* doorbell, std::uint64_t value) {
  write_combining_barrier();
  std::atomic_ref<std::uint64_t>(*doorbell).store(value, std::memory_order_release);
  write_combining_barrier();  // out of the buffer now, not when it happens to fill
}

// A doorbell and the WQE of one block that it is for. The doorbell's own 8 B go last, so that whoever sees
// them in memory sees the rest; in a write-combining buffer the order is of no account.
template <Placement>
void ring_blueflame(std::uint64_t* half, const Segment (&wqe)[4]) {
  std::uint64_t words[8];
  static_assert(sizeof words == sizeof wqe);
  std::memcpy(words, wqe, sizeof wqe);
  write_combining_barrier();
  for (int i = 1; i < 8; ++i) {
    std::atomic_ref<std::uint64_t>(half[i]).store(words[i], std::memory_order_relaxed);
  }
  std::atomic_ref<std::uint64_t>(half[0]).store(words[0], std::memory_order_release);
  write_combining_barrier();
}

inline std::uint32_t load_acquire(const std::uint32_t* from) {
  return std::atomic_ref<std::uint32_t>(*const_cast<std::uint32_t*>(from)).load(std::memory_order_acquire);
}
inline std::uint64_t load_acquire(const std::uint64_t* from) {
  return std::atomic_ref<std::uint64_t>(*const_cast<std::uint64_t*>(from)).load(std::memory_order_acquire);
}
// A word that carries no data with it: no ordering is wanted.
inline std::uint32_t load_flag(const std::uint32_t* from) {
  return std::atomic_ref<std::uint32_t>(*const_cast<std::uint32_t*>(from)).load(std::memory_order_relaxed);
}

// Thread r of n copies the 16 B pieces r, r+n, r+2n, ..., as on a GPU; a lone thread copies at once.
template <Scope S>
void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  if constexpr (S == Scope::kThread) {
    std::memcpy(to, from, bytes);
    return;
  }
  constexpr std::uint64_t kPiece = 16;
  const std::uint64_t stride = kPiece * thread_count<S>();
  for (std::uint64_t at = kPiece * thread_rank<S>(); at < bytes; at += stride) {
    std::memcpy(to + at, from + at, bytes - at < kPiece ? bytes - at : kPiece);
  }
}

// Kernels add up their threads' counts with it; relaxed.
inline void add(std::uint64_t* to, std::uint64_t value) {
  std::atomic_ref<std::uint64_t>(*to).fetch_add(value, std::memory_order_relaxed);
}

template <typename Kernel, typename... Args>
[[nodiscard]] Status launch(const LaunchConfig& config, Kernel kernel, const Args&... args) {
  return run_grid(config, [&] { kernel(args...); });
}

}  // namespace gdx::exec
