// Peers' memory mapped into this process, so that kernels reach it by loads and stores (device/peer.h).
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

// Loads and stores where they work; or no world without them; or none at all. Either end's kOff decides.
enum class DirectChoice { kAuto, kOn, kOff };  // "auto", "on", "off"

// $GDX_DIRECT; kAuto without it. Errors: kInvalidArgument naming what it may be.
[[nodiscard]] Result<DirectChoice> direct_choice_from_environment();

struct PeerOptions {
  std::optional<DirectChoice> direct = {};    // none: $GDX_DIRECT's
  std::uint64_t timeout_ns = 10'000'000'000;  // of the whole exchange; at least 1
  int gpu = 0;  // ordinal of the GPU whose kernels are to reach peers' memory of GPUs
};

// Threads: one at a time.
class PeerMapping {
 public:
  // Shows `regions` to the peers on this node and maps theirs; all ranks call it together. Only memory that
  // can be shared is: allocate_shareable_memory's; of a GPU what host/peer/gpu_sharing.h says. A peer is
  // reached directly only if all its regions could be mapped, since an endpoint goes one way or the other;
  // which and why is logged once.
  //
  // A region that its owner frees or registers anew, and memory of a process that dies, stays mapped here;
  // stores to it reach nobody. (Memory shared by CUDA IPC does not stay: its owner must keep it until the
  // peers are done.)
  //
  // Errors: as World::allgather; kInvalidArgument (a region is empty or there are more than kMaxPeerWindows
  // of them, GDX_DIRECT, timeout_ns); kUnsupported naming rank and reason, where kOn was asked for; kSystem.
  [[nodiscard]] static Result<PeerMapping> exchange(World& world, std::span<const Memory* const> regions,
                                                    const PeerOptions& options = {});

  PeerMapping(PeerMapping&&) noexcept;
  PeerMapping& operator=(PeerMapping&&) noexcept;
  PeerMapping(const PeerMapping&) = delete;
  PeerMapping& operator=(const PeerMapping&) = delete;
  // No kernel may use a handle any more.
  ~PeerMapping();

  // Below, `rank` is one of the world; others are reached by the NIC, "no such rank".
  [[nodiscard]] bool is_direct(std::uint32_t rank) const;
  // Why not; empty where it is.
  [[nodiscard]] std::string reason(std::uint32_t rank) const;

  // Lets kernels of `gpu` reach what is host memory; kernels of the CPU layer need no call. Errors: as
  // Gpu::map.
  [[nodiscard]] Result<void> map_to(const Gpu& gpu);

  // An endpoint towards `rank`, for kernels. The windows live as long as this.
  [[nodiscard]] PeerHandle handle(std::uint32_t rank, const EndpointHandle& endpoint) const;

 private:
  struct Impl;
  explicit PeerMapping(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gdx
