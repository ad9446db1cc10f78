#include "driver-shim/softhca/cm/connection.h"

#include <algorithm>
#include <utility>

namespace gdx::softhca::cm {
namespace {

using gdx::cm::Answered;
using gdx::cm::SidrStatus;

// The longest that a peer may make us wait, 4.3 s; five bits on the wire mean up to 2.4 hours.
constexpr std::uint8_t kLongestWait = 20;

constexpr std::uint64_t duration_ns(std::uint8_t exponent) { return std::uint64_t{4096} << exponent; }

constexpr std::uint64_t bounded_ns(std::uint8_t exponent) {
  return duration_ns(std::min(exponent, kLongestWait));
}

Input input_of(MessageType type) {
  switch (type) {
    case MessageType::kReq: return Input::kReq;
    case MessageType::kMra: return Input::kMra;
    case MessageType::kRej: return Input::kRej;
    case MessageType::kRep: return Input::kRep;
    case MessageType::kRtu: return Input::kRtu;
    case MessageType::kDreq: return Input::kDreq;
    case MessageType::kDrep: return Input::kDrep;
    case MessageType::kSidrReq: return Input::kSidrReq;
    case MessageType::kSidrRep: return Input::kSidrRep;
  }
  return Input::kReq;
}

}  // namespace

Connection::Connection(const Identity& identity, const wire::Address& remote, Timing timing, Port& port)
    : identity_(identity), remote_(remote), timing_(timing), port_(port) {}

Message Connection::message(MessageType type) const {
  Message made;
  made.type = type;
  made.transaction_id = identity_.transaction_id;
  made.local_id = identity_.id;
  made.remote_id = remote_id_;
  return made;
}

void Connection::send_persistently(std::uint64_t now_ns, State state, Message message) {
  state_ = state;
  retries_left_ = timing_.max_retries;
  stretched_ = false;
  deadline_ns_ = now_ns + duration_ns(timing_.response);
  port_.send(remote_, message);
  unanswered_ = std::move(message);
}

void Connection::raise(EventType type, int status, const Message& cause) {
  if (owned_)
    port_.raise(
        {.type = type, .id = identity_.id, .listener = listener_, .status = status, .message = cause});
}

bool Connection::connect(std::uint64_t now_ns, Message request) {
  if (!permitted(state_, Input::kConnect)) return false;
  request.type = MessageType::kReq;
  request.transaction_id = identity_.transaction_id;
  request.local_id = identity_.id;
  request.remote_response_timeout = timing_.response;
  request.local_response_timeout = timing_.response;
  request.max_cm_retries = timing_.max_retries;
  request.endpoint.starting_psn = identity_.starting_psn;
  request_ = request;
  send_persistently(now_ns, State::kReqSent, std::move(request));
  return true;
}

bool Connection::resolve(std::uint64_t now_ns, Message request) {
  if (!permitted(state_, Input::kResolve)) return false;
  request.type = MessageType::kSidrReq;
  request.transaction_id = identity_.transaction_id;
  request.local_id = identity_.id;
  request_ = request;
  send_persistently(now_ns, State::kSidrSent, std::move(request));
  return true;
}

bool Connection::accept(std::uint64_t now_ns, const gdx::cm::Endpoint& local, PrivateData private_data) {
  if (!permitted(state_, Input::kAccept)) return false;
  Message rep = message(MessageType::kRep);
  rep.endpoint = local;
  rep.endpoint.starting_psn = identity_.starting_psn;
  rep.private_data = std::move(private_data);
  send_persistently(now_ns, State::kRepSent, std::move(rep));
  return true;
}

bool Connection::reply(const Message& answer) {
  if (!permitted(state_, Input::kReply)) return false;
  Message reply = answer;
  reply.type = MessageType::kSidrRep;
  reply.transaction_id = identity_.transaction_id;
  reply.local_id = remote_id_;  // a SIDR_REP names the request
  reply.service_id = request_.service_id;
  port_.send(remote_, reply);
  close();
  return true;
}

bool Connection::establish() {
  if (!permitted(state_, Input::kEstablish)) return false;
  if (!passive_) port_.send(remote_, message(MessageType::kRtu));
  if (passive_) raise(EventType::kEstablished, 0, message(MessageType::kRtu));
  state_ = State::kEstablished;
  deadline_ns_ = kNever;
  unanswered_.reset();
  return true;
}

bool Connection::reject(std::uint64_t now_ns, RejectReason reason, PrivateData private_data) {
  if (!permitted(state_, Input::kReject)) return false;
  if (state_ == State::kSidrReceived) {
    Message refusal;
    refusal.reason = static_cast<std::uint16_t>(SidrStatus::kRejected);
    refusal.private_data = std::move(private_data);
    return reply(refusal);
  }
  const bool told = state_ == State::kRepSent;  // the peer may have sent to our queue pair by now
  send_reject(reason, std::move(private_data));
  if (told) {
    enter_time_wait(now_ns);
  } else {
    close();
  }
  return true;
}

void Connection::send_reject(RejectReason reason, PrivateData private_data) {
  Message rej = message(MessageType::kRej);
  rej.reason = static_cast<std::uint16_t>(reason);
  rej.private_data = std::move(private_data);
  // Adds the GUID, because the peer may have sent no id yet that would name this side.
  if (reason == RejectReason::kTimeout && unanswered_) {
    rej.reject_information = gdx::cm::wire_bytes(Be64(unanswered_->endpoint.ca_guid));
  }
  switch (state_) {
    case State::kReqReceived: rej.answered = Answered::kReq; break;
    case State::kRepReceived: rej.answered = Answered::kRep; break;
    default: rej.answered = Answered::kOther; break;
  }
  port_.send(remote_, rej);
}

void Connection::send_dreq(std::uint64_t now_ns) {
  Message dreq = message(MessageType::kDreq);
  dreq.remote_qpn = peer_.qpn;
  send_persistently(now_ns, State::kDreqSent, std::move(dreq));
}

bool Connection::disconnect(std::uint64_t now_ns) {
  if (!permitted(state_, Input::kDisconnect)) return false;
  send_dreq(now_ns);
  return true;
}

void Connection::release(std::uint64_t now_ns) {
  owned_ = false;
  switch (state_) {
    case State::kReqSent:
    case State::kMraReceived: send_reject(RejectReason::kTimeout, {}); return close();
    case State::kRepReceived:
    case State::kReqReceived:
    case State::kRepSent:
    case State::kSidrReceived: reject(now_ns, RejectReason::kConsumerDefined, {}); return;
    case State::kEstablished: return send_dreq(now_ns);
    case State::kDreqSent:
    case State::kTimeWait: return;
    case State::kIdle:
    case State::kSidrSent:
    case State::kClosed: return close();
  }
}

void Connection::remind() {
  if (unanswered_) port_.send(remote_, *unanswered_);
}

void Connection::on_request(const Message& request, std::uint64_t listener) {
  passive_ = true;
  listener_ = listener;
  remote_id_ = request.local_id;
  request_ = request;
  peer_ = request.endpoint;
  state_ = request.type == MessageType::kReq ? State::kReqReceived : State::kSidrReceived;
  raise(EventType::kRequest, 0, request);
}

void Connection::on_message(std::uint64_t now_ns, const Message& message) {
  if (!permitted(state_, input_of(message.type))) return;
  switch (message.type) {
    case MessageType::kReq: return on_repeated_req();
    case MessageType::kMra: return on_mra(now_ns, message);
    case MessageType::kRej: return on_rej(now_ns, message);
    case MessageType::kRep: return on_rep(message);
    case MessageType::kRtu:
      state_ = State::kEstablished;
      deadline_ns_ = kNever;
      unanswered_.reset();
      return raise(EventType::kEstablished, 0, message);
    case MessageType::kDreq: return on_dreq(now_ns, message);
    case MessageType::kDrep: raise(EventType::kDisconnected, 0, message); return enter_time_wait(now_ns);
    case MessageType::kSidrReq: return;
    case MessageType::kSidrRep: {
      const bool valid = message.reason == static_cast<std::uint16_t>(SidrStatus::kValid);
      raise(valid ? EventType::kResponse : EventType::kUnreachable, message.reason, message);
      return close();
    }
  }
}

void Connection::on_repeated_req() {
  switch (state_) {
    case State::kReqReceived: {  // the user takes its time
      Message mra = message(MessageType::kMra);
      mra.answered = Answered::kReq;
      mra.service_timeout = timing_.service;
      return port_.send(remote_, mra);
    }
    case State::kRepSent: return port_.send(remote_, *unanswered_);
    case State::kTimeWait: return send_reject(RejectReason::kStaleConnection, {});
    default: return;
  }
}

// Stretches the running interval, once for each transmission. The retries are not renewed, so a peer cannot
// delay this side for ever.
void Connection::on_mra(std::uint64_t now_ns, const Message& mra) {
  const bool about_req = mra.answered == Answered::kReq;
  if (about_req == (state_ == State::kRepSent) || stretched_) return;
  if (about_req) state_ = State::kMraReceived;
  stretched_ = true;
  deadline_ns_ = now_ns + bounded_ns(mra.service_timeout) + duration_ns(timing_.response);
}

void Connection::on_rep(const Message& rep) {
  if (state_ == State::kEstablished) {  // our RTU was lost
    if (!passive_ && rep.local_id == remote_id_) port_.send(remote_, message(MessageType::kRtu));
    return;
  }
  remote_id_ = rep.local_id;
  peer_ = rep.endpoint;
  state_ = State::kRepReceived;
  deadline_ns_ = kNever;
  unanswered_.reset();
  raise(EventType::kResponse, 0, rep);
}

void Connection::on_rej(std::uint64_t now_ns, const Message& rej) {
  raise(EventType::kRejected, rej.reason, rej);  // as Linux reports it, even for an established connection
  if (state_ == State::kEstablished || state_ == State::kRepSent) return enter_time_wait(now_ns);
  close();
}

void Connection::on_dreq(std::uint64_t now_ns, const Message& dreq) {
  port_.send(remote_, message(MessageType::kDrep));
  if (state_ == State::kTimeWait) return;
  raise(EventType::kDisconnected, 0, dreq);
  enter_time_wait(now_ns);
}

void Connection::on_timer(std::uint64_t now_ns) {
  if (now_ns < deadline_ns_ || !permitted(state_, Input::kTimeout)) return;
  if (state_ == State::kTimeWait) {
    raise(EventType::kTimeWaitOver, 0, {});
    return close();
  }
  if (retries_left_ == 0) return give_up(now_ns);
  --retries_left_;
  stretched_ = false;
  if (state_ == State::kMraReceived) state_ = State::kReqSent;
  deadline_ns_ = now_ns + duration_ns(timing_.response);
  port_.send(remote_, *unanswered_);
}

void Connection::give_up(std::uint64_t now_ns) {
  switch (state_) {
    case State::kRepSent:
      send_reject(RejectReason::kTimeout, {});
      raise(EventType::kUnreachable, kNoAnswer, {});
      return enter_time_wait(now_ns);
    case State::kDreqSent: raise(EventType::kDisconnected, kNoAnswer, {}); return enter_time_wait(now_ns);
    case State::kReqSent:
    case State::kMraReceived: send_reject(RejectReason::kTimeout, {}); [[fallthrough]];
    default: raise(EventType::kUnreachable, kNoAnswer, {}); return close();
  }
}

// Twice the time in which the transport would send a packet again (12.9.8.3.1).
void Connection::enter_time_wait(std::uint64_t now_ns) {
  state_ = State::kTimeWait;
  unanswered_.reset();
  deadline_ns_ = now_ns + 2 * bounded_ns(request_.path.ack_timeout);
}

void Connection::close() {
  state_ = State::kClosed;
  unanswered_.reset();
  deadline_ns_ = kNever;
}

bool Connection::knows_peer() const {
  switch (state_) {
    case State::kRepReceived:
    case State::kReqReceived:
    case State::kRepSent:
    case State::kEstablished: return true;
    default: return false;
  }
}

QueuePairParameters Connection::parameters() const {
  return {.remote = remote_,
          .remote_qpn = peer_.qpn,
          .send_psn = peer_.starting_psn,
          .receive_psn = identity_.starting_psn,
          .path_mtu = request_.path_mtu,
          .initiator_depth = peer_.responder_resources,
          .responder_resources = peer_.initiator_depth,
          .retry_count = request_.retry_count,
          .rnr_retry_count = peer_.rnr_retry_count,
          .path = passive_ ? gdx::cm::reversed(request_.path) : request_.path};
}

}  // namespace gdx::softhca::cm
