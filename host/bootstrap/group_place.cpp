#include "host/bootstrap/group_place.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/trace.h"
#include "host/bootstrap/rendezvous.h"
#include "host/bootstrap/socket.h"

namespace gdx::bootstrap {
namespace {

constexpr double kNsPerSecond = 1e9;
constexpr std::uint64_t kLookAgainNs = 10'000'000;  // for a guest that another thread has received
constexpr std::size_t kMostGuests = kMaxRanks;

std::string name_of(const GroupHello& group) {
  return fmt::format("the team of {} (tag {})", rank_list(group.ranks), group.key.tag);
}

Error missing(const GroupHello& group, const std::string& who, std::uint64_t timeout_ns) {
  return {
      Status::kTimeout,
      fmt::format("{} did not come to {} within {:.3f} s: let each of its ranks make it, with equal ranks "
                  "and tag, and teams of one tag in the same order",
                  who, name_of(group), static_cast<double>(timeout_ns) / kNsPerSecond)};
}

}  // namespace

// A group whose members come to this rank.
struct GroupPlace::Gathering {
  const GroupHello& mine;
  std::vector<Connection> members;  // by rank of the group; this rank's own place, 0, is empty

  [[nodiscard]] std::vector<std::uint32_t> absent() const {
    std::vector<std::uint32_t> ranks;
    for (std::size_t i = 1; i < members.size(); ++i) {
      if (!members[i]) ranks.push_back(mine.ranks[i]);
    }
    return ranks;
  }
  [[nodiscard]] Result<void> check_members() const {
    for (std::size_t i = 1; i < members.size(); ++i) {
      if (!members[i]) continue;
      if (const auto quiet = members[i].expect_silence(); !quiet) {
        return fail(quiet.error().status,
                    fmt::format("rank {} {} before {} had come to {}", mine.ranks[i], quiet.error().message,
                                rank_list(absent()), name_of(mine)));
      }
    }
    return {};
  }
};

Result<std::unique_ptr<GroupPlace>> GroupPlace::listen(const World& world) {
  std::unique_ptr<GroupPlace> made(new GroupPlace(world.rank(), world.options().secret));
  if (world.size() == 1) return made;
  GroupAddress& own = made->own_;
  if (getrandom(&own.token, sizeof own.token, 0) != static_cast<ssize_t>(sizeof own.token))
    return fail(Status::kSystem, fmt::format("no random bytes to be had: {}", std::strerror(errno)));
  made->listener_ = GDX_TRY(listen_on(is_local(world.options().root) ? "unix:" : world.address()));
  const std::string text = own_text(made->listener_);
  std::copy_n(text.begin(), std::min(text.size(), own.address.size() - 1), own.address.begin());
  return made;
}

void GroupPlace::start(std::span<const GroupAddress> all) {
  all_.assign(all.begin(), all.end());
  if (all_.size() == 1) return;
  reception_.emplace(std::move(listener_), ChannelPlace{FrameType::kGroup, all_.front().token, rank_},
                     secret_);
}

Result<World> GroupPlace::meet(const GroupKey& key, const std::vector<std::uint32_t>& ranks,
                               std::uint64_t timeout_ns) {
  const TraceSpan span("GroupPlace::meet");
  WorldOptions options{.size = static_cast<std::uint32_t>(ranks.size()), .timeout_ns = timeout_ns};
  if (options.size == 1) return World::of(options, {});
  options.rank = static_cast<std::uint32_t>(std::ranges::find(ranks, rank_) - ranks.begin());
  GroupHello mine{key, rank_, ranks};
  mine.key.team = all_.front().token;
  return World::of(options, GDX_TRY(options.rank == 0 ? gather(mine, timeout_ns) : join(mine, timeout_ns)));
}

Result<std::vector<Connection>> GroupPlace::gather(const GroupHello& mine, std::uint64_t timeout_ns) {
  const std::uint64_t deadline_ns = monotonic_ns() + timeout_ns;
  Gathering group{mine, std::vector<Connection>(mine.ranks.size())};
  const auto give_up = [&](const Error& why) {
    announce_failure(group.members, {why.status, rank_, why.message});
    return tl::unexpected(why);
  };
  for (;;) {
    std::vector<pollfd> set;
    {
      const std::lock_guard lock(mutex_);
      auto taken = receive();
      if (taken) taken = admit(group);
      if (!taken) return give_up(taken.error());
      reception_->add_to(set);
    }
    if (const auto here = group.check_members(); !here) return give_up(here.error());
    const auto absent = group.absent();
    if (absent.empty()) break;
    const std::uint64_t now_ns = monotonic_ns();
    if (now_ns >= deadline_ns) return give_up(missing(mine, rank_list(absent), timeout_ns));
    (void)wait_until(set, std::min(deadline_ns, now_ns + kLookAgainNs));
  }
  if (const auto done = welcome(group.members, deadline_ns); !done) return give_up(done.error());
  return std::move(group.members);
}

// A member whose attempt has ended has closed its connection, and may come again. Of too many guests, or
// where descriptors are used up, the oldest goes first.
Result<void> GroupPlace::receive() {
  auto arrivals = reception_->receive();
  if (!arrivals && arrivals.error().status == Status::kNoMemory && !guests_.empty()) {
    guests_.front().connection.refuse({Status::kNoMemory, rank_, arrivals.error().message});
    guests_.erase(guests_.begin());
    return {};
  }
  if (!arrivals) return tl::unexpected(arrivals.error());
  for (Reception::Arrival& arrival : *arrivals)
    guests_.push_back({std::move(arrival.connection), decode_group(arrival.hello)});
  std::erase_if(guests_, [](const Guest& guest) { return !guest.connection.expect_silence(); });
  while (guests_.size() > kMostGuests) guests_.erase(guests_.begin());
  return {};
}

// Members make groups of one key in the same order. So one that is of this group and comes for another has
// got other ranks.
Result<void> GroupPlace::admit(Gathering& group) {
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    const GroupHello& hello = guest->hello;
    const auto at = std::ranges::find(group.mine.ranks, hello.rank);
    if (hello.key != group.mine.key || at == group.mine.ranks.end()) {
      ++guest;
      continue;
    }
    const auto index = static_cast<std::size_t>(at - group.mine.ranks.begin());
    if (hello.ranks != group.mine.ranks || index == 0) {
      const std::string why = fmt::format(
          "rank {} makes {}, rank {} with the same tag that of {}: give all its ranks the same list", rank_,
          name_of(group.mine), hello.rank, rank_list(hello.ranks));
      guest->connection.refuse({Status::kInvalidArgument, rank_, why});
      guests_.erase(guest);
      return fail(Status::kInvalidArgument, why);
    }
    if (group.members[index]) {
      ++guest;  // skips a second guest of the same member
      continue;
    }
    group.members[index] = std::move(guest->connection);
    guest = guests_.erase(guest);
  }
  return {};
}

Result<std::vector<Connection>> GroupPlace::join(const GroupHello& mine, std::uint64_t timeout_ns) const {
  const std::uint64_t deadline_ns = monotonic_ns() + timeout_ns;
  const std::uint32_t first = mine.ranks.front();
  const auto of_first = [&](const Error& why) {
    if (why.status == Status::kTimeout)
      return missing(mine, fmt::format("rank {}, or one that it waits for,", first), timeout_ns);
    return Error{why.status, fmt::format("{} has no rank {}: {}", name_of(mine), first, why.message)};
  };
  WorldOptions options{.root = all_[first].address.data(), .secret = secret_};
  auto opened = open_root(options, {FrameType::kGroup, all_.front().token, rank_}, first, deadline_ns);
  if (!opened) return tl::unexpected(of_first(opened.error()));
  std::vector<Connection> members(1);
  Connection& root = members.front() = std::move(*opened);
  root.queue(encode_group(mine));
  for (;;) {
    const auto sent = root.flush();
    const auto frame = root.receive({FrameType::kWelcome, FrameType::kFailed});
    if (!frame) return tl::unexpected(of_first(frame.error()));
    if (*frame && (*frame)->type == FrameType::kFailed) {
      const Failure failure = decode_failure(**frame);
      return fail(failure.status, failure.reason);
    }
    if (*frame) return members;
    if (!sent) return tl::unexpected(of_first(sent.error()));
    pollfd ready{root.socket().value(), root.events(), 0};
    if (!wait_until(std::span(&ready, 1), deadline_ns))
      return tl::unexpected(of_first({Status::kTimeout, ""}));
  }
}

}  // namespace gdx::bootstrap
