#include "host/bootstrap/rendezvous.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "host/bootstrap/socket_user.h"

namespace gdx::bootstrap {
namespace {

constexpr std::size_t kMaxNamedRanks = 8;
constexpr std::uint64_t kFirstPauseNs = 20'000'000;  // doubled by each further try to reach rank 0
constexpr std::uint64_t kMostPauseNs = 320'000'000;

// Rank 0 while ranks arrive. A hello that contradicts the job is refused and named, and ends nothing, because
// anybody may send one.
class Gathering {
 public:
  Gathering(const WorldOptions& options, Reception& reception)
      : options_(options), reception_(reception), members_(options.size) {}

  Result<void> run(std::uint64_t deadline_ns);
  std::vector<Connection>& members() { return members_; }

 private:
  [[nodiscard]] std::vector<std::uint32_t> missing() const;
  [[nodiscard]] std::vector<pollfd> poll_set() const;
  Result<void> admit_arrivals();
  void admit(Connection& stranger, const Frame& hello);
  Result<void> check_members() const;

  const WorldOptions& options_;
  Reception& reception_;
  std::vector<Connection> members_;  // by rank
};

std::vector<std::uint32_t> Gathering::missing() const {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 1; rank < options_.size; ++rank) {
    if (!members_[rank]) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<pollfd> Gathering::poll_set() const {
  std::vector<pollfd> set;
  reception_.add_to(set);
  for (const Connection& member : members_) {
    if (member) set.push_back({member.socket().value(), POLLIN, 0});
  }
  return set;
}

Result<void> Gathering::run(std::uint64_t deadline_ns) {
  for (;;) {
    const auto absent = missing();
    if (absent.empty()) return welcome(members_, deadline_ns);
    auto set = poll_set();
    const bool ready = wait_until(set, std::min(deadline_ns, reception_.next_deadline_ns()));
    if (!ready && monotonic_ns() >= deadline_ns) {
      return fail(Status::kTimeout,
                  fmt::format("{} of {} never came to rank 0 at {}: start them, or raise the timeout "
                              "(GDX_BOOTSTRAP_TIMEOUT_S){}",
                              rank_list(absent), options_.size, options_.root, reception_.seen()));
    }
    if (auto done = admit_arrivals(); !done) return done;
    if (auto done = check_members(); !done) return done;
  }
}

Result<void> Gathering::admit_arrivals() {
  auto arrivals = GDX_TRY(reception_.receive());
  for (auto& [connection, hello] : arrivals) admit(connection, hello);
  return {};
}

void Gathering::admit(Connection& stranger, const Frame& hello) {
  const std::uint32_t size = decode_hello(hello);
  std::string reason;
  if (size != options_.size) {
    reason = fmt::format("came as rank {} of {} ranks, rank 0 expects {}", hello.rank, size, options_.size);
  } else if (hello.rank == 0 || hello.rank >= options_.size) {
    reason =
        fmt::format("came as rank {}: ranks other than 0 go from 1 to {}", hello.rank, options_.size - 1);
  } else if (members_[hello.rank]) {
    reason = fmt::format("came as rank {}, which {} is: start every rank once", hello.rank,
                         members_[hello.rank].peer());
  }
  if (reason.empty()) {
    members_[hello.rank] = std::exchange(stranger, Connection());
    return;
  }
  stranger.refuse({Status::kInvalidArgument, hello.rank, fmt::format("{} {}", stranger.peer(), reason)});
  reception_.drop(stranger, reason);
}

Result<void> Gathering::check_members() const {
  for (std::uint32_t rank = 1; rank < options_.size; ++rank) {
    if (!members_[rank]) continue;
    if (auto quiet = members_[rank].expect_silence(); !quiet) {
      return fail(quiet.error().status, fmt::format("rank {} {} before {} had come", rank,
                                                    quiet.error().message, rank_list(missing())));
    }
  }
  return {};
}

}  // namespace

Result<void> welcome(std::vector<Connection>& members, std::uint64_t deadline_ns) {
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    Connection& member = members[rank];
    if (!member) continue;
    member.queue(encode_frame(FrameType::kWelcome, 0, 0));
    while (member.has_unsent()) {
      pollfd ready{member.socket().value(), POLLOUT, 0};
      if (!wait_until(std::span(&ready, 1), deadline_ns)) {
        return fail(Status::kTimeout, fmt::format("rank {} takes no data", rank));
      }
      if (auto sent = member.flush(); !sent) {
        return fail(sent.error().status, fmt::format("rank {} {}", rank, sent.error().message));
      }
    }
  }
  return {};
}

std::string rank_list(const std::vector<std::uint32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  const std::size_t named = std::min(ranks.size(), kMaxNamedRanks);
  for (std::size_t i = 0; i < named; ++i) {
    const bool last = i + 1 == named && i != 0 && named == ranks.size();
    text += fmt::format("{} {}", i == 0 ? "" : last ? " and" : ",", ranks[i]);
  }
  if (named < ranks.size()) text += fmt::format(" and {} more", ranks.size() - named);
  return text;
}

void announce_failure(std::vector<Connection>& members, const Failure& failure) {
  for (Connection& member : members) {
    if (member) member.refuse(failure);
  }
}

void refuse_latecomer(Reception::Arrival& latecomer, const std::string& reason) {
  latecomer.connection.refuse({Status::kBusy, latecomer.hello.rank, reason});
}

Error received_failure(const Failure& failure) {
  if (failure.rank != 0) return {failure.status, fmt::format("rank 0 refused this rank: {}", failure.reason)};
  return {failure.status, fmt::format("rank 0 ended the job: {}", failure.reason)};
}

Result<Gathered> gather_members(const WorldOptions& options, Descriptor listener, std::uint64_t deadline_ns) {
  Reception reception(std::move(listener), {}, options.secret);
  Gathering gathering(options, reception);
  if (auto done = gathering.run(deadline_ns); !done) {
    announce_failure(gathering.members(), {done.error().status, 0, done.error().message});
    return tl::unexpected(done.error());
  }
  return Gathered{std::move(gathering.members()), std::move(reception)};
}

namespace {

Error of_root(const WorldOptions& options, const Error& why) {
  return {why.status, fmt::format("rank 0 at {} {}", options.root, why.message)};
}

// Waits for what the connection waits for. Errors: kTimeout.
Result<void> wait_for_root(const Connection& root, const WorldOptions& options, std::uint64_t deadline_ns) {
  pollfd ready{root.socket().value(), root.events(), 0};
  if (wait_until(std::span(&ready, 1), deadline_ns)) return {};
  if (!root.is_open())
    return fail(
        Status::kTimeout,
        fmt::format("rank 0 at {} answered no handshake: it has no secret, or is stopped", options.root));
  return fail(Status::kTimeout,
              fmt::format("rank 0 at {} waits for ranks that have not come: start all {} ranks", options.root,
                          options.size));
}

// Connects once. Errors: kPeerGone while the handshake goes on, as where a flood takes this rank's place.
Result<Connection> open_root_once(const WorldOptions& options, const ChannelPlace& place, std::uint32_t to,
                                  std::uint64_t deadline_ns) {
  auto socket = GDX_TRY(connect_to(options.root, deadline_ns));
  auto root = GDX_TRY(Connection::dial(std::move(socket), options.secret, place, to));
  while (!root.is_open()) {
    const auto nothing = root.receive({FrameType::kFailed});
    if (!nothing) return tl::unexpected(of_root(options, nothing.error()));
    if (!root.is_open()) GDX_TRY(wait_for_root(root, options, deadline_ns));
  }
  return root;
}

}  // namespace

Result<Connection> open_root(const WorldOptions& options, const ChannelPlace& place, std::uint32_t to,
                             std::uint64_t deadline_ns) {
  for (std::uint64_t pause_ns = kFirstPauseNs;; pause_ns = std::min(2 * pause_ns, kMostPauseNs)) {
    auto root = open_root_once(options, place, to, deadline_ns);
    const std::uint64_t now_ns = monotonic_ns();
    if (root || root.error().status != Status::kPeerGone) return root;
    if (now_ns >= deadline_ns)
      return fail(Status::kPeerGone,
                  fmt::format("{} in each handshake: it has no secret, or others take this rank's place",
                              root.error().message));
    static_cast<void>(wait_until({}, std::min(deadline_ns, now_ns + pause_ns)));
  }
}

namespace {

// Checks who welcomed this rank, where no secret tells.
Result<void> check_root_user(const Connection& root, const WorldOptions& options) {
  if (options.secret) return {};
  const Holder holder = holder_of_peer(root.socket());
  if (holder.kind != Holder::kUser || holder.user == geteuid()) return {};
  return fail(Status::kInvalidArgument,
              fmt::format("rank 0 at {} is user {}'s, and this is user {}'s: let GDX_ROOT name a free port",
                          options.root, holder.user, geteuid()));
}

}  // namespace

Result<std::vector<Connection>> join_root(const WorldOptions& options, std::uint64_t deadline_ns) {
  std::vector<Connection> members(1);
  Connection& root = members.front() = GDX_TRY(open_root(options, {.rank = options.rank}, 0, deadline_ns));
  root.queue(encode_hello(options.rank, options.size));
  for (;;) {
    const auto sent = root.flush();
    auto frame = root.receive({FrameType::kWelcome, FrameType::kFailed});
    if (!frame) return tl::unexpected(of_root(options, frame.error()));
    if (*frame && (*frame)->type == FrameType::kFailed) {
      return tl::unexpected(received_failure(decode_failure(**frame)));
    }
    if (*frame) {
      GDX_TRY(check_root_user(root, options));
      return members;
    }
    if (!sent) return tl::unexpected(of_root(options, sent.error()));
    GDX_TRY(wait_for_root(root, options, deadline_ns));
  }
}

}  // namespace gdx::bootstrap
