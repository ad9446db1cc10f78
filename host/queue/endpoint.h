// An endpoint: one RC queue pair whose rings device code drives by itself. DevX commands make every object,
// so that the caller chooses the places of rings, doorbell record and UAR.
// Source: ConnectX Programmer's Reference Manual, CREATE_CQ, CREATE_QP, RST2INIT_QP, INIT2RTR_QP, RTR2RTS_QP;
// layouts in proto/mlx5/prm.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/result.h"
#include "host/calibration/choose_modes.h"
#include "host/gpu/gpu.h"
#include "host/hca/hca.h"
#include "host/memory/gpu_registration.h"
#include "host/queue/endpoint_address.h"
#include "host/staging/staging_pool.h"
#include "proto/doorbell_kind.h"
#include "proto/gpu/queue.h"

namespace gdx {

inline constexpr std::uint32_t kMaxSendQueueBlocks = 32768;  // the doorbell record counts 16 bits of WQEBBs
inline constexpr std::uint32_t kMinSendQueueBlocks = 16;
inline constexpr std::uint32_t kMinSharedQueueBlocks = 64;
inline constexpr std::uint64_t kMaxWaitNs = 3'600'000'000'000;  // an hour

inline constexpr char kCallTimeoutVariable[] = "GDX_CALL_TIMEOUT_S";
inline constexpr char kAckTimeoutVariable[] = "GDX_ACK_TIMEOUT";
inline constexpr char kRetryCountVariable[] = "GDX_RETRY_COUNT";
inline constexpr char kTrafficClassVariable[] = "GDX_TRAFFIC_CLASS";
inline constexpr char kServiceLevelVariable[] = "GDX_SERVICE_LEVEL";
inline constexpr char kPkeyVariable[] = "GDX_PKEY";
inline constexpr char kAdaptiveRoutingVariable[] = "GDX_ADAPTIVE_ROUTING";
inline constexpr char kDoorbellVariable[] = "GDX_DOORBELL";  // plain or blueflame

struct EndpointOptions {
  std::uint32_t send_queue_blocks = 128;  // WQEBBs of 64 B; a power of two, 16 or (shared) 64 to 32768
  std::uint32_t slot_count = 0;           // most slots of NIC memory that it may hold; 0: cannot push
  std::uint32_t bounce_slot_count = 0;    // most slots of host memory; 0: cannot bounce
  // Of the queues. kGpu: in gpu's memory, or an error; kHost: in host memory. None: in gpu's memory where a
  // GPU is named and the HCA can be shown it, else in host memory. A kernel of placement kHost opens either.
  // One of kGpu is for queues in GPU memory, and fences what it stores to GPU memory only.
  std::optional<Placement> placement = std::nullopt;
  std::optional<Gpu> gpu = std::nullopt;  // GPU whose kernels use the endpoint; none with kHost
  Sharing sharing = Sharing::kExclusive;  // kernels open it as device::Endpoint or SharedEndpoint
  ModeOptions auto_modes = {};            // thresholds of Mode::kAuto
  // Options below are nullopt by default. Then the variable's value holds, or the default: first hardware's,
  // then the software HCA's.
  // Bound of every wait in device code; 1..kMaxWaitNs. $GDX_CALL_TIMEOUT_S; 40 s, or 5 s.
  std::optional<std::uint64_t> timeout_ns = std::nullopt;
  // Period after which a wait on a signal probes the peer; 1..kMaxWaitNs.
  std::uint64_t probe_after_ns = 500'000'000;
  // 4.096 us * 2^ack_timeout before a resend; 1..31. $GDX_ACK_TIMEOUT; 18 (1.07 s), or 14 (67 ms).
  std::optional<std::uint8_t> ack_timeout = std::nullopt;
  // Resends before "peer unreachable"; 0..7. $GDX_RETRY_COUNT; 7, or 5.
  std::optional<std::uint8_t> retry_count = std::nullopt;
  std::uint8_t rnr_retry = 7;                                // 0..7; 7: without end
  std::uint8_t min_rnr_timer = 12;                           // code of IBA 9.7.5.2.8; 12: 0.64 ms; 0..31
  std::uint8_t hop_limit = 64;                               // 1..255
  std::optional<std::uint8_t> traffic_class = std::nullopt;  // DSCP and ECN. $GDX_TRAFFIC_CLASS; 0
  // Of InfiniBand, 0..15; VLAN priority of Ethernet, 0..7. $GDX_SERVICE_LEVEL; 0
  std::optional<std::uint8_t> service_level = std::nullopt;
  // P_Key of the partition, with or without bit 15, because membership is the subnet manager's choice:
  // 0x8001. Not its index in the port's table, which differs from host to host. $GDX_PKEY; the first full
  // member.
  std::optional<std::uint16_t> pkey = std::nullopt;
  // Kind of doorbell. BlueFlame copies each WQE of one block into its doorbell, so the NIC need not fetch it.
  // On hardware it needs a probe that has passed: check_blueflame_probe. Threads and shared endpoints ring
  // plainly, and so do those for which the HCA has no BlueFlame register left. $GDX_DOORBELL; kPlain.
  std::optional<DoorbellKind> doorbell = std::nullopt;
  // Permits BlueFlame on hardware without a probe, for the probe itself. What the NIC makes of a copy that
  // arrives in parts is not documented.
  bool may_ring_unprobed_blueflame = false;
  // Rings in the register page that all queues of an HCA's context share (type NC), for probes. A plain
  // doorbell is otherwise of a page of its own.
  bool shares_doorbell_page = false;
  // Permits a timeout_ns shorter than a probe and a dead peer's retries. create() otherwise refuses it,
  // because kTimeout would come long before the endpoint's fault.
  bool may_time_out_before_retries = false;
  // For research only: pushes into any slot of the pool, whatever its holder, to show the damage that credits
  // prevent. It damages the payload of every endpoint of the pool.
  bool unsafe_push_without_credits = false;
  // Lets the peer's data land in any order where the HCA can, so that an adaptively routing network may
  // spread it over several paths. The peer's signals then wait until its earlier puts are acknowledged, a
  // round trip. Without it the HCA is asked to keep the order. $GDX_ADAPTIVE_ROUTING, 0 or 1; false.
  std::optional<bool> adaptive_routing = std::nullopt;
};

// Validates the options. Errors: kInvalidArgument naming the option, its value and its range.
[[nodiscard]] Result<void> check_endpoint_options(const EndpointOptions& options);

// Returns the options with every value set, but pkey where neither names one. Reads the environment. Errors:
// those of check_endpoint_options; kInvalidArgument naming a variable and its range, timeout_ns and the time
// that retries take, or a service level that a port of `link_layer` lacks.
[[nodiscard]] Result<EndpointOptions> resolve_endpoint_options(const EndpointOptions& given,
                                                               bool hca_is_software, LinkLayer link_layer);

// Returns the longest time that a dead peer's retries take: retry_count + 1 tries of 4 ACK timeouts each,
// because hardware may wait for 1 to 4. Those of the software HCA wait 1, 2 and then 4, a second at most
// unless the timeout itself is longer. Source: IBA 9.7.6.1.3.
[[nodiscard]] std::uint64_t retry_time_ns(std::uint8_t ack_timeout, std::uint8_t retry_count,
                                          bool hca_is_software);

// Pools in which an endpoint stages; either may be missing.
struct StagingPools {
  StagingPools(StagingPool* nic_memory = nullptr, StagingPool* host_memory = nullptr)
      : nic(nic_memory), host(host_memory) {}

  StagingPool* nic;   // pool for pushes
  StagingPool* host;  // pool for bounces
};

// Threads: one at a time, except abort(), which any thread may call while a kernel runs. Call fault() and
// state() only while no kernel runs on the endpoint, because kernels write them back at their end.
class Endpoint {
 public:
  // Creates an endpoint. A pool may be missing if the options take no slots of it. The pool reserves its
  // minimum for the endpoint's life; slots beyond that are temporary. $GDX_GPU_REGISTRATION and
  // host/memory/gpu_registration.h choose the registration of queues in GPU memory, which is logged once.
  // Errors: those of resolve_endpoint_options, StagingPool::lease, choose_modes, register_gpu_umem and
  // Hca::on_loss; on hardware with BlueFlame those of check_blueflame_probe; kNotFound for a P_Key that the
  // port lacks; kNoMemory; kSystem with the command's name, status and syndrome.
  [[nodiscard]] static Result<Endpoint> create(const Hca& hca, StagingPools pools,
                                               const EndpointOptions& options = {});

  Endpoint(Endpoint&&) noexcept;
  Endpoint& operator=(Endpoint&&) noexcept;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  ~Endpoint();

  // Returns the address by which a peer connects to this endpoint.
  [[nodiscard]] EndpointAddress address() const;

  // Takes the queue pair from RESET to RTS towards `peer`. The path MTU is the smaller of both ends'. Kernels
  // open the endpoint only from then on.
  // Kernels' signals are fenced unless the peer's address says that order is kept there.
  // Errors: those of check_endpoint_address; kInvalidArgument for a peer of another link layer or partition,
  // or of another host where either end has a loopback address;
  // kUnsupported for another InfiniBand subnet without FLIDs, or when the HCA does not keep the order that
  // this endpoint's address has promised; kBusy when already connected; kSystem when the HCA refuses a
  // transition, or a query, or cannot resolve the peer's MAC address.
  [[nodiscard]] Result<void> connect(const EndpointAddress& peer);

  // Lets kernels open the endpoint again after one that ended without closing it, as a kernel does that
  // traps. Until then they are refused with kBusy. Call it when no kernel runs on the endpoint; what the lost
  // kernel had posted is not counted. Errors: kNotConnected; kSystem for an endpoint whose words in GPU
  // memory are lost.
  [[nodiscard]] Result<void> reopen();

  // Lets kernels of `gpu` reach the doorbell register and the endpoint's host memory. In programs with CUDA
  // kernels it also moves the counters that they change to the memory of `gpu`. Kernels of the CPU layer need
  // no call. Call it before handle() and kernels. Where the driver refuses the register, a thread of this
  // process rings instead, with a warning. StagingPool::map_to maps the pool's memory. Errors: those of
  // Gpu::map for host memory; kNoMemory; kInvalidArgument when the endpoint is mapped to another GPU, or its
  // queues are in another's memory.
  [[nodiscard]] Result<void> map_to(const Gpu& gpu);
  // Returns whether a thread of this process rings for kernels.
  [[nodiscard]] bool host_rings() const;

  // Returns everything a kernel needs, by value. Its pointers live as long as the Endpoint.
  [[nodiscard]] EndpointHandle handle() const;

  // Returns the first fault that a kernel recorded when it closed the endpoint; status kOk while healthy.
  // kHcaFailed if the HCA is in a fatal error, and kQueueError if it has told a fatal event of the queue
  // pair. Kernels' waits have then ended at once, with kAborted. kSystem if a kernel's fault has made the GPU
  // memory unreadable; the log has the driver's error.
  [[nodiscard]] EndpointFault fault() const;
  // Returns "peer unreachable (transport retries exceeded), syndrome 0x15 (...), WQE 12"; "ok" while healthy.
  [[nodiscard]] static std::string describe(const EndpointFault& fault);
  // Describes fault(), and the failed work request if the send queue still has it:
  // "remote access error, syndrome ..., WQE 12: RDMA WRITE of 64 B at 0x7f5c0000 (rkey 0x1810) of QP 0x45 at
  // 10.0.0.2, local 0x7f3a0000 (lkey 0x1a00)". After an event of the HCA:
  // "HCA failed: local catastrophic error of HCA mlx5_0; open it again once it is back".
  [[nodiscard]] std::string describe_fault() const;
  // Returns the newest events of the queue pair and its credits as text, one a line. Events are doorbells,
  // WQEs, resends, completions and slots. On hardware only those in the rings are left. Errors: kUnsupported
  // (queues in GPU memory, gdxd without recorder), kInvalidArgument (a recorder of another release),
  // kNoMemory (gdxd lacks room), kSystem, kDaemonGone.
  [[nodiscard]] Result<std::string> newest_events() const;
  // Returns the current state, copied from GPU memory if it is there. If that fails only the fault is set.
  [[nodiscard]] QueueState state() const;
  // Returns QUERY_QP's output, byte for byte: the HCA's present state of the queue pair. Layout:
  // proto/mlx5/prm.h. Errors: kSystem with status and syndrome.
  [[nodiscard]] Result<std::vector<std::uint8_t>> query_queue_pair() const;
  // Returns the way by which queues in GPU memory are registered; kHostPages where they are in host memory.
  [[nodiscard]] RegistrationWay queues_registered_by() const;

  // Waits until all that kernels had posted on a shared endpoint before the call is complete: sources are
  // reusable, results have landed, and the peer's NIC has acknowledged the rest. `deadline_ns`: of
  // monotonic_ns(). Threads: any, beside kernels. Errors: kTimeout; the status of the first work request that
  // failed, described; kUnsupported for an exclusive endpoint, whose counters kernels keep in registers;
  // those of GpuMemory::read.
  [[nodiscard]] Result<void> flush(std::uint64_t deadline_ns) const;

  // Makes every wait of a kernel on this endpoint return kAborted from now on. Its credits go back: the
  // kernel's when the kernel ends, the NIC's when the endpoint ends.
  void abort();

 private:
  struct Impl;
  [[nodiscard]] static Result<Endpoint> create_placed(const Hca& hca, StagingPools pools,
                                                      const EndpointOptions& given);
  explicit Endpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gdx
