// An endpoint: one RC queue pair whose rings device code drives by itself. Every object is made with
// DevX commands, so that rings, doorbell record and UAR are ours to place and to hand to a kernel.
// Source: ConnectX Programmer's Reference Manual, CREATE_CQ, CREATE_QP, RST2INIT_QP, INIT2RTR_QP,
// RTR2RTS_QP; layouts in proto/mlx5/prm.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "base/result.h"
#include "host/calibration/choose_modes.h"
#include "host/gpu/gpu.h"
#include "host/hca/hca.h"
#include "host/memory/gpu_registration.h"
#include "host/staging/staging_pool.h"
#include "proto/gpu/queue.h"

namespace gdx {

inline constexpr std::uint32_t kMaxSendQueueBlocks = 32768;  // the doorbell record counts 16 bits of WQEBBs
inline constexpr std::uint32_t kMinSendQueueBlocks = 16;
inline constexpr std::uint32_t kMinSharedQueueBlocks = 64;
inline constexpr std::uint64_t kMaxWaitNs = 3'600'000'000'000;  // an hour

struct EndpointOptions {
  std::uint32_t send_queue_blocks = 128;  // WQEBBs of 64 B; a power of two, 16 or (shared) 64 to 32768
  std::uint32_t slot_count =
      0;  // slots of the NIC's memory that it may hold at most; 0: cannot push, as shared
  std::uint32_t bounce_slot_count = 0;       // of host memory, likewise; 0: cannot bounce
  Placement placement = Placement::kHost;    // of the queues; kernels open it as Endpoint<S, placement>
  std::optional<Gpu> gpu = std::nullopt;     // with Placement::kGpu: whose memory
  Sharing sharing = Sharing::kExclusive;     // kernels open it as device::Endpoint or SharedEndpoint
  ModeOptions auto_modes = {};               // what Mode::kAuto goes by; not on a shared endpoint
  std::uint64_t timeout_ns = 5'000'000'000;  // bound of every wait in device code; 1..kMaxWaitNs
  // A wait on a signal asks the peer for life after this; 1..kMaxWaitNs.
  std::uint64_t probe_after_ns = 500'000'000;
  std::uint8_t ack_timeout = 14;    // 4.096 us * 2^ack_timeout before a resend; 1..31
  std::uint8_t retry_count = 5;     // resends before "peer unreachable"; 0..7
  std::uint8_t rnr_retry = 7;       // 0..7; 7: without end
  std::uint8_t min_rnr_timer = 12;  // code of IBA 9.7.5.2.8; 12: 0.64 ms; 0..31
  std::uint8_t hop_limit = 64;      // 1..255
  std::uint8_t traffic_class = 0;
  // For research only: pushes into any slot of the pool, whoever holds it, to show what credits prevent. It
  // damages the payload of every endpoint of the pool.
  bool unsafe_push_without_credits = false;
  bool adaptive_routing = false;  // the network may reorder packets: signals are fenced behind puts
};

// Errors: kInvalidArgument naming the option, its value and what it may be.
[[nodiscard]] Result<void> check_endpoint_options(const EndpointOptions& options);

// The pools that an endpoint stages in; either may be missing.
struct StagingPools {
  StagingPools(StagingPool* nic_memory = nullptr, StagingPool* host_memory = nullptr)
      : nic(nic_memory), host(host_memory) {}

  StagingPool* nic;   // for pushes
  StagingPool* host;  // for bounces
};

inline constexpr std::uint32_t kEndpointAddressVersion = 1;

// What a peer needs to connect; exchanged at bootstrap, hence checked by connect().
struct EndpointAddress {
  std::uint32_t version;
  std::uint32_t qpn;  // 24 bits
  std::uint32_t psn;  // 24 bits: the first that this side will send
  std::uint32_t mtu_bytes;
  std::uint8_t gid[16];
};
static_assert(sizeof(EndpointAddress) == 32 && std::is_trivially_copyable_v<EndpointAddress>);

// Errors: kVersionMismatch, kInvalidArgument naming the field that no endpoint can have.
[[nodiscard]] Result<void> check_endpoint_address(const EndpointAddress& address);

// Threads: one at a time, but abort(), which any thread may call while a kernel runs. fault() and
// state() show what kernels have written back: read them when no kernel runs on the endpoint.
class Endpoint {
 public:
  // A pool may be missing where the options want no slots of it. Its minimum is reserved for the endpoint's
  // life; the slots it has beyond that come and go. Queues in GPU memory are shown to the HCA by the way that
  // $GDX_GPU_REGISTRATION and host/memory/gpu_registration.h choose, which is logged once. Errors: as
  // check_endpoint_options, StagingPool::lease, choose_modes and register_gpu_umem; kNoMemory; kSystem with
  // the command's name, status and syndrome.
  [[nodiscard]] static Result<Endpoint> create(const Hca& hca, StagingPools pools,
                                               const EndpointOptions& options = {});

  Endpoint(Endpoint&&) noexcept;
  Endpoint& operator=(Endpoint&&) noexcept;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  ~Endpoint();

  [[nodiscard]] EndpointAddress address() const;

  // Takes the queue pair from RESET to RTS towards `peer`. The path MTU is the smaller of both ends'.
  // Errors: as check_endpoint_address; kBusy when already connected; kSystem when the HCA refuses a
  // transition or cannot resolve the peer's MAC address.
  [[nodiscard]] Result<void> connect(const EndpointAddress& peer);

  // Lets kernels of `gpu` reach the doorbell register and what of the endpoint is in host memory; kernels of
  // the CPU layer need no call. The pool's memory is the pool's to map. Errors: as Gpu::map; kInvalidArgument
  // when the queues are in another GPU's memory.
  [[nodiscard]] Result<void> map_to(const Gpu& gpu);

  // Everything a kernel needs, by value. The pointers live as long as the Endpoint.
  [[nodiscard]] EndpointHandle handle() const;

  // The first fault that a kernel recorded when it closed the endpoint; status kOk while healthy. kSystem
  // where it is in GPU memory that cannot be read any more, as after a fault of a kernel: then the driver's
  // error is logged.
  [[nodiscard]] EndpointFault fault() const;
  // "peer unreachable (transport retries exceeded), syndrome 0x15 (...), WQE 12"; "ok" while healthy.
  [[nodiscard]] static std::string describe(const EndpointFault& fault);
  // As it is now, by a copy where it is in GPU memory; of one that cannot be read only the fault is set.
  [[nodiscard]] QueueState state() const;
  // How queues in GPU memory are registered; kHostPages where they are in host memory.
  [[nodiscard]] RegistrationWay queues_registered_by() const;

  // From now on every wait of a kernel on this endpoint returns kAborted, and its credits go back: what the
  // kernel holds when it ends, what the NIC holds when the endpoint goes.
  void abort();

 private:
  struct Impl;
  explicit Endpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gdx
