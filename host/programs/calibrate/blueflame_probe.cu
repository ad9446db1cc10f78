#include "host/programs/calibrate/blueflame_probe.h"

#include "device/endpoint.h"
#include "device/impl/wqe.h"
#include "proto/mlx5/cqe.h"

namespace gdx::calibration {
namespace {

constexpr std::uint32_t kCounted = 200;  // NOPs that complete by their copies only
constexpr std::uint32_t kAlone = 16;     // NOPs after them that are waited for one by one
constexpr std::uint32_t kSegments = 4;   // a whole block, which a first store of 16 B alone does not bring
static_assert(kCounted + kAlone < kProbeBlocks);
// Time between two bursts. A software HCA reads registers as memory, so it must see each copy that is alone.
constexpr std::uint64_t kPauseNs = 20'000;

GDX_DEVICE void pause(std::uint64_t ns) {
  const std::uint64_t began_ns = exec::now_ns();
  while (exec::now_ns() - began_ns < ns) exec::relax();
}

// Reads the completions in their order. Their queue does not wrap.
class Completions {
 public:
  GDX_DEVICE explicit Completions(const EndpointHandle& handle) : handle_(handle) {}

  // Waits for that of WQE `index`, and counts those before it.
  GDX_DEVICE Status wait_for(std::uint32_t index, std::uint32_t& before) {
    const std::uint64_t began_ns = exec::now_ns();
    for (before = 0; exec::now_ns() - began_ns < handle_.timeout_ns;) {
      const auto* const words = reinterpret_cast<const std::uint64_t*>(&handle_.completion_queue[next_]);
      const std::uint64_t tail = exec::load_acquire(words + 7);
      const auto op_own = static_cast<std::uint32_t>(tail >> 56);
      const std::uint32_t opcode = op_own >> mlx5::kCqeOpcodeShift;
      if ((op_own & mlx5::kCqeOwnerMask) != 0 ||
          opcode == static_cast<std::uint32_t>(mlx5::CqeOpcode::kInvalid)) {
        exec::relax();
        continue;
      }
      const std::uint32_t wqe = byte_swap(static_cast<std::uint16_t>(tail >> 32));
      if (opcode != static_cast<std::uint32_t>(mlx5::CqeOpcode::kRequester) || wqe > index)
        return Status::kQueueError;
      ++next_;
      if (wqe == index) return Status::kOk;
      ++before;
    }
    return Status::kTimeout;
  }

 private:
  const EndpointHandle& handle_;
  std::uint32_t next_ = 0;
};

GDX_DEVICE exec::Segment nop(const EndpointHandle& handle, std::uint32_t index, std::uint32_t flags) {
  return device::impl::control_segment(mlx5::WqeOpcode::kNop, index,
                                       device::impl::queue_pair_word(handle.qpn), kSegments, flags);
}

// Writes the NOP to the ring and announces it in the record.
GDX_DEVICE void publish(const EndpointHandle& handle, std::uint32_t index, std::uint32_t flags) {
  std::byte* const block = handle.send_queue[index].bytes;
  exec::store_segment(block, nop(handle, index, flags));
  exec::store_segment<16>(block, {});
  exec::store_segment<32>(block, {});
  exec::store_segment<48>(block, {});
  exec::store_release<Placement::kHost>(handle.send_record, device::impl::record_value(index + 1));
  exec::fence_release<Placement::kHost>();
}

// Rings with a copy of the NOP that asks for its completion. All lanes call.
template <CopyStore C>
GDX_DEVICE void ring_with_copy(const EndpointHandle& handle, std::uint32_t index) {
  const std::uint32_t half_bytes = index % 2 * handle.blueflame_half_bytes;
  std::uint64_t* const half = handle.doorbell + half_bytes / sizeof(std::uint64_t);
  const exec::Segment copy[4] = {nop(handle, index, mlx5::kCompletionAlways), {}, {}, {}};
  const std::uint32_t lane = exec::thread_rank<Scope::kWarp>();
  if constexpr (C == CopyStore::kWhole) {
    if (lane == 0) exec::store_blueflame<Scope::kWarp>(half, copy);
  } else if constexpr (C == CopyStore::kLanes) {
    exec::sync<Scope::kWarp>();  // the record is stored, and the lanes store together
    if (lane < 4) exec::store_blueflame_piece(half, copy, lane);
  } else if (lane == 0) {
    for (std::uint32_t piece = 0; piece < 4; ++piece) exec::store_blueflame_piece(half, copy, piece);
  }
}

// Source: Linux drivers/infiniband/hw/mlx5/mem.c, mlx5_ib_test_wc.
template <CopyStore C>
__global__ void ring_nops(EndpointHandle handle, std::uint32_t burst, BlueFlameProbe* probe) {
  exec::watch_endpoint(handle);
  const bool leads = exec::thread_rank<Scope::kWarp>() == 0;
  BlueFlameProbe result{Status::kOk, kCounted, 0};
  if constexpr (C == CopyStore::kWhole) {
    if (!exec::BulkStores::by_tma()) result.status = Status::kUnsupported;
  }
  Completions completions(handle);
  const std::uint32_t end = result.status == Status::kOk ? kCounted + kAlone : 0;
  for (std::uint32_t index = 0; index < end; ++index) {
    const bool alone = index >= kCounted;
    if (leads) publish(handle, index, alone ? mlx5::kCompletionAlways : 0);
    ring_with_copy<C>(handle, index);
    if (!alone) {
      if ((index + 1) % burst == 0) pause(kPauseNs);
      continue;
    }
    std::uint32_t status = 0;
    if (leads) {
      std::uint32_t before = 0;
      status = static_cast<std::uint32_t>(completions.wait_for(index, before));
      result.used += before;
    }
    result.status = static_cast<Status>(exec::broadcast<Scope::kWarp>(status));
    if (result.status != Status::kOk) break;
  }
  if (leads) *probe = result;
}

}  // namespace

Status launch_probe(const EndpointHandle& endpoint, const ProbeShape& shape, BlueFlameProbe* probe,
                    int (*progress)()) {
  const exec::LaunchConfig config{.grid = {1}, .block = {kWarpThreads}, .progress = progress};
  switch (shape.store) {
    case CopyStore::kWhole:
      return exec::launch(config, ring_nops<CopyStore::kWhole>, endpoint, shape.burst, probe);
    case CopyStore::kThread:
      return exec::launch(config, ring_nops<CopyStore::kThread>, endpoint, shape.burst, probe);
    case CopyStore::kLanes:
      return exec::launch(config, ring_nops<CopyStore::kLanes>, endpoint, shape.burst, probe);
  }
  return Status::kInvalidArgument;
}

}  // namespace gdx::calibration
