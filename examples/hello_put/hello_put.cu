// The kernel of hello_put: a warp puts a text to the right neighbour and waits for the left one's.
#include "hello_put.h"

#include "device/team.h"

namespace {

using gdx::Compare;
using gdx::gdx_flush;
using gdx::gdx_put_signal;
using gdx::gdx_wait;
using gdx::kWarpThreads;
using gdx::Mode;
using gdx::Scope;
using gdx::SignalOp;
using gdx::Status;
using gdx::TeamHandle;

__global__ void greet(TeamHandle team, char* inbox, const char* outbox, std::uint64_t* arrived,
                      Status* result) {
  const std::uint32_t right = (team.rank + 1) % team.size;
  const std::uint32_t left = (team.rank + team.size - 1) % team.size;
  // At rank `right`: outbox's bytes into its inbox, then 1 into its arrived.
  Status status = gdx_put_signal<Mode::kAuto, Scope::kWarp>(team, inbox, outbox, kTextBytes, arrived, 1,
                                                            SignalOp::kSet, right);
  // Then the left neighbour's text is in this rank's inbox.
  if (status == Status::kOk) status = gdx_wait<Scope::kWarp>(team, arrived, Compare::kEqual, 1, left);
  if (status == Status::kOk) status = gdx_flush<Scope::kWarp>(team, right);  // outbox may be changed
  if (threadIdx.x == 0) *result = status;
}

}  // namespace

Status run_greet(const TeamHandle& team, char* inbox, const char* outbox, std::uint64_t* arrived,
                 Status* status) {
  gdx::exec::LaunchConfig config;
  config.block = {kWarpThreads};
  return gdx::exec::launch(config, greet, team, inbox, outbox, arrived, status);
}
