#include "host/team/windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "host/memory/unregistered.h"
#include "proto/gpu/team_area.h"

namespace gdx::team {

// Scratch has a share of the heap's bytes, because a team may have many lanes.
Windows::Area Windows::area_of(const TeamOptions& options, std::uint32_t ranks, std::uint32_t share) {
  const std::uint64_t most = options.heap_bytes / share / options.lanes / kMinScratchBytes * kMinScratchBytes;
  const auto scratch =
      static_cast<std::uint32_t>(std::clamp<std::uint64_t>(most, kMinScratchBytes, kMaxScratchBytes));
  const std::uint32_t lane = team_area_word_bytes(ranks) + scratch;
  const std::uint64_t all = std::uint64_t{lane} * options.lanes;
  return {(all + kMaxHeapAlignment - 1) / kMaxHeapAlignment * kMaxHeapAlignment, lane, scratch};
}

Windows::Windows(const Hca* hca, const TeamOptions& options, const std::optional<Gpu>& gpu,
                 std::uint32_t ranks)
    : hca_(hca), options_(&options), gpu_(gpu), area_(area_of(options, ranks)), pieces_(options.heap_bytes) {
  windows_.reserve(kMaxTeamWindows);
}

Result<Windows> Windows::create(const Hca* hca, const TeamOptions& options, const std::optional<Gpu>& gpu,
                                std::uint32_t ranks) {
  Windows windows(hca, options, gpu, ranks);
  auto heap = GDX_TRY(windows.make_heap());
  windows.windows_.push_back({std::move(heap)});
  GDX_TRY(windows.gpu_heap_ ? windows.zero(0, windows.area_.bytes + options.heap_bytes)
                            : windows.map_to_gpu(windows.heap_window()));
  return windows;
}

Result<Memory> Windows::make_heap() {
  const std::uint64_t bytes = area_.bytes + options_->heap_bytes;
  if (hca_ == nullptr) return UnregisteredMemory::allocate(bytes);
  if (options_->heap_memory == HeapMemory::kHost) return allocate_shareable_memory(*hca_, bytes);
  gpu_heap_ = GDX_TRY(GpuMemory::allocate(*gpu_, bytes));
  return register_memory(*hca_, gpu_heap_->address(), bytes);
}

void Windows::read_kernel_calls(const TeamHandle& team, std::span<std::uint64_t> lanes) const {
  if (is_heap_in_gpu()) return;
  std::byte* at = team.area + offsetof(TeamAreaWords, alike);
  for (std::uint32_t lane = 0; lane < std::min<std::size_t>(lanes.size(), team.lanes); ++lane) {
    lanes[lane] = std::atomic_ref(*reinterpret_cast<std::uint64_t*>(at)).load(std::memory_order_acquire);
    at += team.area_bytes;
  }
}

Result<void> Windows::zero(std::uint64_t offset, std::uint64_t bytes) {
  if (!gpu_heap_) {
    std::memset(windows_.front().memory.data() + offset, 0, bytes);
    return {};
  }
  static constexpr std::uint64_t kStep = 1 << 20;
  const std::vector<std::byte> zeroes(std::min(bytes, kStep));
  for (std::uint64_t done = 0; done < bytes; done += kStep) {
    GDX_TRY(gpu_heap_->write(offset + done, std::span(zeroes).first(std::min(kStep, bytes - done))));
  }
  return {};
}

Result<void> Windows::map_to_gpu(Window& window) const {
  const Memory& memory = window.memory;
  if (!gpu_ || memory.registered_by() != RegistrationWay::kHostPages) return {};
  window.on_gpu = GDX_TRY(gpu_->map(memory.data(), memory.bytes()));
  return {};
}

Result<Window> Windows::register_part(void* address, std::uint64_t bytes) const {
  if (windows_.size() == kMaxTeamWindows) {
    return fail(Status::kInvalidArgument,
                fmt::format("a team has no window {}: use at most {} beside the heap, or allocate",
                            windows_.size(), kMaxTeamWindows - 1));
  }
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  for (const Window& window : windows_) {
    const auto other = reinterpret_cast<std::uintptr_t>(window.memory.data());
    if (first >= other + window.memory.bytes() || other >= first + bytes) continue;
    return fail(Status::kInvalidArgument,
                fmt::format("{} bytes at {} are in a window of the team already", bytes, address));
  }
  auto memory = hca_ != nullptr ? GDX_TRY(register_memory(*hca_, address, bytes))
                                : GDX_TRY(UnregisteredMemory::of(address, bytes));
  if (options_->endpoint.placement == Placement::kGpu &&
      memory.registered_by() == RegistrationWay::kHostPages) {
    return fail(
        Status::kInvalidArgument,
        fmt::format("{} bytes at {} are host memory: a team with queues in GPU memory takes windows of a GPU",
                    bytes, address));
  }
  Window window{std::move(memory)};
  GDX_TRY(map_to_gpu(window));
  return window;
}

Result<void> Windows::map(Window& window, World& world) const {
  const Memory* const memory = &window.memory;
  const PeerOptions options{
      .direct = options_->direct, .timeout_ns = options_->timeout_ns, .gpu = options_->gpu.value_or(0)};
  window.mapping = GDX_TRY(PeerMapping::exchange(world, std::span(&memory, 1), options));
  if (gpu_) {
    GDX_TRY(window.mapping->map_to(*gpu_));
  }
  if (&window == &windows_.front()) return {};
  for (std::uint32_t rank = 0; rank < world.size(); ++rank) {
    if (!is_mapped(rank) || window.mapping->is_direct(rank)) continue;
    return fail(Status::kUnsupported,
                fmt::format("rank {} is direct, and a window of its cannot be mapped: {}; use memory of "
                            "Team::allocate, or {}=off",
                            rank, window.mapping->reason(rank), kDirectVariable));
  }
  return {};
}

void Windows::write(const Table& table, std::size_t w) const {
  const Window& window = windows_[w];
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    const std::uint32_t rank = table.members()[i];
    const RemoteMemory& part = window.parts[rank];
    const std::vector<PeerWindow> mapped = window.mapping->windows(rank);
    const TeamPeerWindow record{part.address, part.rkey, 0,
                                is_mapped(rank) && !mapped.empty() ? mapped.front().mapped : nullptr};
    for (std::uint32_t lane = 0; lane < options_->lanes; ++lane)
      table.peer(lane, i).set_window(w, record, window.memory.data());
  }
}

void Windows::show(const Table& table, std::uint32_t w) const {
  TeamHandle& handle = *table.copy();
  const LocalMemory own = windows_[w].memory.local();
  handle.windows[w] = {own.address, own.bytes, own.lkey, 0};
  std::atomic_ref(handle.window_count).store(w + 1, std::memory_order_release);
}

}  // namespace gdx::team
