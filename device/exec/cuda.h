// The CUDA execution layer. Queue memory is addressed in the .global state space: a generic pointer
// would make the compiler test for shared and local memory on every access.
// Source: PTX ISA 8.x, "Memory Consistency Model", st, ld, fence, st.mmio.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "device/exec/scope.h"
#include "proto/byte_order.h"
#include "proto/gpu/queue.h"
#include "proto/status.h"

#define GDX_DEVICE __device__ __forceinline__

namespace gdx::exec {

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

// The lanes of this warp; the last warp of a block may be short.
GDX_DEVICE std::uint32_t warp_mask() { return 0xffffffffu >> (kWarpThreads - thread_count<Scope::kWarp>()); }

template <Scope S>
GDX_DEVICE void sync() {
  if constexpr (S == Scope::kWarp) __syncwarp(warp_mask());
  if constexpr (S == Scope::kBlock) __syncthreads();
}

template <Scope S>
GDX_DEVICE std::uint32_t broadcast(std::uint32_t value) {
  if constexpr (S == Scope::kThread) return value;
  if constexpr (S == Scope::kWarp) {
    // A shuffle orders no memory: the barrier passes on what the leader has acquired.
    __syncwarp(warp_mask());
    return __shfl_sync(warp_mask(), value, 0);
  }
  __shared__ std::uint32_t slot;
  if (thread_rank<S>() == 0) slot = value;
  __syncthreads();
  const std::uint32_t decided = slot;
  __syncthreads();  // nobody may overwrite the slot before all have read it
  return decided;
}

GDX_DEVICE std::uint64_t global_address(const void* p) { return __cvta_generic_to_global(p); }

GDX_DEVICE void store_segment(void* to, const Segment& s) {
  asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(global_address(to)),
               "r"(s.words[0]), "r"(s.words[1]), "r"(s.words[2]), "r"(s.words[3])
               : "memory");
}

GDX_DEVICE void store_word(void* to, std::uint32_t value) {
  asm volatile("st.relaxed.sys.global.b32 [%0], %1;" ::"l"(global_address(to)), "r"(value) : "memory");
}

// GPU scope when everything the NIC will fetch is in GPU memory: the stores meet it in the L2. System
// scope when any of it is in host or NIC memory.
template <Placement P>
GDX_DEVICE void store_release(Be32* to, std::uint32_t value) {
  const std::uint32_t word = byte_swap(value);
  if constexpr (P == Placement::kGpu) {
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(global_address(to)), "r"(word) : "memory");
  } else {
    asm volatile("st.release.sys.global.b32 [%0], %1;" ::"l"(global_address(to)), "r"(word) : "memory");
  }
}

// A word that another agent of the system (the host's scheduler) will acquire.
GDX_DEVICE void publish(std::uint32_t* to, std::uint32_t value) {
  asm volatile("st.release.sys.global.b32 [%0], %1;" ::"l"(global_address(to)), "r"(value) : "memory");
}

// The fence orders the doorbell record before the doorbell; st.mmio keeps the store whole and in place.
template <Placement P>
GDX_DEVICE void ring(std::uint64_t* doorbell, std::uint64_t value) {
  if constexpr (P == Placement::kGpu) {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
  } else {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
  }
  asm volatile("st.mmio.relaxed.sys.global.b64 [%0], %1;" ::"l"(global_address(doorbell)), "l"(value)
               : "memory");
}

// A doorbell and the WQE of one block that it is for, in four stores of 16 B. Whether they leave the GPU as
// one write is not documented; where they do not, the NIC fetches the WQE from the ring.
template <Placement P>
GDX_DEVICE void ring_blueflame(std::uint64_t* half, const Segment (&wqe)[4]) {
  if constexpr (P == Placement::kGpu) {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
  } else {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
  }
  auto* const to = reinterpret_cast<std::byte*>(half);
  for (unsigned i = 0; i < 4; ++i) store_segment(to + i * sizeof(Segment), wqe[i]);
}

GDX_DEVICE std::uint32_t load_acquire(const std::uint32_t* from) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.b32 %0, [%1];" : "=r"(value) : "l"(global_address(from)) : "memory");
  return value;
}
GDX_DEVICE std::uint64_t load_acquire(const std::uint64_t* from) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.b64 %0, [%1];" : "=l"(value) : "l"(global_address(from)) : "memory");
  return value;
}
// A word that carries no data with it: no ordering is wanted.
GDX_DEVICE std::uint32_t load_flag(const std::uint32_t* from) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.b32 %0, [%1];" : "=r"(value) : "l"(global_address(from)) : "memory");
  return value;
}

// Thread r of n copies the 16 B pieces r, r+n, r+2n, ...: neighbours store neighbouring pieces, which
// leave the GPU as one write.
template <Scope S>
GDX_DEVICE void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  const std::uint32_t rank = thread_rank<S>();
  const std::uint32_t count = thread_count<S>();
  std::uint64_t whole = 0;
  if (((reinterpret_cast<std::uint64_t>(to) | reinterpret_cast<std::uint64_t>(from)) & 15) == 0) {
    whole = bytes / 16;
    const auto* source = reinterpret_cast<const uint4*>(from);
    auto* target = reinterpret_cast<uint4*>(to);
    for (std::uint64_t i = rank; i < whole; i += count) target[i] = source[i];
  }
  for (std::uint64_t i = whole * 16 + rank; i < bytes; i += count) to[i] = from[i];
}

// Kernels add up their threads' counts with it; relaxed.
GDX_DEVICE void add(std::uint64_t* to, std::uint64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}

GDX_DEVICE std::uint64_t now_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Threads of a GPU run beside one another: nobody needs to be let in.
GDX_DEVICE void yield() {}

GDX_DEVICE void relax() { __nanosleep(20); }

struct LaunchConfig {
  dim3 grid{1};
  dim3 block{1};
  int (*progress)() = nullptr;         // a GPU makes progress beside the host: not used
  unsigned workers = 1;                // likewise
  std::uint64_t (*clock)() = nullptr;  // likewise: a GPU has its own
};

// Runs a kernel to its end on the current device. Errors: kInvalidArgument when CUDA refuses the launch,
// kSystem when the kernel faults.
template <typename... Parameters, typename... Args>
[[nodiscard]] Status launch(const LaunchConfig& config, void (*kernel)(Parameters...), const Args&... args) {
  kernel<<<config.grid, config.block>>>(args...);
  if (cudaGetLastError() != cudaSuccess) return Status::kInvalidArgument;  // the launch itself was refused
  return cudaDeviceSynchronize() == cudaSuccess ? Status::kOk : Status::kSystem;
}

}  // namespace gdx::exec
