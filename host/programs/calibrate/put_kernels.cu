#include "host/programs/calibrate/put_kernels.h"

#include "device/endpoint.h"

namespace gdx::calibration {
namespace {

template <Mode M>
__global__ void put_messages(EndpointHandle handle, RemoteMemory to, LocalMemory from, std::uint64_t bytes,
                             std::uint32_t messages, PutTimes* times) {
  device::Endpoint<Scope::kWarp> peer(handle);
  PutTimes result = {peer.status(), 0};
  for (std::uint32_t m = 0; m < messages && result.status == Status::kOk; ++m) {
    const std::uint64_t begin = exec::now_ns();
    result.status = gdx_put<M>(peer, to, from, bytes);
    if (result.status == Status::kOk) result.status = gdx_flush(peer);
    result.total_ns += exec::now_ns() - begin;
  }
  if (peer.is_leader()) *times = result;
}

}  // namespace

Status time_puts(TableMode mode, const EndpointHandle& endpoint, const RemoteMemory& to,
                 const LocalMemory& from, std::uint64_t bytes, std::uint32_t messages, PutTimes* times,
                 int (*progress)()) {
  const exec::LaunchConfig config{.grid = {1}, .block = {kWarpThreads}, .progress = progress};
  switch (mode) {
    case TableMode::kInline:
      return exec::launch(config, put_messages<Mode::kInline>, endpoint, to, from, bytes, messages, times);
    case TableMode::kPush:
      return exec::launch(config, put_messages<Mode::kPush>, endpoint, to, from, bytes, messages, times);
    case TableMode::kPull:
      return exec::launch(config, put_messages<Mode::kPull>, endpoint, to, from, bytes, messages, times);
    case TableMode::kBounce:
      return exec::launch(config, put_messages<Mode::kBounce>, endpoint, to, from, bytes, messages, times);
  }
  return Status::kInvalidArgument;
}

bool kernels_run_on_gpu() { return exec::kOnGpu; }

}  // namespace gdx::calibration
