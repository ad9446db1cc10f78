#include "tests/gpu/device_kernels.h"

#include "device/gdx.h"
#include "device/shared.h"

namespace gdx::gpu_tests {
namespace {

template <typename Endpoint>
GDX_DEVICE Status put_message(Endpoint& endpoint, const Job& job, std::uint64_t index) {
  return gdx_put(endpoint, job.remote + kBytes * index, job.local + kBytes * index, kBytes);
}

__global__ void puts_of_a_thread(Job job) {
  device::Endpoint<> endpoint(job.handle);
  Status status = endpoint.status();
  for (std::uint32_t k = 0; k < job.count && status == Status::kOk; ++k) {
    status = gdx_put<Mode::kPull>(endpoint, job.remote + kBytes * k, job.local + kBytes * k, kBytes);
  }
  if (status == Status::kOk) status = gdx_flush(endpoint);
  *job.outcome = status;
}

__global__ void puts_of_a_warp(Job job) {
  device::Endpoint<Scope::kWarp> endpoint(job.handle);
  const std::uint32_t lane = threadIdx.x;
  Status status = endpoint.status();
  for (std::uint32_t k = 0; k < job.count && status == Status::kOk; ++k) {
    const std::uint64_t offset = kBytes * (lane * job.count + k);
    status = gdx_put_warp(endpoint, job.remote + offset, job.local + offset, kBytes);
  }
  if (status == Status::kOk) status = gdx_flush(endpoint);
  job.outcome[lane] = status;
}

__global__ void puts_with_signals(Job job) {
  device::Endpoint<> endpoint(job.handle);
  const RemoteMemory signal = job.remote + (job.remote.bytes - sizeof(std::uint64_t));
  Status status = endpoint.status();
  for (std::uint32_t k = 0; k < job.count && status == Status::kOk; ++k) {
    status = gdx_put_signal<Mode::kPull>(endpoint, job.remote + kBytes * k, job.local + kBytes * k, kBytes, signal,
                                         k + 1);
  }
  if (status == Status::kOk) status = gdx_flush(endpoint);
  *job.outcome = status;
}

__global__ void puts_of_a_grid(Job job) {
  device::SharedEndpoint<> endpoint(job.handle);
  const std::uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  Status status = Status::kOk;
  for (std::uint32_t k = 0; k < job.count && status == Status::kOk; ++k) {
    status = put_message(endpoint, job, thread * job.count + k);
  }
  if (status == Status::kOk) status = gdx_flush(endpoint);
  job.outcome[thread] = status;
}

__global__ void wait_of_a_block(Job job) {
  device::Endpoint<Scope::kBlock> endpoint(job.handle);
  Status status = endpoint.status();
  if (status == Status::kOk) status = gdx_wait(endpoint, job.signal, Compare::kGreaterEqual, job.count);
  job.outcome[threadIdx.x] = status;
}

__global__ void open_of_a_thread(Job job) {
  device::Endpoint<> endpoint(job.handle);
  *job.outcome = endpoint.status();
}

exec::LaunchConfig config_of(const Job& job) { return {.grid = {job.blocks}, .block = {job.threads}}; }

}  // namespace

Status put_by_thread(const Job& job) { return exec::launch(config_of(job), puts_of_a_thread, job); }
Status put_by_warp(const Job& job) { return exec::launch(config_of(job), puts_of_a_warp, job); }
Status put_and_signal(const Job& job) { return exec::launch(config_of(job), puts_with_signals, job); }
Status put_shared(const Job& job) { return exec::launch(config_of(job), puts_of_a_grid, job); }
Status wait_for_signal(const Job& job) { return exec::launch(config_of(job), wait_of_a_block, job); }
Status open_and_close(const Job& job) { return exec::launch(config_of(job), open_of_a_thread, job); }

}  // namespace gdx::gpu_tests
