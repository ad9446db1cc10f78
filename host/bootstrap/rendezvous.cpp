#include "host/bootstrap/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace gdx::bootstrap {
namespace {

constexpr std::size_t kMaxNamedRanks = 8;
constexpr std::size_t kMaxStrangers = 64;  // connections beyond the ranks that may wait to say hello

void tell_failure(Connection& connection, const Failure& failure) {
  if (!connection) return;
  // Behind a half-sent frame no other can follow; that rank sees the connection close.
  if (!connection.has_unsent()) {
    connection.queue(encode_failure(failure));
    static_cast<void>(connection.flush());
  }
  connection.finish();
}

// Rank 0 while ranks arrive. A connection that does not speak the protocol is dropped and the wait goes
// on: ports get scanned. One that speaks it and contradicts the job ends the job.
class Gathering {
 public:
  explicit Gathering(const WorldOptions& options) : options_(options), members_(options.size) {}

  Result<void> run(const Descriptor& listener, std::uint64_t deadline_ns);
  std::vector<Connection>& members() { return members_; }

 private:
  [[nodiscard]] std::vector<std::uint32_t> missing() const;
  [[nodiscard]] std::vector<pollfd> poll_set(const Descriptor& listener) const;
  Result<void> accept_all(const Descriptor& listener);
  Result<void> hear_strangers();
  Result<void> admit(Connection& stranger, const Frame& hello);
  Result<void> check_members() const;
  Result<void> welcome(std::uint64_t deadline_ns);

  const WorldOptions& options_;
  std::vector<Connection> members_;  // by rank
  std::vector<Connection> strangers_;
  std::string last_refusal_;
};

std::vector<std::uint32_t> Gathering::missing() const {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 1; rank < options_.size; ++rank) {
    if (!members_[rank]) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<pollfd> Gathering::poll_set(const Descriptor& listener) const {
  std::vector<pollfd> set{{listener.value(), POLLIN, 0}};
  for (const auto* group : {&members_, &strangers_}) {
    for (const Connection& connection : *group) {
      if (connection) set.push_back({connection.socket().value(), POLLIN, 0});
    }
  }
  return set;
}

Result<void> Gathering::run(const Descriptor& listener, std::uint64_t deadline_ns) {
  for (;;) {
    const auto absent = missing();
    if (absent.empty()) return welcome(deadline_ns);
    auto set = poll_set(listener);
    if (!wait_until(set, deadline_ns)) {
      return fail(Status::kTimeout,
                  fmt::format("{} of {} never came to rank 0 at {}: start them, or raise the timeout{}",
                              rank_list(absent), options_.size, options_.root, last_refusal_));
    }
    if (auto done = accept_all(listener); !done) return done;
    if (auto done = hear_strangers(); !done) return done;
    if (auto done = check_members(); !done) return done;
  }
}

Result<void> Gathering::accept_all(const Descriptor& listener) {
  for (;;) {
    auto socket = accept_one(listener);
    if (!socket) return tl::unexpected(socket.error());
    if (!*socket) return {};
    if (strangers_.size() < options_.size + kMaxStrangers) strangers_.emplace_back(std::move(*socket));
  }
}

Result<void> Gathering::hear_strangers() {
  for (Connection& stranger : strangers_) {
    auto frame = stranger.receive({FrameType::kHello});
    if (!frame) {
      const std::string refusal = fmt::format("{} {}", peer_text(stranger.socket()), frame.error().message);
      if (frame.error().status == Status::kVersionMismatch) return fail(Status::kVersionMismatch, refusal);
      log::warn("bootstrap: dropped a connection: {}", refusal);
      last_refusal_ = fmt::format(" (dropped a connection: {})", refusal);
      stranger = Connection();
    } else if (*frame) {
      if (auto admitted = admit(stranger, **frame); !admitted) return admitted;
    }
  }
  std::erase_if(strangers_, [](const Connection& stranger) { return !stranger; });
  return {};
}

Result<void> Gathering::admit(Connection& stranger, const Frame& hello) {
  const std::uint32_t size = decode_hello(hello);
  const std::string who = peer_text(stranger.socket());
  std::string reason;
  if (size != options_.size) {
    reason = fmt::format("rank {} at {} expects {} ranks, rank 0 expects {}", hello.rank, who, size,
                         options_.size);
  } else if (hello.rank == 0 || hello.rank >= options_.size) {
    reason = fmt::format("{} came as rank {}: ranks other than 0 go from 1 to {}", who, hello.rank,
                         options_.size - 1);
  } else if (members_[hello.rank]) {
    reason = fmt::format("rank {} came twice, from {} and from {}", hello.rank,
                         peer_text(members_[hello.rank].socket()), who);
  }
  if (!reason.empty()) {
    reason += ": start every rank once";
    tell_failure(stranger, {Status::kInvalidArgument, hello.rank, reason});
    return fail(Status::kInvalidArgument, reason);
  }
  members_[hello.rank] = std::exchange(stranger, Connection());
  return {};
}

Result<void> Gathering::check_members() const {
  for (std::uint32_t rank = 1; rank < options_.size; ++rank) {
    if (!members_[rank]) continue;
    if (auto quiet = members_[rank].expect_silence(); !quiet) {
      return fail(quiet.error().status,
                  fmt::format("rank {} {} before all ranks had come", rank, quiet.error().message));
    }
  }
  return {};
}

Result<void> Gathering::welcome(std::uint64_t deadline_ns) {
  for (std::uint32_t rank = 1; rank < options_.size; ++rank) {
    members_[rank].queue(encode_frame(FrameType::kWelcome, 0, 0));
    while (members_[rank].has_unsent()) {
      pollfd ready{members_[rank].socket().value(), POLLOUT, 0};
      if (!wait_until(std::span(&ready, 1), deadline_ns)) {
        return fail(Status::kTimeout, fmt::format("rank {} takes no data", rank));
      }
      if (auto sent = members_[rank].flush(); !sent) {
        return fail(sent.error().status, fmt::format("rank {} {}", rank, sent.error().message));
      }
    }
  }
  return {};
}

}  // namespace

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
  for (Connection& member : members) tell_failure(member, failure);
}

Error received_failure(const Failure& failure) {
  return {failure.status, fmt::format("rank 0 ended the job: {}", failure.reason)};
}

Result<std::vector<Connection>> gather_members(const WorldOptions& options, std::uint64_t deadline_ns) {
  auto listener = options.root_socket >= 0 ? adopt_listener(options.root_socket) : listen_at(options.root);
  if (!listener) return tl::unexpected(listener.error());
  Gathering gathering(options);
  if (auto done = gathering.run(*listener, deadline_ns); !done) {
    announce_failure(gathering.members(), {done.error().status, 0, done.error().message});
    return tl::unexpected(done.error());
  }
  return std::move(gathering.members());
}

Result<std::vector<Connection>> join_root(const WorldOptions& options, std::uint64_t deadline_ns) {
  auto socket = connect_to(options.root, deadline_ns);
  if (!socket) return tl::unexpected(socket.error());
  std::vector<Connection> members(1);
  Connection& root = members.front() = Connection(std::move(*socket));
  root.queue(encode_hello(options.rank, options.size));
  for (;;) {
    const auto sent = root.flush();
    auto frame = root.receive({FrameType::kWelcome, FrameType::kFailed});
    if (!frame) {
      return fail(frame.error().status, fmt::format("rank 0 at {} {}", options.root, frame.error().message));
    }
    if (*frame && (*frame)->type == FrameType::kFailed) {
      return tl::unexpected(received_failure(decode_failure(**frame)));
    }
    if (*frame) return members;
    if (!sent)
      return fail(sent.error().status, fmt::format("rank 0 at {} {}", options.root, sent.error().message));
    const short events = root.has_unsent() ? POLLIN | POLLOUT : POLLIN;
    pollfd ready{root.socket().value(), events, 0};
    if (!wait_until(std::span(&ready, 1), deadline_ns)) {
      return fail(Status::kTimeout,
                  fmt::format("rank 0 at {} waits for ranks that have not come: start all {} ranks",
                              options.root, options.size));
    }
  }
}

}  // namespace gdx::bootstrap
