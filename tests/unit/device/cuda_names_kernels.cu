#include "tests/unit/device/cuda_names_kernels.h"

#include "device/endpoint.h"

namespace gdx::cuda_names_tests {
namespace {

constexpr unsigned kAll = 0xffffffffu;

static_assert(sizeof(int2) == 8 && alignof(int2) == 8 && alignof(int3) == 4 && alignof(int4) == 16);
static_assert(sizeof(uint4) == 16 && alignof(uint4) == 16 && sizeof(uchar4) == 4 && alignof(uchar4) == 4);
static_assert(alignof(float2) == 8 && sizeof(float3) == 12 && alignof(float3) == 4 && alignof(float4) == 16);
static_assert(alignof(ulonglong2) == 16 && alignof(double2) == 16 && alignof(double3) == 8);
static_assert(alignof(short4) == 8 && alignof(ushort2) == 4 && alignof(char3) == 1 &&
              alignof(longlong1) == 8);

__host__ __device__ __forceinline__ unsigned twice(unsigned value) { return 2 * value; }

__global__ void __launch_bounds__(1024) sum_kernel(const unsigned* __restrict__ values, unsigned* sums) {
  __shared__ unsigned of_warps[32];
  const unsigned lane = threadIdx.x % warpSize;
  const unsigned warp = threadIdx.x / warpSize;
  unsigned sum = __ldg(values + blockIdx.x * blockDim.x + threadIdx.x);
  for (unsigned delta = 16; delta != 0; delta /= 2) sum += __shfl_down_sync(kAll, sum, delta);
  if (lane == 0) of_warps[warp] = sum;
  __syncthreads();
  if (warp != 0) return;
  sum = lane < blockDim.x / warpSize ? of_warps[lane] : 0;
  for (int mask = 16; mask != 0; mask /= 2) sum += __shfl_xor_sync(kAll, sum, mask);
  if (lane == 0) sums[blockIdx.x] = sum;
}

template <unsigned Tile>
__global__ void transpose_kernel(const unsigned n, const float* from, float* to) {
  __shared__ float tile[Tile][Tile + 1];
  const unsigned column = blockIdx.x * Tile + threadIdx.x;
  const unsigned first_row = blockIdx.y * Tile;
  for (unsigned y = threadIdx.y; y < Tile && first_row + y < n; y += blockDim.y) {
    if (column < n) tile[y][threadIdx.x] = from[(first_row + y) * n + column];
  }
  __syncthreads();
  const unsigned turned = first_row + threadIdx.x;
  for (unsigned y = threadIdx.y; y < Tile && blockIdx.x * Tile + y < n; y += blockDim.y) {
    if (turned < n) to[(blockIdx.x * Tile + y) * n + turned] = tile[threadIdx.x][y];
  }
}

__global__ void count_kernel(unsigned n, const unsigned char* values, unsigned* bins) {
  __shared__ unsigned mine[kBins];
  for (unsigned b = threadIdx.x; b < kBins; b += blockDim.x) mine[b] = 0;
  __syncthreads();
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    atomicAdd_block(&mine[values[i] % kBins], 1);
  }
  __syncthreads();
  for (unsigned b = threadIdx.x; b < kBins; b += blockDim.x) atomicAdd(&bins[b], mine[b]);
}

// Returns when all blocks have called it `times` times.
__device__ void meet_grid(unsigned* arrived, unsigned times) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrived, 1);
    while (atomicAdd(arrived, 0) < times * gridDim.x) __nanosleep(20);
  }
  __syncthreads();
}

// Fills one word for each thread, meets all blocks, and counts words that another block has changed.
__device__ void meet_with(unsigned* words, unsigned count, Meeting* meeting) {
  const unsigned next = (threadIdx.x + 1) % count;
  for (unsigned time = 1; time <= kMeetings; ++time) {
    const unsigned base = (time * gridDim.x + blockIdx.x) * count;
    words[threadIdx.x] = base + threadIdx.x;
    meet_grid(&meeting->arrived, time);
    if (words[next] != base + next) atomicAdd(&meeting->wrong, 1);
    __syncthreads();
  }
}

__shared__ unsigned of_block;

__global__ void shared_kernel(Meeting* meeting) {
  __shared__ unsigned words[kMeetingThreads];
  if (threadIdx.x == 0) of_block = blockIdx.x;
  meet_with(words, blockDim.x, meeting);
  if (of_block != blockIdx.x) atomicAdd(&meeting->wrong, 1);
}

// Its words are the last that fit.
__global__ void dynamic_shared_kernel(unsigned shared_bytes, Meeting* meeting) {
  auto* const words = gdx_dynamic_shared<unsigned>();
  if (reinterpret_cast<std::uint64_t>(words) % 16 != 0) atomicAdd(&meeting->wrong, 1);
  meet_with(words + shared_bytes / sizeof(unsigned) - blockDim.x, blockDim.x, meeting);
}

__global__ void exchange_kernel(Exchanges* out) {
  const unsigned lane = threadIdx.x;
  const int value = 100 + static_cast<int>(lane);
  out->from[lane] = __shfl_sync(kAll, value, 5, 8);
  out->up[lane] = __shfl_up_sync(kAll, value, 3, 16);
  out->down[lane] = __shfl_down_sync(kAll, value, 5);
  out->swapped[lane] = __shfl_xor_sync(kAll, value, 9, 8);
  out->wide[lane] = __shfl_sync(kAll, (static_cast<long long>(value) << 33) + 1, 31 - static_cast<int>(lane));
  out->single[lane] = __shfl_up_sync(kAll, static_cast<float>(value) + 0.5f, 1);
  out->twofold[lane] = __shfl_xor_sync(kAll, value + 0.125, 1);
}

// Lanes go on at different times.
__device__ void scatter_lanes() {
  for (unsigned turn = 0; turn < threadIdx.x % 3; ++turn) __nanosleep(20);
}

__global__ void vote_kernel(Votes* out) {
  __shared__ unsigned words[32];
  const unsigned lane = threadIdx.x;
  scatter_lanes();
  out->thirds[lane] = __ballot_sync(kAll, lane % 3 == 0);
  out->active[lane] = __activemask() >> lane & 1;
  if (__any_sync(kAll, 0) != 0) atomicAdd(&out->any_of_none, 1);
  if (__any_sync(kAll, lane == 31) != 0) atomicAdd(&out->any_of_one, 1);
  if (__all_sync(kAll, lane != 7) != 0) atomicAdd(&out->all_of_most, 1);
  if (__all_sync(kAll, 2) != 0) atomicAdd(&out->all_of_all, 1);
  scatter_lanes();
  const unsigned part = lane < 20 ? 0xfffffu : ~0xfffffu;
  int sum = 0;
  if (lane < 20) {
    out->of_parts[lane] = __ballot_sync(part, lane % 2 == 0);
    for (int l = 0; l < 20; ++l) sum += __shfl_sync(part, static_cast<int>(lane), l);
  } else {
    out->of_parts[lane] = __ballot_sync(part, lane % 2 == 1);
    for (int l = 20; l < 32; ++l) sum += __shfl_sync(part, static_cast<int>(lane), l);
  }
  out->sum_of_parts[lane] = sum;
  scatter_lanes();
  words[lane] = lane;
  if (lane < 20) {
    __syncwarp(part);
    out->shared_of_part[lane] = words[(lane + 1) % 20];
    if (lane == 0) atomicExch(&out->passed, 1u);
  } else {  // would not come to a barrier of the whole warp
    while (atomicAdd(&out->passed, 0u) == 0) __nanosleep(20);
  }
  if (lane > 2) return;
  scatter_lanes();
  out->broadcast_of_few[lane] = __shfl_sync(kAll, 10 * static_cast<int>(lane), 2);
}

__global__ void change_kernel(Words* words) {
  const unsigned index = blockIdx.x * blockDim.x + threadIdx.x + 1;
  const int number = static_cast<int>(index);
  atomicAdd(&words->added, number);
  atomicAdd(&words->added_unsigned, index);
  atomicAdd(&words->added_long, static_cast<unsigned long long>(index) << 32);
  atomicAdd(&words->added_float, 0.5f);
  atomicAdd(&words->added_double, 0.25);
  atomicSub(&words->subtracted, number);
  unsigned long long seen = 0;
  for (unsigned long long before = ~0ull; seen != before;) {
    before = seen;
    seen = atomicCAS(&words->swapped, before, before + 2ull * index);
  }
  atomicMin(&words->least, -number);
  atomicMax(&words->most, index);
  atomicInc(&words->turning_up, 6);
  atomicDec(&words->turning_down, 6);
  atomicAnd(&words->anded, ~(1u << index % 32));
  atomicOr(&words->ored, 1u << index % 32);
  atomicXor(&words->xored, index);
  atomicAdd(&words->sum, static_cast<unsigned long long>(atomicExch(&words->exchanged, index)));
  atomicAdd_system(&words->in_system, atomicSub_system(&words->in_system, 1) < 1000000 ? 2 : 0);
  atomicMin_block(&words->least_of_block[blockIdx.x], -number);
}

__global__ void lock_kernel(Locked* locked) {
  while (atomicCAS(&locked->lock, 0u, 1u) != 0u) {
  }
  __threadfence();
  const unsigned value = atomicAdd(&locked->value, 0);
  __nanosleep(20);  // others run, and wait
  atomicExch(&locked->value, value + 1);
  __threadfence();
  atomicExch(&locked->lock, 0u);
}

__constant__ int table[3] = {5, 6, 7};
__device__ int in_device_memory = 8;

__global__ void single_kernel(const __grid_constant__ int4 given, Single* out) {
  const int results[] = {__popc(0xf0f0u), __popcll(~0ull), __clz(1),           __clzll(1),
                         __ffs(0x50),     __ffs(0),        __ffsll(1ll << 40), static_cast<int>(twice(21)),
                         given.x,         given.w};
  for (int i = 0; i < 10; ++i) out->bits[i] = results[i];
  const float4 four = make_float4(1, 2, 3, 4);
  const double2 two = make_double2(5, 6);
  out->sum_of_vectors = four.x + four.y + four.z + four.w + static_cast<float>(two.x + two.y);
  out->constants = table[0] + table[1] + table[2] + in_device_memory;
  __shared__ char odd;
  __shared__ __align__(64) char aligned[3];
  __align__(16) __shared__ float4 vector;
  odd = 1;
  aligned[1] = 2;
  vector = four;
  __threadfence_block();
  __threadfence_system();
  out->aligned = reinterpret_cast<std::uint64_t>(aligned) % 64 +
                 reinterpret_cast<std::uint64_t>(&vector) % 16 + (odd + aligned[1] - 3);
  if (clock64() == 0) out->constants = 0;
}

}  // namespace

Status sum_blocks(unsigned blocks, unsigned threads, const unsigned* values, unsigned* sums) {
  return exec::launch({.grid = {blocks}, .block = {threads}}, sum_kernel, values, sums);
}

Status transpose(unsigned n, const float* from, float* to) {
  const dim3 grid((n + 31) / 32, (n + 31) / 32);
  return exec::launch({.grid = grid, .block = dim3(32, 3)}, transpose_kernel<32>, n, from, to);
}

Status count(unsigned blocks, unsigned n, const unsigned char* values, unsigned* bins) {
  return exec::launch({.grid = {blocks}, .block = {40}}, count_kernel, n, values, bins);
}

Status meet_with_shared(unsigned blocks, unsigned workers, Meeting* meeting) {
  return exec::launch({.grid = {blocks}, .block = {kMeetingThreads}, .workers = workers}, shared_kernel,
                      meeting);
}

Status meet_with_dynamic_shared(unsigned blocks, unsigned shared_bytes, Meeting* meeting) {
  return exec::launch({.grid = {blocks}, .block = {kMeetingThreads}, .shared_bytes = shared_bytes},
                      dynamic_shared_kernel, shared_bytes, meeting);
}

Status exchange(Exchanges* out) { return exec::launch({.block = {32}}, exchange_kernel, out); }
Status vote(Votes* out) { return exec::launch({.block = {32}}, vote_kernel, out); }

Status change(unsigned threads, Words* words) {
  return exec::launch({.grid = {2}, .block = {threads}}, change_kernel, words);
}

Status add_under_lock(unsigned blocks, unsigned threads, Locked* locked) {
  return exec::launch({.grid = {blocks}, .block = {threads}, .workers = 2}, lock_kernel, locked);
}

Status call_by_one(Single* out) { return exec::launch({}, single_kernel, make_int4(3, 0, 0, 4), out); }

}  // namespace gdx::cuda_names_tests
