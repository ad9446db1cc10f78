// The states of one communication id, and what may happen in each.
// Source: InfiniBand Architecture Specification 1.4, sections 12.9.5 to 12.9.8 (state diagrams), 12.11
// (SIDR).
#pragma once

#include <cstdint>

namespace gdx::softhca::cm {

enum class State : std::uint8_t {
  kIdle,
  kReqSent,      // active: a REP is owed to us
  kMraReceived,  // active: the peer has requested time
  kRepReceived,  // active: the user has yet to set its queue pair up
  kReqReceived,  // passive: the user has yet to answer
  kRepSent,      // passive: an RTU is owed to us
  kEstablished,
  kDreqSent,      // a DREP is owed to us
  kTimeWait,      // packets of the connection may still be under way
  kSidrSent,      // active: a SIDR_REP is owed to us
  kSidrReceived,  // passive: the user has yet to answer
  kClosed,
};
inline constexpr int kStates = static_cast<int>(State::kClosed) + 1;

enum class Input : std::uint8_t {
  // Inputs from the user.
  kConnect,
  kAccept,
  kEstablish,  // active: send RTU; passive: the queue pair has received before the RTU came
  kReject,
  kDisconnect,
  kResolve,
  kReply,
  // Inputs from the peer.
  kReq,  // again: the first one makes the connection
  kMra,
  kRej,
  kRep,
  kRtu,
  kDreq,
  kDrep,
  kSidrReq,  // a request that came again
  kSidrRep,
  // Input from the clock.
  kTimeout,
};
inline constexpr int kInputs = static_cast<int>(Input::kTimeout) + 1;

// Anything else is refused to the user, and ignored when it comes from the peer.
[[nodiscard]] constexpr bool permitted(State state, Input input) {
  const auto among = [input](auto... inputs) { return ((input == inputs) || ...); };
  using enum Input;
  switch (state) {
    case State::kIdle: return among(kConnect, kResolve);
    case State::kReqSent: return among(kMra, kRej, kRep, kTimeout);
    case State::kMraReceived: return among(kRej, kRep, kTimeout);
    case State::kRepReceived: return among(kEstablish, kReject, kRej);
    case State::kReqReceived: return among(kAccept, kReject, kReq, kRej);
    case State::kRepSent:
      return among(kEstablish, kReject, kDisconnect, kReq, kMra, kRej, kRtu, kDreq, kTimeout);
    case State::kEstablished: return among(kDisconnect, kRep, kRej, kDreq);
    case State::kDreqSent: return among(kDreq, kDrep, kTimeout);
    case State::kTimeWait: return among(kDreq, kReq, kTimeout);
    case State::kSidrSent: return among(kSidrRep, kTimeout);
    case State::kSidrReceived: return among(kReply, kReject);
    case State::kClosed: return false;
  }
  return false;
}

}  // namespace gdx::softhca::cm
