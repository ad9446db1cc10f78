#include "host/team/team_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/node.h"
#include "host/memory/memory_limits.h"
#include "host/staging/progress.h"
#include "proto/mapping_order.h"
#include "proto/mlx5/wqe.h"

namespace gdx::team {
namespace {

constexpr std::uint64_t kDeadlineTenths = 8;  // of a bound, so that what ends within it is told by its reason

std::atomic<std::uint64_t> teams_founded = 0;  // by this process

// Bytes that a rank's heap takes of a host's memory. Trivially copyable, because ranks exchange it as bytes.
struct HeapNeed {
  peer::NodeIdentity node;  // all zero: unknown
  MemoryNeed memory;
};

// Teams of this process that took memory of an HCA for their own pools.
std::atomic<int> teams_with_pools = 0;

std::shared_ptr<void> count_team_with_pools() {
  ++teams_with_pools;
  return {nullptr, [](void*) { --teams_with_pools; }};
}

// Lowers the slots to what the pool has.
void fit(std::uint32_t& slots, const StagingPool* pool) {
  slots = pool == nullptr ? 0 : std::min(slots, pool->slot_count());
}

}  // namespace

Result<void> TeamState::join() {
  const auto options =
      GDX_TRY(options_.world ? Result<WorldOptions>(*options_.world) : WorldOptions::from_environment());
  own_.world = GDX_TRY(World::join(options));
  world_ = &*own_.world;
  return {};
}

Result<void> TeamState::open_parts() {
  if (!options_.gpu && program_has_cuda_kernels()) options_.gpu = GDX_TRY(Gpu::current()).ordinal();
  HcaOptions hca = options_.hca;
  if (!hca.gpu) hca.gpu = options_.gpu;
  hca.rank = world_->rank();
  own_.hca = GDX_TRY(Hca::open(hca));
  hca_ = &*own_.hca;
  if (options_.staging && hca_->device_memory_bytes() == 0) {
    log::info("HCA {} has no memory of its own: a team on it does not push", hca_->name());
  } else if (options_.staging) {
    auto pool = StagingPool::create(*hca_, *options_.staging);
    if (!pool && pool.error().status == Status::kNoMemory && teams_with_pools != 0) {
      return fail(
          Status::kNoMemory,
          fmt::format("this process has a team of Team::create already, which holds the memory of HCA {} "
                      "for pushes: split that team, or make Hca, World and pools once and give them to "
                      "each Team::create",
                      hca_->name()));
    }
    own_.nic_pool = GDX_TRY(std::move(pool));
    own_.counted = count_team_with_pools();
    pools_.nic = &*own_.nic_pool;
  }
  if (!options_.bounce) return {};
  own_.host_pool = GDX_TRY(StagingPool::create(*hca_, *options_.bounce));
  pools_.host = &*own_.host_pool;
  return {};
}

void TeamState::use(const Hca& hca, World& world, StagingPools pools) {
  hca_ = &hca;
  world_ = &world;
  pools_ = pools;
}

Result<std::vector<Statement>> TeamState::meet(Statement statement, const Result<void>& done) {
  release_to_mappings(Toward::kPeers);  // this rank's reads before this meeting
  statement.team = number_;
  auto all = agree(*world_, statement, done, options_.timeout_ns);
  acquire_from_mappings(Toward::kHost);  // peers' puts before this meeting
  return all;
}

Result<void> TeamState::check_heaps(std::uint64_t timeout_ns) {
  const bool takes = options_.heap_memory == HeapMemory::kHost && options_.heap_bytes <= kMaxTeamHeapBytes;
  const auto limits = memory_limits();
  const HeapNeed mine{.node = node_identity().value_or(peer::NodeIdentity{}),
                      .memory = memory_need(takes ? options_.heap_bytes : 0, limits)};
  const auto all = GDX_TRY(world_->allgather_value(mine, timeout_ns));
  std::vector<MemoryNeed> here;
  for (const HeapNeed& need : all) {
    if (std::ranges::equal(need.node.boot_id, mine.node.boot_id)) here.push_back(need.memory);
  }
  auto fits = check_memory(limits, here);
  if (!fits) {
    fits.error().message =
        fmt::format("team option heap_bytes = {}: {}", options_.heap_bytes, fits.error().message);
  }
  return fits;
}

Result<Memory> TeamState::make_heap() {
  if (options_.heap_memory == HeapMemory::kHost) return allocate_shareable_memory(*hca_, options_.heap_bytes);
  gpu_heap_ = GDX_TRY(GpuMemory::allocate(*gpu_, options_.heap_bytes));
  return register_memory(*hca_, gpu_heap_->address(), options_.heap_bytes);
}

Result<void> TeamState::zero(std::uint64_t offset, std::uint64_t bytes) {
  if (!gpu_heap_) {
    std::memset(heap_memory().data() + offset, 0, bytes);
    return {};
  }
  static constexpr std::uint64_t kStep = 1 << 20;
  const std::vector<std::byte> zeroes(std::min(bytes, kStep));
  for (std::uint64_t done = 0; done < bytes; done += kStep) {
    GDX_TRY(gpu_heap_->write(offset + done, std::span(zeroes).first(std::min(kStep, bytes - done))));
  }
  return {};
}

Result<void> TeamState::make_local_parts() {
  options_ = GDX_TRY(resolve_team_options(options_, hca_->is_software(), hca_->link_layer()));
  fit(options_.endpoint.slot_count, pools_.nic);
  fit(options_.endpoint.bounce_slot_count, pools_.host);
  if (options_.gpu) {
    gpu_ = GDX_TRY(Gpu::open(*options_.gpu));
    if (options_.endpoint.placement == Placement::kGpu && !options_.endpoint.gpu)
      options_.endpoint.gpu = gpu_;
    if (pools_.nic != nullptr && !pools_.nic->map_if_allowed(*gpu_).empty()) {
      pools_.nic = nullptr;
      options_.endpoint.slot_count = 0;
    }
    if (pools_.host != nullptr) GDX_TRY(pools_.host->map_to(*gpu_));
  }
  const std::size_t ends = std::size_t{options_.lanes} * world_->size();
  ends_ = std::vector<ConnectionEnd>(ends);
  words_ = GDX_TRY(HostPages::allocate((1 + ends) * sizeof(std::uint32_t), gpu_ ? &*gpu_ : nullptr));
  on_loss_ = GDX_TRY(hca_->on_loss([this] { abort_word().store(1, std::memory_order_release); }));
  GDX_TRY(listen());
  windows_.reserve(kMaxTeamWindows);
  auto heap = GDX_TRY(make_heap());
  windows_.push_back({std::move(heap)});
  heap_ = SymmetricHeap(options_.heap_bytes);
  return gpu_heap_ ? zero(0, options_.heap_bytes) : map_to_gpu(windows_.front());
}

Result<void> TeamState::map_to_gpu(Window& window) const {
  const Memory& memory = window.memory;
  if (!gpu_ || memory.registered_by() != RegistrationWay::kHostPages) return {};
  window.on_gpu = GDX_TRY(gpu_->map(memory.data(), memory.bytes()));
  return {};
}

// All ranks have agreed on the window.
Result<void> TeamState::map_window(Window& window) {
  const Memory* const memory = &window.memory;
  const PeerOptions options{
      .direct = options_.direct, .timeout_ns = options_.timeout_ns, .gpu = options_.gpu.value_or(0)};
  window.mapping = GDX_TRY(PeerMapping::exchange(*world_, std::span(&memory, 1), options));
  return gpu_ ? window.mapping->map_to(*gpu_) : Result<void>{};
}

Result<std::shared_ptr<Table>> TeamState::found(const Result<void>& opened) {
  // The other ranks must get the error of an impossible bound too.
  const bool possible = options_.timeout_ns != 0 && options_.timeout_ns <= kMaxWaitNs;
  const std::uint64_t bound_ns = possible ? options_.timeout_ns : kDefaultTeamTimeoutNs;
  auto done = check_heaps(bound_ns);
  if (!opened) done = opened;
  if (done) done = make_local_parts();
  options_.timeout_ns = bound_ns;
  Statement mine{
      .call = Call::kCreate, .arguments = {options_.heap_bytes, options_.lanes}, .own = {++teams_founded}};
  if (done) mine.memory = windows_.front().memory.remote();
  const auto all = GDX_TRY(meet(mine, done));
  Window& heap = windows_.front();
  heap.parts.reserve(all.size());
  for (const Statement& statement : all) heap.parts.push_back(statement.memory);
  number_ = all.front().own[0];
  const auto identities = GDX_TRY(choose_ways());
  auto done_here = connector_->start(identities, *this, asked());
  std::vector<std::uint32_t> members(world_->size());
  std::iota(members.begin(), members.end(), 0u);
  std::shared_ptr<Table> table;
  if (done_here) {
    auto made = make_table(std::move(members));
    if (made) table = std::move(*made);
    if (!made) done_here = tl::unexpected(std::move(made.error()));
  }
  if (done_here && options_.connect_all) done_here = connect_all();
  GDX_TRY(meet({.call = Call::kRest}, done_here));
  return table;
}

// Returns whether this rank's kernels change words of mapped heaps atomically with those of all other ranks.
bool TeamState::has_atomics() const {
  return !gpu_ || options_.heap_memory == HeapMemory::kGpu || gpu_->has_host_atomics();
}

// Ends each step in a meeting, because a failure of this rank alone must reach the other ranks.
Result<std::vector<bootstrap::ConnectorIdentity>> TeamState::choose_ways() {
  const std::uint32_t size = world_->size();
  auto done = map_window(windows_.front());
  auto identities = GDX_TRY(world_->allgather_value(connector_->identity(), options_.timeout_ns));
  std::uint64_t mapped = 0;
  for (std::uint32_t rank = 0; rank < size && done; ++rank) {
    if (!is_mapped(rank)) continue;
    ++mapped;
    for (std::uint32_t lane = 0; lane < options_.lanes; ++lane)
      ends_[end_index(lane, rank)].way = PeerWay::kMapped;
  }
  if (size > 1 && !has_atomics()) mapped = 0;
  const auto all = GDX_TRY(meet({.call = Call::kRest, .own = {mapped}}, done));
  const bool all_mapped = std::ranges::all_of(all, [&](const Statement& s) { return s.own[0] == size; });
  atomics_ = all_mapped ? TeamAtomics::kProcessor : TeamAtomics::kNic;
  return identities;
}

// At the address by which rank 0 knows this rank, because TCP is known to work there; the NIC's network may
// carry RoCE alone.
Result<void> TeamState::listen() {
  ConnectorOptions options;
  options.rank = world_->rank();
  options.size = world_->size();
  options.lanes = options_.lanes;
  options.host = world_->address();
  // A kernel asks at once, or after a silence, and is to report an unreachable rank before its own timeout.
  const std::uint64_t bound_ns = *options_.endpoint.timeout_ns;
  const std::uint64_t silence_ns = options_.endpoint.probe_after_ns;
  options.rules.deadline_ns = std::max<std::uint64_t>(
      (bound_ns > silence_ns ? bound_ns - silence_ns : bound_ns) / 10 * kDeadlineTenths, 1);
  connector_ = GDX_TRY(ConnectorService::listen(options));
  return {};
}

// Asks for this rank and those above at once; those below ask this one. Ends before the others' wait for
// this rank does.
Result<void> TeamState::connect_all() {
  const std::uint32_t size = world_->size();
  for (std::uint32_t lane = 0; lane < options_.lanes; ++lane) {
    for (std::uint32_t rank = world_->rank(); rank < size; ++rank)
      std::atomic_ref(asked()[end_index(lane, rank)]).store(1, std::memory_order_relaxed);
  }
  const std::uint64_t deadline_ns = monotonic_ns() + options_.timeout_ns / 10 * kDeadlineTenths;
  for (std::uint32_t i = 0; i < size; ++i) GDX_TRY(connect((world_->rank() + i) % size, deadline_ns));
  return {};
}

Result<void> TeamState::connect(std::uint32_t rank, std::uint64_t deadline_ns) {
  for (std::uint32_t lane = 0; lane < options_.lanes; ++lane)
    std::atomic_ref(asked()[end_index(lane, rank)]).store(1, std::memory_order_relaxed);
  for (std::uint32_t lane = 0; lane < options_.lanes; ++lane) {
    const std::uint64_t now_ns = monotonic_ns();
    GDX_TRY(connector_->connect(rank, lane, deadline_ns - std::min(now_ns, deadline_ns)));
  }
  return {};
}

// Leaves the other ranks time to be told of a failure. An endpoint that kernels know stays until the team
// ends.
Result<void> TeamState::flush() {
  const std::uint64_t deadline_ns = monotonic_ns() + options_.timeout_ns / 10 * kDeadlineTenths;
  for (std::uint32_t lane = 0; lane < options_.lanes; ++lane) {
    for (std::uint32_t rank = 0; rank < world_->size(); ++rank) {
      const Endpoint* endpoint = nullptr;
      {
        const std::lock_guard lock(mutex_);
        const ConnectionEnd& end = ends_[end_index(lane, rank)];
        if (end.is_known()) endpoint = &*end.endpoint;
      }
      if (abort_word().load(std::memory_order_relaxed) != 0) return {};
      auto done = endpoint != nullptr ? endpoint->flush(deadline_ns) : Result<void>{};
      if (done) continue;
      done.error().message =
          fmt::format("what kernels posted to rank {}, lane {}: {}", rank, lane, done.error().message);
      return done;
    }
  }
  return {};
}

Result<EndpointAddress> TeamState::create(std::uint32_t rank, std::uint32_t lane) {
  auto endpoint = GDX_TRY(Endpoint::create(*hca_, pools_, options_.endpoint));
  if (gpu_) {
    GDX_TRY(endpoint.map_to(*gpu_));
  }
  const EndpointAddress address = endpoint.address();
  const std::lock_guard lock(mutex_);
  if (abort_word().load(std::memory_order_relaxed) != 0) endpoint.abort();
  ends_[end_index(lane, rank)].endpoint = std::move(endpoint);
  return address;
}

// Without the lock: other threads leave an endpoint alone that kernels do not know yet.
Result<void> TeamState::connect(std::uint32_t rank, std::uint32_t lane, const EndpointAddress& peer) {
  return ends_[end_index(lane, rank)].endpoint->connect(peer);
}

void TeamState::ready(std::uint32_t rank, std::uint32_t lane) {
  const std::lock_guard lock(mutex_);
  set_connection(rank, lane, is_mapped(rank) ? PeerWay::kDirect : PeerWay::kNative);
}

// Kernels may still be using an endpoint that was ready. A mapped rank whose atomics are the processors'
// needs none: it stays mapped, unless it is unreachable because it has ended or stands still.
void TeamState::gone(std::uint32_t rank, std::uint32_t lane, const Error& why) {
  const std::lock_guard lock(mutex_);
  ConnectionEnd& end = ends_[end_index(lane, rank)];
  if (!end.is_known()) end.endpoint.reset();
  end.why_gone = why.message;
  const bool goes_on =
      is_mapped(rank) && atomics_ == TeamAtomics::kProcessor && why.status != Status::kPeerUnreachable;
  set_connection(rank, lane, goes_on ? PeerWay::kMapped : PeerWay::kGone);
}

void TeamState::set_connection(std::uint32_t rank, std::uint32_t lane, PeerWay way) {
  ends_[end_index(lane, rank)].way = way;
  for (const auto& table : tables()) {
    const auto at = std::ranges::find(table->members(), rank);
    if (at != table->members().end())
      write_connection(*table, lane, static_cast<std::uint32_t>(at - table->members().begin()));
  }
}

std::vector<std::shared_ptr<Table>> TeamState::tables() const {
  std::vector<std::shared_ptr<Table>> alive;
  alive.reserve(tables_.size());
  for (const auto& known : tables_) {
    if (auto table = known.lock()) alive.push_back(std::move(table));
  }
  return alive;
}

// The way comes last, because a kernel reads the rest of the record after it. Kernels may be reading an
// endpoint that is in the record already.
void TeamState::write_connection(const Table& table, std::uint32_t lane, std::uint32_t index) const {
  const ConnectionEnd& end = ends_[end_index(lane, table.members()[index])];
  TeamPeer& peer = table.peer(lane, index);
  if (end.is_known() && peer.state == nullptr) peer.set_endpoint(end.endpoint->handle());
  set_way(peer, end.way);
}

void TeamState::write_window(const Table& table, std::size_t w) const {
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    const std::uint32_t rank = table.members()[i];
    const RemoteMemory& part = windows_[w].parts[rank];
    const PeerHandle mapped = windows_[w].mapping->handle(rank, {});
    const TeamPeerWindow window{part.address, part.rkey, 0,
                                is_mapped(rank) ? mapped.windows[0].mapped : nullptr};
    for (std::uint32_t lane = 0; lane < options_.lanes; ++lane)
      table.peer(lane, i).set_window(w, window, windows_[w].memory.data());
  }
}

Result<std::shared_ptr<Table>> TeamState::make_table(std::vector<std::uint32_t> members) {
  auto made = GDX_TRY(Table::create(std::move(members), options_.lanes, gpu_ ? &*gpu_ : nullptr));
  auto table = std::make_shared<Table>(std::move(made));
  for (std::size_t w = 0; w < windows_.size(); ++w) write_window(*table, w);
  const std::lock_guard lock(mutex_);
  for (std::uint32_t i = 0; i < table->size(); ++i) {
    for (std::uint32_t lane = 0; lane < options_.lanes; ++lane) {
      table->peer(lane, i).asked = asked() + end_index(lane, table->members()[i]);
      write_connection(*table, lane, i);
    }
  }
  std::erase_if(tables_, [](const auto& known) { return known.expired(); });
  tables_.push_back(table);
  write_handle(*table);
  return table;
}

Result<std::uint64_t> TeamState::allocate(std::uint64_t bytes, std::uint64_t alignment) {
  GDX_TRY(meet({.call = Call::kAllocate, .arguments = {bytes, alignment}}));
  return heap_.allocate(bytes, alignment);
}

// Zeroes the piece while no rank can get it again. Frees it once all ranks have done so.
Result<void> TeamState::free(const void* pointer) {
  const std::uint64_t offset =
      reinterpret_cast<std::uintptr_t>(pointer) - reinterpret_cast<std::uintptr_t>(heap_memory().data());
  Result<void> checked;
  if (!heap_.piece(offset))
    checked =
        fail(Status::kInvalidArgument,
             fmt::format("cannot free {}: allocate has not returned it, or it is free; pass each pointer "
                         "of Team::allocate once",
                         pointer));
  GDX_TRY(meet({.call = Call::kFree, .arguments = {offset}}, checked));
  GDX_TRY(meet({.call = Call::kRest}, zero(offset, *heap_.piece(offset))));
  (void)heap_.free(offset);
  return {};
}

// This rank's part of adding a window.
Result<Window> TeamState::register_own(void* address, std::uint64_t bytes) {
  if (windows_.size() == kMaxTeamWindows) {
    return fail(Status::kInvalidArgument,
                fmt::format("a team has no window {}: use at most {} beside the heap, or allocate",
                            windows_.size(), kMaxTeamWindows - 1));
  }
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  for (const Window& window : windows_) {
    const auto other = reinterpret_cast<std::uintptr_t>(window.memory.data());
    if (first >= other + window.memory.bytes() || other >= first + bytes) continue;
    return fail(Status::kInvalidArgument,
                fmt::format("{} bytes at {} are in a window of the team already", bytes, address));
  }
  auto memory = GDX_TRY(register_memory(*hca_, address, bytes));
  if (options_.endpoint.placement == Placement::kGpu &&
      memory.registered_by() == RegistrationWay::kHostPages) {
    return fail(
        Status::kInvalidArgument,
        fmt::format("{} bytes at {} are host memory: a team with queues in GPU memory takes windows of a GPU",
                    bytes, address));
  }
  Window window{std::move(memory)};
  GDX_TRY(map_to_gpu(window));
  return window;
}

Result<void> TeamState::add_window(void* address, std::uint64_t bytes) {
  auto window = register_own(address, bytes);
  Statement mine{.call = Call::kWindow, .arguments = {bytes}};
  if (window) mine.memory = window->memory.remote();
  const auto all = GDX_TRY(meet(mine, window ? Result<void>{} : tl::unexpected(window.error())));
  window->parts.reserve(all.size());
  for (const Statement& statement : all) window->parts.push_back(statement.memory);

  auto mapped = map_window(*window);
  for (std::uint32_t rank = 0; rank < world_->size() && mapped; ++rank) {
    if (!is_mapped(rank) || window->mapping->is_direct(rank)) continue;
    mapped = fail(Status::kUnsupported,
                  fmt::format("rank {} is direct, and a window of its cannot be mapped: {}; use memory of "
                              "Team::allocate, or {}=off",
                              rank, window->mapping->reason(rank), kDirectVariable));
  }
  GDX_TRY(meet({.call = Call::kRest}, mapped));
  const std::lock_guard lock(mutex_);
  windows_.push_back(std::move(*window));
  const auto w = static_cast<std::uint32_t>(windows_.size() - 1);
  for (const auto& table : tables()) {
    write_window(*table, w);
    show_window(*table, w);
  }
  return {};
}

void TeamState::write_handle(const Table& table) const {
  TeamHandle handle{};
  handle.layout = team_layout(*options_.endpoint.placement);
  const auto own = std::ranges::find(table.members(), world_->rank());
  handle.rank = static_cast<std::uint32_t>(own - table.members().begin());
  handle.size = table.size();
  handle.lanes = options_.lanes;
  handle.atomics = atomics_;
  handle.most_bytes =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(mlx5::kMaxMessageBytes, options_.heap_bytes));
  handle.peers = table.peers();
  handle.fault = table.fault();
  handle.abort = words();
  handle.timeout_ns = *options_.endpoint.timeout_ns;
  handle.probe_after_ns = options_.endpoint.probe_after_ns;
  handle.progress = &progress;
  const auto first = tables_.front().lock();  // of all ranks, whose endpoints share the pools
  handle.pool_peers = first->peers();
  handle.pool_peer_count = first->size() * options_.lanes;
  handle.copy = table.copy();
  *table.copy() = handle;
  for (std::uint32_t w = 0; w < windows_.size(); ++w) show_window(table, w);
}

void TeamState::show_window(const Table& table, std::uint32_t w) const {
  TeamHandle& handle = *table.copy();
  const LocalMemory own = windows_[w].memory.local();
  handle.windows[w] = {own.address, own.bytes, own.lkey, 0};
  std::atomic_ref(handle.window_count).store(w + 1, std::memory_order_release);
}

EndpointHandle TeamState::endpoint_handle(std::uint32_t lane, std::uint32_t rank) const {
  if (lane >= options_.lanes || rank >= world_->size()) return {};
  const std::lock_guard lock(mutex_);
  const ConnectionEnd& end = ends_[end_index(lane, rank)];
  return end.is_known() ? end.endpoint->handle() : EndpointHandle{};
}

std::uint32_t TeamState::connections(const Table& table) const {
  const std::lock_guard lock(mutex_);
  std::uint32_t count = 0;
  for (std::uint32_t lane = 0; lane < options_.lanes; ++lane) {
    for (const std::uint32_t rank : table.members()) count += ends_[end_index(lane, rank)].endpoint ? 1 : 0;
  }
  return count;
}

void TeamState::abort() {
  {
    const std::lock_guard lock(mutex_);
    abort_word().store(1, std::memory_order_release);
    for (auto& end : ends_) {
      if (end.endpoint) end.endpoint->abort();
    }
  }
  connector_->abort();
}

}  // namespace gdx::team
