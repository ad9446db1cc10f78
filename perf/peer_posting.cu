// Puts by the verbs device functions of DOCA GPUNetIO, as a program of its own would make them. The checkout
// is given by path: nothing of theirs is part of this project. Their WQEs are an mlx5's, so they are checked
// as ours are. Source: include/doca_gpunetio_device.h of NVIDIA-DOCA/gpunetio, read at commit 467c76a6.
#include <doca_gpunetio_device.h>

#include <cstring>
#include <vector>

#include "device/exec/exec.h"
#include "perf/machine.h"
#include "perf/posting.h"

namespace gdx::posting {
namespace {

using Queue = doca_gpu_dev_verbs_qp;

constexpr std::uint32_t big_endian(std::uint32_t value) { return byte_swap(value); }

template <typename T>
T* moved(T* in_first, std::uint64_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(in_first) + bytes);
}

// Its view of one of our queues. No put waits for a completion, so none is described.
Queue queue_of(const Queues& queues, std::uint32_t number) {
  const EndpointHandle& first = queues.first;
  const std::uint64_t distance = number * queues.queue_bytes;
  const std::uint32_t blocks = 1u << first.log_send_queue;
  Queue queue;
  std::memset(&queue, 0, sizeof queue);
  queue.sq_num = first.qpn;
  queue.sq_num_shift8 = first.qpn << 8;
  queue.sq_num_shift8_be = big_endian(first.qpn << 8);
  queue.sq_num_shift8_be_1ds = big_endian(first.qpn << 8 | 1);
  queue.sq_num_shift8_be_2ds = big_endian(first.qpn << 8 | 2);
  queue.sq_num_shift8_be_3ds = big_endian(first.qpn << 8 | 3);
  queue.sq_num_shift8_be_4ds = big_endian(first.qpn << 8 | 4);
  queue.sq_num_shift8_be_5ds = big_endian(first.qpn << 8 | 5);
  queue.sq_wqe_num = static_cast<std::uint16_t>(blocks);
  queue.sq_wqe_mask = static_cast<std::uint16_t>(blocks - 1);
  queue.sq_wqe_daddr = reinterpret_cast<std::uint8_t*>(moved(first.send_queue, distance));
  queue.sq_dbrec = reinterpret_cast<__be32*>(moved(first.send_record, distance));
  queue.sq_db = moved(first.doorbell, distance);
  queue.nic_handler = DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_DB;
  queue.mem_type = first.placement == Placement::kGpu ? DOCA_GPUNETIO_VERBS_MEM_TYPE_GPU
                                                      : DOCA_GPUNETIO_VERBS_MEM_TYPE_HOST;
  return queue;
}

template <bool kShared, Poster Who>
__global__ void post_all(PostCase what, Queue* queues, Times* times) {
  constexpr auto kSharing = kShared ? DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_GPU
                                    : DOCA_GPUNETIO_VERBS_RESOURCE_SHARING_MODE_EXCLUSIVE;
  constexpr auto kHandler = DOCA_GPUNETIO_VERBS_NIC_HANDLER_GPU_SM_DB;
  constexpr bool kWarp = Who == Poster::kWarp;
  constexpr auto kScope = kWarp ? DOCA_GPUNETIO_VERBS_EXEC_SCOPE_WARP : DOCA_GPUNETIO_VERBS_EXEC_SCOPE_THREAD;
  const std::uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  const std::uint32_t poster = kWarp ? thread / kWarpThreads : thread;
  const std::uint32_t lane = kWarp ? threadIdx.x % kWarpThreads : 0;
  Queue* const queue = queues + (kShared ? 0 : poster);
  doca_gpu_dev_verbs_addr from{};
  from.key = Be32{0x88}.raw;
  const std::uint64_t start_ns = exec::now_ns();
  const std::uint64_t start_cycles = exec::now_cycles();
  for (std::uint32_t k = lane; k < what.puts; k += kWarp ? kWarpThreads : 1) {
    doca_gpu_dev_verbs_addr to{};
    to.addr = put_address(poster, what.puts, k);
    to.key = Be32{0x77}.raw;
    doca_gpu_dev_verbs_put<kSharing, kHandler, kScope>(queue, to, from, kPutBytes);
  }
  const std::uint64_t end_cycles = exec::now_cycles();
  if (lane == 0) times[poster] = {start_ns, exec::now_ns(), end_cycles - start_cycles, Status::kOk, 0};
}

Status post_as_peer(const PostCase& what, Times* times) {
  const bool shared = what.sharing == Sharing::kShared;
  std::vector<Queue> queues;
  for (std::uint32_t i = 0; i < (shared ? 1 : what.posters); ++i) queues.push_back(queue_of(what.queues, i));
  const std::size_t bytes = queues.size() * sizeof queues[0];
  const machine::Memory memory = machine::allocate(machine::Place::kGpu, bytes);
  if (!memory || !machine::copy(memory.get(), queues.data(), bytes)) return Status::kSystem;
  auto* const on_gpu = reinterpret_cast<Queue*>(memory.get());
  const bool warps = what.poster == Poster::kWarp;
  const exec::LaunchConfig config{.grid = {what.posters / what.posters_of_block},
                                  .block = {what.posters_of_block * (warps ? kWarpThreads : 1)}};
  if (shared) {
    return warps ? exec::launch(config, post_all<true, Poster::kWarp>, what, on_gpu, times)
                 : exec::launch(config, post_all<true, Poster::kThread>, what, on_gpu, times);
  }
  return warps ? exec::launch(config, post_all<false, Poster::kWarp>, what, on_gpu, times)
               : exec::launch(config, post_all<false, Poster::kThread>, what, on_gpu, times);
}

}  // namespace

const Peer* peer() {
  static constexpr Peer kPeer{"DOCA GPUNetIO", post_as_peer};
  return &kPeer;
}

}  // namespace gdx::posting
