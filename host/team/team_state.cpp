#include "host/team/team_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "base/log.h"
#include "host/staging/progress.h"
#include "proto/mlx5/wqe.h"

namespace gdx::team {
namespace {

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
  own_.hca = GDX_TRY(Hca::open(options_.hca));
  hca_ = &*own_.hca;
  if (options_.staging && hca_->device_memory_bytes() == 0) {
    log::info("HCA {} has no memory of its own: a team on it does not push", hca_->name());
  } else if (options_.staging) {
    own_.nic_pool = GDX_TRY(StagingPool::create(*hca_, *options_.staging));
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
  return agree(*world_, statement, done, options_.timeout_ns);
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
  options_ = GDX_TRY(resolve_team_options(options_, hca_->is_software()));
  fit(options_.endpoint.slot_count, pools_.nic);
  fit(options_.endpoint.bounce_slot_count, pools_.host);
  if (options_.gpu) {
    gpu_ = GDX_TRY(Gpu::open(*options_.gpu));
    if (options_.endpoint.placement == Placement::kGpu && !options_.endpoint.gpu)
      options_.endpoint.gpu = gpu_;
    for (StagingPool* const pool : {pools_.nic, pools_.host}) {
      if (pool == nullptr) continue;
      GDX_TRY(pool->map_to(*gpu_));
    }
  }
  const std::size_t endpoints = std::size_t{options_.lanes} * world_->size();
  endpoints_.resize(endpoints);
  ways_.resize(world_->size());
  words_ = GDX_TRY(HostPages::allocate((1 + endpoints) * sizeof(std::uint32_t), gpu_ ? &*gpu_ : nullptr));
  windows_.reserve(kMaxTeamWindows);
  auto heap = GDX_TRY(make_heap());
  windows_.push_back({std::move(heap)});
  heap_ = SymmetricHeap(options_.heap_bytes);
  return gpu_heap_ ? zero(0, options_.heap_bytes) : map_to_gpu(windows_.front().memory);
}

Result<void> TeamState::map_to_gpu(const Memory& memory) {
  if (!gpu_ || memory.registered_by() != RegistrationWay::kHostPages) return {};
  auto mapping = GDX_TRY(gpu_->map(memory.data(), memory.bytes()));
  mappings_.push_back(std::move(mapping));
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

Result<void> TeamState::found(const Result<void>& opened) {
  auto done = opened;
  if (done) done = make_local_parts();
  // The others must hear of a bound that is impossible, too.
  if (options_.timeout_ns == 0 || options_.timeout_ns > kMaxWaitNs)
    options_.timeout_ns = kDefaultTeamTimeoutNs;
  Statement mine{.call = Call::kCreate, .arguments = {options_.heap_bytes, options_.lanes}};
  if (done) mine.memory = windows_.front().memory.remote();
  const auto all = GDX_TRY(meet(mine, done));
  Window& heap = windows_.front();
  heap.parts.reserve(all.size());
  for (const Statement& statement : all) heap.parts.push_back(statement.memory);
  return connect_all();
}

// After a failure of this rank alone the others must hear of it, so each step ends in a meeting.
Result<void> TeamState::connect_all() {
  const std::uint32_t size = world_->size();
  const std::uint32_t lanes = options_.lanes;
  auto done = map_window(windows_.front());
  for (std::uint32_t rank = 0; rank < size && done; ++rank)
    ways_[rank] = is_mapped(rank) ? PeerWay::kMapped : PeerWay::kNone;
  std::vector<std::vector<EndpointAddress>> towards(lanes, std::vector<EndpointAddress>(size));
  for (std::uint32_t rank = 0; rank < size && done; ++rank) {
    auto made = make_endpoints(rank);
    if (!made) {
      done =
          fail(made.error().status, fmt::format("endpoint towards rank {}: {}", rank, made.error().message));
      break;
    }
    for (std::uint32_t lane = 0; lane < lanes; ++lane) towards[lane][rank] = (*made)[lane];
  }
  GDX_TRY(meet({.call = Call::kMap}, done));

  // Each rank picks from each other's the addresses that are towards itself.
  std::vector<std::vector<EndpointAddress>> from(size, std::vector<EndpointAddress>(lanes));
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    const auto gathered =
        GDX_TRY(world_->allgather(std::as_bytes(std::span(towards[lane])), options_.timeout_ns));
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      const std::size_t at = (std::size_t{rank} * size + world_->rank()) * sizeof(EndpointAddress);
      std::memcpy(&from[rank][lane], gathered.data() + at, sizeof(EndpointAddress));
    }
  }
  std::uint64_t mapped = 0;
  for (std::uint32_t rank = 0; rank < size && done; ++rank) {
    done = connect(rank, from[rank]);
    mapped += is_mapped(rank) ? 1 : 0;
  }
  const auto all = GDX_TRY(meet({.call = Call::kConnect, .own = {mapped}}, done));
  const bool all_mapped = std::ranges::all_of(all, [&](const Statement& s) { return s.own[0] == size; });
  atomics_ = all_mapped ? TeamAtomics::kProcessor : TeamAtomics::kNic;
  return {};
}

Result<std::vector<EndpointAddress>> TeamState::make_endpoints(std::uint32_t rank) {
  std::vector<EndpointAddress> addresses;
  addresses.reserve(options_.lanes);
  for (std::uint32_t lane = 0; lane < options_.lanes; ++lane) {
    auto endpoint = GDX_TRY(Endpoint::create(*hca_, pools_, options_.endpoint));
    if (gpu_) {
      GDX_TRY(endpoint.map_to(*gpu_));
    }
    addresses.push_back(endpoint.address());
    endpoints_[endpoint_index(lane, rank)] = std::move(endpoint);
  }
  return addresses;
}

Result<void> TeamState::connect(std::uint32_t rank, std::span<const EndpointAddress> addresses) {
  for (std::uint32_t lane = 0; lane < options_.lanes; ++lane) {
    Endpoint& endpoint = *endpoints_[endpoint_index(lane, rank)];
    if (auto done = endpoint.connect(addresses[lane]); !done)
      return fail(done.error().status,
                  fmt::format("connection to rank {}, lane {}: {}", rank, lane, done.error().message));
  }
  ways_[rank] = is_mapped(rank) ? PeerWay::kDirect : PeerWay::kNative;
  for (const auto& table : tables()) {
    const auto at = std::ranges::find(table->members(), rank);
    if (at != table->members().end())
      write_connection(*table, static_cast<std::uint32_t>(at - table->members().begin()));
  }
  return {};
}

std::vector<std::shared_ptr<Table>> TeamState::tables() const {
  std::vector<std::shared_ptr<Table>> alive;
  alive.reserve(tables_.size());
  for (const auto& known : tables_) {
    if (auto table = known.lock()) alive.push_back(std::move(table));
  }
  return alive;
}

// The way comes last, because a kernel reads the rest of the record after it.
void TeamState::write_connection(const Table& table, std::uint32_t index) const {
  const std::uint32_t rank = table.members()[index];
  for (std::uint32_t lane = 0; lane < options_.lanes; ++lane) {
    TeamPeer& peer = table.peer(lane, index);
    peer.set_endpoint(endpoint_handle(lane, rank));
    set_way(peer, ways_[rank]);
  }
}

void TeamState::write_windows(const Table& table) const {
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    const std::uint32_t rank = table.members()[i];
    for (std::size_t w = 0; w < windows_.size(); ++w) {
      const RemoteMemory& part = windows_[w].parts[rank];
      const PeerHandle mapped = windows_[w].mapping->handle(rank, {});
      const TeamPeerWindow window{part.address, part.rkey, 0,
                                  is_mapped(rank) ? mapped.windows[0].mapped : nullptr};
      for (std::uint32_t lane = 0; lane < options_.lanes; ++lane)
        table.peer(lane, i).set_window(w, window, windows_[w].memory.data());
    }
  }
}

Result<std::shared_ptr<Table>> TeamState::make_table(std::vector<std::uint32_t> members) {
  auto made = GDX_TRY(Table::create(std::move(members), options_.lanes, gpu_ ? &*gpu_ : nullptr));
  auto table = std::make_shared<Table>(std::move(made));
  write_windows(*table);
  for (std::uint32_t i = 0; i < table->size(); ++i) {
    const std::uint32_t rank = table->members()[i];
    for (std::uint32_t lane = 0; lane < options_.lanes; ++lane)
      table->peer(lane, i).asked = words() + 1 + endpoint_index(lane, rank);
    write_connection(*table, i);
  }
  std::erase_if(tables_, [](const auto& known) { return known.expired(); });
  tables_.push_back(table);
  return table;
}

Result<std::uint64_t> TeamState::allocate(std::uint64_t bytes, std::uint64_t alignment) {
  GDX_TRY(meet({.call = Call::kAllocate, .arguments = {bytes, alignment}}));
  return heap_.allocate(bytes, alignment);
}

// Zeroes the piece here, because no rank gets it again before this one calls allocate.
Result<void> TeamState::free(const void* pointer) {
  const std::uint64_t offset =
      reinterpret_cast<std::uintptr_t>(pointer) - reinterpret_cast<std::uintptr_t>(heap_memory().data());
  Result<void> checked;
  if (!heap_.piece(offset))
    checked = fail(Status::kInvalidArgument,
                   fmt::format("cannot free {}: allocate has not returned it, or it is free", pointer));
  GDX_TRY(meet({.call = Call::kFree, .arguments = {offset}}, checked));
  return zero(offset, *heap_.free(offset));
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
  GDX_TRY(map_to_gpu(memory));
  return Window{std::move(memory)};
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
  GDX_TRY(meet({.call = Call::kMap}, mapped));
  windows_.push_back(std::move(*window));
  for (const auto& table : tables()) write_windows(*table);
  return {};
}

TeamHandle TeamState::handle(const Table& table, std::uint32_t rank) const {
  TeamHandle handle{};
  handle.layout = team_layout(options_.endpoint.placement);
  handle.rank = rank;
  handle.size = table.size();
  handle.lanes = options_.lanes;
  handle.atomics = atomics_;
  handle.window_count = static_cast<std::uint32_t>(windows_.size());
  handle.most_bytes =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(mlx5::kMaxMessageBytes, options_.heap_bytes));
  handle.peers = table.peers();
  handle.fault = table.fault();
  handle.abort = words();
  handle.timeout_ns = *options_.endpoint.timeout_ns;
  handle.probe_after_ns = options_.endpoint.probe_after_ns;
  handle.progress = &progress;
  for (std::size_t w = 0; w < windows_.size(); ++w) {
    const LocalMemory own = windows_[w].memory.local();
    handle.windows[w] = {own.address, own.bytes, own.lkey, 0};
  }
  const auto first = tables_.front().lock();  // of all ranks, whose endpoints share the pools
  handle.pool_peers = first->peers();
  handle.pool_peer_count = first->size() * options_.lanes;
  handle.copy = table.copy();
  *table.copy() = handle;
  return handle;
}

EndpointHandle TeamState::endpoint_handle(std::uint32_t lane, std::uint32_t rank) const {
  if (lane >= options_.lanes || rank >= world_->size()) return {};
  const auto& endpoint = endpoints_[endpoint_index(lane, rank)];
  return endpoint ? endpoint->handle() : EndpointHandle{};
}

std::string TeamState::describe_fault(const Table& table) const {
  std::string text;
  const TeamFault& fault = *table.fault();
  if (fault.status != Status::kOk) {
    const std::uint64_t offset = fault.address - reinterpret_cast<std::uintptr_t>(heap_memory().data());
    const auto place = offset < heap_memory().size() ? fmt::format("heap offset {:#x}", offset)
                                                     : fmt::format("{:#x}", fault.address);
    text =
        fmt::format("{}: rank {}, {} bytes at {}", status_name(fault.status), fault.rank, fault.bytes, place);
  }
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    for (std::uint32_t lane = 0; lane < options_.lanes; ++lane) {
      const auto& endpoint = endpoints_[endpoint_index(lane, table.members()[i])];
      if (!endpoint || endpoint->fault().status == Status::kOk) continue;
      text += fmt::format("{}endpoint towards rank {}, lane {}: {}", text.empty() ? "" : "; ", i, lane,
                          endpoint->describe_fault());
    }
  }
  return text.empty() ? status_name(Status::kOk) : text;
}

void TeamState::abort() {
  std::atomic_ref<std::uint32_t>(*words()).store(1, std::memory_order_release);
  for (auto& endpoint : endpoints_) {
    if (endpoint) endpoint->abort();
  }
}

}  // namespace gdx::team
