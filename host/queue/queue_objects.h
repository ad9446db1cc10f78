// The HCA's objects of one endpoint: queue pair, completion queue, doorbell register, keys, and the leases of
// staging slots. They work on queue memory that their user has laid out, which is this process or, in gdxd, a
// client.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/flight_recorder.h"
#include "base/result.h"
#include "host/queue/endpoint.h"
#include "host/queue/endpoint_address.h"
#include "host/queue/queue_memory.h"

namespace gdx {

// Returns kKept where an HCA is certain to keep the order of packets. Only force makes it certain, because
// firmware may choose by itself: on Ethernet where it can place data in any order, on InfiniBand by the
// service level.
[[nodiscard]] DataOrder data_order_of(const Routing& routing, LinkLayer link_layer, bool adaptive_routing);

// Returns "QP 0x12 at 127.0.0.5".
[[nodiscard]] std::string peer_text(const EndpointAddress& peer);

// Place of a doorbell register in the file behind the HCA's context, for another process to map.
struct DoorbellPlace {
  std::uint64_t map_offset = 0;
  std::uint32_t register_offset = 0;  // place of the register from there
};

struct QueueFacts {
  std::uint32_t qpn = 0;
  std::uint32_t psn = 0;  // first that the queue pair sends
  std::uint32_t scratch_lkey = 0;
  std::uint16_t pkey = 0;             // as the port's table has it
  std::uint64_t* doorbell = nullptr;  // the register, as this process maps it
  std::byte* doorbell_page = nullptr;
  DoorbellPlace doorbell_place;
  std::uint32_t blueflame_half_bytes = 0;                       // as in EndpointHandle
  DataOrder data_order = DataOrder::kAny;                       // as in EndpointAddress
  RegistrationWay registered_by = RegistrationWay::kHostPages;  // way by which the queue memory is registered
};

// Threads: one at a time, except retire().
class QueueObjects {
 public:
  virtual ~QueueObjects() = default;
  QueueObjects() = default;
  QueueObjects(const QueueObjects&) = delete;
  QueueObjects& operator=(const QueueObjects&) = delete;

  [[nodiscard]] const QueueFacts& facts() const { return facts_; }
  // Takes the queue pair from RESET to RTS. Requires a checked address. Errors: those of infiniband_path;
  // kSystem when the HCA refuses a transition or cannot resolve the peer's MAC address; kDaemonGone.
  [[nodiscard]] virtual Result<void> connect(const EndpointAddress& peer) = 0;
  // Ends grants of slots and asks back those held. Threads: any.
  virtual void retire() = 0;
  // Returns QUERY_QP's output. Errors: kSystem; kDaemonGone.
  [[nodiscard]] virtual Result<std::vector<std::uint8_t>> query() const = 0;
  // Returns the newest events of queue pair and credits, as host/queue/flight.h has them. Errors: those of
  // read_rings; kDaemonGone. Threads: any.
  [[nodiscard]] virtual Result<FlightRecord> flight() const = 0;

 protected:
  QueueFacts facts_;
};

// Slots of the pools in which an endpoint stages; 0: none.
struct PoolSlots {
  std::uint32_t nic = 0;
  std::uint32_t host = 0;
};
// Checks that the pools which the options name are there and lie where they should. Errors: kInvalidArgument.
[[nodiscard]] Result<PoolSlots> check_pools(const StagingPools& pools, const EndpointOptions& options);

// Makes them in this process. `options` are resolved, `memory` outlives the result. Work requests name the
// memory's first byte by `address`; 0: by its address here. `tenant`: the program, where several share a
// pool. Errors: those of StagingPool::lease and
// register_gpu_umem; kNotFound for a P_Key that the port lacks; kNoMemory; kSystem with the command's name,
// status and syndrome.
[[nodiscard]] Result<std::unique_ptr<QueueObjects>> make_queue_objects(const Hca& hca, StagingPools pools,
                                                                       const EndpointOptions& options,
                                                                       const QueueMemory& memory,
                                                                       std::uint64_t address = 0,
                                                                       std::uint32_t tenant = 0);

// Makes them through gdxd, for an Hca that was opened there; `memory` has a file. Errors: as above;
// kDaemonGone.
[[nodiscard]] Result<std::unique_ptr<QueueObjects>> request_queue_objects(const Hca& hca, StagingPools pools,
                                                                          const EndpointOptions& options,
                                                                          const QueueMemory& memory);

}  // namespace gdx
