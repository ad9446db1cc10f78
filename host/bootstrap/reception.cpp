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
constexpr std::uint64_t kNsPerSecond = 1'000'000'000;

// Returns why the other end is no process of `user`; empty if it is one, or another host's.
std::string why_stranger(const Descriptor& socket, uid_t user) {
  const Holder holder = holder_of_peer(socket);
  if (holder.kind == Holder::kNobody) return "closed its connection";
  if (holder.kind == Holder::kUser && holder.user != user)
    return fmt::format("is user {}'s, and this is user {}'s", holder.user, user);
  return {};
}

}  // namespace

void Reception::add_to(std::vector<pollfd>& set) const {
  set.push_back({listener_.value(), POLLIN, 0});
  for (const Stranger& stranger : strangers_)
    set.push_back({stranger.connection.socket().value(), POLLIN, 0});
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
  auto frame = connection.receive({hello_});
  if (frame && !*frame) return true;
  const Status status = frame ? Status::kInvalidArgument : frame.error().status;
  std::string why = frame ? "" : frame.error().message;
  if (frame && hello_ == FrameType::kHello) why = why_stranger(connection.socket(), user_);
  if (frame && why.empty()) {
    arrivals.push_back({std::exchange(connection, Connection()), std::move(**frame)});
    return false;
  }
  // A rank of the job that another user has started, or another version, learns it.
  if (hello_ == FrameType::kHello && (frame || status == Status::kVersionMismatch))
    connection.refuse(
        {status, frame ? (*frame)->rank : 0, fmt::format("{} {}", peer_text(connection.socket()), why)});
  drop(connection, why);
  return false;
}

Result<void> Reception::accept_all(std::vector<Arrival>& arrivals) {
  for (;;) {
    auto socket = accept_one(listener_);
    if (!socket && socket.error().status == Status::kNoMemory && !strangers_.empty()) {
      drop_oldest("sent no hello before the descriptors were used up");
      continue;
    }
    // The listener reports its error again, and nobody else has those that have arrived.
    if (!socket && !arrivals.empty()) return {};
    if (!socket) return tl::unexpected(socket.error());
    if (!*socket) return {};
    Connection newcomer(std::move(*socket));
    if (!receive_hello(newcomer, arrivals)) continue;
    if (strangers_.size() == kMaxStrangers)
      drop_oldest(fmt::format("sent no hello before {} others came", kMaxStrangers));
    strangers_.push_back({std::move(newcomer), monotonic_ns() + kHelloBoundNs});
  }
}

void Reception::drop(const Connection& connection, const std::string& why) {
  last_dropped_ = fmt::format("{} {}", peer_text(connection.socket()), why);
  ++dropped_;
  if (dropped_ > kMaxLogged) return;
  log::line(hello_ == FrameType::kHello ? log::Level::kWarn : log::Level::kInfo,
            "bootstrap: dropped a connection: {}{}", last_dropped_,
            dropped_ == kMaxLogged ? "; those after it are counted alone" : "");
}

void Reception::drop_oldest(const std::string& why) {
  drop(strangers_.front().connection, why);
  strangers_.pop_front();
}

std::string Reception::seen() const {
  std::string text;
  if (dropped_ == 1) text = fmt::format(" (dropped a connection: {})", last_dropped_);
  if (dropped_ > 1) text = fmt::format(" (dropped {} connections, the last: {})", dropped_, last_dropped_);
  if (strangers_.empty()) return text;
  return text + fmt::format(" ({} connected and sent no hello, {} first)", strangers_.size(),
                            peer_text(strangers_.front().connection.socket()));
}

}  // namespace gdx::bootstrap
