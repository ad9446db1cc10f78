#include "driver-shim/softhca/cm/agent.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "proto/mad/cm_codec.h"
#include "proto/roce/headers.h"

namespace gdx::softhca::cm {

using gdx::cm::Answered;
using gdx::cm::SidrStatus;

namespace {

// Bound on connections that outlive their users. Beyond it, waiting ones are discarded early. Otherwise peers
// that connect and leave would take memory as fast as they send.
constexpr std::size_t kMaxRetained = 4096;

// Checks the primary path of a REQ. Routed paths may leave LIDs open, because LIDs are valid in one subnet
// only. Source: IBA 1.4, 12.7.11 to 12.7.21; for RoCE, annex A16, which has no LIDs.
std::optional<Refusal> refusal_of(const gdx::cm::Path& path, const AgentConfig& port) {
  using gdx::cm::kPermissiveLid;
  if (!port.infiniband) {
    const auto absent = [](std::uint16_t lid) { return lid == 0 || lid == kPermissiveLid; };
    if (absent(path.local_lid) && absent(path.remote_lid)) return std::nullopt;
    return Refusal{RejectReason::kInvalidLid};
  }
  if (path.remote_gid != port.gid) return Refusal{RejectReason::kInvalidGid, gdx::cm::wire_bytes(port.gid)};
  const bool routed = !path.subnet_local;
  const auto open = [routed](std::uint16_t lid) { return routed && lid == kPermissiveLid; };
  if (!gdx::cm::is_unicast_lid(path.local_lid) && !open(path.local_lid)) {
    return Refusal{RejectReason::kInvalidLid};
  }
  const bool reaches = gdx::cm::is_unicast_lid(path.remote_lid) && path.remote_lid == port.lid;
  if (!reaches && !open(path.remote_lid)) {
    return Refusal{RejectReason::kInvalidLid, gdx::cm::wire_bytes(Be16(port.lid))};
  }
  if (routed && path.hop_limit <= 1) return Refusal{RejectReason::kInvalidHopLimit};
  return std::nullopt;
}

}  // namespace

Agent::Agent(const AgentConfig& config, Port& port) : config_(config), port_(port) {}

bool Agent::listen(std::uint64_t service_id, std::uint64_t token, std::uint32_t backlog) {
  return listeners_.emplace(service_id, Listener{token, backlog}).second;
}

void Agent::stop_listening(std::uint64_t service_id) { listeners_.erase(service_id); }

Connection& Agent::make(const wire::Address& remote) {
  std::uint32_t id = 0;
  while (id == 0 || connections_.contains(id)) id = config_.random();
  const std::uint64_t half = config_.random();
  const Connection::Identity identity{.id = id,
                                      .transaction_id = half << 32 | config_.random(),
                                      .starting_psn = config_.random() & roce::kPsnMask};
  auto made = std::make_unique<Connection>(identity, remote, config_.timing, port_);
  return *connections_.emplace(id, std::move(made)).first->second;
}

Connection* Agent::find(std::uint32_t id) {
  const auto found = connections_.find(id);
  return found == connections_.end() || !found->second->owned() ? nullptr : found->second.get();
}

void Agent::note_read(std::uint32_t id) {
  if (Connection* const connection = find(id)) connection->note_read();
}

void Agent::release(std::uint64_t now_ns, std::uint32_t id) {
  if (Connection* const connection = find(id)) connection->release(now_ns);
  sweep();
}

std::size_t Agent::release_all(std::uint64_t now_ns) {
  listeners_.clear();
  for (const auto& [id, connection] : connections_) {
    if (connection->owned()) {
      connection->release(now_ns);
    } else {
      connection->remind();
    }
  }
  sweep();
  return static_cast<std::size_t>(std::ranges::count_if(
      connections_, [](const auto& it) { return it.second->state() == State::kDreqSent; }));
}

void Agent::sweep() {
  std::size_t retained = 0;
  for (auto it = connections_.begin(); it != connections_.end();) {
    const Connection& connection = *it->second;
    const bool over = connection.state() == State::kClosed && !connection.owned();
    retained += !over && !connection.owned() ? 1 : 0;
    it = over ? connections_.erase(it) : std::next(it);
  }
  for (; retained > kMaxRetained; --retained) forget_oldest();
}

// Discards a retained connection, preferably one in time wait, because others still have a DREQ to send.
void Agent::forget_oldest() {
  const auto order = [](const auto& it) {
    const Connection& connection = *it.second;
    return std::tuple(connection.owned(), connection.state() != State::kTimeWait, connection.deadline_ns());
  };
  connections_.erase(std::ranges::min_element(connections_, {}, order));
}

void Agent::on_datagram(std::uint64_t now_ns, const wire::Address& source,
                        std::span<const std::byte> datagram) {
  const std::optional<Message> message = gdx::cm::decode(datagram);
  if (!message) return;
  if (message->type == MessageType::kReq || message->type == MessageType::kSidrReq) {
    on_request(now_ns, source, *message);
    return sweep();
  }
  // A SIDR_REP has one id only, that of the request.
  const bool resolution = message->type == MessageType::kSidrRep;
  if (message->type == MessageType::kRej && message->remote_id == 0) {
    if (Connection* const rejected = find_rejected(source, *message)) rejected->on_message(now_ns, *message);
    return sweep();
  }
  const auto found = connections_.find(resolution ? message->local_id : message->remote_id);
  if (found == connections_.end() || found->second->remote() != source) {
    return answer_stranger(source, *message);
  }
  Connection& connection = *found->second;
  const bool known = connection.remote_id() == 0 || connection.remote_id() == message->local_id;
  if (resolution || known) connection.on_message(now_ns, *message);
  sweep();
}

Connection* Agent::find_request(const wire::Address& source, const Message& request) {
  const auto same = std::ranges::find_if(connections_, [&](const auto& it) {
    const Connection& connection = *it.second;
    const bool resolution = connection.state() == State::kSidrReceived;
    return connection.passive() && connection.remote() == source &&
           connection.remote_id() == request.local_id && connection.state() != State::kClosed &&
           resolution == (request.type == MessageType::kSidrReq);
  });
  return same == connections_.end() ? nullptr : same->second.get();
}

// Finds the connection of a peer that gives its request up before it got an id of this side. It is
// found by the id of the message's sender, because the message can name no other.
Connection* Agent::find_rejected(const wire::Address& source, const Message& rejection) {
  const auto same = std::ranges::find_if(connections_, [&](const auto& it) {
    const Connection& connection = *it.second;
    return connection.passive() && connection.remote() == source &&
           connection.remote_id() == rejection.local_id && connection.state() != State::kClosed &&
           connection.state() != State::kSidrReceived;
  });
  return same == connections_.end() ? nullptr : same->second.get();
}

std::uint32_t Agent::unread(std::uint64_t token) const {
  return static_cast<std::uint32_t>(std::ranges::count_if(connections_, [token](const auto& it) {
    const Connection& connection = *it.second;
    return connection.passive() && connection.owned() && !connection.read() && connection.listener() == token;
  }));
}

// Returns whether the request reuses a queue pair of an existing connection, so that the peer has lost that
// connection.
bool Agent::is_stale(std::uint64_t now_ns, const wire::Address& source, const Message& request) {
  const auto old = std::ranges::find_if(connections_, [&](const auto& it) {
    const Connection& connection = *it.second;
    const bool alive = connection.state() == State::kEstablished || connection.state() == State::kRepSent;
    return alive && connection.remote() == source && connection.peer().qpn == request.endpoint.qpn;
  });
  if (old == connections_.end()) return false;
  old->second->disconnect(now_ns);
  return true;
}

void Agent::on_request(std::uint64_t now_ns, const wire::Address& source, const Message& request) {
  if (Connection* const same = find_request(source, request)) return same->on_message(now_ns, request);
  const auto listener = listeners_.find(request.service_id);
  if (listener == listeners_.end()) {
    return refuse_request(source, request, {RejectReason::kInvalidServiceId});
  }
  if (request.type == MessageType::kReq) {
    const bool served =
        request.transport == gdx::cm::Transport::kRc || request.transport == gdx::cm::Transport::kUc;
    if (!served) return refuse_request(source, request, {RejectReason::kInvalidTransport});
    if (request.path_mtu == 0 || request.path_mtu > config_.max_path_mtu) {
      return refuse_request(source, request, {RejectReason::kInvalidPathMtu});
    }
    if (const std::optional<Refusal> refusal = refusal_of(request.path, config_)) {
      return refuse_request(source, request, *refusal);
    }
    if (is_stale(now_ns, source, request)) {
      return refuse_request(source, request, {RejectReason::kStaleConnection});
    }
  }
  if (unread(listener->second.token) >= listener->second.backlog) return;
  make(source).on_request(request, listener->second.token);
}

void Agent::refuse_request(const wire::Address& source, const Message& request, const Refusal& refusal) {
  Message answer;
  answer.transaction_id = request.transaction_id;
  if (request.type == MessageType::kSidrReq) {
    const bool unknown = refusal.reason == RejectReason::kInvalidServiceId;
    answer.type = MessageType::kSidrRep;
    answer.local_id = request.local_id;
    answer.service_id = request.service_id;
    answer.reason =
        static_cast<std::uint16_t>(unknown ? SidrStatus::kInvalidServiceId : SidrStatus::kRejected);
  } else {
    answer.type = MessageType::kRej;
    answer.remote_id = request.local_id;
    answer.answered = Answered::kReq;
    answer.reason = static_cast<std::uint16_t>(refusal.reason);
    answer.reject_information = refusal.information;
  }
  port_.send(source, answer);
}

// Answers messages without a connection that wait for an answer, so that their sender avoids its timeouts.
void Agent::answer_stranger(const wire::Address& source, const Message& message) {
  Message answer;
  answer.transaction_id = message.transaction_id;
  answer.local_id = message.remote_id;
  answer.remote_id = message.local_id;
  switch (message.type) {
    case MessageType::kDreq: answer.type = MessageType::kDrep; break;
    case MessageType::kRep:
      answer.type = MessageType::kRej;
      answer.answered = Answered::kRep;
      answer.reason = static_cast<std::uint16_t>(RejectReason::kInvalidCommunicationId);
      break;
    default: return;
  }
  port_.send(source, answer);
}

void Agent::on_timer(std::uint64_t now_ns) {
  for (const auto& [id, connection] : connections_) connection->on_timer(now_ns);
  sweep();
}

std::uint64_t Agent::next_deadline_ns() const {
  std::uint64_t deadline_ns = kNever;
  for (const auto& [id, connection] : connections_) {
    deadline_ns = std::min(deadline_ns, connection->deadline_ns());
  }
  return deadline_ns;
}

}  // namespace gdx::softhca::cm
