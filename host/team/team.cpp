#include "host/team/team.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/trace.h"
#include "host/team/only_copy.h"
#include "host/team/team_state.h"

namespace gdx {

using team::Call;
using team::TeamState;

namespace {

constexpr std::uint32_t kNoPlacement = 0xff;

// The state during one collective call.
struct Collective {
  std::shared_ptr<TeamState> state;
  Caller::Turn turn;  // ends before the state
  TeamState* operator->() const { return state.get(); }
};

}  // namespace

struct Team::Impl {
  static Result<Team> establish(std::shared_ptr<TeamState> state, const Result<void>& opened);
  // Begins a collective call. Errors: kInvalidArgument (closed); those of Caller::begin.
  [[nodiscard]] Result<Collective> collective(const char* call) const;
  // Returns the team of `members`, of whom this rank is one.
  [[nodiscard]] Result<Team> part(TeamState& of, const bootstrap::GroupKey& key,
                                  std::vector<std::uint32_t> members) const;
  // Returns the team's records; null once the team is closed.
  [[nodiscard]] const team::Table* table() const { return group ? group->table.get() : nullptr; }

  Caller caller;
  std::shared_ptr<TeamState> owned;  // null in a part of a team, and once closed
  std::weak_ptr<TeamState> state;
  std::shared_ptr<team::Group> group;
  std::uint32_t rank = 0;
};

Result<Team> Team::Impl::establish(std::shared_ptr<TeamState> state, const Result<void>& opened) {
  auto group = GDX_TRY(state->establish(opened ? team::check_only_copy() : opened));
  auto impl = std::make_unique<Impl>();
  impl->group = std::move(group);
  impl->rank = state->world().rank();
  impl->state = state;
  impl->owned = std::move(state);
  return Team(std::move(impl));
}

Result<Collective> Team::Impl::collective(const char* call) const {
  GDX_TRY(caller.check_process());
  auto alive = state.lock();
  if (!alive || table() == nullptr)
    return fail(Status::kInvalidArgument, fmt::format("cannot {}: the team is closed; make another", call));
  auto turn = GDX_TRY(group->caller.begin());
  return Collective{std::move(alive), std::move(turn)};
}

Result<Team> Team::Impl::part(TeamState& of, const bootstrap::GroupKey& key,
                              std::vector<std::uint32_t> members) const {
  auto impl = std::make_unique<Impl>();
  const std::uint32_t self = group->table->members()[rank];
  impl->rank = static_cast<std::uint32_t>(std::ranges::find(members, self) - members.begin());
  impl->group = GDX_TRY(of.make_part(key, std::move(members)));
  impl->state = state;
  return Team(std::move(impl));
}

Team::Team(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
// Leaves a closed team behind, whose calls are refused as those of any other.
Team::Team(Team&& other) noexcept : impl_(std::exchange(other.impl_, std::make_unique<Impl>())) {}

Team& Team::operator=(Team&& other) noexcept {
  auto taken = std::exchange(other.impl_, std::make_unique<Impl>());
  const Team closed(std::exchange(impl_, std::move(taken)));
  return *this;
}

// A child by fork has no thread of the team's, and its files are the parent's: it lets all go as it is.
Team::~Team() {
  if (impl_ && !impl_->caller.is_here()) static_cast<void>(impl_.release());
  if (!impl_) return;
  if (auto closed = close(); !closed) log::error("a team's end: {}", closed.error().message);
}

Result<Team> Team::create(const TeamOptions& options) {
  const TraceSpan span("Team::create");
  auto state = std::make_shared<TeamState>(options);
  GDX_TRY(state->join());
  const auto opened = state->open_parts();
  return Impl::establish(std::move(state), opened);
}

Result<Team> Team::create(World& world, const TeamOptions& options) {
  const TraceSpan span("Team::create");
  auto state = std::make_shared<TeamState>(options);
  state->use(world);
  const auto opened = state->open_parts();
  return Impl::establish(std::move(state), opened);
}

Result<Team> Team::create(const Hca& hca, World& world, StagingPools pools, const TeamOptions& options) {
  const TraceSpan span("Team::create");
  auto state = std::make_shared<TeamState>(options);
  state->use(hca, world, pools);
  return Impl::establish(std::move(state), {});
}

Result<void> Team::close() {
  const TraceSpan span("Team::close");
  GDX_TRY(impl_->caller.check_process());
  const auto state = impl_->state.lock();
  if (!state || impl_->table() == nullptr) {
    impl_->group.reset();
    return {};
  }
  auto turn = GDX_TRY(impl_->group->caller.begin());
  auto done = impl_->owned ? state->complete(*impl_->group, Call::kClose) : state->close_part(*impl_->group);
  turn.reset();
  impl_->group->table.reset();
  impl_->group.reset();
  impl_->owned.reset();
  return done;
}

Result<void*> Team::allocate_bytes(std::uint64_t bytes, std::uint64_t alignment) {
  const auto state = GDX_TRY(impl_->collective("allocate"));
  const std::uint64_t offset = GDX_TRY(state->allocate(*impl_->group, bytes, alignment));
  return static_cast<void*>(state->windows().heap().data() + offset);
}

Result<void> Team::free(void* pointer) {
  const auto state = GDX_TRY(impl_->collective("free"));
  return state->free(*impl_->group, pointer);
}

Result<void> Team::register_window(void* address, std::uint64_t bytes) {
  const auto state = GDX_TRY(impl_->collective("register a window"));
  if (impl_->group->is_part())
    return fail(Status::kUnsupported,
                "a team of some ranks cannot register a window: let all ranks do so on the first team, whose "
                "windows it has");
  return state->add_window(address, bytes);
}

Result<void> Team::barrier() {
  const auto state = GDX_TRY(impl_->collective("wait for all its ranks"));
  return state->complete(*impl_->group, Call::kBarrier);
}

Result<Team> Team::split(std::uint32_t colour, std::uint32_t key) {
  const auto state = GDX_TRY(impl_->collective("be split"));
  team::Group& group = *impl_->group;
  const auto all = GDX_TRY(state->meet(group, {.call = Call::kSplit, .own = {colour, key}}));
  std::vector<std::uint32_t> ranks;
  ranks.reserve(all.size());
  for (std::uint32_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].own[0] == colour) ranks.push_back(rank);
  }
  std::ranges::stable_sort(ranks, {}, [&](std::uint32_t rank) { return all[rank].own[1]; });
  for (std::uint32_t& rank : ranks) rank = group.table->members()[rank];
  const bootstrap::GroupKey number{group.number, ++group.splits, static_cast<std::uint32_t>(Call::kSplit)};
  return impl_->part(*state.state, number, std::move(ranks));
}

Result<Team> Team::subteam(std::span<const std::uint32_t> ranks, std::uint64_t tag) {
  const TraceSpan span("Team::subteam");
  GDX_TRY(impl_->caller.check_process());
  const auto state = impl_->state.lock();
  if (!state || impl_->table() == nullptr)
    return fail(Status::kInvalidArgument, "cannot make a subteam: the team is closed; make another");
  const auto refuse = [](const std::string& why) {
    return fail(Status::kInvalidArgument, fmt::format("no subteam: {}", why));
  };
  std::vector<std::uint32_t> members;
  members.reserve(ranks.size());
  for (const std::uint32_t rank : ranks) {
    if (rank >= size()) return refuse(fmt::format("rank {}: the team has {} ranks", rank, size()));
    if (std::ranges::count(ranks, rank) != 1) return refuse(fmt::format("rank {} is there twice", rank));
    members.push_back(impl_->table()->members()[rank]);
  }
  if (std::ranges::find(ranks, rank()) == ranks.end())
    return refuse(
        fmt::format("rank {}, which calls, is not in the list: let its members alone call", rank()));
  const bootstrap::GroupKey key{impl_->group->number, tag, static_cast<std::uint32_t>(Call::kSubteam)};
  return impl_->part(*state, key, std::move(members));
}

TeamHandle Team::handle() const {
  const auto state = impl_->state.lock();
  if (state && impl_->table() != nullptr) return *impl_->table()->copy();
  TeamHandle closed{};
  closed.layout = team_layout(Placement::kHost) | kNoPlacement;  // by which every call refuses it
  closed.size = 1;                                               // because kernels divide by it
  return closed;
}

std::uint32_t Team::rank() const { return impl_->rank; }
std::uint32_t Team::size() const { return impl_->table() != nullptr ? impl_->table()->size() : 0; }

std::span<std::byte> Team::heap() const {
  const auto state = impl_->state.lock();
  return state ? state->windows().heap() : std::span<std::byte>{};
}

std::shared_ptr<std::byte> Team::heap_pages() const {
  const auto state = impl_->state.lock();
  return state ? state->windows().window(0).memory.pages() : nullptr;
}

std::uint64_t Team::bytes_free() const {
  const auto state = impl_->state.lock();
  return state ? state->bytes_free() : 0;
}

TeamAtomics Team::atomics() const {
  const auto state = impl_->state.lock();
  return state ? state->atomics() : TeamAtomics::kNic;
}

Result<void> Team::connect(std::uint32_t rank) {
  const TraceSpan span("Team::connect");
  GDX_TRY(impl_->caller.check_process());
  const auto state = impl_->state.lock();
  if (!state || impl_->table() == nullptr)
    return fail(Status::kInvalidArgument, "cannot connect: the team is closed; make another");
  if (rank >= size()) {
    return fail(Status::kInvalidArgument,
                fmt::format("no connection to rank {}: the team has {} ranks", rank, size()));
  }
  const std::uint32_t member = impl_->table()->members()[rank];
  auto done = state->connections().connect(member, monotonic_ns() + state->options().timeout_ns);
  if (!done && member != rank)  // the reason has the first team's number
    done.error().message = fmt::format("{}: {}", team::name_of(*impl_->table(), rank), done.error().message);
  return done;
}

PeerWay Team::way(std::uint32_t rank, std::uint32_t lane) const {
  const auto state = impl_->state.lock();
  return state && rank < size() && lane < state->options().lanes
             ? team::way_of(impl_->table()->peer(lane, rank))
             : PeerWay::kNone;
}

std::uint32_t Team::connections() const {
  const auto state = impl_->state.lock();
  return state && impl_->table() != nullptr ? state->connections().count(*impl_->table()) : 0;
}

EndpointHandle Team::endpoint(std::uint32_t lane, std::uint32_t rank) const {
  const auto state = impl_->state.lock();
  return state && rank < size() ? state->connections().endpoint_handle(lane, impl_->table()->members()[rank])
                                : EndpointHandle{};
}

std::string Team::describe_fault() const {
  if (const auto here = impl_->caller.check_process(); !here) return here.error().message;
  const auto state = impl_->state.lock();
  return state && impl_->table() != nullptr ? state->describe_fault(*impl_->table()) : "the team is closed";
}

void Team::clear_fault() {
  const auto state = impl_->state.lock();
  if (state && impl_->table() != nullptr) state->clear_fault(*impl_->table());
}

void Team::abort() {
  if (!impl_->caller.is_here()) return;
  if (const auto state = impl_->state.lock()) state->connections().abort();
}

}  // namespace gdx
