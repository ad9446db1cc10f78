// Memory of a team: its windows, of which the heap is the first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "host/gpu/gpu.h"
#include "host/gpu/gpu_memory.h"
#include "host/memory/memory.h"
#include "host/team/symmetric_heap.h"
#include "host/team/team_options.h"
#include "host/team/team_table.h"

namespace gdx::team {

struct Window {
  Memory memory;
  // Mapping of host memory to the GPU; ends before the memory does.
  std::shared_ptr<GpuMapping> on_gpu = nullptr;
  std::optional<PeerMapping> mapping = std::nullopt;
  std::vector<RemoteMemory> parts = {};  // by rank
};

// Threads: one at a time, beside kernels.
class Windows {
 public:
  // Makes this rank's part of the heap, zeroed, with the area for collective calls of `ranks` in front of it.
  // `options` are complete; they and `hca` outlive this object. `hca` null: windows are of host memory, and
  // have no keys. Errors: those of allocate_shareable_memory, GpuMemory, register_memory, Gpu::map.
  [[nodiscard]] static Result<Windows> create(const Hca* hca, const TeamOptions& options,
                                              const std::optional<Gpu>& gpu, std::uint32_t ranks);

  // Registers this rank's part of a further window. Errors: kInvalidArgument (an eighth, overlap, the kind of
  // memory); those of register_memory and Gpu::map.
  [[nodiscard]] Result<Window> register_part(void* address, std::uint64_t bytes) const;
  // Maps the parts of ranks of this node. All ranks have agreed on the window. Collective. Errors: those of
  // PeerMapping::exchange and map_to; kUnsupported for a further window where a rank is direct whose part
  // cannot be mapped.
  [[nodiscard]] Result<void> map(Window& window, World& world) const;
  void add(Window window) { windows_.push_back(std::move(window)); }

  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(windows_.size()); }
  [[nodiscard]] const Window& window(std::size_t w) const { return windows_[w]; }
  [[nodiscard]] Window& heap_window() { return windows_.front(); }
  [[nodiscard]] std::span<std::byte> heap() const {
    return {windows_.front().memory.data() + area_.bytes, options_->heap_bytes};
  }
  // Memory that kernels' collective calls use, on all lanes.
  struct Area {
    std::uint64_t bytes;  // size in whole pages, so that the heap begins at a page
    std::uint32_t lane_bytes;
    std::uint32_t scratch_bytes;  // scratch of each lane
  };
  [[nodiscard]] const Area& area() const { return area_; }
  // `share`: of the heap's bytes that scratch takes at most, as 1 in so many.
  [[nodiscard]] static Area area_of(const TeamOptions& options, std::uint32_t ranks, std::uint32_t share = 8);
  // Reads TeamAreaWords::alike of a team's lanes, as many as there are; leaves them as they were of a heap in
  // GPU memory.
  void read_kernel_calls(const TeamHandle& team, std::span<std::uint64_t> lanes) const;
  [[nodiscard]] bool is_heap_in_gpu() const { return gpu_heap_.has_value(); }
  [[nodiscard]] SymmetricHeap& pieces() { return pieces_; }
  [[nodiscard]] const SymmetricHeap& pieces() const { return pieces_; }
  // Zeroes `bytes` of the first window, from `offset` on. Errors: those of GpuMemory::write.
  [[nodiscard]] Result<void> zero(std::uint64_t offset, std::uint64_t bytes);
  // Returns whether kernels reach the heap of `rank` by loads and stores.
  [[nodiscard]] bool is_mapped(std::uint32_t rank) const { return windows_.front().mapping->is_direct(rank); }

  // Writes a window into the records of all ranks on all lanes.
  void write(const Table& table, std::size_t w) const;
  // Adds this rank's part of a window to the handle, which kernels read meanwhile.
  void show(const Table& table, std::uint32_t w) const;

 private:
  Windows(const Hca* hca, const TeamOptions& options, const std::optional<Gpu>& gpu, std::uint32_t ranks);
  [[nodiscard]] Result<Memory> make_heap();
  [[nodiscard]] Result<void> map_to_gpu(Window& window) const;

  const Hca* hca_;
  const TeamOptions* options_;
  std::optional<Gpu> gpu_;
  Area area_;
  std::optional<GpuMemory> gpu_heap_;
  std::vector<Window> windows_;  // the heap first
  SymmetricHeap pieces_;
};

}  // namespace gdx::team
