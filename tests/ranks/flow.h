// Interface of a simulated rank's kernel, by endpoint: its input, and its results.
#pragma once

#include <cstdint>

#include "proto/gpu/memory.h"
#include "proto/gpu/queue.h"

namespace gdx::ranks {

// Input of one endpoint's thread.
struct Flow {
  EndpointHandle endpoint;
  LocalMemory source;  // two messages, used in turn
  LocalMemory inbox;   // likewise
  RemoteMemory peer_inbox;
  RemoteMemory peer_signal;
  const std::uint64_t* signal;
  std::uint64_t own_salt;  // tells the messages of this endpoint from all others
  std::uint64_t peer_salt;
  bool sends;
};

struct Shape {
  std::uint64_t message_bytes;
  std::uint32_t messages;
  std::uint64_t post_ns;
  std::uint64_t jitter_ns;
  std::uint64_t order_ns;  // of a fence, between what it orders and the doorbell
  // Reports of a block that a kernel on a CPU does not show otherwise: stores of `bytes` of payload to
  // staging or host memory, doorbells (order_ns later, for all others), and idle times.
  void (*stored)(std::uint32_t block, std::uint64_t bytes);
  void (*posted)(std::uint32_t block);
  void (*busy_until)(std::uint32_t block, std::uint64_t until_ns);
  // Reports for the trace of the run: a message posted with its signal, begun at `begun_ns`; a message
  // received.
  void (*sent)(std::uint32_t block, std::uint64_t bytes, std::uint64_t begun_ns);
  void (*received)(std::uint32_t block, std::uint64_t bytes);
};

// One thing of those, in the order in which a kernel did them.
struct Action {
  enum class Kind : std::uint8_t { kSend, kReceive };
  Kind kind = Kind::kSend;
  std::uint64_t bytes = 0;
  std::uint64_t at_ns = 0;  // time of the start of a send, or of the receipt of a message
};

struct Outcome {
  Status status = Status::kOk;
  std::uint64_t messages = 0;
  std::uint64_t wrong_words = 0;
  std::uint64_t seen_ns = 0;  // time at which the peer's last message was received
};

}  // namespace gdx::ranks
