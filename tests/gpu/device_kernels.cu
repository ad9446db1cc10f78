#include "tests/gpu/device_kernels.h"

#include "device/endpoint.h"

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
    status = gdx_put_signal<Mode::kPull>(endpoint, job.remote + kBytes * k, job.local + kBytes * k, kBytes,
                                         signal, k + 1);
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

template <Mode M, Scope S, Copy C = Copy::kStores>
__global__ void puts_of_pieces(Job job) {
  device::Endpoint<S> endpoint(job.handle);
  auto* const source = reinterpret_cast<std::uint8_t*>(job.local.address);
  Status status = endpoint.status();
  for (std::uint32_t k = 0; k < kPieces && status == Status::kOk; ++k) {
    const Piece piece = piece_of(k);
    for (std::uint32_t i = threadIdx.x; i < piece_bytes(k); i += job.threads) {
      source[piece.from + i] = piece_byte(k, i);
    }
    const std::uint32_t most = M == Mode::kInline ? kMaxInlinePutBytes : piece_bytes(k);
    for (std::uint32_t at = 0; at < piece_bytes(k) && status == Status::kOk; at += most) {
      const std::uint32_t rest = piece_bytes(k) - at;
      status = gdx_put<M, C>(endpoint, job.remote + (piece.to + at), job.local + (piece.from + at),
                             rest < most ? rest : most);
    }
  }
  if (status == Status::kOk) status = gdx_flush(endpoint);
  job.outcome[threadIdx.x] = status;
}

__global__ void get_and_atomics_of_a_thread(Job job) {
  constexpr std::uint64_t kWord = sizeof(std::uint64_t);
  device::Endpoint<> endpoint(job.handle);
  Status status = endpoint.status();
  if (status == Status::kOk) status = gdx_fetch_add(endpoint, job.local, job.remote, 5);
  if (status == Status::kOk) status = gdx_compare_swap(endpoint, job.local + kWord, job.remote + kWord, 7, 9);
  if (status == Status::kOk) status = gdx_get(endpoint, job.local + 2 * kWord, job.remote, 2 * kWord);
  if (status == Status::kOk) status = gdx_flush(endpoint);
  *job.outcome = status;
}

__global__ void open_of_a_thread(Job job) {
  device::Endpoint<> endpoint(job.handle);
  *job.outcome = endpoint.status();
}

exec::LaunchConfig config_of(const Job& job) { return {.grid = {job.blocks}, .block = {job.threads}}; }

template <Mode M>
Status put_pieces_by(const Job& job, Scope scope) {
  switch (scope) {
    case Scope::kThread: return exec::launch(config_of(job), puts_of_pieces<M, Scope::kThread>, job);
    case Scope::kWarp: return exec::launch(config_of(job), puts_of_pieces<M, Scope::kWarp>, job);
    case Scope::kBlock: return exec::launch(config_of(job), puts_of_pieces<M, Scope::kBlock>, job);
  }
  return Status::kUnsupported;
}

}  // namespace

Status put_by_thread(const Job& job) { return exec::launch(config_of(job), puts_of_a_thread, job); }
Status replay_put_by_thread(const Job& job) {
#ifdef __CUDACC__
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t program = nullptr;
  exec::LaunchConfig config = config_of(job);
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return Status::kSystem;
  config.stream = stream;
  if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) != cudaSuccess) return Status::kSystem;
  Status status = exec::launch(config, puts_of_a_thread, job);
  cudaError_t done = cudaStreamEndCapture(stream, &graph);
  if (done == cudaSuccess) done = cudaGraphInstantiateWithFlags(&program, graph, 0);
  for (std::uint32_t i = 0; i < kReplays && done == cudaSuccess; ++i) done = cudaGraphLaunch(program, stream);
  if (done == cudaSuccess) done = cudaStreamSynchronize(stream);
  if (status == Status::kOk && done != cudaSuccess) status = Status::kSystem;
  if (program != nullptr) cudaGraphExecDestroy(program);
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
#else
  Status status = Status::kOk;
  for (std::uint32_t i = 0; i < kReplays && status == Status::kOk; ++i) status = put_by_thread(job);
#endif
  return status;
}
Status put_by_warp(const Job& job) { return exec::launch(config_of(job), puts_of_a_warp, job); }
Status put_and_signal(const Job& job) { return exec::launch(config_of(job), puts_with_signals, job); }
Status put_shared(const Job& job) { return exec::launch(config_of(job), puts_of_a_grid, job); }
Status wait_for_signal(const Job& job) { return exec::launch(config_of(job), wait_of_a_block, job); }
Status open_and_close(const Job& job) { return exec::launch(config_of(job), open_of_a_thread, job); }
Status get_and_atomics(const Job& job) {
  return exec::launch(config_of(job), get_and_atomics_of_a_thread, job);
}

Status put_pieces_in_bulk(const Job& job, Mode mode) {
  constexpr Scope kBlock = Scope::kBlock;
  switch (mode) {
    case Mode::kPush:
      return exec::launch(config_of(job), puts_of_pieces<Mode::kPush, kBlock, Copy::kBulk>, job);
    case Mode::kBounce:
      return exec::launch(config_of(job), puts_of_pieces<Mode::kBounce, kBlock, Copy::kBulk>, job);
    default: return Status::kUnsupported;
  }
}

Status put_pieces(const Job& job, Mode mode, Scope scope) {
  switch (mode) {
    case Mode::kPull: return put_pieces_by<Mode::kPull>(job, scope);
    case Mode::kPush: return put_pieces_by<Mode::kPush>(job, scope);
    case Mode::kInline: return put_pieces_by<Mode::kInline>(job, scope);
    case Mode::kBounce: return put_pieces_by<Mode::kBounce>(job, scope);
    case Mode::kAuto: return put_pieces_by<Mode::kAuto>(job, scope);
  }
  return Status::kUnsupported;
}

}  // namespace gdx::gpu_tests
