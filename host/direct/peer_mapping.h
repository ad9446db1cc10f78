// Peers' memory mapped into this process, so that kernels reach it by loads and stores. Teams map their
// windows so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/bootstrap/world.h"
#include "host/gpu/gpu.h"
#include "host/memory/memory.h"
#include "proto/gpu/peer.h"

namespace gdx {

inline constexpr char kDirectVariable[] = "GDX_DIRECT";

// Use of loads and stores: where they work; or no world without them; or never. kOff at either end decides.
enum class DirectChoice { kAuto, kOn, kOff };  // "auto", "on", "off"

// Reads $GDX_DIRECT; kAuto without it. Errors: kInvalidArgument naming its values.
[[nodiscard]] Result<DirectChoice> direct_choice_from_environment();

struct PeerOptions {
  std::optional<DirectChoice> direct = {};    // none: the value of $GDX_DIRECT
  std::uint64_t timeout_ns = 10'000'000'000;  // bound of the whole exchange; at least 1
  int gpu = 0;  // ordinal of the GPU whose kernels are to reach peers' memory of GPUs
};

// Threads: one at a time.
class PeerMapping {
 public:
  // Offers `regions` to the peers on this node and maps theirs; all ranks call it together. Shareable
  // regions: those of allocate_shareable_memory, and GPU memory by the rules of host/direct/gpu_sharing.h. A
  // peer is direct only if all its regions could be mapped, so that its calls take one path. The
  // result is logged once.
  //
  // A freed or newly registered region of a peer stays mapped here. Memory of a dead process stays mapped
  // too. Stores to either reach no process. (Memory shared by CUDA IPC does not stay: its owner must keep it
  // until the peers are done.)
  //
  // Errors: those of World::allgather; kInvalidArgument (an empty region, more than kMaxPeerWindows regions,
  // GDX_DIRECT, timeout_ns); kUnsupported naming rank and reason, for kOn; kSystem.
  [[nodiscard]] static Result<PeerMapping> exchange(World& world, std::span<const Memory* const> regions,
                                                    const PeerOptions& options = {});

  PeerMapping(PeerMapping&&) noexcept;
  PeerMapping& operator=(PeerMapping&&) noexcept;
  PeerMapping(const PeerMapping&) = delete;
  PeerMapping& operator=(const PeerMapping&) = delete;
  // Requires that no kernel uses a window any more.
  ~PeerMapping();

  // Returns whether the rank is direct. Numbers outside the world are not, with the reason "no such rank".
  [[nodiscard]] bool is_direct(std::uint32_t rank) const;
  // Returns the reason why the rank is not direct; empty where it is.
  [[nodiscard]] std::string reason(std::uint32_t rank) const;

  // Returns a descriptor that polls as readable once the direct rank's process has ended; -1 for this rank,
  // and where none is to be had.
  [[nodiscard]] int process(std::uint32_t rank) const;

  // Lets kernels of `gpu` reach mapped host memory; kernels of the CPU layer need no call. Errors: those of
  // Gpu::map.
  [[nodiscard]] Result<void> map_to(const Gpu& gpu);

  // Returns the mapped regions of `rank`, in the order of its offer, which live as long as this object. None
  // unless the rank is direct.
  [[nodiscard]] std::vector<PeerWindow> windows(std::uint32_t rank) const;

 private:
  struct Impl;
  explicit PeerMapping(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gdx
