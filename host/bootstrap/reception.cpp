#include "host/bootstrap/reception.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "host/bootstrap/socket.h"
#include "host/bootstrap/socket_user.h"

namespace gdx::bootstrap {
namespace {

constexpr std::size_t kMaxLogged = 16;
constexpr std::uint32_t kUnknownRank = ~0u;  // rank of one that ended before its hello
constexpr int kMostAccepted = 256;           // at once, so that a flood holds up nobody who is there
constexpr std::uint64_t kNsPerSecond = 1'000'000'000;

}  // namespace

void Reception::add_to(std::vector<pollfd>& set) const {
  set.push_back({listener_.value(), POLLIN, 0});
  for (const Stranger& stranger : strangers_)
    set.push_back({stranger.connection.socket().value(), stranger.connection.events(), 0});
}

std::uint64_t Reception::next_deadline_ns() const {
  return strangers_.empty() ? ~std::uint64_t{0} : strangers_.front().deadline_ns;
}

Result<std::vector<Reception::Arrival>> Reception::receive() {
  std::vector<Arrival> arrivals;
  std::deque<Stranger> silent;
  for (Stranger& stranger : strangers_) {
    if (receive_hello(stranger.connection, arrivals)) silent.push_back(std::move(stranger));
  }
  strangers_ = std::move(silent);
  const std::uint64_t now_ns = monotonic_ns();
  while (!strangers_.empty() && strangers_.front().deadline_ns <= now_ns) {
    drop_oldest(fmt::format("sent no hello within {} s", kHelloBoundNs / kNsPerSecond));
  }
  GDX_TRY(accept_all(arrivals));
  return arrivals;
}

bool Reception::receive_hello(Connection& connection, std::vector<Arrival>& arrivals) {
  const bool begins = place_.first_frame == FrameType::kHello;
  auto frame = connection.receive({place_.first_frame});
  if (frame && !*frame) return true;
  const Status status = frame ? Status::kInvalidArgument : frame.error().status;
  std::string why = frame ? "" : frame.error().message;
  const auto proven = connection.proven_rank();
  if (frame && proven && *proven != (*frame)->rank)
    why = fmt::format("came as rank {} with the key of rank {}", (*frame)->rank, *proven);
  if (frame && !secret_ && !local_ && begins) why = why_stranger(connection.socket(), user_);
  if (frame && why.empty()) {
    arrivals.push_back({std::exchange(connection, Connection()), std::move(**frame)});
    return false;
  }
  // A rank of the job that another user has started, or without the secret, or another version, learns it.
  const Failure failure{status, frame ? (*frame)->rank : kUnknownRank,
                        fmt::format("{} {}", connection.peer(), why)};
  if (begins && status == Status::kUnsupported) connection.refuse_in_clear(failure);
  if (begins && (frame || status == Status::kVersionMismatch)) connection.refuse(failure);
  drop(connection, why);
  return false;
}

Result<Connection> Reception::accept_connection() {
  auto socket = GDX_TRY(accept_one(listener_));
  if (!socket) return Connection();
  const std::string why = local_ ? why_stranger(socket, user_) : std::string();
  if (!why.empty()) {
    drop(Connection(std::move(socket)), why);
    return Connection();
  }
  return Connection::answer(std::move(socket), secret_, place_);
}

Result<void> Reception::accept_all(std::vector<Arrival>& arrivals) {
  for (int accepted = 0; accepted < kMostAccepted; ++accepted) {
    const std::size_t dropped = dropped_;
    auto newcomer = accept_connection();
    if (!newcomer && newcomer.error().status == Status::kNoMemory && !strangers_.empty()) {
      drop_oldest("sent no hello before the descriptors were used up");
      continue;
    }
    // The listener reports its error again, and nobody else has those that have arrived.
    if (!newcomer && !arrivals.empty()) return {};
    if (!newcomer) return tl::unexpected(newcomer.error());
    if (!*newcomer && dropped == dropped_) return {};
    if (!*newcomer || !receive_hello(*newcomer, arrivals)) continue;
    limit_strangers();
    strangers_.push_back({std::move(*newcomer), monotonic_ns() + kHelloBoundNs});
  }
  return {};
}

void Reception::limit_strangers() {
  const auto unlikely = [this](const Stranger& stranger) {
    return !local_ && !stranger.connection.is_likely();
  };
  if (static_cast<std::size_t>(std::ranges::count_if(strangers_, unlikely)) >= kMaxStrangers)
    drop_at(std::ranges::find_if(strangers_, unlikely),
            fmt::format("sent no hello before {} others came", kMaxStrangers));
  if (strangers_.size() >= kMaxStrangers + kMaxLikely)
    drop_oldest(fmt::format("sent no hello before {} others came", kMaxLikely));
}

void Reception::drop(const Connection& connection, const std::string& why) {
  last_dropped_ = fmt::format("{} {}", connection.peer(), why);
  ++dropped_;
  if (dropped_ > kMaxLogged) return;
  log::line(place_.first_frame == FrameType::kHello ? log::Level::kWarn : log::Level::kInfo,
            "bootstrap: dropped a connection: {}{}", last_dropped_,
            dropped_ == kMaxLogged ? "; those after it are counted alone" : "");
}

void Reception::drop_oldest(const std::string& why) { drop_at(strangers_.begin(), why); }

void Reception::drop_at(const std::deque<Stranger>::iterator& stranger, const std::string& why) {
  drop(stranger->connection, why);
  strangers_.erase(stranger);
}

std::string Reception::seen() const {
  std::string text;
  if (dropped_ == 1) text = fmt::format(" (dropped a connection: {})", last_dropped_);
  if (dropped_ > 1) text = fmt::format(" (dropped {} connections, the last: {})", dropped_, last_dropped_);
  if (strangers_.empty()) return text;
  return text + fmt::format(" ({} connected and sent no hello, {} first)", strangers_.size(),
                            strangers_.front().connection.peer());
}

}  // namespace gdx::bootstrap
