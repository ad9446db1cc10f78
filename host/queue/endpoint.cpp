#include "host/queue/endpoint.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/trace.h"
#include "host/queue/doorbell.h"
#include "host/queue/host_ringer.h"
#include "host/queue/owner_word.h"
#include "host/queue/queue_commands.h"
#include "host/queue/queue_memory.h"
#include "host/queue/wqe_text.h"
#include "proto/mlx5/doorbell.h"

namespace gdx {
namespace {

enum class Connection : std::uint8_t { kNone, kConnected, kBroken };

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

// This side of a connection: what of the Hca is needed after create(). The Hca may have moved by then.
struct LocalEnd {
  explicit LocalEnd(const Hca& hca)
      : hca_name(hca.name()),
        address_text(hca.address_text()),
        pd(hca.pd()),
        gid(hca.gid()),
        gid_index(hca.gid_index()),
        lid(hca.lid()),
        port(hca.port()),
        counter_set(hca.counter_set()),
        routing(hca.routing()),
        mtu_bytes(hca.path_mtu_bytes()) {}

  std::string hca_name;
  std::string address_text;
  ibv_pd* pd;
  ibv_gid gid;
  std::uint8_t gid_index;
  std::uint16_t lid;  // 0: Ethernet
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

// Returns the options of `auto`, with the GPU of the queues where no other is named.
ModeOptions site_options(const EndpointOptions& options) {
  ModeOptions modes = options.auto_modes;
  if (modes.gpu.empty() && options.gpu) modes.gpu = options.gpu->pci_bus_id();
  return modes;
}

}  // namespace

struct Endpoint::Impl {
  Impl(const Hca& hca, const EndpointOptions& resolved_options, QueueMemory queue_memory)
      : local(hca), options(resolved_options), memory(std::move(queue_memory)) {}

  Result<void> choose_auto_modes();
  Result<void> lease_slots(const StagingPools& pools);
  void lift_credits();
  Result<void> show_queues_to(const Hca& hca);
  Result<void> show_scratch_to(const Hca& hca);
  Result<void> create_queues(const Hca& hca);
  Result<void> transition(const EndpointAddress& peer);
  Result<void> map_doorbell(const Gpu& gpu);
  Result<void> ring_for_kernels();
  [[nodiscard]] EndpointHandle make_handle() const;

  // Members go in reverse order: the queues before all that they use.
  LocalEnd local;
  EndpointOptions options;  // nothing of it is left open
  ModeTable modes{};
  QueueMemory memory;
  StagingLease staging;  // after the memory that they share with their schedulers
  StagingLease bounce;
  UmemHandle umem;
  RegistrationWay registered_by = RegistrationWay::kHostPages;
  MrHandle scratch;
  DoorbellRegister doorbell;
  std::vector<std::shared_ptr<GpuMapping>> mappings;  // of queues, owner word and doorbell
  std::optional<HostRinger> ringer;                   // in place of a mapped doorbell
  commands::NumberedObject completion_queue;
  commands::NumberedObject queue_pair;
  QueueState first_state{};  // and with it the handle
  std::uint32_t psn = 0;
  std::string peer_text;
  Connection connection = Connection::kNone;
  std::optional<OwnerWord> owner;  // kernels are refused before anything goes
};

void Endpoint::Impl::lift_credits() {
  StagingHandle rings{};
  rings.slot_count = staging.slot_count();
  memory.staging_credits().describe(rings);
  first_state.staging = unlimited_credits(rings, memory.staging_credits().channel().grants);
}

// After pools and doorbell, on which it depends.
Result<void> Endpoint::Impl::choose_auto_modes() {
  const QueueShape shape{.queues = *options.placement,
                         .slot_count = std::min(options.slot_count, staging.slot_count()),
                         .slot_bytes = staging.slot_bytes(),
                         .bounce_slot_count = std::min(options.bounce_slot_count, bounce.slot_count()),
                         .bounce_slot_bytes = bounce.slot_bytes(),
                         .blueflame = doorbell.blueflame_half_bytes != 0};
  auto choice = GDX_TRY(choose_modes(local.hca_name, site_options(options), shape));
  modes = choice.modes;
  // A shared queue has WQEs of one block only, and a longer message would take several.
  if (options.sharing == Sharing::kShared)
    modes.inline_bytes = std::min<std::uint64_t>(modes.inline_bytes, kSharedInlineBytes);
  announce(local.hca_name, choice);
  return {};
}

Result<void> Endpoint::Impl::lease_slots(const StagingPools& pools) {
  if (options.slot_count != 0 && options.unsafe_push_without_credits) {
    log::warn(
        "endpoint option unsafe_push_without_credits: payload of HCA {}'s staging pool will be damaged; "
        "leave it out unless that is what you measure",
        local.hca_name);
    staging = pools.nic->lease_without_credits();
    lift_credits();
  } else if (options.slot_count != 0) {
    staging = GDX_TRY(pools.nic->lease(memory.staging_credits().channel(), options.slot_count));
  }
  if (options.bounce_slot_count == 0) return {};
  bounce = GDX_TRY(pools.host->lease(memory.bounce_credits().channel(), options.bounce_slot_count));
  return {};
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

StagingHandle describe_pool(const StagingLease& lease, const CreditArea& credits) {
  StagingHandle handle{};
  handle.base = lease.base();
  handle.nic_offset = lease.nic_offset();
  handle.lkey = lease.lkey();
  handle.slot_bytes = lease.slot_bytes();
  handle.slot_count = lease.slot_count();
  handle.minimum_slots = lease.minimum_slots();
  credits.describe(handle);
  return handle;
}

Result<void> Endpoint::Impl::show_queues_to(const Hca& hca) {
  if (const Gpu* const gpu = memory.gpu()) {
    const auto facts = GDX_TRY(read_registration_facts(hca, {PointerKind::kDevice, gpu->ordinal()}));
    const GpuRegion region{memory.base(), memory.registered_bytes(), IBV_ACCESS_LOCAL_WRITE, gpu->ordinal()};
    auto registered = GDX_TRY(register_gpu_umem(hca_verbs(), hca, region, facts));
    umem = std::move(registered.umem);
    registered_by = registered.way;
    return {};
  }
  umem.reset(
      hca_verbs().reg_umem(hca.context(), memory.base(), memory.registered_bytes(), IBV_ACCESS_LOCAL_WRITE));
  if (umem) return {};
  return fail(errno == ENOMEM ? Status::kNoMemory : Status::kSystem,
              fmt::format("HCA {} cannot register {} bytes of queue memory: {}", hca.name(),
                          memory.registered_bytes(), std::strerror(errno)));
}

Result<void> Endpoint::Impl::show_scratch_to(const Hca& hca) {
  std::uint64_t& word = memory.host().scratch;
  scratch.reset(ibv_reg_mr(hca.pd(), &word, sizeof word, IBV_ACCESS_LOCAL_WRITE));
  if (scratch) return {};
  return fail(
      errno == ENOMEM ? Status::kNoMemory : Status::kSystem,
      fmt::format("HCA {} cannot register an endpoint's scratch word: {}", hca.name(), std::strerror(errno)));
}

Result<void> Endpoint::Impl::create_queues(const Hca& hca) {
  const auto log_blocks = static_cast<std::uint32_t>(std::countr_zero(options.send_queue_blocks));
  commands::CompletionQueueSpec cq;
  cq.eqn = hca.eqn();
  cq.uar_page = doorbell.uar->page_id;
  cq.umem_id = umem->umem_id;
  cq.ring_offset = memory.completion_queue_offset();
  cq.record_offset = memory.completion_record_offset();
  cq.log_entries = log_blocks;
  completion_queue = GDX_TRY(commands::create_completion_queue(hca.context(), cq));

  commands::QueuePairSpec qp;
  qp.pdn = hca.pdn();
  qp.cqn = completion_queue.number;
  qp.uar_page = doorbell.uar->page_id;
  qp.umem_id = umem->umem_id;
  qp.ring_offset = 0;
  qp.record_offset = memory.queue_pair_record_offset();
  qp.log_blocks = log_blocks;
  queue_pair = GDX_TRY(commands::create_queue_pair(hca.context(), qp));
  return {};
}

Result<void> Endpoint::Impl::transition(const EndpointAddress& peer) {
  commands::ReceiveSpec receive;
  if (local.lid == 0) {
    receive.path.mac = GDX_TRY(resolve_mac(local, options, peer));
  } else {
    constexpr std::size_t kPrefixBytes = 8;  // of the subnet; another one lies behind a router
    receive.path.lid = peer.lid;
    receive.path.global = std::memcmp(peer.gid, local.gid.raw, kPrefixBytes) != 0;
  }
  receive.remote_qpn = peer.qpn;
  receive.mtu_bytes = std::min<std::uint32_t>(local.mtu_bytes, peer.mtu_bytes);
  receive.next_receive_psn = peer.psn;
  receive.min_rnr_timer = options.min_rnr_timer;
  receive.any_order = options.adaptive_routing && local.routing.any_order;
  receive.force_order = local.routing.order_forced;
  // Spreads the queue pairs over the bond's ports.
  if (local.routing.lag_ports != 0)
    receive.path.lag_port = static_cast<std::uint8_t>(1 + queue_pair.number % local.routing.lag_ports);
  receive.path.port = local.port;
  receive.path.source_gid_index = local.gid_index;
  std::copy(std::begin(peer.gid), std::end(peer.gid), receive.path.gid.begin());
  receive.path.hop_limit = options.hop_limit;
  receive.path.traffic_class = *options.traffic_class;
  receive.path.service_level = *options.service_level;
  receive.path.udp_source_port = udp_source_port(queue_pair.number, peer.qpn);

  commands::SendSpec send;
  send.next_send_psn = psn;
  send.ack_timeout = *options.ack_timeout;
  send.retry_count = *options.retry_count;
  send.rnr_retry = options.rnr_retry;

  if (auto done = commands::reset_to_init(queue_pair, local.port, local.counter_set); !done) return done;
  if (auto done = commands::init_to_ready_to_receive(queue_pair, receive); !done) return done;
  return commands::ready_to_receive_to_send(queue_pair, send);
}

Endpoint::Endpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Endpoint::Endpoint(Endpoint&&) noexcept = default;
Endpoint& Endpoint::operator=(Endpoint&&) noexcept = default;
Endpoint::~Endpoint() = default;

// In the memory of the GPU that is named, if the HCA can be shown it.
Result<Endpoint> Endpoint::create(const Hca& hca, StagingPools pools, const EndpointOptions& given) {
  if (given.placement || !given.gpu) return create_placed(hca, pools, given);
  EndpointOptions placed = given;
  placed.placement = Placement::kGpu;
  auto in_gpu = create_placed(hca, pools, placed);
  if (in_gpu || in_gpu.error().status != Status::kUnsupported) return in_gpu;
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) log::info("queues are in host memory: {}", in_gpu.error().message);
  placed.placement = Placement::kHost;
  placed.gpu.reset();
  placed.auto_modes = site_options(given);
  return create_placed(hca, pools, placed);
}

Result<Endpoint> Endpoint::create_placed(const Hca& hca, StagingPools pools, const EndpointOptions& given) {
  const TraceSpan span("Endpoint::create");
  const EndpointOptions options = GDX_TRY(resolve_endpoint_options(given, hca.is_software()));
  if (!options.may_ring_unprobed_blueflame) {
    GDX_TRY(check_doorbell(hca, *options.doorbell, site_options(options)));
  }
  const auto slots =
      GDX_TRY(check_pool("slot_count", options.slot_count, pools.nic, StagingMemory::kNic, options.sharing));
  const auto bounces = GDX_TRY(check_pool("bounce_slot_count", options.bounce_slot_count, pools.host,
                                          StagingMemory::kHost, options.sharing));
  auto memory = GDX_TRY(QueueMemory::allocate(options.send_queue_blocks, slots, bounces,
                                              options.gpu ? &*options.gpu : nullptr));
  auto impl = std::make_unique<Impl>(hca, options, std::move(memory));
  GDX_TRY(impl->lease_slots(pools));
  impl->psn = GDX_TRY(random_psn());
  impl->doorbell = GDX_TRY(allocate_doorbell(hca, *options.doorbell));
  GDX_TRY(impl->choose_auto_modes());
  GDX_TRY(impl->show_queues_to(hca));
  GDX_TRY(impl->show_scratch_to(hca));
  GDX_TRY(impl->create_queues(hca));
  auto owner = GDX_TRY(OwnerWord::create(impl->memory.gpu()));
  impl->owner.emplace(std::move(owner));
  impl->first_state.handle = impl->make_handle();
  GDX_TRY(impl->memory.store_state(impl->first_state));
  return Endpoint(std::move(impl));
}

EndpointAddress Endpoint::address() const {
  EndpointAddress address{};
  address.version = kEndpointAddressVersion;
  address.qpn = impl_->queue_pair.number;
  address.psn = impl_->psn;
  address.mtu_bytes = static_cast<std::uint16_t>(impl_->local.mtu_bytes);
  address.lid = impl_->local.lid;
  std::copy(std::begin(impl_->local.gid.raw), std::end(impl_->local.gid.raw), std::begin(address.gid));
  return address;
}

Result<void> Endpoint::connect(const EndpointAddress& peer) {
  const TraceSpan span("Endpoint::connect");
  if (auto checked = check_endpoint_address(peer); !checked) return checked;
  switch (impl_->connection) {
    case Connection::kNone: break;
    case Connection::kConnected:
      return fail(Status::kBusy, "the endpoint is connected already: make another");
    case Connection::kBroken:
      return fail(Status::kQueueError, "the endpoint could not be connected before: make another");
  }
  if ((peer.lid != 0) != (impl_->local.lid != 0)) {
    const auto layer = [](std::uint16_t lid) { return lid != 0 ? "InfiniBand" : "Ethernet"; };
    return fail(Status::kInvalidArgument,
                fmt::format("the peer's port is {}, and that of HCA {} is {}: choose HCAs of one network",
                            layer(peer.lid), impl_->local.hca_name, layer(impl_->local.lid)));
  }
  impl_->peer_text = fmt::format("QP {:#x} at {}", peer.qpn, address_text(peer.gid));
  auto done = impl_->transition(peer);
  impl_->connection = done ? Connection::kConnected : Connection::kBroken;
  return done ? impl_->owner->set_free() : done;
}

Result<void> Endpoint::reopen() {
  if (impl_->connection == Connection::kConnected) return impl_->owner->set_free();
  return fail(Status::kNotConnected, "the endpoint is not connected: connect it first");
}

Result<void> Endpoint::map_to(const Gpu& gpu) {
  if (const Gpu* const home = impl_->memory.gpu(); home != nullptr && home->ordinal() != gpu.ordinal()) {
    return fail(
        Status::kInvalidArgument,
        fmt::format("the queues are in the memory of GPU {}: run kernels of GPU {} on an endpoint of its own",
                    home->ordinal(), gpu.ordinal()));
  }
  const std::span<std::byte> host_memory = impl_->memory.host_memory();
  auto queues = GDX_TRY(gpu.map(host_memory.data(), host_memory.size()));
  if (const std::span<std::byte> page = impl_->owner->host_page(); !page.empty()) {
    auto words = GDX_TRY(gpu.map(page.data(), page.size()));
    impl_->mappings.push_back(std::move(words));
  }
  impl_->mappings.push_back(std::move(queues));
  return impl_->map_doorbell(gpu);
}

bool Endpoint::host_rings() const { return impl_->ringer.has_value(); }

// Endpoints without a register of their own share a page, and so its mapping.
Result<void> Endpoint::Impl::map_doorbell(const Gpu& gpu) {
  if (ringer) return {};
  auto mapped = gpu.map(doorbell.uar->base_addr, mlx5::kUarPageBytes);
  if (mapped) {
    mappings.push_back(std::move(*mapped));
    return {};
  }
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) {
    log::warn(
        "kernels of GPU {} cannot ring HCA {} themselves, so a thread of this process rings for them, "
        "slower: {}",
        gpu.ordinal(), local.hca_name, mapped.error().message);
  }
  return ring_for_kernels();
}

// Exchanges the register in both copies of the handle. Its doorbells are plain, as any kernel may ring that
// word.
Result<void> Endpoint::Impl::ring_for_kernels() {
  std::uint64_t& word = memory.host().doorbell;
  first_state.handle.doorbell = &word;
  first_state.handle.blueflame_half_bytes = 0;
  auto state = GDX_TRY(memory.load_state());
  state.handle = first_state.handle;
  GDX_TRY(memory.store_state(state));
  ringer.emplace(&word, static_cast<std::uint64_t*>(doorbell.uar->reg_addr));
  return {};
}

EndpointHandle Endpoint::handle() const { return impl_->first_state.handle; }

EndpointHandle Endpoint::Impl::make_handle() const {
  ControlPage* const control = memory.control();
  const auto log_blocks = static_cast<std::uint32_t>(std::countr_zero(options.send_queue_blocks));
  EndpointHandle handle{};
  handle.layout_version = kQueueLayoutVersion;
  handle.qpn = queue_pair.number;
  handle.send_queue = memory.send_queue();
  handle.completion_queue = memory.completion_queue();
  handle.send_record = &control->queue_pair_record[mlx5::kSendRecord];
  handle.doorbell = static_cast<std::uint64_t*>(doorbell.uar->reg_addr);
  handle.blueflame_half_bytes = doorbell.blueflame_half_bytes;
  handle.scratch = &memory.host().scratch;
  handle.state = &control->state;
  handle.owner = owner->address();
  handle.owner_free = owner->free_value();
  handle.abort = &memory.host().abort;
  handle.timeout_ns = *options.timeout_ns;
  handle.probe_after_ns = options.probe_after_ns;
  handle.scratch_lkey = scratch->lkey;
  handle.log_send_queue = log_blocks;
  handle.log_completion_queue = log_blocks;
  handle.placement = *options.placement;
  handle.sharing = options.sharing;
  handle.signal_fence = options.adaptive_routing ? mlx5::kFenceStrongOrdering : 0;
  handle.staging = describe_pool(staging, memory.staging_credits());
  if (options.unsafe_push_without_credits) handle.staging.minimum_slots = kUnlimitedSlots;
  handle.bounce = describe_pool(bounce, memory.bounce_credits());
  handle.modes = modes;
  return handle;
}

EndpointFault Endpoint::fault() const { return state().fault; }

std::string Endpoint::describe_fault() const {
  const EndpointFault first = fault();
  if (first.syndrome == 0) return describe(first);
  const auto block = impl_->memory.load_block(first.wqe_counter & (impl_->options.send_queue_blocks - 1));
  const auto request = block ? describe_wqe(*block, first.wqe_counter, impl_->peer_text) : std::nullopt;
  return request ? fmt::format("{}: {}", describe(first), *request) : describe(first);
}

QueueState Endpoint::state() const {
  const auto state = impl_->memory.load_state();
  if (state) return *state;
  log::error("an endpoint's state is lost: {}", state.error().message);
  QueueState lost{};
  lost.fault.status = Status::kSystem;
  return lost;
}

Result<std::vector<std::uint8_t>> Endpoint::query_queue_pair() const {
  const auto output = GDX_TRY(commands::query_queue_pair(impl_->queue_pair));
  return std::vector<std::uint8_t>(output.begin(), output.end());
}

RegistrationWay Endpoint::queues_registered_by() const { return impl_->registered_by; }

// Retired first: a kernel that sees the abort looks at its limits once more, and never again.
void Endpoint::abort() {
  impl_->staging.retire();
  impl_->bounce.retire();
  std::atomic_ref<std::uint32_t>(impl_->memory.host().abort).store(1, std::memory_order_release);
}

}  // namespace gdx
