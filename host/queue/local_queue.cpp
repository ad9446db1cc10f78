#include <endian.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "host/hca/hca_events.h"
#include "host/queue/doorbell.h"
#include "host/queue/flight.h"
#include "host/queue/network.h"
#include "host/queue/queue_commands.h"
#include "host/queue/queue_objects.h"
#include "proto/roce/headers.h"

namespace gdx {
namespace {

constexpr std::uint32_t kPsnMask = 0xffffff;

// A PSN that a third party cannot guess (IBA asks only that it be any; off-path forgers need it).
Result<std::uint32_t> random_psn() {
  std::uint32_t value = 0;
  if (getrandom(&value, sizeof value, 0) != static_cast<ssize_t>(sizeof value)) {
    return fail(Status::kSystem, fmt::format("no random PSN to be had: {}", std::strerror(errno)));
  }
  return value & kPsnMask;
}

// Spreads the queue pairs of two hosts over the paths between them, as IBA A17.9.4.2 suggests.
std::uint16_t udp_source_port(std::uint32_t qpn, std::uint32_t remote_qpn) {
  std::uint64_t mixed = std::uint64_t{qpn} * remote_qpn;
  mixed ^= mixed >> 20;
  mixed ^= mixed >> 40;
  return ibv_flow_label_to_udp_sport(static_cast<std::uint32_t>(mixed & 0xfffff));
}

// This side of a connection: what of the Hca is needed later. The Hca may have moved by then.
struct LocalEnd {
  explicit LocalEnd(const Hca& hca)
      : hca_name(hca.name()),
        sysfs_path(hca.sysfs_path()),
        address_text(hca.address_text()),
        pd(hca.pd()),
        gid(hca.gid()),
        gid_index(hca.gid_index()),
        lid(hca.lid()),
        grh_required(hca.grh_required()),
        port(hca.port()),
        counter_set(hca.counter_set()),
        routing(hca.routing()),
        mtu_bytes(hca.path_mtu_bytes()) {}

  std::string hca_name;
  std::string sysfs_path;
  std::string address_text;
  ibv_pd* pd;
  ibv_gid gid;
  std::uint8_t gid_index;
  std::uint16_t lid;  // 0: Ethernet
  bool grh_required;
  std::uint8_t port;
  std::uint8_t counter_set;
  Routing routing;
  std::uint32_t mtu_bytes;
};

Result<std::array<std::uint8_t, 6>> resolve_mac(const LocalEnd& local, const EndpointOptions& options,
                                                const EndpointAddress& peer) {
  ibv_ah_attr attributes{};
  attributes.is_global = 1;
  attributes.port_num = local.port;
  std::memcpy(attributes.grh.dgid.raw, peer.gid, sizeof peer.gid);
  attributes.grh.sgid_index = local.gid_index;
  attributes.grh.hop_limit = options.hop_limit;
  attributes.grh.traffic_class = *options.traffic_class;
  attributes.sl = *options.service_level;
  const AhHandle ah(ibv_create_ah(local.pd, &attributes));
  if (!ah) {
    return fail(Status::kSystem,
                fmt::format("HCA {} ({}) finds no way to the peer: {}; check that its address "
                            "can be reached from here",
                            local.hca_name, local.address_text, std::strerror(errno)));
  }
  mlx5dv_ah details{};
  mlx5dv_obj object{};
  object.ah.in = ah.get();
  object.ah.out = &details;
  if (const int error = mlx5dv_init_obj(&object, MLX5DV_OBJ_AH); error != 0) {
    return fail(Status::kSystem, fmt::format("cannot read the peer's MAC address: {}", std::strerror(error)));
  }
  std::array<std::uint8_t, 6> mac{};
  std::copy(std::begin(details.av->rmac), std::end(details.av->rmac), mac.begin());
  return mac;
}

// Slots are wanted only of a pool that is there, and lies where it should. Returns how many it has.
Result<std::uint32_t> check_pool(const char* option, std::uint32_t slots, const StagingPool* pool,
                                 StagingMemory memory, Sharing sharing) {
  if (slots == 0) return 0;
  if (pool != nullptr && pool->memory() == memory) {
    if (pool->minimum_slots() != 0 || sharing == Sharing::kShared) return pool->slot_count();
    return fail(
        Status::kInvalidArgument,
        fmt::format("endpoint option {} = {}: a pool without a minimum serves shared endpoints only; make "
                    "it with minimum_slots 1 or more",
                    option, slots));
  }
  return fail(Status::kInvalidArgument,
              fmt::format("endpoint option {} = {}: without a pool of {} memory use 0", option, slots,
                          memory == StagingMemory::kNic ? "the NIC's" : "host"));
}

class LocalQueue final : public QueueObjects {
 public:
  LocalQueue(const Hca& hca, const EndpointOptions& resolved_options, const QueueMemory& queue_memory)
      : local_(hca), options_(resolved_options), memory_(queue_memory) {}

  Result<void> create(const Hca& hca, const StagingPools& pools, std::uint64_t address, std::uint32_t tenant);
  [[nodiscard]] Result<void> connect(const EndpointAddress& peer) override;
  void retire() override;
  [[nodiscard]] Result<std::vector<std::uint8_t>> query() const override;
  [[nodiscard]] Result<FlightRecord> flight() const override;

 private:
  [[nodiscard]] Result<FlightRecord> flight_on_hardware() const;
  Result<void> lease_slots(const StagingPools& pools, std::uint32_t tenant);
  Result<void> choose_partition(const Hca& hca);
  Result<void> show_queues_to(const Hca& hca);
  Result<void> show_scratch_to(const Hca& hca, std::uint64_t address);
  Result<void> create_queues(const Hca& hca);
  void end_waits(ibv_event_type event);

  // Members go in reverse order: the queues before all that they use.
  LocalEnd local_;
  EndpointOptions options_;
  const QueueMemory& memory_;
  std::uint16_t pkey_index_ = 0;
  StagingLease staging_;
  StagingLease bounce_;
  UmemHandle umem_;
  MrHandle scratch_;
  DoorbellRegister doorbell_;
  commands::NumberedObject completion_queue_;
  commands::NumberedObject queue_pair_;
  std::shared_ptr<void> on_failure_;
};

Result<void> LocalQueue::lease_slots(const StagingPools& pools, std::uint32_t tenant) {
  if (options_.slot_count != 0 && options_.unsafe_push_without_credits) {
    log::warn(
        "endpoint option unsafe_push_without_credits: payload of HCA {}'s staging pool will be damaged; "
        "leave it out unless that is what you measure",
        local_.hca_name);
  } else if (options_.slot_count != 0) {
    staging_ = GDX_TRY(pools.nic->lease(memory_.staging_credits().channel(), options_.slot_count, tenant));
  }
  if (options_.bounce_slot_count == 0) return {};
  bounce_ =
      GDX_TRY(pools.host->lease(memory_.bounce_credits().channel(), options_.bounce_slot_count, tenant));
  return {};
}

Result<void> LocalQueue::choose_partition(const Hca& hca) {
  ibv_port_attr port{};
  if (const int error = ibv_query_port(hca.context(), hca.port(), &port); error != 0)
    return fail(Status::kSystem, fmt::format("cannot query port {} of HCA {}: {}", hca.port(), hca.name(),
                                             std::strerror(error)));
  std::vector<std::uint16_t> table;
  for (int index = 0; index < port.pkey_tbl_len; ++index) {
    __be16 pkey = 0;
    const bool known = ibv_query_pkey(hca.context(), hca.port(), index, &pkey) == 0;
    table.push_back(known ? be16toh(pkey) : std::uint16_t{0});
    const auto best = choose_pkey(table, options_.pkey);
    if (!best) continue;
    pkey_index_ = *best;
    facts_.pkey = table[*best];
    // Ends early, because each entry is a file, and a ConnectX has 128.
    if (roce::is_full_member(facts_.pkey)) break;
  }
  if (facts_.pkey != 0) return {};
  std::erase(table, 0);
  const std::string port_text = fmt::format("port {} of HCA {}", hca.port(), hca.name());
  if (table.empty())
    return fail(Status::kNotFound, port_text + " has no P_Key: have the subnet manager add one");
  return fail(Status::kNotFound,
              fmt::format("{} has no P_Key {:#06x} (option pkey, ${}), but {:#06x}: have the subnet manager "
                          "add it, or use one of these",
                          port_text, options_.pkey.value_or(0), kPkeyVariable, fmt::join(table, ", ")));
}

Result<void> LocalQueue::show_queues_to(const Hca& hca) {
  if (const Gpu* const gpu = memory_.gpu()) {
    const auto facts = GDX_TRY(read_registration_facts(hca, {PointerKind::kDevice, gpu->ordinal()}));
    const GpuRegion region{memory_.base(), memory_.registered_bytes(), IBV_ACCESS_LOCAL_WRITE,
                           gpu->ordinal()};
    auto registered = GDX_TRY(register_gpu_umem(hca_verbs(), hca, region, facts));
    umem_ = std::move(registered.umem);
    facts_.registered_by = registered.way;
    return {};
  }
  if (const SharedRegion* const queue = memory_.queue_dmabuf()) {
    umem_.reset(hca_verbs().reg_dmabuf_umem(hca.context(), queue->offset, memory_.registered_bytes(),
                                            queue->dmabuf.value(), IBV_ACCESS_LOCAL_WRITE));
    if (umem_) return {};
    return fail(Status::kUnsupported,
                fmt::format("HCA {} cannot place queues in a dmabuf: {}", hca.name(), std::strerror(errno)));
  }
  umem_.reset(hca_verbs().reg_umem(hca.context(), memory_.base(), memory_.registered_bytes(),
                                   IBV_ACCESS_LOCAL_WRITE));
  if (umem_) return {};
  return fail(errno == ENOMEM ? Status::kNoMemory : Status::kSystem,
              fmt::format("HCA {} cannot register {} bytes of queue memory: {}", hca.name(),
                          memory_.registered_bytes(), std::strerror(errno)));
}

Result<void> LocalQueue::show_scratch_to(const Hca& hca, std::uint64_t address) {
  std::uint64_t& word = memory_.host().scratch;
  const auto offset =
      static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(&word) - memory_.host_memory().data());
  constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE;  // a number, because the macro mixes two enumerations
  scratch_.reset(ibv_reg_mr_iova(hca.pd(), &word, sizeof word, address + offset, kAccess));
  if (scratch_) return {};
  return fail(
      errno == ENOMEM ? Status::kNoMemory : Status::kSystem,
      fmt::format("HCA {} cannot register an endpoint's scratch word: {}", hca.name(), std::strerror(errno)));
}

Result<void> LocalQueue::create_queues(const Hca& hca) {
  const auto log_blocks = static_cast<std::uint32_t>(std::countr_zero(options_.send_queue_blocks));
  commands::CompletionQueueSpec cq;
  cq.eqn = hca.eqn();
  cq.uar_page = doorbell_.uar->page_id;
  cq.umem_id = umem_->umem_id;
  cq.ring_offset = memory_.completion_queue_offset();
  cq.record_offset = memory_.completion_record_offset();
  cq.log_entries = log_blocks;
  completion_queue_ = GDX_TRY(commands::create_completion_queue(hca.context(), cq));

  commands::QueuePairSpec qp;
  qp.pdn = hca.pdn();
  qp.cqn = completion_queue_.number;
  qp.uar_page = doorbell_.uar->page_id;
  qp.umem_id = umem_->umem_id;
  qp.ring_offset = 0;
  qp.record_offset = memory_.queue_pair_record_offset();
  qp.log_blocks = log_blocks;
  queue_pair_ = GDX_TRY(commands::create_queue_pair(hca.context(), qp));
  on_failure_ =
      hca.events()->on_failure(queue_pair_.object.get(), [this](ibv_event_type event) { end_waits(event); });
  return {};
}

// Ends the waits of kernels. Ordering: a thread that sees the abort also sees the event.
void LocalQueue::end_waits(ibv_event_type event) {
  HostPage& words = memory_.host();
  std::atomic_ref(words.event).store(event, std::memory_order_relaxed);
  std::atomic_ref(words.abort).store(1, std::memory_order_release);
}

Result<void> LocalQueue::connect(const EndpointAddress& peer) {
  commands::ReceiveSpec receive;
  if (local_.lid == 0) {
    receive.path.mac = GDX_TRY(resolve_mac(local_, options_, peer));
  } else {
    const LidPath way = GDX_TRY(infiniband_path(local_.gid.raw, local_.grh_required, peer));
    receive.path.lid = way.lid;
    receive.path.global = way.global;
  }
  receive.remote_qpn = peer.qpn;
  receive.mtu_bytes = std::min<std::uint32_t>(local_.mtu_bytes, peer.mtu_bytes);
  receive.next_receive_psn = peer.psn;
  receive.min_rnr_timer = options_.min_rnr_timer;
  receive.any_order = *options_.adaptive_routing && local_.routing.any_order.value_or(false);
  receive.force_order = local_.routing.order_forced;
  // Spreads the queue pairs over the bond's ports.
  if (local_.routing.lag_ports != 0)
    receive.path.lag_port = static_cast<std::uint8_t>(1 + queue_pair_.number % local_.routing.lag_ports);
  receive.path.port = local_.port;
  receive.path.source_gid_index = local_.gid_index;
  std::copy(std::begin(peer.gid), std::end(peer.gid), receive.path.gid.begin());
  receive.path.hop_limit = options_.hop_limit;
  receive.path.traffic_class = *options_.traffic_class;
  receive.path.service_level = *options_.service_level;
  receive.path.udp_source_port = udp_source_port(queue_pair_.number, peer.qpn);

  commands::SendSpec send;
  send.next_send_psn = facts_.psn;
  send.ack_timeout = *options_.ack_timeout;
  send.retry_count = *options_.retry_count;
  send.rnr_retry = options_.rnr_retry;

  if (auto done = commands::reset_to_init(queue_pair_, local_.port, pkey_index_, local_.counter_set); !done)
    return done;
  if (auto done = commands::init_to_ready_to_receive(queue_pair_, receive); !done) return done;
  return commands::ready_to_receive_to_send(queue_pair_, send);
}

void LocalQueue::retire() {
  staging_.retire();
  bounce_.retire();
}

Result<std::vector<std::uint8_t>> LocalQueue::query() const {
  const auto output = GDX_TRY(commands::query_queue_pair(queue_pair_));
  return std::vector<std::uint8_t>(output.begin(), output.end());
}

// The state comes last, because what the rings hold has led to it.
Result<FlightRecord> LocalQueue::flight_on_hardware() const {
  auto record = GDX_TRY(read_rings(memory_, options_.send_queue_blocks));
  const auto output = GDX_TRY(commands::query_queue_pair(queue_pair_));
  const std::uint32_t state = mlx5::prm::get32(output, mlx5::prm::qp::kState);
  // The PRM numbers SQE and SQD the other way round.
  constexpr std::uint32_t kBoth = mlx5::prm::qp::kSqError ^ mlx5::prm::qp::kSqDrained;
  const bool swapped = state == mlx5::prm::qp::kSqError || state == mlx5::prm::qp::kSqDrained;
  const std::uint32_t number = swapped ? state ^ kBoth : state;
  record.events.push_back({.time_ns = record.events.back().time_ns,
                           .kind = FlightKind::kState,
                           .code = static_cast<std::uint8_t>(number)});
  return record;
}

Result<FlightRecord> LocalQueue::flight() const {
  auto record = read_flight_file(local_.sysfs_path, queue_pair_.number);
  if (!record && record.error().status == Status::kNotFound) record = flight_on_hardware();
  if (!record) return record;
  merge(*record, staging_.flight());
  merge(*record, bounce_.flight());
  return record;
}

Result<void> LocalQueue::create(const Hca& hca, const StagingPools& pools, std::uint64_t address,
                                std::uint32_t tenant) {
  GDX_TRY(choose_partition(hca));
  GDX_TRY(lease_slots(pools, tenant));
  facts_.psn = GDX_TRY(random_psn());
  doorbell_ = GDX_TRY(allocate_doorbell(hca, *options_.doorbell, options_.shares_doorbell_page));
  GDX_TRY(show_queues_to(hca));
  GDX_TRY(show_scratch_to(hca, address));
  GDX_TRY(create_queues(hca));
  const mlx5dv_devx_uar& uar = *doorbell_.uar;
  facts_.qpn = queue_pair_.number;
  facts_.scratch_lkey = scratch_->lkey;
  facts_.doorbell = static_cast<std::uint64_t*>(uar.reg_addr);
  facts_.doorbell_page = static_cast<std::byte*>(uar.base_addr);
  facts_.doorbell_place.map_offset = static_cast<std::uint64_t>(uar.mmap_off);
  facts_.doorbell_place.register_offset = static_cast<std::uint32_t>(static_cast<std::byte*>(uar.reg_addr) -
                                                                     static_cast<std::byte*>(uar.base_addr));
  facts_.blueflame_half_bytes = doorbell_.blueflame_half_bytes;
  facts_.data_order = data_order_of(hca.routing(), hca.link_layer(), *options_.adaptive_routing);
  return {};
}

}  // namespace

DataOrder data_order_of(const Routing& routing, LinkLayer link_layer, bool adaptive_routing) {
  const bool has_no_other = link_layer == LinkLayer::kEthernet && !routing.any_order.value_or(true);
  return !adaptive_routing && (routing.order_forced || has_no_other) ? DataOrder::kKept : DataOrder::kAny;
}

std::string peer_text(const EndpointAddress& peer) {
  return fmt::format("QP {:#x} at {}", peer.qpn, address_text(peer.gid));
}

Result<PoolSlots> check_pools(const StagingPools& pools, const EndpointOptions& options) {
  PoolSlots slots;
  slots.nic =
      GDX_TRY(check_pool("slot_count", options.slot_count, pools.nic, StagingMemory::kNic, options.sharing));
  slots.host = GDX_TRY(check_pool("bounce_slot_count", options.bounce_slot_count, pools.host,
                                  StagingMemory::kHost, options.sharing));
  return slots;
}

Result<std::unique_ptr<QueueObjects>> make_queue_objects(const Hca& hca, StagingPools pools,
                                                         const EndpointOptions& options,
                                                         const QueueMemory& memory, std::uint64_t address,
                                                         std::uint32_t tenant) {
  auto queue = std::make_unique<LocalQueue>(hca, options, memory);
  const auto here = reinterpret_cast<std::uintptr_t>(memory.host_memory().data());
  GDX_TRY(queue->create(hca, pools, address != 0 ? address : here, tenant));
  return queue;
}

}  // namespace gdx
