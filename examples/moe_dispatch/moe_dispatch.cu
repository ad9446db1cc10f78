// The kernel of moe_dispatch. Block b sends tokens to the experts of rank b and answers rank b's tokens. It
// adds up the answers of every b-th token. All blocks of a launch must run at a time.
//
// A rank's slots are free again when it has the answers: they come from there. It sends no token before.
#include "moe_dispatch.h"

#include "device/team.h"

namespace {

using gdx::Compare;
using gdx::gdx_flush;
using gdx::gdx_put;
using gdx::gdx_put_value;
using gdx::gdx_signal;
using gdx::gdx_wait;
using gdx::gdx_wait_all;
using gdx::Mode;
using gdx::Scope;
using gdx::SignalOp;
using gdx::Status;
using gdx::TeamHandle;

// Sends this rank's tokens for `rank`, packed into its slots there, and then their number.
__device__ Status dispatch(const TeamHandle& team, const Moe& moe, std::uint64_t round, std::uint32_t rank) {
  std::uint32_t slot = team.rank * kSlots;
  Status status = Status::kOk;
  for (std::uint32_t i = 0; i < kSlots && status == Status::kOk; ++i) {
    if (moe.experts[i] / kExperts != rank) continue;
    status = gdx_put<Mode::kAuto, Scope::kBlock>(
        team, moe.inbox + slot * kHidden, moe.x + i / kChoices * kHidden, kHidden * sizeof(float), rank);
    const std::uint64_t label = std::uint64_t{moe.experts[i]} << 32 | i;
    if (status == Status::kOk) status = gdx_put_value<Scope::kBlock>(team, moe.labels + slot, label, rank);
    ++slot;
  }
  if (status != Status::kOk) return status;
  const std::uint64_t count = slot - team.rank * kSlots;
  return gdx_signal<Scope::kBlock>(team, moe.sent + team.rank, round * (kSlots + 1) + count, SignalOp::kSet,
                                   rank);
}

// Waits for the tokens of `rank`, applies the experts, and puts the answers where that rank adds them up.
__device__ Status answer(const TeamHandle& team, const Moe& moe, std::uint64_t round, std::uint32_t rank) {
  const std::uint64_t base = round * (kSlots + 1);
  Status status = gdx_wait<Scope::kBlock>(team, moe.sent + rank, Compare::kGreaterEqual, base, rank);
  if (status != Status::kOk) return status;
  const std::uint64_t count = moe.sent[rank] - base;
  for (std::uint32_t i = 0; i < count && status == Status::kOk; ++i) {
    const std::uint32_t slot = rank * kSlots + i;
    const auto expert = static_cast<std::uint32_t>(moe.labels[slot] >> 32);
    const auto place = static_cast<std::uint32_t>(moe.labels[slot]);
    float* const token = moe.inbox + slot * kHidden;
    for (std::uint32_t h = threadIdx.x; h < kHidden; h += blockDim.x)
      token[h] = apply_expert(expert, token[h]);
    status = gdx_put<Mode::kAuto, Scope::kBlock>(team, moe.back + place * kHidden, token,
                                                 kHidden * sizeof(float), rank);
  }
  if (status != Status::kOk) return status;
  return gdx_signal<Scope::kBlock>(team, moe.answered + team.rank, round, SignalOp::kSet, rank);
}

__global__ void moe_layer(TeamHandle team, Moe moe, std::uint64_t round) {
  Status status = dispatch(team, moe, round, blockIdx.x);
  if (status == Status::kOk) status = answer(team, moe, round, blockIdx.x);
  if (status == Status::kOk)
    status =
        gdx_wait_all<Scope::kBlock>(team, moe.answered, moe.ranks, team.size, Compare::kGreaterEqual, round);
  for (std::uint32_t t = blockIdx.x; t < kTokens && status == Status::kOk; t += gridDim.x) {
    for (std::uint32_t h = threadIdx.x; h < kHidden; h += blockDim.x) {
      moe.out[t * kHidden + h] = 0;
      for (std::uint32_t c = 0; c < kChoices; ++c)
        moe.out[t * kHidden + h] += weight(c) * moe.back[(t * kChoices + c) * kHidden + h];
    }
  }
  if (status == Status::kOk) status = gdx_flush<Scope::kBlock>(team, blockIdx.x);  // x may be changed
  if (threadIdx.x == 0) moe.status[blockIdx.x] = status;
}

}  // namespace

Status run_moe(const TeamHandle& team, const Moe& moe, std::uint64_t round) {
  gdx::exec::LaunchConfig config;
  config.grid = {team.size};
  config.block = {32};
  return gdx::exec::launch(config, moe_layer, team, moe, round);
}
