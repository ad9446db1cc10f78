#include "perf/posting_queues.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "device/exec/scope.h"
#include "proto/mlx5/doorbell.h"
#include "proto/mlx5/wqe.h"

namespace gdx::posting {
namespace {

constexpr std::uint32_t kQpn = 0x123456;
constexpr std::uint32_t kMinBlocks = 64;
constexpr std::uint64_t kTimeoutNs = 1'000'000'000;
constexpr std::size_t kLineBytes = 64;

// Offsets of a queue's parts, in bytes.
struct Layout {
  explicit Layout(std::uint32_t blocks)
      : completions(std::size_t{blocks} * mlx5::kWqeBasicBlockBytes),
        record(2 * completions),
        doorbell(record + mlx5::kBlueFlameRegisterBytes),  // at a multiple of its size
        scratch(doorbell + mlx5::kBlueFlameRegisterBytes),
        end((scratch + kLineBytes + 4095) / 4096 * 4096) {}
  std::size_t completions;
  std::size_t record;
  std::size_t doorbell;
  std::size_t scratch;
  std::size_t end;
};

EndpointHandle handle_at(std::byte* base, QueueState* state, std::uint32_t blocks, Sharing sharing,
                         Placement placement, bool blueflame) {
  const Layout layout(blocks);
  EndpointHandle handle{};
  handle.layout_version = kQueueLayoutVersion;
  handle.qpn = kQpn;
  handle.send_queue = reinterpret_cast<mlx5::WqeBasicBlock*>(base);
  handle.completion_queue = reinterpret_cast<mlx5::Cqe64*>(base + layout.completions);
  handle.send_record = reinterpret_cast<Be32*>(base + layout.record) + mlx5::kSendRecord;
  handle.doorbell = reinterpret_cast<std::uint64_t*>(base + layout.doorbell);
  handle.scratch = reinterpret_cast<std::uint64_t*>(base + layout.scratch);
  handle.owner = handle.scratch + 1;
  handle.state = state;
  handle.timeout_ns = kTimeoutNs;
  handle.probe_after_ns = kTimeoutNs;
  handle.log_send_queue = static_cast<std::uint32_t>(std::countr_zero(blocks));
  handle.log_completion_queue = handle.log_send_queue;
  handle.placement = placement;
  handle.blueflame_half_bytes = blueflame ? mlx5::kBlueFlameBufferBytes : 0;
  handle.sharing = sharing;
  return handle;
}

// Entries that no NIC has written: invalid, and of the pass before the first.
constexpr std::uint8_t kUnwrittenCqe = 0xf1;

}  // namespace

std::optional<MemoryQueues> MemoryQueues::make(std::uint32_t count, std::uint32_t puts, Sharing sharing,
                                               Placement placement, bool blueflame) {
  const std::uint32_t blocks = std::max(kMinBlocks, std::bit_ceil(puts));
  const Layout layout(blocks);
  MemoryQueues made;
  made.count_ = count;
  const std::size_t bytes = std::size_t{count} * layout.end;
  made.arena_ =
      machine::allocate(placement == Placement::kGpu ? machine::Place::kGpu : machine::Place::kHost, bytes);
  made.states_ = machine::allocate(machine::Place::kGpu, count * sizeof(QueueState));
  if (!made.arena_ || !made.states_) return std::nullopt;
  std::vector<QueueState> states(count);
  auto* const of_kernels = reinterpret_cast<QueueState*>(made.states_.get());
  made.image_.resize(bytes);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::size_t base = i * layout.end;
    for (std::uint32_t k = 0; k < blocks; ++k) {
      made.image_[base + layout.completions + k * sizeof(mlx5::Cqe64) + offsetof(mlx5::Cqe64, op_own)] =
          std::byte{kUnwrittenCqe};
    }
    states[i].last_wqe = ~std::uint32_t{0};  // the one before the first
    states[i].handle =
        handle_at(made.arena_.get() + base, of_kernels + i, blocks, sharing, placement, blueflame);
  }
  if (!machine::copy(made.arena_.get(), made.image_.data(), bytes) ||
      !machine::copy(made.states_.get(), states.data(), count * sizeof states[0])) {
    return std::nullopt;
  }
  made.queues_ = {states[0].handle, made.arena_.get(), layout.end};
  return made;
}

void MemoryQueues::damage() {
  constexpr std::size_t kAddressByte = 16;
  std::byte wrong{0x5a};
  if (!machine::copy(arena_.get() + kAddressByte, &wrong, 1)) arena_.reset();
}

void MemoryQueues::damage_blueflame() {
  constexpr std::size_t kAddressByte = 16;
  const Layout layout(1u << queues_.first.log_send_queue);
  std::byte wrong{0x5a};
  for (const std::size_t half : {std::size_t{0}, mlx5::kBlueFlameBufferBytes}) {
    if (!machine::copy(arena_.get() + layout.doorbell + half + kAddressByte, &wrong, 1))
      return arena_.reset();
  }
}

bool MemoryQueues::is_rung(const std::byte* base, const std::byte* last, std::uint64_t rings,
                           bool with_wqe) const {
  const Layout layout(1u << queues_.first.log_send_queue);
  // The halves alternate from the first on.
  const std::size_t half = (rings - 1) % 2 * queues_.first.blueflame_half_bytes;
  const std::byte* const written = base + layout.doorbell + half;
  if (with_wqe) return std::memcmp(written, last, mlx5::kWqeBasicBlockBytes) == 0;
  std::uint64_t doorbell = 0;
  std::memcpy(&doorbell, written, sizeof doorbell);
  return byte_swap(static_cast<std::uint32_t>(doorbell >> 32)) >> 8 == kQpn;
}

MemoryQueues::Findings MemoryQueues::check_queue(const PostCase& what, std::uint32_t queue,
                                                 std::vector<bool>& seen) const {
  const std::uint32_t blocks = 1u << queues_.first.log_send_queue;
  const Layout layout(blocks);
  const std::byte* const base = image_.data() + queue * layout.end;
  const std::uint64_t wanted = std::uint64_t{what.puts} * what.posters / count_;
  Findings found;
  Be32 record{};
  std::memcpy(&record, base + layout.record + mlx5::kSendRecord * sizeof record, sizeof record);
  found.mistakes += static_cast<std::uint32_t>(record) != (wanted & 0xffff);
  const bool by_warps = what.poster == Poster::kWarp;
  const std::byte* const last = base + (wanted - 1) * mlx5::kWqeBasicBlockBytes;
  const bool with_wqe = queues_.first.blueflame_half_bytes != 0;
  found.mistakes += !is_rung(base, last, by_warps ? wanted / kWarpThreads : wanted, with_wqe);
  const std::uint32_t first_poster = what.sharing == Sharing::kShared ? 0 : queue;
  for (std::uint32_t index = 0; index < wanted; ++index) {
    const mlx5::PutWqe wqe = mlx5::read_put_wqe(base + std::size_t{index} * mlx5::kWqeBasicBlockBytes);
    const std::uint64_t put = wqe.remote.address / kPutBytes - 1 - std::uint64_t{first_poster} * what.puts;
    const bool in_place =
        mlx5::wqe_index(wqe.control) == (index & 0xffff) && mlx5::wqe_qpn(wqe.control) == kQpn &&
        mlx5::wqe_opcode(wqe.control) == mlx5::WqeOpcode::kRdmaWrite && wqe.data.byte_count == kPutBytes &&
        wqe.remote.address % kPutBytes == 0 && put < wanted;
    // An exclusive queue has its poster's puts in their order.
    const bool in_order = what.sharing == Sharing::kShared || put == index;
    if (!in_place || !in_order || seen[put]) {
      ++found.mistakes;
      continue;
    }
    seen[put] = true;
    ++found.wqes;
  }
  return found;
}

MemoryQueues::Findings MemoryQueues::check(const PostCase& what) {
  Findings all;
  if (!arena_ || !machine::copy(image_.data(), arena_.get(), image_.size())) return {0, 1};
  for (std::uint32_t queue = 0; queue < count_; ++queue) {
    std::vector<bool> seen(std::size_t{what.puts} * what.posters / count_);
    const Findings found = check_queue(what, queue, seen);
    all.wqes += found.wqes;
    all.mistakes += found.mistakes;
  }
  return all;
}

}  // namespace gdx::posting
