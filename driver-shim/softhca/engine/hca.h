// The software HCA's interface for its two control planes: uverbs/ (verbs objects) and devx/ (PRM commands).
// Their objects share one number space, as on a ConnectX. No kernel ABI reaches below: pointers are plain
// addresses of this process, errors are positive errno values.
// Threads: every method locks the HCA; progress() and idle_ns() do not wait for another thread that holds it.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/flight_recorder.h"
#include "base/result.h"
#include "driver-shim/softhca/engine/management.h"
#include "driver-shim/softhca/engine/peer_windows.h"
#include "driver-shim/softhca/transport/rc.h"
#include "driver-shim/softhca/wire/wire.h"
#include "proto/byte_order.h"
#include "proto/doorbell_kind.h"
#include "proto/mlx5/umr.h"
#include "proto/roce/headers.h"

namespace gdx::softhca {

// Result of a command: a value, or the errno that the Linux kernel would return.
template <typename T>
using ErrnoOr = tl::expected<T, int>;
inline tl::unexpected<int> refuse(int error_number) { return tl::unexpected<int>(error_number); }
using Errno = int;  // 0: done

enum class CongestionControl : std::uint8_t {
  kNone,   // marks are counted, and CNPs dropped
  kDcqcn,  // CNPs answer marked packets, and senders slow down on CNPs
};

// Order in which data of RC queue pairs lands.
enum class OrderRule : std::uint8_t {
  kChosen,  // that which the queue pair forces, or else the order of its packets
  kKept,    // that of the packets: the HCA has no other
  kAny,     // any, as firmware chooses where the network routes adaptively: no queue pair can force one, nor
            // does QUERY_QP tell
};

struct HcaConfig {
  std::string name = "gdx0";
  wire::UdpConfig udp = {};
  wire::Carrier carrier = wire::Carrier::kUdp;
  std::uint32_t mtu_bytes = 4096;  // 0: the largest that the interface carries
  std::size_t device_memory_bytes = 128 * 1024;
  // Most bytes of a queue pair's turn to send: those of one GSO send. On a slow link fewer; see turn_bytes().
  std::uint32_t quantum_bytes = 64 * 1024;
  CongestionControl congestion_control = CongestionControl::kDcqcn;
  // ACKs advertise posted receives, on queue pairs that do not share them. Off: no credits, as Soft-RoCE.
  bool receive_credits = true;
  // Bounds this HCA's packets in a peer's UDP receive socket by the peer's grants, and peers' packets in this
  // one's. Other HCAs give no grants and are not bound. Off: for research.
  bool receive_window = true;
  double rate_gbps = 0;  // rate of the link outwards, in 10^9 bits a second; 0: no limit
  // The port reports InfiniBand, so that paths lead by LID. Packets are RoCE v2 on either link layer.
  bool infiniband = false;
  bool grh_required = false;  // on InfiniBand: drops packets without a GRH, as a virtual function does
  // The port's P_Key table. Entries of 0 are not in use. On Ethernet it has the default key only.
  std::vector<std::uint16_t> pkeys = {roce::kDefaultPkey};
  OrderRule data_order = OrderRule::kChosen;
  bool strict = false;  // refuses requests that some ConnectX refuses; set in all tests
  // kUnread: a doorbell's WQEs are fetched though the record comes later, and no read of it is counted.
  RecordUse record = RecordUse::kRead;
  // Probability that a BlueFlame copy comes late, comes torn, or does not come; by the wire's seed.
  double spoiled_copies = 0;
};

enum Access : std::uint32_t {  // bit values of enum ib_uverbs_access_flags
  kLocalWrite = 1,
  kRemoteWrite = 2,
  kRemoteRead = 4,
  kRemoteAtomic = 8,
  kWindowBind = 1 << 4,
  kZeroBased = 1 << 5,
  kOnDemand = 1 << 6,          // pages need not be mapped before use, and base may be address 0
  kRelaxedOrdering = 1 << 20,  // PCIe may let writes to it pass those before them
};

// A part of another key's range. It ends where the next one begins.
struct IndirectPiece {
  std::uint32_t mkey = 0;
  std::uint64_t address = 0;
  std::uint64_t start_bytes = 0;   // start in the indirect key's range, or in the block that repeats
  std::uint64_t stride_bytes = 0;  // distance between its places in consecutive blocks
};

// State of a key that UMR WQEs change: a memory window, or a key that a program lays out.
struct UmrKey {
  bool window = false;  // a window; the keys below must permit binding
  bool peer_may_invalidate = false;
  std::uint32_t max_entries = 0;  // entries of its translation, at most
  bool free = true;
  std::uint32_t qpn = mlx5::kMkeyAnyQpn;  // the only queue pair that may use it
};

struct MemoryRegionSpec {
  std::uint32_t pd = 0;
  std::byte* base = nullptr;  // address of byte 0 in this process
  std::uint64_t iova = 0;     // address of byte 0 for the NIC (0 for zero-based keys)
  std::uint64_t length_bytes = 0;
  std::uint32_t access = 0;
  bool device_memory = false;  // base lies in this HCA's device memory
  // Pieces of an indirect key, whose base is null; empty for other keys. In the order of their starts, the
  // first at 0.
  std::vector<IndirectPiece> pieces = {};
  std::uint64_t block_bytes = 0;  // not 0: the pieces form a block of this length, which repeats
  std::optional<std::uint8_t> key_tag = std::nullopt;  // the key's low byte, if the client chose it
  std::optional<UmrKey> umr = std::nullopt;            // UMR WQEs set base and pieces, and change key_tag too
};

// A UAR page that user space maps; the engine polls its doorbell registers.
struct UarSpec {
  std::byte* page = nullptr;
};

struct CompletionQueueSpec {
  std::byte* ring = nullptr;
  Be32* doorbell_record = nullptr;  // [2]
  std::uint32_t log_entries = 0;
  std::uint32_t entry_bytes = 64;  // 64 or 128
  bool collapsed = false;          // every CQE goes to slot 0
  bool ignore_overrun = false;
  std::optional<std::uint32_t> uar = std::nullopt;  // UAR whose registers arm it, if the client names one
  // Called when an armed CQ got its completion, with the HCA locked; must not call back.
  std::function<void()> on_event;
  std::function<void()> on_overrun;  // called when the queue enters the error state; rules as for on_event
};

enum class QpType { kRc, kUc, kUd };
enum class QpState : std::uint8_t { kReset = 0, kInit, kRtr, kRts, kSqd, kSqe, kError };  // enum ib_qp_state

struct QueuePairSpec {
  QpType type = QpType::kRc;
  std::uint32_t pd = 0;
  std::uint32_t uar = 0;  // UAR number: a doorbell on it makes the engine read the record
  std::uint32_t send_cqn = 0;
  std::uint32_t receive_cqn = 0;
  std::uint32_t srqn = 0;        // 0: own receive queue
  std::uint32_t user_index = 0;  // reported in CQEs (cqe_version 1)
  std::byte* send_ring = nullptr;
  std::uint32_t send_blocks = 0;  // WQEBBs, a power of two, or 0
  std::byte* receive_ring = nullptr;
  std::uint32_t receive_entries = 0;
  std::uint32_t receive_stride_bytes = 0;
  Be32* doorbell_record = nullptr;               // [2]
  std::function<void(int event_type)> on_event;  // enum ib_event_type; rules as for a CQ
};

struct SharedReceiveQueueSpec {
  std::uint32_t pd = 0;
  std::byte* ring = nullptr;
  std::uint32_t entries = 0;
  std::uint32_t stride_bytes = 0;
  Be32* doorbell_record = nullptr;
  std::uint32_t user_index = 0;
  bool cyclic = false;  // taken in ring order, not along the chain of next segments (DevX only)
  // IB_EVENT_SRQ_LIMIT_REACHED, once for each limit set; rules as for a CQ.
  std::function<void(int event_type)> on_event;
};

// Events of enum ib_event_type that this HCA raises.
inline constexpr int kEventCqError = 0;
inline constexpr int kEventQpFatal = 1;
inline constexpr int kEventQpRequestError = 2;
inline constexpr int kEventQpAccessError = 3;
inline constexpr int kEventCommunicationEstablished = 4;
inline constexpr int kEventSrqLimitReached = 15;
inline constexpr int kEventQpLastWqeReached = 16;

// Bits of enum ib_qp_attr_mask that queue pairs here support.
enum QpAttributeMask : std::uint32_t {
  kQpState = 1 << 0,
  kQpAccessFlags = 1 << 3,
  kQpPkeyIndex = 1 << 4,
  kQpPort = 1 << 5,
  kQpQkey = 1 << 6,
  kQpAddress = 1 << 7,
  kQpPathMtu = 1 << 8,
  kQpTimeout = 1 << 9,
  kQpRetryCount = 1 << 10,
  kQpRnrRetry = 1 << 11,
  kQpReceivePsn = 1 << 12,
  kQpMaxRdAtomic = 1 << 13,
  kQpMinRnrTimer = 1 << 15,
  kQpSendPsn = 1 << 16,
  kQpMaxDestRdAtomic = 1 << 17,
  kQpDestinationQpn = 1 << 20,
  kQpDataOrder = 1 << 29,  // only in the PRM, as the next two
  kQpCounterSet = 1 << 30,
  kQpMaxMessage = 1u << 31,
};

// The only set of counters that there is; 0: none counts the queue pair.
inline constexpr std::uint8_t kPortCounterSet = 1;

struct QpAttributes {
  QpState state = QpState::kReset;
  std::uint32_t access = 0;
  std::uint8_t port = 1;
  std::uint16_t pkey_index = 0;
  std::uint32_t qkey = 0;
  wire::Address remote = {};  // from the GRH, or from the LID on InfiniBand and without one
  bool global = true;         // packets have a GRH
  std::uint32_t mtu_bytes = 1024;
  std::uint32_t max_message_bytes = 1u << 30;
  std::uint8_t timeout = 14;
  std::uint8_t retry_count = 7;
  std::uint8_t rnr_retry = 7;
  std::uint8_t min_rnr_timer = 12;
  std::uint8_t max_rd_atomic = 1;
  std::uint8_t max_dest_rd_atomic = 1;
  std::uint32_t receive_psn = 0;
  std::uint32_t send_psn = 0;
  std::uint32_t remote_qpn = 0;
  bool any_order = false;                      // the data that it receives may land in any order
  bool forces_order = false;                   // that order is forced
  std::uint8_t counter_set = kPortCounterSet;  // a kernel gives it to queue pairs of verbs
};

// PCIe transactions that a ConnectX would need for this HCA's work, as far as its manuals and drivers
// document them. Device memory is its own, so a gather from there takes none. Completion and doorbell writes
// are `cqes` and `doorbells`. Not counted, because undocumented: prefetching of WQEs, reads of receive and
// completion queues' records, address translation.
struct PcieCounters {
  // Of send queues: one for a doorbell that did not bring the next WQE. None where records are unread.
  std::uint64_t record_reads = 0;
  std::uint64_t wqe_reads = 0;          // send WQEs fetched from a ring
  std::uint64_t receive_wqe_reads = 0;  // receive WQEs
  std::uint64_t payload_reads = 0;      // one for each extent of host memory of each packet, resent ones too
  std::uint64_t payload_writes = 0;     // one for each extent of host memory of each packet
  std::uint64_t blueflame_wqes = 0;     // WQEs that came with their doorbell: no read of record or ring
  std::uint64_t blueflame_torn = 0;     // copies in a doorbell that were not the next WQE, or not all of it
};

struct HcaCounters {
  transport::TransportCounters transport;  // summed over all queue pairs, closed ones too
  wire::WireCounters wire;
  PcieCounters pcie;
  WindowCounters window;
  std::uint64_t doorbells = 0;
  std::uint64_t bad_doorbells = 0;  // doorbells whose value named no queue or CQ, so that nothing was served
  std::uint64_t wqes = 0;
  std::uint64_t cqes = 0;
  std::uint64_t staging_sends = 0;         // WQEs that gathered from device memory
  std::uint64_t staging_violations = 0;    // device memory reused or changed while a WQE still held it
  std::uint64_t marked_packets = 0;        // arrivals with a congestion mark (ECN)
  std::uint64_t notifications_sent = 0;    // CNPs
  std::uint64_t notifications_heeded = 0;  // CNPs that set a queue pair's rate
  std::uint64_t dropped_packets = 0;  // undecodable, for no queue pair in RTR or RTS, or not from its peer
};

class CopyEngine;

// kCheck reads in no page: it only validates key and range.
enum class Prefetch { kCheck, kForReading, kForWriting };

inline constexpr std::uint64_t kHeldElsewhere = ~std::uint64_t{0};

class Hca {
 public:
  virtual ~Hca() = default;

  [[nodiscard]] virtual const HcaConfig& config() const = 0;
  [[nodiscard]] virtual const wire::Address& address() const = 0;

  virtual ErrnoOr<std::uint32_t> alloc_pd() = 0;
  virtual Errno dealloc_pd(std::uint32_t pd) = 0;

  // Returns the mkey; lkey and rkey are one number. It can be taken back at any time. A WQE that still needs
  // it then fails with a protection error, as on hardware.
  virtual ErrnoOr<std::uint32_t> register_memory(const MemoryRegionSpec& spec) = 0;
  // Takes any tag of a UMR key.
  virtual Errno deregister_memory(std::uint32_t mkey) = 0;
  // Gives a key another range, domain or set of rights; not for keys of device memory or UMR. EINVAL changes
  // nothing.
  virtual Errno replace_memory(std::uint32_t mkey, const MemoryRegionSpec& spec) = 0;
  // Reads in pages of a key that is paged on demand, in the caller's time. Errors: ENOENT for no such key.
  // EINVAL for a UMR key or one that lies on others. EPERM for a key of another domain or without the right.
  // EFAULT for a range outside the key or not all mapped.
  virtual Errno prefetch(std::uint32_t pd, std::uint32_t mkey, std::uint64_t address,
                         std::uint64_t length_bytes, Prefetch what) = 0;

  // Assigns [first, first + length) to `copies`, because this process cannot load or store it. Call it before
  // anything in the range is registered or made a queue. Remove the range after the last such object. Receive
  // queues are refused there (EOPNOTSUPP).
  virtual void add_foreign(const std::byte* /*first*/, std::size_t /*length_bytes*/,
                           std::shared_ptr<CopyEngine> /*copies*/) {}
  virtual void remove_foreign(const std::byte* /*first*/, std::size_t /*length_bytes*/) {}

  virtual ErrnoOr<std::uint32_t> add_uar(const UarSpec& spec) = 0;
  virtual Errno remove_uar(std::uint32_t uar) = 0;

  virtual ErrnoOr<std::uint32_t> create_cq(const CompletionQueueSpec& spec) = 0;
  virtual Errno resize_cq(std::uint32_t cqn, std::byte* ring, std::uint32_t log_entries) = 0;
  virtual Errno destroy_cq(std::uint32_t cqn) = 0;

  virtual ErrnoOr<std::uint32_t> create_srq(const SharedReceiveQueueSpec& spec) = 0;
  // Requests one event for fewer than `limit` posted receives, at once if that holds; 0: none. EINVAL for a
  // limit beyond the queue's size.
  virtual Errno set_srq_limit(std::uint32_t srqn, std::uint32_t limit) = 0;
  // Returns the limit that still waits for its event, 0 for none.
  virtual ErrnoOr<std::uint32_t> srq_limit(std::uint32_t srqn) = 0;
  virtual Errno destroy_srq(std::uint32_t srqn) = 0;

  virtual ErrnoOr<std::uint32_t> create_qp(const QueuePairSpec& spec) = 0;
  // Returns EINVAL for a transition that the queue pair state machine forbids or that lacks an attribute.
  virtual Errno modify_qp(std::uint32_t qpn, std::uint32_t mask, const QpAttributes& attributes) = 0;
  virtual ErrnoOr<QpAttributes> query_qp(std::uint32_t qpn) = 0;
  // Returns the newest events of the queue pair's sending.
  virtual ErrnoOr<FlightRecord> read_flight(std::uint32_t /*qpn*/) { return refuse(EINVAL); }
  virtual Errno destroy_qp(std::uint32_t qpn) = 0;

  // Sets the receiver of QP 1's datagrams; null: none. The agent must stay until it is replaced and no step
  // runs.
  virtual void set_management_agent(ManagementAgent* /*agent*/) {}
  // Sends one datagram from QP 1 to QP 1 at `destination`, at once. The wire may lose it.
  virtual void send_management(const wire::Address& /*destination*/,
                               std::span<const std::byte> /*datagram*/) {}

  // Runs one step: doorbells, arrivals, timers, transmission. Returns the number of things done.
  virtual int progress() = 0;
  // Returns the time until the next work, for a thread that would sleep on poll_fd(). 0: work is at hand.
  // kHeldElsewhere: another thread holds the HCA and does the work. Never blocks.
  [[nodiscard]] virtual std::uint64_t idle_ns() = 0;
  // Returns the time of the last step that found a doorbell, on the HCA's clock; 0: never. Takes no lock.
  [[nodiscard]] virtual std::uint64_t rung_at_ns() const = 0;
  // Returns the number of queue pairs that have failed by themselves, gone ones too. Takes no lock.
  [[nodiscard]] virtual std::uint64_t failed_queue_pairs() const { return 0; }
  // Returns a descriptor that is readable when packets wait.
  [[nodiscard]] virtual int poll_fd() const = 0;
  // Returns whether the program has closed the wire's descriptors by a system call. Then nothing is received
  // or sent any more.
  [[nodiscard]] virtual bool wire_is_lost() const { return false; }
  [[nodiscard]] virtual HcaCounters counters() = 0;
};

// Source of 32 random bits a call.
using Random = std::function<std::uint32_t()>;

// Returns the kernel's random bits. Uses no seeded generator, because a peer could derive other keys and
// numbers from those that it got. Threads: one at a time.
[[nodiscard]] Random system_random();

// Opens an HCA. `device_memory` serves as its MEMIC: config.device_memory_bytes, zeroed by the caller.
[[nodiscard]] Result<std::unique_ptr<Hca>> open_hca(const HcaConfig& config, std::byte* device_memory);

}  // namespace gdx::softhca
