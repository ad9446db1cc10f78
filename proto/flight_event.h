// Events of a flight recorder: the newest that one queue pair, or its part of a staging pool, has seen.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gdx {

// Fields that a kind leaves out are 0.
enum class FlightKind : std::uint8_t {
  kState,       // code: the queue pair's new state, as enum ib_qp_state numbers it
  kDoorbell,    // wqe: index announced, one past the newest WQEBB; word: WQEBBs that are new
  kFetch,       // wqe; code: opcode; bytes; word: 1 if the WQE came with its doorbell
  kSend,        // first packet of a WQE. wqe; bytes: of that packet; word: PSN
  kResend,      // code: enum ResendCause; word: PSN from which packets go again
  kCompletion,  // entry in the completion queue. wqe; code: syndrome; bytes
  kRetirement,  // end of a WQE without such an entry. wqe; code: syndrome; bytes
  kFlush,       // WQEs that ended with syndrome kFlushed. wqe: the newest; word: their number
  kGrant,       // code: enum FlightPool; word: staging slot
  kReturn,      // code: enum FlightPool; word: staging slot that came back
  kLimit,       // code: enum FlightPool; word: slots that the endpoint may hold
};
// By kind, for text.
inline constexpr const char* kFlightKindNames[] = {"state",  "doorbell", "fetch",  "send",
                                                   "resend", "complete", "retire", "flush",
                                                   "grant",  "return",   "limit"};
inline constexpr std::size_t kFlightKinds = sizeof kFlightKindNames / sizeof kFlightKindNames[0];
static_assert(static_cast<std::size_t>(FlightKind::kLimit) + 1 == kFlightKinds);

enum class ResendCause : std::uint8_t {
  kNak,           // the peer missed a packet
  kLostResponse,  // a later answer came without the one that was due
  kTimeout,       // no ACK in time
  kNotReady,      // the peer had no receive
  kTail,          // no answer to the newest packets; long before the ACK timeout
};
enum class FlightPool : std::uint8_t { kNic, kHost };

struct FlightEvent {
  std::uint64_t time_ns = 0;  // CLOCK_MONOTONIC
  FlightKind kind = FlightKind::kState;
  std::uint8_t code = 0;
  std::uint16_t wqe = 0;
  std::uint32_t bytes = 0;
  std::uint64_t word = 0;
};
static_assert(sizeof(FlightEvent) == 24, "an event is three stores");

}  // namespace gdx
