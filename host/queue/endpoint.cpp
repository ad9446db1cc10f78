#include "host/queue/endpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/node.h"
#include "base/trace.h"
#include "host/ipc/daemon.h"
#include "host/queue/doorbell.h"
#include "host/queue/flight.h"
#include "host/queue/host_ringer.h"
#include "host/queue/network.h"
#include "host/queue/owner_word.h"
#include "host/queue/queue_memory.h"
#include "host/queue/queue_objects.h"
#include "host/queue/wqe_text.h"
#include "proto/mlx5/cqe.h"
#include "proto/mlx5/doorbell.h"
#include "proto/mlx5/prm.h"

namespace gdx {
namespace {

enum class Connection : std::uint8_t { kNone, kConnected, kBroken };

// Returns the options of `auto`, with the GPU of the queues where no other is named.
ModeOptions site_options(const EndpointOptions& options) {
  ModeOptions modes = options.auto_modes;
  if (modes.gpu.empty() && options.gpu) modes.gpu = options.gpu->pci_bus_id();
  return modes;
}

}  // namespace

struct Endpoint::Impl {
  Impl(const Hca& the_hca, const EndpointOptions& resolved_options, QueueMemory queue_memory)
      : hca_name(the_hca.name()),
        gid(the_hca.gid()),
        lid(the_hca.lid()),
        grh_required(the_hca.grh_required()),
        mtu_bytes(the_hca.path_mtu_bytes()),
        order_forced(the_hca.routing().order_forced),
        daemon(the_hca.daemon()),
        options(resolved_options),
        memory(std::move(queue_memory)) {}

  Result<void> choose_auto_modes();
  void take_references(const StagingPools& pools);
  void lift_credits();
  void set_abort();
  [[nodiscard]] ibv_event_type hca_event() const;
  [[nodiscard]] std::string event_text() const;
  void log_events_once();
  [[nodiscard]] Result<void> first_error(std::uint32_t first, std::uint32_t count) const;
  Result<void> map_doorbell(const Gpu& gpu);
  Result<void> ring_for_kernels();
  Result<void> move_kernel_words(const Gpu& gpu);
  Result<void> store_handle();
  [[nodiscard]] Result<bool> shows_force() const;
  Result<void> fence_signals(DataOrder at_peer);
  [[nodiscard]] EndpointHandle make_handle() const;

  // Members go in reverse order: the queues before all that they use.
  std::string hca_name;
  ibv_gid gid;
  std::uint16_t lid;  // 0: Ethernet
  bool grh_required;
  std::uint32_t mtu_bytes;
  bool order_forced;  // by each queue pair
  std::shared_ptr<ipc::Daemon> daemon;
  EndpointOptions options;  // nothing of it is left open
  ModeTable modes{};
  QueueMemory memory;
  StagingLease staging;  // both hold the pools' memory; `queue` leases slots
  StagingLease bounce;
  std::unique_ptr<QueueObjects> queue;
  std::vector<std::shared_ptr<GpuMapping>> mappings;  // mappings of queues, owner word and doorbell
  std::optional<HostRinger> ringer;                   // rings in place of a mapped doorbell
  QueueState first_state{};                           // state with which kernels begin; it holds the handle
  EndpointAddress peer{};
  Connection connection = Connection::kNone;
  std::atomic<bool> events_logged{false};
  std::optional<OwnerWord> owner;  // kernels are refused before anything goes
  std::shared_ptr<void> on_loss;
};

void Endpoint::Impl::lift_credits() {
  StagingHandle rings{};
  rings.slot_count = staging.slot_count();
  memory.staging_credits().describe(rings);
  first_state.staging = unlimited_credits(rings, memory.staging_credits().channel().grants);
}

void Endpoint::Impl::take_references(const StagingPools& pools) {
  if (options.slot_count != 0) staging = pools.nic->reference(options.slot_count);
  if (options.bounce_slot_count != 0) bounce = pools.host->reference(options.bounce_slot_count);
  if (options.slot_count != 0 && options.unsafe_push_without_credits) lift_credits();
}

void Endpoint::Impl::set_abort() {
  std::atomic_ref<std::uint32_t>(memory.host().abort).store(1, std::memory_order_release);
}

// Returns the HCA's event that ended the queue pair; 0: there was none.
ibv_event_type Endpoint::Impl::hca_event() const {
  return static_cast<ibv_event_type>(std::atomic_ref(memory.host().event).load(std::memory_order_relaxed));
}

// Chooses the thresholds of Mode::kAuto. Pools and queue must be there, because the choice depends on them.
Result<void> Endpoint::Impl::choose_auto_modes() {
  const QueueShape shape{.queues = *options.placement,
                         .slot_count = std::min(options.slot_count, staging.slot_count()),
                         .slot_bytes = staging.slot_bytes(),
                         .bounce_slot_count = std::min(options.bounce_slot_count, bounce.slot_count()),
                         .bounce_slot_bytes = bounce.slot_bytes(),
                         .blueflame = queue->facts().blueflame_half_bytes != 0};
  auto choice = GDX_TRY(choose_modes(hca_name, site_options(options), shape));
  modes = choice.modes;
  // A shared queue has WQEs of one block only, and a longer message would take several.
  if (options.sharing == Sharing::kShared)
    modes.inline_bytes = std::min<std::uint64_t>(modes.inline_bytes, kSharedInlineBytes);
  announce(hca_name, choice);
  return {};
}

Result<QueueMemory> allocate_queue_memory(const Hca& hca, const EndpointOptions& options,
                                          const PoolSlots& slots) {
  const Gpu* const gpu = options.gpu ? &*options.gpu : nullptr;
  if (!hca.daemon()) return QueueMemory::allocate(options.send_queue_blocks, slots.nic, slots.host, gpu);
  return QueueMemory::allocate_in_file(options.send_queue_blocks, slots.nic, slots.host, gpu);
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
  const EndpointOptions options =
      GDX_TRY(resolve_endpoint_options(given, hca.is_software(), hca.link_layer()));
  if (!options.may_ring_unprobed_blueflame) {
    GDX_TRY(check_doorbell(hca, *options.doorbell, site_options(options)));
  }
  const auto slots = GDX_TRY(check_pools(pools, options));
  auto memory = GDX_TRY(allocate_queue_memory(hca, options, slots));
  auto impl = std::make_unique<Impl>(hca, options, std::move(memory));
  impl->take_references(pools);
  impl->queue = GDX_TRY(hca.daemon() ? request_queue_objects(hca, pools, options, impl->memory)
                                     : make_queue_objects(hca, pools, options, impl->memory));
  GDX_TRY(impl->choose_auto_modes());
  auto owner = GDX_TRY(OwnerWord::create(impl->memory.gpu()));
  impl->owner.emplace(std::move(owner));
  impl->first_state.handle = impl->make_handle();
  GDX_TRY(impl->memory.store_state(impl->first_state));
  impl->on_loss = GDX_TRY(hca.on_loss([raw = impl.get()] { raw->set_abort(); }));
  return Endpoint(std::move(impl));
}

EndpointAddress Endpoint::address() const {
  EndpointAddress address{};
  address.version = kEndpointAddressVersion;
  address.data_order = impl_->queue->facts().data_order;
  address.qpn = impl_->queue->facts().qpn;
  address.psn = impl_->queue->facts().psn;
  address.mtu_bytes = static_cast<std::uint16_t>(impl_->mtu_bytes);
  address.lid = impl_->lid;
  std::copy(std::begin(impl_->gid.raw), std::end(impl_->gid.raw), std::begin(address.gid));
  address.pkey = impl_->queue->facts().pkey;
  address.grh_required = impl_->grh_required ? 1 : 0;
  address.node = impl_->daemon ? 0 : node_word();  // gdxd may be in another network namespace
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
  GDX_TRY(check_one_network(address(), peer));
  impl_->peer = peer;
  auto done = impl_->queue->connect(peer);
  if (done) done = impl_->fence_signals(peer.data_order);
  impl_->connection = done ? Connection::kConnected : Connection::kBroken;
  return done ? impl_->owner->set_free() : done;
}

// Returns whether QUERY_QP shows the force that the queue pair asked for, if any. Firmware may also have
// chosen an order by itself. That QUERY_QP shows none proves nothing where none could be forced.
Result<bool> Endpoint::Impl::shows_force() const {
  namespace qp = mlx5::prm::qp;
  const bool kept = queue->facts().data_order == DataOrder::kKept;
  if (!kept && !order_forced) return true;
  const auto context = GDX_TRY(queue->query());
  const bool another =
      mlx5::prm::get(context, qp::kOrderingLow) != 0 || mlx5::prm::get(context, qp::kOrderingHigh) != 0;
  if (!kept || !another) return !order_forced || mlx5::prm::get(context, qp::kOrderingForce) != 0;
  return fail(Status::kUnsupported,
              fmt::format("HCA {} lets data of QP {:#x} land in any order, although it was asked to keep the "
                          "order: set {}=1 at all ranks",
                          hca_name, queue->facts().qpn, kAdaptiveRoutingVariable));
}

// A signal that sets is a WRITE, and must not land before the payload: placement is the peer's, the fence
// this side's. What QUERY_QP shows here counts too, because a peer with the same firmware is shown as little,
// and has told its order already. It is no error, because no source says that firmware shows a force.
Result<void> Endpoint::Impl::fence_signals(DataOrder at_peer) {
  const bool shown = GDX_TRY(shows_force());
  static std::atomic<bool> told{false};
  if (!shown && !told.exchange(true))
    log::warn(
        "HCA {} does not show that a queue pair forces the order of data: signals to peers are fenced; "
        "where HCAs or firmware differ, set {}=1 at all ranks",
        hca_name, kAdaptiveRoutingVariable);
  first_state.handle.signal_fence = shown && at_peer == DataOrder::kKept ? 0 : mlx5::kFenceStrongOrdering;
  return store_handle();
}

Result<void> Endpoint::reopen() {
  if (impl_->connection == Connection::kConnected) {
    if (impl_->memory.gpu_of_kernel_words() != nullptr) GDX_TRY(impl_->memory.load_state());
    return impl_->owner->set_free();
  }
  return fail(Status::kNotConnected, "the endpoint is not connected: connect it first");
}

Result<void> Endpoint::map_to(const Gpu& gpu) {
  const Gpu* const home = impl_->memory.gpu_of_kernel_words();
  if (home != nullptr && home->ordinal() != gpu.ordinal()) {
    return fail(
        Status::kInvalidArgument,
        fmt::format(
            "the endpoint is in the memory of GPU {}: run kernels of GPU {} on an endpoint of its own",
            home->ordinal(), gpu.ordinal()));
  }
  const std::span<std::byte> host_memory = impl_->memory.host_memory();
  auto queues = GDX_TRY(gpu.map(host_memory.data(), host_memory.size()));
  if (const std::span<std::byte> page = impl_->owner->host_page(); !page.empty()) {
    auto words = GDX_TRY(gpu.map(page.data(), page.size()));
    impl_->mappings.push_back(std::move(words));
  }
  // Last of what may be refused, because kernels of the CPU layer cannot use the endpoint afterwards.
  if (home == nullptr && program_has_cuda_kernels()) GDX_TRY(impl_->move_kernel_words(gpu));
  impl_->mappings.push_back(std::move(queues));
  return impl_->map_doorbell(gpu);
}

// Kernels change these words in every call, and an access by PCIe takes a microsecond.
Result<void> Endpoint::Impl::move_kernel_words(const Gpu& gpu) {
  GDX_TRY(memory.move_kernel_words(gpu));
  first_state.handle.state = memory.state();
  memory.staging_credits().describe(first_state.handle.staging);
  memory.bounce_credits().describe(first_state.handle.bounce);
  return store_handle();
}

// Stores the handle in its copy for kernels.
Result<void> Endpoint::Impl::store_handle() {
  auto state = GDX_TRY(memory.load_state());
  state.handle = first_state.handle;
  return memory.store_state(state);
}

bool Endpoint::host_rings() const { return impl_->ringer.has_value(); }

// Endpoints without a register of their own share a page, and so its mapping.
Result<void> Endpoint::Impl::map_doorbell(const Gpu& gpu) {
  if (ringer) return {};
  auto mapped = gpu.map(queue->facts().doorbell_page, mlx5::kUarPageBytes);
  if (mapped) {
    mappings.push_back(std::move(*mapped));
    return {};
  }
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) {
    log::warn(
        "kernels of GPU {} cannot ring HCA {} themselves, so a thread of this process rings for them, "
        "slower: {}",
        gpu.ordinal(), hca_name, mapped.error().message);
  }
  return ring_for_kernels();
}

// Exchanges the register in the handle. Its doorbells are plain, as any kernel may ring that word.
Result<void> Endpoint::Impl::ring_for_kernels() {
  std::uint64_t& word = memory.host().doorbell;
  first_state.handle.doorbell = &word;
  first_state.handle.blueflame_half_bytes = 0;
  GDX_TRY(store_handle());
  ringer.emplace(&word, queue->facts().doorbell);
  return {};
}

EndpointHandle Endpoint::handle() const { return impl_->first_state.handle; }

EndpointHandle Endpoint::Impl::make_handle() const {
  ControlPage* const control = memory.control();
  const auto log_blocks = static_cast<std::uint32_t>(std::countr_zero(options.send_queue_blocks));
  const QueueFacts& facts = queue->facts();
  EndpointHandle handle{};
  handle.layout_version = kQueueLayoutVersion;
  handle.qpn = facts.qpn;
  handle.send_queue = memory.send_queue();
  handle.completion_queue = memory.completion_queue();
  handle.send_record = &control->queue_pair_record[mlx5::kSendRecord];
  handle.doorbell = facts.doorbell;
  handle.blueflame_half_bytes = facts.blueflame_half_bytes;
  handle.scratch = &memory.host().scratch;
  handle.state = memory.state();
  handle.owner = owner->address();
  handle.owner_free = owner->free_value();
  handle.abort = &memory.host().abort;
  handle.timeout_ns = *options.timeout_ns;
  handle.probe_after_ns = options.probe_after_ns;
  handle.scratch_lkey = facts.scratch_lkey;
  handle.log_send_queue = log_blocks;
  handle.log_completion_queue = log_blocks;
  handle.placement = *options.placement;
  handle.sharing = options.sharing;
  handle.signal_fence = mlx5::kFenceStrongOrdering;  // until the peer's order is known
  handle.staging = describe_pool(staging, memory.staging_credits());
  if (options.unsafe_push_without_credits) handle.staging.minimum_slots = kUnlimitedSlots;
  handle.bounce = describe_pool(bounce, memory.bounce_credits());
  handle.modes = modes;
  return handle;
}

EndpointFault Endpoint::fault() const {
  EndpointFault first = state().fault;
  const ibv_event_type event = impl_->hca_event();
  // A kernel knows that it was aborted, and not why.
  if (event == 0 || (first.status != Status::kOk && first.status != Status::kAborted)) return first;
  first.status = event == IBV_EVENT_DEVICE_FATAL ? Status::kHcaFailed : Status::kQueueError;
  return first;
}

// Returns what the HCA has told, as the end of a fault's text; empty: nothing.
std::string Endpoint::Impl::event_text() const {
  const ibv_event_type event = hca_event();
  if (event == 0) return "";
  if (event == IBV_EVENT_DEVICE_FATAL) {
    return fmt::format(": {} of HCA {}; open it again once it is back", ibv_event_type_str(event), hca_name);
  }
  return fmt::format(": {} of QP {:#x} of HCA {}; make another endpoint", ibv_event_type_str(event),
                     queue->facts().qpn, hca_name);
}

std::string Endpoint::describe_fault() const {
  const EndpointFault first = fault();
  std::string text = describe(first);
  if (first.syndrome != 0) {
    impl_->log_events_once();
    const auto block = impl_->memory.load_block(first.wqe_counter & (impl_->options.send_queue_blocks - 1));
    const auto request =
        block ? describe_wqe(*block, first.wqe_counter, peer_text(impl_->peer)) : std::nullopt;
    if (request) text += ": " + *request;
  }
  return text + impl_->event_text();
}

Result<std::string> Endpoint::newest_events() const {
  const auto record = GDX_TRY(impl_->queue->flight());
  return flight_text(record);
}

// Logs, once, the newest events before a fault.
void Endpoint::Impl::log_events_once() {
  if (!log::enabled(log::Level::kInfo) || events_logged.exchange(true)) return;
  log::info("QP {:#x} of HCA {}, its newest events before the fault:\n{}", queue->facts().qpn, hca_name,
            fault_text(queue->flight()));
}

QueueState Endpoint::state() const {
  const auto state = impl_->memory.load_state();
  if (state) return *state;
  log::error("an endpoint's state is lost: {}", state.error().message);
  QueueState lost{};
  lost.fault.status = Status::kSystem;
  return lost;
}

// Block k of a shared queue completes by CQE k, and no thread of a kernel posts over it before `completed`
// has passed k. So the entry of the newest block tells of all, until that counter does.
Result<void> Endpoint::flush(std::uint64_t deadline_ns) const {
  if (impl_->options.sharing != Sharing::kShared)
    return fail(Status::kUnsupported, "an exclusive endpoint is flushed by the kernel that has it open");
  const std::uint32_t entries = impl_->options.send_queue_blocks;
  const std::uint32_t goal = GDX_TRY(impl_->memory.load_shared_progress()).published;
  for (;;) {
    const auto [published, completed] = GDX_TRY(impl_->memory.load_shared_progress());
    const std::uint32_t left = goal - completed;
    if (static_cast<std::int32_t>(left) <= 0) return {};
    const std::uint8_t op_own = GDX_TRY(impl_->memory.load_op_own(entries, goal - 1));
    if (mlx5::is_written(op_own, goal - 1, entries))
      return mlx5::is_requester_error(op_own) ? impl_->first_error(completed, left) : Result<void>{};
    if (monotonic_ns() >= deadline_ns)
      return fail(Status::kTimeout, fmt::format("{} work requests at most are not complete yet", left));
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

// Returns the first failure among `count` completions, from cumulative index `first` on.
Result<void> Endpoint::Impl::first_error(std::uint32_t first, std::uint32_t count) const {
  for (const mlx5::Cqe64& cqe : GDX_TRY(memory.load_completions(options.send_queue_blocks, first, count))) {
    if (!mlx5::is_requester_error(cqe.op_own)) continue;
    const auto error = std::bit_cast<mlx5::ErrorCqe>(cqe);
    const Status status = mlx5::status_of(static_cast<mlx5::Syndrome>(error.syndrome));
    return fail(status, describe({status, error.syndrome, error.vendor_error_syndrome, error.wqe_counter}));
  }
  return {};
}

Result<std::vector<std::uint8_t>> Endpoint::query_queue_pair() const { return impl_->queue->query(); }

RegistrationWay Endpoint::queues_registered_by() const { return impl_->queue->facts().registered_by; }

// Retired first: a kernel that sees the abort looks at its limits once more, and never again.
void Endpoint::abort() {
  if (impl_->daemon) impl_->set_abort();  // gdxd may take its time
  impl_->queue->retire();
  impl_->set_abort();
}

}  // namespace gdx
