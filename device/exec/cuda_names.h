// CUDA's names on the CPU layer, so that the same .cu file compiles as C++; nvcc has them itself. Lists and
// differences: docs/device.md, "CUDA on the CPU layer". A name that is missing here is an undeclared one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "device/exec/cpu.h"

// NOLINTBEGIN(readability-identifier-naming)

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __noinline__  // no attribute: headers of the C++ library say __attribute__((__noinline__))
#define __align__(bytes) __attribute__((aligned(bytes)))
// Storage of a host thread, because a program that has such variables gives each block one. `extern` does not
// combine with it: use gdx_dynamic_shared.
#define __shared__ static thread_local __attribute__((aligned(::gdx::exec::shared_alignment<0>())))

#define threadIdx (::gdx::exec::current_thread().thread_index)
#define blockIdx (::gdx::exec::current_thread().block_index)
#define blockDim (::gdx::exec::current_thread().block_size)
#define gridDim (::gdx::exec::current_thread().grid_size)

namespace gdx::exec {

// Notes before main that the program has such variables. Only instantiated members have initializers.
template <int Unused>
struct SharedVariables {
  static inline const bool exist = note_shared_variables();
};
template <int Unused>
constexpr std::size_t shared_alignment() {
  static_cast<void>(&SharedVariables<Unused>::exist);
  return kSharedAlignment;
}

// T, where it is one of the types. Deduces nothing.
template <typename T, typename... Types>
using OneOf = std::enable_if_t<(std::is_same_v<T, Types> || ...), T>;

template <typename T>
using Shuffled = OneOf<T, int, unsigned, long, unsigned long, long long, unsigned long long, float, double>;

inline std::uint32_t lane_index() { return thread_rank<Scope::kWarp>(); }

template <typename T>
T shuffle_from(std::uint32_t lanes, T value, std::uint32_t source) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = exchange(lanes, bits, source);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Both are numbers: the type in which C++ compares them.
template <typename A, typename B>
using Common = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>, std::common_type_t<A, B>>;

// Reduces the values of the lanes of `lanes`, in their order. Lanes that have returned are left out.
template <typename T, typename Next>
T reduce_lanes(std::uint32_t lanes, T value, Next next) {
  const std::uint32_t alive = ballot(lanes, true);
  T all{};
  bool first = true;
  for (std::uint32_t lane = 0; lane < kWarpThreads; ++lane) {
    if ((alive >> lane & 1) == 0) continue;
    const T given = shuffle_from(alive, value, lane);
    all = first ? given : next(all, given);
    first = false;
  }
  return all;
}

// Adds as a GPU does: integers wrap around.
template <typename T>
T wrapping_add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  } else {
    return a + b;
  }
}

// Replaces *at by next(*at), relaxed, and returns what was there.
template <typename T, typename Next>
T change(T* at, Next next) {
  pause_now_and_then();
  const AtomicRef<T> word(*at);
  T old = word.load(std::memory_order_relaxed);
  while (!word.compare_exchange_weak(old, next(old), std::memory_order_relaxed)) {
  }
  return old;
}

// Orders accesses for every observer, those to write-combining memory too.
inline void fence_all() {
#if defined(__x86_64__)
  __builtin_ia32_mfence();
#elif defined(__aarch64__)
  asm volatile("dmb sy" ::: "memory");
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace gdx::exec

using dim3 = gdx::exec::Dim3;
inline constexpr int warpSize = static_cast<int>(gdx::kWarpThreads);

// Vectors. Those of 2 and 4 are aligned as one, at most to 16 B.
#define GDX_VECTORS(name, type)                                                     \
  struct name##1 {                                                                  \
    type x;                                                                         \
  };                                                                                \
  struct alignas(2 * sizeof(type)) name##2 {                                        \
    type x, y;                                                                      \
  };                                                                                \
  struct name##3 {                                                                  \
    type x, y, z;                                                                   \
  };                                                                                \
  [[nodiscard]] constexpr name##1 make_##name##1(type x) { return {x}; }            \
  [[nodiscard]] constexpr name##2 make_##name##2(type x, type y) { return {x, y}; } \
  [[nodiscard]] constexpr name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }
#define GDX_VECTORS_OF_4(name, type)         \
  struct alignas(4 * sizeof(type)) name##4 { \
    type x, y, z, w;                         \
  };                                         \
  [[nodiscard]] constexpr name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

GDX_VECTORS(char, signed char)
GDX_VECTORS_OF_4(char, signed char)
GDX_VECTORS(uchar, unsigned char)
GDX_VECTORS_OF_4(uchar, unsigned char)
GDX_VECTORS(short, short)
GDX_VECTORS_OF_4(short, short)
GDX_VECTORS(ushort, unsigned short)
GDX_VECTORS_OF_4(ushort, unsigned short)
GDX_VECTORS(int, int)
GDX_VECTORS_OF_4(int, int)
GDX_VECTORS(uint, unsigned)
GDX_VECTORS_OF_4(uint, unsigned)
GDX_VECTORS(float, float)
GDX_VECTORS_OF_4(float, float)
GDX_VECTORS(longlong, long long)
GDX_VECTORS(ulonglong, unsigned long long)
GDX_VECTORS(double, double)

#undef GDX_VECTORS
#undef GDX_VECTORS_OF_4

// Barriers and fences.
inline void __syncthreads() { gdx::exec::sync_block(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { gdx::exec::sync_warp(mask); }
inline void __threadfence_block() { std::atomic_signal_fence(std::memory_order_seq_cst); }
inline void __threadfence() {
  gdx::exec::note_release(gdx::Placement::kGpu);
  gdx::exec::fence_all();
}
inline void __threadfence_system() {
  gdx::exec::note_release(gdx::Placement::kHost);
  gdx::exec::fence_all();
}

// Lets the other threads run.
inline void __nanosleep(unsigned /*ns*/) { gdx::exec::relax(); }
inline long long clock64() { return static_cast<long long>(gdx::exec::now_cycles()); }

template <typename T>
T __ldg(const T* from) {
  return *from;
}

// Bits.
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(static_cast<unsigned>(bits)); }
inline int __clzll(long long bits) {
  return bits == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(bits));
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __ffsll(long long bits) { return __builtin_ffsll(bits); }

// Exchanges of a warp. They order no memory, as on a GPU. Lanes that have returned count as named.
template <typename T>
gdx::exec::Shuffled<T> __shfl_sync(unsigned mask, T value, int source, int width = warpSize) {
  const auto low = static_cast<unsigned>(width) - 1;
  return gdx::exec::shuffle_from(mask, value,
                                 (gdx::exec::lane_index() & ~low) | (static_cast<unsigned>(source) & low));
}
template <typename T>
gdx::exec::Shuffled<T> __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
  const unsigned lane = gdx::exec::lane_index();
  const unsigned rank = lane & (static_cast<unsigned>(width) - 1);
  return gdx::exec::shuffle_from(mask, value, delta > rank ? lane : lane - delta);
}
template <typename T>
gdx::exec::Shuffled<T> __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
  const unsigned lane = gdx::exec::lane_index();
  const unsigned rank = lane & (static_cast<unsigned>(width) - 1);
  return gdx::exec::shuffle_from(mask, value,
                                 delta >= static_cast<unsigned>(width) - rank ? lane : lane + delta);
}
template <typename T>
gdx::exec::Shuffled<T> __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize) {
  const unsigned lane = gdx::exec::lane_index();
  const unsigned source = lane ^ static_cast<unsigned>(lane_mask);
  return gdx::exec::shuffle_from(mask, value,
                                 source > (lane | (static_cast<unsigned>(width) - 1)) ? lane : source);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return gdx::exec::ballot(mask, predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate) {
  return static_cast<int>(__ballot_sync(mask, predicate) != 0);
}
inline int __all_sync(unsigned mask, int predicate) {
  return static_cast<int>(__ballot_sync(mask, static_cast<int>(predicate == 0)) == 0);
}
// The lanes that run together: fibers run one at a time.
inline unsigned __activemask() { return 1u << gdx::exec::lane_index(); }

// Reductions over the lanes of a mask, each of which gets the result.
#define GDX_REDUCE_SYNC(name, next, ...)                                        \
  template <typename T>                                                         \
  gdx::exec::OneOf<T, __VA_ARGS__> name(unsigned mask, T value) {               \
    return gdx::exec::reduce_lanes(mask, value, [](T a, T b) { return next; }); \
  }
GDX_REDUCE_SYNC(__reduce_add_sync, gdx::exec::wrapping_add(a, b), int, unsigned)
GDX_REDUCE_SYNC(__reduce_min_sync, std::min(a, b), int, unsigned)
GDX_REDUCE_SYNC(__reduce_max_sync, std::max(a, b), int, unsigned)
GDX_REDUCE_SYNC(__reduce_and_sync, a& b, unsigned)
GDX_REDUCE_SYNC(__reduce_or_sync, a | b, unsigned)
GDX_REDUCE_SYNC(__reduce_xor_sync, a ^ b, unsigned)
#undef GDX_REDUCE_SYNC

// The lesser and the greater of two numbers, which may be of different types.
template <typename A, typename B>
gdx::exec::Common<A, B> min(A a, B b) {
  const gdx::exec::Common<A, B> left = a;
  const gdx::exec::Common<A, B> right = b;
  return right < left ? right : left;
}
template <typename A, typename B>
gdx::exec::Common<A, B> max(A a, B b) {
  const gdx::exec::Common<A, B> left = a;
  const gdx::exec::Common<A, B> right = b;
  return left < right ? right : left;
}

// Atomics: relaxed, and whole for every observer. Each returns what was there.
#define GDX_ATOMIC(name, next, ...)                                                 \
  template <typename T>                                                             \
  T name(T* at, gdx::exec::OneOf<T, __VA_ARGS__> value) {                           \
    return gdx::exec::change(at, [value]([[maybe_unused]] T old) { return next; }); \
  }
#define GDX_ATOMICS(name, next, ...)          \
  GDX_ATOMIC(name, next, __VA_ARGS__)         \
  GDX_ATOMIC(name##_block, next, __VA_ARGS__) \
  GDX_ATOMIC(name##_system, next, __VA_ARGS__)

GDX_ATOMICS(atomicAdd, gdx::exec::wrapping_add(old, value), int, unsigned, unsigned long long, float, double)
GDX_ATOMICS(atomicSub, static_cast<T>(static_cast<unsigned>(old) - static_cast<unsigned>(value)), int,
            unsigned)
GDX_ATOMICS(atomicExch, value, int, unsigned, unsigned long long, float)
GDX_ATOMICS(atomicMin, std::min(old, value), int, unsigned, long long, unsigned long long)
GDX_ATOMICS(atomicMax, std::max(old, value), int, unsigned, long long, unsigned long long)
GDX_ATOMICS(atomicInc, old >= value ? 0 : old + 1, unsigned)
GDX_ATOMICS(atomicDec, old == 0 || old > value ? value : old - 1, unsigned)
GDX_ATOMICS(atomicAnd, old& value, int, unsigned, unsigned long long)
GDX_ATOMICS(atomicOr, old | value, int, unsigned, unsigned long long)
GDX_ATOMICS(atomicXor, old ^ value, int, unsigned, unsigned long long)

#undef GDX_ATOMIC
#undef GDX_ATOMICS

template <typename T>
T atomicCAS(T* at, gdx::exec::OneOf<T, int, unsigned, unsigned long long, unsigned short> expected,
            gdx::exec::OneOf<T, T> desired) {
  gdx::exec::pause_now_and_then();
  gdx::exec::AtomicRef<T>(*at).compare_exchange_strong(expected, desired, std::memory_order_relaxed);
  return expected;
}
template <typename T>
T atomicCAS_block(T* at, gdx::exec::OneOf<T, T> expected, gdx::exec::OneOf<T, T> desired) {
  return atomicCAS(at, expected, desired);
}
template <typename T>
T atomicCAS_system(T* at, gdx::exec::OneOf<T, T> expected, gdx::exec::OneOf<T, T> desired) {
  return atomicCAS(at, expected, desired);
}

// NOLINTEND(readability-identifier-naming)
