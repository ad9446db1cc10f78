// Block b sends tokens to the experts of rank b, answers rank b's, and adds up the answers of every b-th
// token. All blocks must run at a time. A rank's slots are free again when it has the answers.
#include "moe_dispatch.h"

#include "device/exec/halves.h"
#include "device/team.h"

namespace {

using gdx::Compare;
using gdx::Mode;
using gdx::Scope;
using gdx::SignalOp;
using gdx::Status;
using gdx::TeamHandle;

constexpr std::size_t kTokenBytes = kHidden * sizeof(std::uint16_t);
constexpr Scope kScope = Scope::kBlock;
__device__ auto* bfloat16(std::uint16_t* numbers) { return reinterpret_cast<__nv_bfloat16*>(numbers); }

__device__ Status dispatch(const TeamHandle& team, const Moe& moe, std::uint64_t round, std::uint32_t rank) {
  Status status = Status::kOk;
  for (std::uint64_t i = 0; i < moe.choices && status == Status::kOk; ++i) {
    if (moe.experts[i] / kExperts != rank) continue;
    const std::uint64_t slot = std::uint64_t{team.rank} * moe.choices + i;
    status = gdx_put<Mode::kAuto, kScope>(team, moe.inbox + slot * kHidden, moe.x + i / kChoices * kHidden,
                                          kTokenBytes, rank);
    if (status == Status::kOk)
      status = gdx_put_value<kScope>(team, moe.labels + slot, round << 32 | moe.experts[i], rank);
  }
  if (status != Status::kOk) return status;
  return gdx_signal<kScope>(team, moe.rounds + team.rank, round, SignalOp::kSet, rank);
}

__device__ Status answer(const TeamHandle& team, const Moe& moe, std::uint64_t round, std::uint32_t rank) {
  Status status = gdx_wait<kScope>(team, moe.rounds + rank, Compare::kGreaterEqual, round, rank);
  for (std::uint64_t i = 0; i < moe.choices && status == Status::kOk; ++i) {
    const std::uint64_t slot = std::uint64_t{rank} * moe.choices + i;
    if (moe.labels[slot] >> 32 != round) continue;
    auto* const token = bfloat16(moe.inbox + slot * kHidden);
    const auto expert = static_cast<std::uint32_t>(moe.labels[slot]);
    for (std::uint32_t h = threadIdx.x; h < kHidden; h += blockDim.x)
      token[h] = __float2bfloat16(apply_expert(expert, __bfloat162float(token[h])));
    status = gdx_put<Mode::kAuto, kScope>(team, moe.back + i * kHidden, token, kTokenBytes, rank);
  }
  if (status != Status::kOk) return status;
  return gdx_signal<kScope>(team, moe.rounds + team.size + team.rank, round, SignalOp::kSet, rank);
}

__global__ void moe_layer(TeamHandle team, Moe moe, std::uint64_t round) {
  Status status = dispatch(team, moe, round, blockIdx.x);
  if (status == Status::kOk) status = answer(team, moe, round, blockIdx.x);
  for (std::uint32_t r = 0; r < team.size && status == Status::kOk; ++r)
    status = gdx_wait<kScope>(team, moe.rounds + team.size + r, Compare::kGreaterEqual, round, r);
  for (std::uint32_t t = blockIdx.x; t < moe.choices / kChoices && status == Status::kOk; t += gridDim.x) {
    for (std::uint32_t h = threadIdx.x; h < kHidden; h += blockDim.x) {
      float sum = 0;
      for (std::uint32_t c = 0; c < kChoices; ++c)
        sum += __bfloat162float(bfloat16(moe.back)[(t * kChoices + c) * kHidden + h]);
      moe.out[t * kHidden + h] = sum / kChoices;
    }
  }
  if (status == Status::kOk) status = gdx_flush<kScope>(team, blockIdx.x);  // x may be changed
  if (threadIdx.x == 0) moe.status[blockIdx.x] = status;
}

}  // namespace

Status run_moe(const TeamHandle& team, const Moe& moe, std::uint64_t round) {
  gdx::exec::LaunchConfig config;
  config.grid = {team.size};
  config.block = {32};
  return gdx::exec::launch(config, moe_layer, team, moe, round);
}
