// Staging memory, which kernels fill with payload, slot by slot under credits. NIC memory is a piece of the
// HCA's on-chip memory (MEMIC), mapped into this process. The HCA sends from it without using PCIe. Host
// memory serves a GPU far from the HCA. The GPU stores to it faster than the HCA could read the GPU.
// Source: docs/staging.md, "Staging credits"; ibv_alloc_dm(3), mlx5dv_init_obj(3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "host/gpu/gpu.h"
#include "host/hca/hca.h"
#include "host/staging/credit_exchange.h"
#include "proto/gpu/staging.h"

namespace gdx {

inline constexpr char kProcessesVariable[] = "GDX_PROCESSES_PER_HCA";
inline constexpr std::uint32_t kMaxProcessesPerHca = 256;
inline constexpr std::uint64_t kDefaultStagingBytes = 128 * 1024;
inline constexpr std::uint64_t kDefaultBounceBytes = 4 << 20;  // the size of NCCL's buffer of a channel
inline constexpr std::uint32_t kDefaultBounceSlotBytes = 64 * 1024;
inline constexpr std::uint64_t kMaxBounceBytes = 1 << 30;

enum class StagingMemory : std::uint8_t {
  kNic,   // slots for Mode::kPush
  kHost,  // for Mode::kBounce: pinned by its registration, on the NUMA node of the thread that makes the pool
};

struct StagingOptions {
  StagingMemory memory = StagingMemory::kNic;
  // Power of two. 0 in host memory: 4 MiB. 0 on the NIC: 128 KiB, or this process's even part if that is
  // less. If other processes have left less, the largest power of two that is free.
  std::uint64_t pool_bytes = 0;
  // Number of processes that share the NIC's memory, this one included; at most 256. 0:
  // $GDX_PROCESSES_PER_HCA, or 1.
  std::uint32_t processes = 0;
  std::uint32_t slot_bytes = kDefaultSlotBytes;  // a power of two >= kMinSlotBytes
  // Slots reserved for every endpoint, so the pool admits pool_bytes / slot_bytes / minimum_slots endpoints.
  // 0: any number of endpoints, each of which leases slots when it needs them. For teams, whose calls return
  // the idle slots of other peers. Beside other endpoints a push may then wait as long as their kernels
  // compute.
  std::uint32_t minimum_slots = 1;
  // Percentage of the free slots below which an endpoint may grow. With 100, a lone endpoint gets half of the
  // pool, two get a third each. A larger value lets few endpoints use more, and leaves less for new ones
  // meanwhile.
  std::uint32_t threshold_percent = 100;
  // For gdxd: several processes lease slots, and host memory is a file that they can map.
  bool shareable = false;

  // Defaults of a pool in host memory.
  [[nodiscard]] static constexpr StagingOptions in_host_memory() {
    StagingOptions options;
    options.memory = StagingMemory::kHost;
    options.slot_bytes = kDefaultBounceSlotBytes;
    return options;
  }
  // Returns the options without a minimum.
  [[nodiscard]] constexpr StagingOptions leased_by_use() const {
    StagingOptions options = *this;
    options.minimum_slots = 0;
    return options;
  }
};

// Checks the options, against the HCA's device memory if they use it. Returns the size in bytes of a pool on
// an HCA without other users. `processes` 0 counts as 1.
// Errors: kInvalidArgument with the reason, kUnsupported when the HCA has no device memory.
[[nodiscard]] Result<std::uint64_t> resolve_staging_bytes(const StagingOptions& options,
                                                          std::uint64_t device_memory_bytes);

class StagingPool;

// Membership of one endpoint in a pool. Its end frees every slot that the books show with the endpoint. Keeps
// the pool's memory alive. Order of destruction:
//
//   queue pair, then StagingLease, then memory of the channel
class StagingLease {
 public:
  StagingLease() = default;  // makes a lease of no pool
  StagingLease(StagingLease&&) noexcept = default;
  StagingLease& operator=(StagingLease&& other) noexcept;
  StagingLease(const StagingLease&) = delete;
  StagingLease& operator=(const StagingLease&) = delete;
  ~StagingLease();

  // Ends grants to the endpoint and requests its slots back; does nothing without a pool.
  void retire();
  // Returns the newest moves of slots from and to the endpoint; none without a pool. Threads: any.
  [[nodiscard]] FlightRecord flight() const;

  [[nodiscard]] std::byte* base() const;           // begin of the pool, for this process's stores
  [[nodiscard]] std::uint64_t nic_offset() const;  // begin of the pool, under lkey()
  [[nodiscard]] std::uint32_t lkey() const;
  [[nodiscard]] std::uint32_t slot_bytes() const;
  [[nodiscard]] std::uint32_t slot_count() const;  // slots of the pool; 0 without one
  [[nodiscard]] std::uint32_t minimum_slots() const { return minimum_slots_; }

 private:
  friend class StagingPool;
  struct Pool;
  StagingLease(std::shared_ptr<Pool> pool, std::optional<CreditEndpoint> endpoint,
               std::uint32_t minimum_slots);

  std::shared_ptr<Pool> pool_;
  std::optional<CreditEndpoint> endpoint_;  // none: unlimited credits
  std::uint32_t minimum_slots_ = 0;
};

// One pool of slots for all endpoints that a process has on an HCA, and the scheduler that shares them. An
// HCA may have one pool of each memory. On the NIC, a pool is the process's lease of device memory that all
// processes share. Its size is constant. The driver takes it back at any end of the process. Threads: any
// thread may call any method.
class StagingPool {
 public:
  // Makes a pool. Errors: those of resolve_staging_bytes; kInvalidArgument for a bad $GDX_PROCESSES_PER_HCA;
  // kNoMemory when the HCA's device memory is taken, or host memory cannot be pinned; kSystem.
  [[nodiscard]] static Result<StagingPool> create(const Hca& hca, const StagingOptions& options = {});

  // Admits an endpoint that reaches the scheduler through `channel` and may hold `at_most` slots. Errors:
  // those of CreditScheduler::open.
  [[nodiscard]] Result<StagingLease> lease(const CreditChannel& channel, std::uint32_t at_most,
                                           std::uint32_t tenant = 0);
  // Returns a lease that holds the pool's memory alone, for an endpoint that is admitted by other means.
  [[nodiscard]] StagingLease reference(std::uint32_t at_most);

  // Lets kernels of `gpu` store to the pool's memory, for the pool's life. Errors: those of Gpu::map;
  // kUnsupported for memory on the NIC where the driver's parameters or a hypervisor, as files below `root`
  // tell, let a doorbell pass the payload. Threads: one.
  [[nodiscard]] Result<void> map_to(const Gpu& gpu, const std::string& root = "");
  // Does the same for kernels that can do without pushes. Logs an error of map_to() as a warning and returns
  // its text; empty when the memory is mapped. Endpoints for the GPU are then made without the pool. Threads:
  // one.
  [[nodiscard]] std::string map_if_allowed(const Gpu& gpu, const std::string& root = "");

  // Functions from here to daemon_number() serve gdxd, whose clients reach the pool by them.

  [[nodiscard]] std::byte* base() const;
  [[nodiscard]] std::uint64_t nic_offset() const;
  [[nodiscard]] std::uint32_t lkey() const;
  [[nodiscard]] int host_file() const;  // -1 for memory on the NIC
  // Number of the pool at gdxd; 0 for a pool of this process.
  [[nodiscard]] std::uint32_t daemon_number() const;

  [[nodiscard]] StagingMemory memory() const;
  [[nodiscard]] std::uint64_t bytes() const;
  [[nodiscard]] std::uint32_t slot_bytes() const;
  [[nodiscard]] std::uint32_t slot_count() const;
  [[nodiscard]] std::uint32_t minimum_slots() const;
  [[nodiscard]] std::uint32_t leased_slots() const;
  [[nodiscard]] std::uint32_t free_slots() const;
  // Count of returned slots that the returning endpoint did not hold; 0 unless memory was damaged.
  [[nodiscard]] std::uint64_t bad_returns() const;

 private:
  static Result<StagingPool> open_by_daemon(const Hca& hca, const StagingOptions& options);
  explicit StagingPool(std::shared_ptr<StagingLease::Pool> pool) : pool_(std::move(pool)) {}
  std::shared_ptr<StagingLease::Pool> pool_;
};

}  // namespace gdx
