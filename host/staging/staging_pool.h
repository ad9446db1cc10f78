// Staging memory, which kernels fill with payload, slot by slot under credits: a piece of the HCA's on-chip
// memory (MEMIC), mapped into this process, from which the HCA sends without touching PCIe; or host memory,
// which a GPU far from the HCA stores to faster than the HCA could read the GPU. Source: papers/design.md,
// "Staging credits"; ibv_alloc_dm(3), mlx5dv_init_obj(3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/result.h"
#include "host/gpu/gpu.h"
#include "host/hca/hca.h"
#include "host/staging/credit_exchange.h"
#include "proto/gpu/staging.h"

namespace gdx {

inline constexpr char kProcessesVariable[] = "GDX_PROCESSES_PER_HCA";
inline constexpr std::uint32_t kMaxProcessesPerHca = 256;
inline constexpr std::uint64_t kDefaultStagingBytes = 128 * 1024;
inline constexpr std::uint64_t kDefaultBounceBytes = 4 << 20;  // as NCCL's buffer of a channel
inline constexpr std::uint32_t kDefaultBounceSlotBytes = 64 * 1024;
inline constexpr std::uint64_t kMaxBounceBytes = 1 << 30;

enum class StagingMemory : std::uint8_t {
  kNic,   // for Mode::kPush
  kHost,  // for Mode::kBounce: pinned by its registration, on the NUMA node of the thread that makes the pool
};

struct StagingOptions {
  StagingMemory memory = StagingMemory::kNic;
  // A power of two. 0: in host memory 4 MiB; on the NIC 128 KiB, or less where that is more than this
  // process's even part, or more than other processes have left: then the largest power of two that is there.
  std::uint64_t pool_bytes = 0;
  // How many processes are to share the NIC's memory, this one among them; at most 256. 0:
  // $GDX_PROCESSES_PER_HCA, or 1.
  std::uint32_t processes = 0;
  std::uint32_t slot_bytes = kDefaultSlotBytes;  // a power of two >= kMinSlotBytes
  // Slots reserved for every endpoint, so the pool admits pool_bytes / slot_bytes / minimum_slots of them.
  std::uint32_t minimum_slots = 1;
  // An endpoint may have more while it holds less than so many percent of the slots that are free: with 100
  // a lone one gets half of the pool, two a third each. More lets few use more, and leaves less for who comes
  // while they hold it.
  std::uint32_t threshold_percent = 100;

  // Defaults of a pool in host memory.
  [[nodiscard]] static constexpr StagingOptions in_host_memory() {
    StagingOptions options;
    options.memory = StagingMemory::kHost;
    options.slot_bytes = kDefaultBounceSlotBytes;
    return options;
  }
};

// Checks the options, against the HCA's device memory where they ask for it, and returns the pool's size in
// bytes when nobody else holds any. `processes` 0 counts as 1.
// Errors: kInvalidArgument with the reason, kUnsupported when the HCA has no device memory.
[[nodiscard]] Result<std::uint64_t> resolve_staging_bytes(const StagingOptions& options,
                                                          std::uint64_t device_memory_bytes);

class StagingPool;

// One endpoint's membership of a pool. When it goes, every slot that the books show with the endpoint is free
// again: let it go after the queue pair is destroyed, and before the memory of its channel. It keeps the
// pool's memory alive until then.
class StagingLease {
 public:
  StagingLease() = default;  // of no pool
  StagingLease(StagingLease&& other) noexcept;
  StagingLease& operator=(StagingLease&& other) noexcept;
  StagingLease(const StagingLease&) = delete;
  StagingLease& operator=(const StagingLease&) = delete;
  ~StagingLease() { end(); }

  // Grants it nothing more and asks everything back; nothing without a pool.
  void retire();

  [[nodiscard]] std::byte* base() const;           // of the pool, as this process stores to it
  [[nodiscard]] std::uint64_t nic_offset() const;  // of the pool, under lkey()
  [[nodiscard]] std::uint32_t lkey() const;
  [[nodiscard]] std::uint32_t slot_bytes() const;
  [[nodiscard]] std::uint32_t slot_count() const;  // of the pool; 0 without one
  [[nodiscard]] std::uint32_t minimum_slots() const { return minimum_slots_; }

 private:
  friend class StagingPool;
  struct Pool;
  StagingLease(std::shared_ptr<Pool> pool, std::optional<CreditEndpoint> endpoint,
               std::uint32_t minimum_slots);
  void end();

  std::shared_ptr<Pool> pool_;
  std::optional<CreditEndpoint> endpoint_;  // none: trespasses
  std::uint32_t minimum_slots_ = 0;
};

// One pool of slots for all endpoints that a process has on an HCA, and the scheduler that shares them. An
// HCA may have one of each memory. On the NIC a pool is the process's lease of device memory that all
// processes share: its size stands while it lasts, and the driver takes it back when the process ends,
// however it ends. Threads: all methods from any thread.
class StagingPool {
 public:
  // Errors: as resolve_staging_bytes; kInvalidArgument for a bad $GDX_PROCESSES_PER_HCA; kNoMemory when the
  // HCA's device memory is taken, or host memory cannot be pinned; kSystem.
  [[nodiscard]] static Result<StagingPool> create(const Hca& hca, const StagingOptions& options = {});

  // Admits an endpoint that talks to the scheduler through `channel` and may hold `at_most` slots.
  // Errors: as CreditScheduler::open.
  [[nodiscard]] Result<StagingLease> lease(const CreditChannel& channel, std::uint32_t at_most);
  // For research (EndpointOptions::unsafe_push_without_credits): the pool's memory without the scheduler.
  [[nodiscard]] StagingLease trespass();

  // Lets kernels of `gpu` store to the pool's memory, for the pool's life. Errors: as Gpu::map. Threads: one.
  [[nodiscard]] Result<void> map_to(const Gpu& gpu);

  [[nodiscard]] StagingMemory memory() const;
  [[nodiscard]] std::uint64_t bytes() const;
  [[nodiscard]] std::uint32_t slot_bytes() const;
  [[nodiscard]] std::uint32_t slot_count() const;
  [[nodiscard]] std::uint32_t leased_slots() const;
  [[nodiscard]] std::uint32_t free_slots() const;
  // Slots "given back" by endpoints that did not hold them: 0 unless somebody's memory is damaged.
  [[nodiscard]] std::uint64_t bad_returns() const;

 private:
  explicit StagingPool(std::shared_ptr<StagingLease::Pool> pool) : pool_(std::move(pool)) {}
  std::shared_ptr<StagingLease::Pool> pool_;
};

}  // namespace gdx
