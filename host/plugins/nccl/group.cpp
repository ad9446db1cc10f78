#include "host/plugins/nccl/group.h"

#include <fmt/format.h>

#include "base/clock.h"
#include "host/plugins/nccl/device.h"
#include "host/plugins/nccl/log.h"

namespace gdx::nccl {
namespace {

using messaging::MemoryPart;
using messaging::MemoryPlace;
using messaging::OneSided;
using messaging::OneSidedRequest;
using messaging::WordSignal;

constexpr std::uint64_t kMeetNs = 60'000'000'000;  // for ranks that come later

Result<void> check_memory(void* data, std::size_t bytes, int type) {
  if (type != kHostMemory) return fail(Status::kUnsupported, refusal_of_memory(type));
  if (data == nullptr || bytes == 0)
    return fail(Status::kInvalidArgument, fmt::format("{} B of memory at {}", bytes, fmt::ptr(data)));
  return {};
}

}  // namespace

// A rank's part of a registration, as it tells it to the others.
struct Group::Part {
  MemoryPlace place;
  std::uint64_t known_as;  // number of the window that has it already; 0: none
  std::uint64_t failure;   // a Status
};

Group::Group(std::shared_ptr<messaging::Keeper> keeper, World world, std::unique_ptr<OneSided> one_sided)
    : keeper_(std::move(keeper)), world_(std::move(world)), one_sided_(std::move(one_sided)) {
  keeper_->add(*this);
}

Group::~Group() {
  if (keeper_) keeper_->remove(*this);
}

void Group::close(std::unique_ptr<Group> group) {
  {
    const std::scoped_lock lock(group->world_mutex_, group->mutex_);
    group->one_sided_->forget_all();
    group->is_closing_ = true;
    group->is_over_ = group->one_sided_->failure().has_value();
  }
  const auto keeper = std::move(group->keeper_);
  keeper->own(std::move(group));
}

Result<std::unique_ptr<Group>> Group::connect(std::shared_ptr<messaging::Keeper> keeper,
                                              const messaging::Door& door, messaging::Inviting inviting,
                                              const messaging::Invitation& root, std::uint32_t rank,
                                              std::uint32_t ranks) {
  const auto invited = GDX_TRY(messaging::read_invitation(root));
  WorldOptions options;
  options.rank = rank;
  options.size = ranks;
  options.root = invited.address;
  options.timeout_ns = kMeetNs;
  options.secret = invited.told;
  options.secret_readers = messaging::kInvitationReaders;
  World world = GDX_TRY(World::join(options, std::move(inviting.listener)));
  auto port = GDX_TRY(open_libfabric_port(door.port));
  auto one_sided = GDX_TRY(OneSided::open(std::move(port), rank, ranks));
  const auto cards = GDX_TRY(world.allgather_value(one_sided->card(), kMeetNs));
  const PortTraits& traits = one_sided->traits();
  for (std::uint32_t other = 0; other < ranks; ++other) {
    if (other == rank) continue;
    GDX_TRY(one_sided->connect(other, cards[other]));
    info(fmt::format("rank {} of {}: puts by {}, {}; host memory; signals {}", other, ranks, traits.provider,
                     way_of(traits), words_of(one_sided->order())));
  }
  // A put may come as soon as any rank has returned.
  GDX_TRY(world.barrier(kMeetNs));
  return std::unique_ptr<Group>(new Group(std::move(keeper), std::move(world), std::move(one_sided)));
}

Result<bool> Group::share(const Part& own, Window* added) {
  const std::lock_guard world_lock(world_mutex_);
  const auto all = GDX_TRY(world_.allgather_value(own, kMeetNs));
  std::vector<MemoryPlace> places;
  bool again = own.known_as != 0;
  for (std::uint32_t rank = 0; rank < all.size(); ++rank) {
    const auto status = static_cast<Status>(all[rank].failure);
    if (status != Status::kOk)
      return fail(status, fmt::format("rank {} could not register its part of symmetric memory: {}", rank,
                                      status_name(status)));
    places.push_back(all[rank].place);
    again = again && all[rank].known_as == own.known_as;
  }
  const std::lock_guard lock(mutex_);
  if (!again) OneSided::share(*added, places, ++shared_);
  return again;
}

// Registers it anew even where a window has it, because only together the ranks find out whether all have it
// in the same one: the handle must lead to the part that each rank gave.
Result<Window*> Group::register_memory(void* data, std::size_t bytes, int type) {
  const std::span own(static_cast<std::byte*>(data), bytes);
  Window* known = nullptr;
  const auto add = [&]() -> Result<Window*> {
    GDX_TRY(check_memory(data, bytes, type));
    const std::lock_guard lock(mutex_);
    Window* const added = GDX_TRY(one_sided_->add_memory(own));
    known = one_sided_->use_again(own);
    return added;
  };
  auto window = add();
  Part part{};
  if (window) part.place = one_sided_->place_of(**window);
  if (known != nullptr) part.known_as = known->number;
  if (!window) part.failure = static_cast<std::uint64_t>(window.error().status);
  const auto shared = share(part, window ? *window : nullptr);
  const bool again = shared && *shared && part.known_as != 0;
  const std::lock_guard lock(mutex_);
  if (window && (again || !shared)) one_sided_->forget_memory(*window);
  if (known != nullptr && !again) one_sided_->leave_memory(known);
  if (!window) return window;
  if (!shared) return tl::unexpected(shared.error());
  return again ? known : window;
}

void Group::forget_memory(Window* window) {
  const std::lock_guard lock(mutex_);
  one_sided_->forget_memory(window);
}

Result<Group::Request*> Group::posted(Result<OneSidedRequest> one, bool more) {
  if (!one) return tl::unexpected(one.error());
  if (free_.empty()) free_.push_back(requests_.emplace_back(std::make_unique<Request>()).get());
  Request* const request = free_.back();
  free_.pop_back();
  *request = {this, *one, true};
  if (!more) step(monotonic_ns());
  return request;
}

Result<Group::Request*> Group::put(std::uint32_t rank, const MemoryPart& from, const MemoryPart& to,
                                   std::uint64_t bytes, const std::optional<WordSignal>& signal, bool more) {
  const std::lock_guard lock(mutex_);
  return posted(one_sided_->put(rank, from, to, bytes, signal, more), more);
}

Result<Group::Request*> Group::get(std::uint32_t rank, const MemoryPart& from, const MemoryPart& to,
                                   std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  return posted(one_sided_->get(rank, from, to, bytes), false);
}

Result<Group::Request*> Group::flush(std::uint32_t rank) {
  const std::lock_guard lock(mutex_);
  return posted(one_sided_->flush(rank), false);
}

Result<bool> Group::test(Request* request) {
  const std::lock_guard lock(mutex_);
  if (!request->open) return fail(Status::kInvalidArgument, "test of a request that has ended");
  step(monotonic_ns());
  auto complete = one_sided_->is_complete(request->one);
  if (complete && !*complete) return false;
  request->open = false;
  free_.push_back(request);
  return complete;
}

Result<void> Group::progress() {
  const std::lock_guard lock(mutex_);
  step(monotonic_ns());
  if (one_sided_->failure()) return tl::unexpected(*one_sided_->failure());
  return {};
}

bool Group::has_failed() {
  const std::lock_guard lock(mutex_);
  return one_sided_->failure().has_value();
}

Outcome Group::told(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (!told_) warn(error.message);
  told_ = true;
  return outcome_of(error.status);
}

void Group::step(std::uint64_t now_ns) {
  grace_.on_look(one_sided_->progress(now_ns));
  // Transfers of a lost rank from before may still arrive, and those of others complete.
  if (losing_ && grace_.is_over(now_ns)) one_sided_->lose(*losing_);
}

void Group::look(std::uint64_t now_ns) {
  const std::unique_lock world_lock(world_mutex_, std::try_to_lock);
  if (!world_lock) return;  // a collective call goes on, which sees it
  if (is_closing_) {
    const auto closed = world_.poll_barrier();
    is_over_ = is_over_ || !closed || *closed;
    return;
  }
  const auto there = world_.poll_peers();
  const std::lock_guard lock(mutex_);
  if (there || losing_) return;
  losing_ = Error{there.error().status, fmt::format("a rank has ended: {}", there.error().message)};
  grace_.begin(now_ns);
}

void Group::take_turn() {
  const std::uint64_t now_ns = monotonic_ns();
  look(now_ns);
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock) step(monotonic_ns());
}

void Group::give_up(const char* why) {
  const std::lock_guard lock(mutex_);
  one_sided_->lose({Status::kSystem, fmt::format("this end failed: {}", why)});
}

}  // namespace gdx::nccl
