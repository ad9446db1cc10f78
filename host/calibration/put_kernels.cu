#include "host/calibration/put_kernels.h"

#include "device/gdx.h"
#include "device/impl/wqe.h"
#include "proto/mlx5/cqe.h"

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

constexpr std::uint32_t kNops = 200;
constexpr std::uint32_t kSegments = 4;  // a whole block, which a first store of 16 B alone does not bring
static_assert(kNops < kProbeBlocks);
// Time between two copies. A software HCA reads registers as memory, so it must see each.
constexpr std::uint64_t kCopyPauseNs = 20'000;

GDX_DEVICE void pause(std::uint64_t ns) {
  const std::uint64_t began_ns = exec::now_ns();
  while (exec::now_ns() - began_ns < ns) exec::relax();
}

// Counts completions before that of WQE `last`. Their queue has not wrapped yet.
GDX_DEVICE Status count_completions(const EndpointHandle& handle, std::uint32_t last, std::uint32_t& count) {
  const std::uint64_t began_ns = exec::now_ns();
  for (count = 0; exec::now_ns() - began_ns < handle.timeout_ns;) {
    const auto* const words = reinterpret_cast<const std::uint64_t*>(&handle.completion_queue[count]);
    const std::uint64_t tail = exec::load_acquire(words + 7);
    const auto op_own = static_cast<std::uint32_t>(tail >> 56);
    const std::uint32_t opcode = op_own >> mlx5::kCqeOpcodeShift;
    if ((op_own & mlx5::kCqeOwnerMask) != 0 ||
        opcode == static_cast<std::uint32_t>(mlx5::CqeOpcode::kInvalid)) {
      exec::relax();
      continue;
    }
    if (opcode != static_cast<std::uint32_t>(mlx5::CqeOpcode::kRequester)) return Status::kQueueError;
    if (byte_swap(static_cast<std::uint16_t>(tail >> 32)) == last) return Status::kOk;
    ++count;
  }
  return Status::kTimeout;
}

// Source: Linux drivers/infiniband/hw/mlx5/mem.c, mlx5_ib_test_wc.
__global__ void ring_nops(EndpointHandle handle, BlueFlameProbe* probe) {
  exec::watch_endpoint(handle);
  const std::uint32_t qpn_word = device::impl::queue_pair_word(handle.qpn);
  const auto nop = [&](std::uint32_t index, std::uint32_t flags) {
    return device::impl::control_segment(mlx5::WqeOpcode::kNop, index, qpn_word, kSegments, flags);
  };
  const auto publish = [&](std::uint32_t index, const exec::Segment& control) {
    std::byte* const block = handle.send_queue[index].bytes;
    exec::store_segment(block, control);
    exec::store_segment<16>(block, {});
    exec::store_segment<32>(block, {});
    exec::store_segment<48>(block, {});
    exec::store_release<Placement::kHost>(handle.send_record, device::impl::record_value(index + 1));
    exec::fence_release<Placement::kHost>();
  };
  std::uint32_t half_bytes = 0;
  const auto doorbell = [&] { return handle.doorbell + half_bytes / sizeof(std::uint64_t); };
  for (std::uint32_t index = 0; index < kNops; ++index) {
    publish(index, nop(index, 0));
    const exec::Segment copy[4] = {nop(index, mlx5::kCompletionAlways), {}, {}, {}};
    exec::store_blueflame(doorbell(), copy);
    half_bytes ^= handle.blueflame_half_bytes;
    pause(kCopyPauseNs);
  }
  const exec::Segment last = nop(kNops, mlx5::kCompletionAlways);
  publish(kNops, last);
  exec::store_doorbell(doorbell(), device::impl::doorbell_value(last));
  BlueFlameProbe result{Status::kOk, kNops, 0};
  result.status = count_completions(handle, kNops, result.used);
  *probe = result;
}

}  // namespace

Status probe_blueflame(const EndpointHandle& endpoint, BlueFlameProbe* probe, int (*progress)()) {
  return exec::launch({.grid = {1}, .block = {1}, .progress = progress}, ring_nops, endpoint, probe);
}

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
