#include "host/team/team_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "base/node.h"
#include "host/bootstrap/rendezvous.h"
#include "host/memory/memory_limits.h"
#include "host/staging/progress.h"
#include "host/team/team_fault.h"
#include "proto/mapping_order.h"
#include "proto/mlx5/wqe.h"

namespace gdx::team {
namespace {

std::atomic<std::uint64_t> teams_created = 0;  // by this process

// Part of the heap that the scratch of a team of some ranks takes at most, as 1 in so many: there may be
// many.
constexpr std::uint32_t kPartShare = 64;

// Teams of this process that took memory of an HCA for their own pools.
std::atomic<int> teams_with_pools = 0;

std::shared_ptr<void> count_team_with_pools() {
  ++teams_with_pools;
  return {nullptr, [](void*) { --teams_with_pools; }};
}

// Returns whether a piece of the heap is the area for kernels' collective calls.
bool is_area(const Group& group, std::uint64_t offset, std::span<const std::byte> heap) {
  return group.table->copy()->area == heap.data() + offset;
}

// Lowers the slots to what the pool has.
void fit(std::uint32_t& slots, const StagingPool* pool) {
  slots = pool == nullptr ? 0 : std::min(slots, pool->slot_count());
}

}  // namespace

// Says of each rank what counts before it takes memory. Trivially copyable, because ranks exchange it as
// bytes.
struct TeamState::Introduction {
  peer::NodeIdentity node;  // all zero: unknown
  MemoryNeed memory;        // that the rank's heap takes of the host's
  ProviderChoice provider;
  bootstrap::ConnectorIdentity connector;
  bootstrap::GroupAddress groups;
};

Result<void> TeamState::join() {
  const auto options =
      GDX_TRY(options_.world ? Result<WorldOptions>(*options_.world) : WorldOptions::from_environment());
  own_.world = GDX_TRY(World::join(options));
  world_ = &*own_.world;
  return {};
}

Result<void> TeamState::open_parts() {
  if (!options_.gpu && program_has_cuda_kernels()) options_.gpu = GDX_TRY(Gpu::current()).ordinal();
  choice_ = GDX_TRY(provider_choice(options_));
  if (!choice_->tries_hca()) return {};
  HcaOptions hca = options_.hca;
  if (!hca.gpu) hca.gpu = options_.gpu;
  hca.rank = world_->rank();
  auto opened = Hca::open(hca);
  if (!opened && choice_->is_auto()) {
    log::info("no HCA for a team: {}", opened.error().message);
    choice_->takes = 1;
    return {};
  }
  own_.hca = GDX_TRY(std::move(opened));
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

// An error of a part has its own ranks' numbers, so it also tells those of the first team.
Result<std::vector<Statement>> TeamState::meet(Group& group, Statement statement, const Result<void>& done) {
  release_to_mappings(Toward::kPeers);  // this rank's reads before this meeting
  statement.team = group.is_part() ? 0 : number_;
  if (group.table && (statement.call == Call::kBarrier || statement.call == Call::kClose))
    windows_->read_kernel_calls(*group.table->copy(), statement.kernel_calls);
  auto all = agree(*group.world, statement, done, options_.timeout_ns);
  acquire_from_mappings(Toward::kHost);  // peers' puts before this meeting
  if (!all && group.is_part() && group.table)
    all.error().message += fmt::format("; ranks of this team are, in their order, {} of the first team",
                                       bootstrap::rank_list(group.table->members()));
  return all;
}

Result<void> TeamState::complete(Group& group, Call call) {
  GDX_TRY(meet(group, {.call = call}, connections_->flush(group.table->members())));
  return {};
}

// Rounds in which all ranks meet, each of which tells them a failure of one:
//
//   1 introduce      nodes, memory that heaps need, connectors' addresses, providers
//   2 statement      options are compared; heaps' addresses and keys
//   3 mapping        of the heaps of ranks on this node
//   4 ways           which ranks are mapped, and so the way of atomics
//   5 posters, cards where ranks are proxied
//   6 end            records are written; with connect_all, all pairs are connected
//
// A rank whose own steps have failed takes part until the statement, which tells the others.
Result<std::shared_ptr<Group>> TeamState::establish(const Result<void>& opened) {
  first_->world = world_;
  auto done = opened ? open_connections() : opened;
  // The other ranks must get the error of an impossible bound too.
  const bool possible = options_.timeout_ns != 0 && options_.timeout_ns <= kMaxWaitNs;
  if (!possible) options_.timeout_ns = kDefaultTeamTimeoutNs;
  const auto all = GDX_TRY(introduce());
  if (done) start_groups(all);
  if (done) done = choose_provider(all);
  if (done) done = check_heaps(all);
  if (done) done = make_heap();
  Statement mine{
      .call = Call::kCreate, .arguments = {options_.heap_bytes, options_.lanes}, .own = {++teams_created}};
  if (done) mine.memory = windows_->window(0).memory.remote();
  const auto statements = GDX_TRY(meet(mine, done));
  number_ = statements.front().own[0];
  for (const Statement& statement : statements) windows_->heap_window().parts.push_back(statement.memory);
  const auto mapped = GDX_TRY(choose_ways());
  std::unique_ptr<Poster> poster;
  if (atomics_ == TeamAtomics::kAgent) poster = GDX_TRY(start_poster(all));
  auto table = connect_ranks(all, mapped, std::move(poster));
  GDX_TRY(meet({.call = Call::kRest}, table ? Result<void>{} : tl::unexpected(table.error())));
  first_->table = std::move(*table);
  return first_;
}

Result<void> TeamState::open_connections() {
  if (!choice_) choice_ = GDX_TRY(provider_choice(options_));
  if (!choice_->tries_hca()) {
    hca_ = nullptr;
    pools_ = {};
  }
  options_ = GDX_TRY(resolve_team_options(options_, hca_ == nullptr || hca_->is_software(),
                                          hca_ == nullptr ? LinkLayer::kEthernet : hca_->link_layer()));
  if (options_.gpu) {
    gpu_ = GDX_TRY(Gpu::open(*options_.gpu));
    if (options_.endpoint.placement == Placement::kGpu && !options_.endpoint.gpu)
      options_.endpoint.gpu = gpu_;
    if (pools_.nic != nullptr && !pools_.nic->map_if_allowed(*gpu_).empty()) pools_.nic = nullptr;
    if (pools_.host != nullptr) GDX_TRY(pools_.host->map_to(*gpu_));
  }
  fit(options_.endpoint.slot_count, pools_.nic);
  fit(options_.endpoint.bounce_slot_count, pools_.host);
  groups_ = GDX_TRY(bootstrap::GroupPlace::listen(*world_));
  connections_ = GDX_TRY(Connections::listen(hca_, pools_, options_, gpu_, *world_));
  return {};
}

Result<std::vector<TeamState::Introduction>> TeamState::introduce() {
  Introduction mine{.node = node_identity().value_or(peer::NodeIdentity{}),
                    .memory = {},
                    .provider = choice_.value_or(ProviderChoice{}),
                    .connector = {},
                    .groups = groups_ ? groups_->address() : bootstrap::GroupAddress{}};
  const bool takes = connections_ && options_.heap_memory == HeapMemory::kHost;  // options are in range then
  mine.memory = memory_need(
      takes ? options_.heap_bytes + Windows::area_of(options_, world_->size()).bytes : 0, memory_limits());
  if (connections_) mine.connector = connections_->identity();
  return world_->allgather_value(mine, options_.timeout_ns);
}

void TeamState::start_groups(const std::vector<Introduction>& all) {
  std::vector<bootstrap::GroupAddress> addresses;
  addresses.reserve(all.size());
  for (const Introduction& rank : all) addresses.push_back(rank.groups);
  groups_->start(addresses);
}

// All heaps of this host must fit into it together, because its ranks take them at once.
Result<void> TeamState::check_heaps(const std::vector<Introduction>& all) const {
  std::vector<MemoryNeed> here;
  for (const Introduction& rank : all) {
    if (std::ranges::equal(rank.node.boot_id, all[world_->rank()].node.boot_id)) here.push_back(rank.memory);
  }
  auto fits = check_memory(memory_limits(), here);
  if (!fits) {
    fits.error().message =
        fmt::format("team option heap_bytes = {}: {}", options_.heap_bytes, fits.error().message);
  }
  return fits;
}

Result<void> TeamState::make_heap() {
  windows_ = GDX_TRY(Windows::create(hca_, options_, gpu_, world_->size()));
  return {};
}

Result<void> TeamState::choose_provider(const std::vector<Introduction>& all) {
  std::vector<ProviderChoice> choices;
  choices.reserve(all.size());
  for (const Introduction& rank : all) choices.push_back(rank.provider);
  provider_ = GDX_TRY(provider_of(choices));
  if (provider_.empty()) return {};
  connections_->leave_hca();
  hca_ = nullptr;
  pools_ = {};
  own_.host_pool.reset();
  own_.nic_pool.reset();
  own_.counted.reset();
  own_.hca.reset();
  return check_proxied_options(provider_, options_);
}

Result<std::unique_ptr<Poster>> TeamState::start_poster(const std::vector<Introduction>& all) {
  std::vector<peer::NodeIdentity> nodes;
  nodes.reserve(all.size());
  for (const Introduction& rank : all) nodes.push_back(rank.node);
  auto poster = team::start_poster(provider_, {.world = world_,
                                               .nodes = nodes,
                                               .options = &options_,
                                               .abort = connections_->abort_word(),
                                               .asked = connections_->asked()});
  const Memory& heap = windows_->window(0).memory;
  Result<void> done =
      poster ? (*poster)->set_window(0, heap.data(), heap.bytes()) : tl::unexpected(poster.error());
  GDX_TRY(meet({.call = Call::kRest}, done));
  return poster;
}

Result<void> TeamState::exchange_cards(Poster& poster) {
  const auto cards = GDX_TRY(world_->allgather_value(poster.card(), options_.timeout_ns));
  for (std::uint32_t rank = 0; rank < cards.size(); ++rank) GDX_TRY(poster.connect(rank, cards[rank]));
  return {};
}

// Returns whether this rank's kernels change words of mapped heaps atomically with those of all other ranks.
bool TeamState::has_atomics() const {
  return !gpu_ || options_.heap_memory == HeapMemory::kGpu || gpu_->has_host_atomics();
}

// Returns the ranks whose heaps kernels reach by loads and stores. Processors do the atomics where every rank
// is mapped by every other, and can.
Result<std::vector<bool>> TeamState::choose_ways() {
  const std::uint32_t size = world_->size();
  const auto done = windows_->map(windows_->heap_window(), *world_);
  std::vector<bool> mapped(size);
  for (std::uint32_t rank = 0; rank < size && done; ++rank) mapped[rank] = windows_->is_mapped(rank);
  const auto count = static_cast<std::uint64_t>(std::ranges::count(mapped, true));
  const std::uint64_t atomic = size == 1 || has_atomics() ? count : 0;
  const auto all = GDX_TRY(meet({.call = Call::kRest, .own = {atomic}}, done));
  const bool all_mapped = std::ranges::all_of(all, [&](const Statement& s) { return s.own[0] == size; });
  const TeamAtomics by_others = provider_.empty() ? TeamAtomics::kNic : TeamAtomics::kAgent;
  atomics_ = all_mapped ? TeamAtomics::kProcessor : by_others;
  return mapped;
}

// Tells the way to each rank, and why it is no other.
void TeamState::log_ways(const std::vector<bool>& mapped) const {
  if (!log::enabled(log::Level::kInfo)) return;
  const Poster* const poster = connections_->poster();
  const std::string proxied = poster != nullptr ? describe_proxied(*poster) : "";
  for (std::uint32_t rank = 0; rank < world_->size(); ++rank) {
    const std::string why = mapped[rank] ? "" : windows_->window(0).mapping->reason(rank);
    if (poster != nullptr) {
      log::info("rank {}: {}{}", rank, proxied,
                mapped[rank] ? "; puts and gets by loads and stores" : fmt::format("; not direct: {}", why));
    } else if (mapped[rank]) {
      log::info("rank {}: direct: loads and stores, atomics by {}", rank,
                atomics_ == TeamAtomics::kProcessor ? "processors" : "the NIC");
    } else {
      log::info("rank {}: native: kernels post to HCA {}; not direct: {}", rank, hca_->name(), why);
    }
  }
}

Result<std::shared_ptr<Table>> TeamState::connect_ranks(const std::vector<Introduction>& all,
                                                        const std::vector<bool>& mapped,
                                                        std::unique_ptr<Poster> poster) {
  if (provider_.empty()) {
    std::vector<bootstrap::ConnectorIdentity> connectors;
    connectors.reserve(all.size());
    for (const Introduction& rank : all) connectors.push_back(rank.connector);
    GDX_TRY(connections_->start(connectors, mapped, atomics_));
  } else if (poster) {
    GDX_TRY(exchange_cards(*poster));
    GDX_TRY(connections_->start_proxied(mapped, std::move(poster)));
  } else {
    GDX_TRY(connections_->start_mapped(*windows_->window(0).mapping));
  }
  log_ways(mapped);
  std::vector<std::uint32_t> members(world_->size());
  std::iota(members.begin(), members.end(), 0u);
  auto table = GDX_TRY(make_table(std::move(members), windows_->area(), 0));
  if (options_.connect_all) GDX_TRY(connections_->connect_all());
  return table;
}

Result<std::shared_ptr<Table>> TeamState::make_table(std::vector<std::uint32_t> members,
                                                     const Windows::Area& area, std::uint64_t area_at) {
  auto made = GDX_TRY(Table::create(std::move(members), options_.lanes, gpu_ ? &*gpu_ : nullptr));
  auto table = std::make_shared<Table>(std::move(made));
  const std::lock_guard lock(mutex_);
  for (std::uint32_t w = 0; w < windows_->count(); ++w) windows_->write(*table, w);
  connections_->add(table);
  const auto first = connections_->first_table();  // another thread may close the first team meanwhile
  if (!first) return fail(Status::kInvalidArgument, "the team is closed: make another");
  write_handle(*table, *first, area, windows_->window(0).memory.data() + area_at);
  return table;
}

Result<std::shared_ptr<Group>> TeamState::make_part(const bootstrap::GroupKey& key,
                                                    std::vector<std::uint32_t> members) {
  auto group = std::make_shared<Group>();
  group->own_world = GDX_TRY(groups_->meet(key, members, options_.timeout_ns));
  group->world = &*group->own_world;
  const std::uint64_t mine = std::uint64_t{world_->rank()} << 48 | ++teams_created;
  group->number = GDX_TRY(meet(*group, {.call = Call::kSubteam, .own = {mine}})).front().own[0];
  const auto area = Windows::area_of(options_, group->world->size(), kPartShare);
  const std::uint64_t at =
      GDX_TRY(allocate(*group, std::uint64_t{area.lane_bytes} * options_.lanes, kHeapAlignment));
  auto table = make_table(std::move(members), area, windows_->area().bytes + at);
  const auto met =
      meet(*group, {.call = Call::kRest}, table ? Result<void>{} : tl::unexpected(table.error()));
  if (!met) {
    if (group->world->poll_peers()) (void)free_pieces(*group, group->pieces);
    return tl::unexpected(met.error());
  }
  group->table = std::move(*table);
  return group;
}

// Keeps the memory taken where a rank was lost, because one that is only late may still write there.
Result<void> TeamState::close_part(Group& group) {
  auto done = complete(group, Call::kClose);
  if (done) done = free_pieces(group, group.pieces);
  group.table.reset();
  return done;
}

// Each rank proposes the lowest place that it has free, until all propose the same: other teams' pieces lie
// at some of them only. What is proposed is taken meanwhile, so that teams which are made at once share none.
Result<std::uint64_t> TeamState::allocate(Group& group, std::uint64_t bytes, std::uint64_t alignment) {
  for (std::uint64_t from = 0;;) {
    const auto mine = [&] {
      const std::lock_guard lock(mutex_);
      return windows_->pieces().allocate(bytes, alignment, from);
    }();
    Result<void> done;
    if (!mine) done = tl::unexpected(mine.error());
    const auto all = meet(
        group, {.call = Call::kAllocate, .arguments = {bytes, alignment}, .own = {mine.value_or(0)}}, done);
    const auto differs = [&](const Statement& statement) { return statement.own[0] != *mine; };
    if (all && std::ranges::none_of(*all, differs)) {
      group.pieces.insert(*mine);
      return *mine;
    }
    if (mine) {
      const std::lock_guard lock(mutex_);
      (void)windows_->pieces().free(*mine);
    }
    if (!all) return tl::unexpected(all.error());
    for (const Statement& statement : *all) from = std::max(from, statement.own[0]);
  }
}

Result<void> TeamState::free(Group& group, const void* pointer) {
  const std::uint64_t offset =
      reinterpret_cast<std::uintptr_t>(pointer) - reinterpret_cast<std::uintptr_t>(windows_->heap().data());
  Result<void> checked;
  if (!group.pieces.contains(offset) || is_area(group, offset, windows_->heap()))
    checked =
        fail(Status::kInvalidArgument,
             fmt::format("cannot free {}: allocate has not returned it, or it is free; pass each pointer "
                         "of Team::allocate once",
                         pointer));
  GDX_TRY(meet(group, {.call = Call::kFree, .arguments = {offset}}, checked));
  return free_pieces(group, {offset});
}

Result<void> TeamState::free_pieces(Group& group, const std::set<std::uint64_t>& pieces) {
  const std::vector<std::uint64_t> freed(pieces.begin(), pieces.end());  // group.pieces shrinks below
  Result<void> zeroed;
  for (const std::uint64_t offset : freed) {
    const auto bytes = [&] {
      const std::lock_guard lock(mutex_);
      return windows_->pieces().piece(offset).value_or(0);
    }();
    if (zeroed) zeroed = windows_->zero(windows_->area().bytes + offset, bytes);
  }
  GDX_TRY(meet(group, {.call = Call::kRest}, zeroed));
  const std::lock_guard lock(mutex_);
  for (const std::uint64_t offset : freed) {
    (void)windows_->pieces().free(offset);
    group.pieces.erase(offset);
  }
  return {};
}

std::uint64_t TeamState::bytes_free() const {
  const std::lock_guard lock(mutex_);
  return windows_->pieces().bytes_free();
}

Result<void> TeamState::add_window(void* address, std::uint64_t bytes) {
  auto window = windows_->register_part(address, bytes);
  Statement mine{.call = Call::kWindow, .arguments = {bytes}};
  if (window) mine.memory = window->memory.remote();
  const auto all = GDX_TRY(meet(mine, window ? Result<void>{} : tl::unexpected(window.error())));
  window->parts.reserve(all.size());
  for (const Statement& statement : all) window->parts.push_back(statement.memory);
  GDX_TRY(meet({.call = Call::kRest}, windows_->map(*window, *world_)));
  const std::uint32_t w = windows_->count();
  if (Poster* const poster = connections_->poster(); poster != nullptr) {
    auto met =
        meet({.call = Call::kRest}, poster->set_window(w, window->memory.data(), window->memory.bytes()));
    if (met) met = meet({.call = Call::kRest}, exchange_cards(*poster));
    if (!met) {
      poster->drop_window(w);  // before the memory goes, which peers could still write
      return tl::unexpected(met.error());
    }
  }
  const std::lock_guard lock(mutex_);
  windows_->add(std::move(*window));
  connections_->for_each_table([&](const Table& table) {
    windows_->write(table, w);
    windows_->show(table, w);
  });
  return {};
}

void TeamState::write_handle(const Table& table, const Table& first, const Windows::Area& area,
                             std::byte* area_at) const {
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
  handle.abort = connections_->abort_word();
  handle.timeout_ns = *options_.endpoint.timeout_ns;
  handle.probe_after_ns = options_.endpoint.probe_after_ns;
  handle.progress = &progress;
  handle.pool_peers = first.peers();
  handle.pool_peer_count = first.size() * options_.lanes;
  handle.area = area_at;
  handle.area_bytes = area.lane_bytes;
  handle.scratch_bytes = area.scratch_bytes;
  handle.copy = table.copy();
  *table.copy() = handle;
  for (std::uint32_t w = 0; w < windows_->count(); ++w) windows_->show(table, w);
}

void TeamState::clear_fault(const Table& table) const {
  *table.fault() = {};
  connections_->clear_faults();
}

std::string TeamState::describe_fault(const Table& table) const {
  return team::describe_fault(table, *windows_, *connections_, options_.endpoint);
}

}  // namespace gdx::team
