// Kernels that kernels_test.py launches.
#include "device/export_kernel.h"

namespace {

using gdx::Compare;
using gdx::gdx_put_signal;
using gdx::gdx_wait;
using gdx::Mode;
using gdx::Scope;
using gdx::SignalOp;
using gdx::Status;
using gdx::TeamHandle;

// Each block sends its number to the next rank, and adds up those that come.
__global__ void send_right(TeamHandle team, std::uint64_t* sent, std::uint64_t* got, std::uint64_t* arrived,
                           std::uint64_t* sum, Status* result) {
  __shared__ std::uint64_t mine;
  const std::uint32_t block = blockIdx.x;
  if (threadIdx.x == 0) mine = 100 * (team.rank + 1) + block;
  __syncthreads();
  if (threadIdx.x == 1) sent[block] = mine;
  __syncthreads();
  Status status = gdx_put_signal<Mode::kAuto, Scope::kBlock>(team, got + block, sent + block, 8, arrived, 1,
                                                             SignalOp::kAdd, (team.rank + 1) % team.size);
  if (status == Status::kOk)
    status = gdx_wait<Scope::kBlock>(team, arrived, Compare::kGreaterEqual, gridDim.x);
  if (threadIdx.x == 0) atomicAdd(reinterpret_cast<unsigned long long*>(sum), got[block]);
  if (threadIdx.x == 0) result[block] = status;
}

__global__ void copy_numbers(TeamHandle, bool flag, std::int8_t small, std::uint16_t medium, float real,
                             double wide, const float* from, double* to) {
  to[0] = flag ? 1 : 0;
  to[1] = small;
  to[2] = medium;
  to[3] = real;
  to[4] = wide;
  to[5] = from[0];
}

// Drops the status of a call that fails.
__global__ void put_from_elsewhere(TeamHandle team, std::uint64_t* to) {
  std::uint64_t word = 0;
  static_cast<void>(gdx::gdx_put(team, to, &word, sizeof word, 0));
}

__global__ void wait_for_ever(TeamHandle team, const std::uint64_t* word) {
  static_cast<void>(gdx_wait(team, word, Compare::kEqual, 1));
}

__global__ void nothing(TeamHandle) {}

}  // namespace

GDX_EXPORT_KERNEL(send_right, std::uint64_t*, std::uint64_t*, std::uint64_t*, std::uint64_t*, Status*);
GDX_EXPORT_KERNEL(copy_numbers, bool, std::int8_t, std::uint16_t, float, double, const float*, double*);
GDX_EXPORT_KERNEL(put_from_elsewhere, std::uint64_t*);
GDX_EXPORT_KERNEL(wait_for_ever, const std::uint64_t*);
GDX_EXPORT_KERNEL(nothing);
