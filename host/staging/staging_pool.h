// Staging memory: a piece of the HCA's on-chip memory (MEMIC), mapped into this process, from which the
// HCA sends without touching PCIe. Kernels push payload into slots of it under credits.
// Source: papers/design.md, "Staging credits"; ibv_alloc_dm(3), mlx5dv_init_obj(3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "host/hca/hca.h"
#include "host/staging/slot_ledger.h"
#include "proto/gpu/staging.h"

namespace gdx {

inline constexpr std::uint64_t kDefaultStagingBytes = 128 * 1024;

struct StagingOptions {
  // A power of two. 0: 128 KiB, or the largest power of two that the HCA has if that is less.
  std::uint64_t pool_bytes = 0;
  std::uint32_t slot_bytes = kDefaultSlotBytes;  // a power of two >= kMinSlotBytes
};

// Checks the options against the HCA's device memory and returns the pool's size in bytes.
// Errors: kInvalidArgument with the reason, kUnsupported when the HCA has no device memory.
[[nodiscard]] Result<std::uint64_t> resolve_staging_bytes(const StagingOptions& options,
                                                          std::uint64_t device_memory_bytes);

class StagingPool;

// A run of slots on loan; returns itself when it goes, and keeps the pool's memory alive until then.
class StagingLease {
 public:
  StagingLease() = default;  // no slots
  StagingLease(StagingLease&& other) noexcept;
  StagingLease& operator=(StagingLease&& other) noexcept;
  StagingLease(const StagingLease&) = delete;
  StagingLease& operator=(const StagingLease&) = delete;
  ~StagingLease() { give_back(); }

  [[nodiscard]] SlotRun run() const { return run_; }
  [[nodiscard]] std::byte* base() const;           // of the first slot, as this process stores to it
  [[nodiscard]] std::uint64_t nic_offset() const;  // of the first slot, under lkey()
  [[nodiscard]] std::uint32_t lkey() const;
  [[nodiscard]] std::uint32_t slot_bytes() const;
  [[nodiscard]] std::uint32_t slot_count() const { return run_.count; }

 private:
  friend class StagingPool;
  struct Pool;
  StagingLease(std::shared_ptr<Pool> pool, SlotRun run);
  void give_back();

  std::shared_ptr<Pool> pool_;
  SlotRun run_;
};

// Threads: all methods from any thread.
class StagingPool {
 public:
  // Errors: as resolve_staging_bytes; kNoMemory when the HCA's device memory is taken; kSystem.
  [[nodiscard]] static Result<StagingPool> create(const Hca& hca, const StagingOptions& options = {});

  // Errors: as SlotLedger::take.
  [[nodiscard]] Result<StagingLease> lease(std::uint32_t slot_count);

  [[nodiscard]] std::uint64_t bytes() const;
  [[nodiscard]] std::uint32_t slot_bytes() const;
  [[nodiscard]] std::uint32_t slot_count() const;
  [[nodiscard]] std::uint32_t leased_slots() const;
  [[nodiscard]] std::uint32_t free_slots() const;

 private:
  explicit StagingPool(std::shared_ptr<StagingLease::Pool> pool) : pool_(std::move(pool)) {}
  std::shared_ptr<StagingLease::Pool> pool_;
};

}  // namespace gdx
