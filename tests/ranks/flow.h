// What a simulated rank's kernel is given for each endpoint, and what it gives back.
#pragma once

#include <cstdint>

#include "proto/gpu/memory.h"
#include "proto/gpu/queue.h"

namespace gdx::ranks {

// What one endpoint's thread is given.
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
  // What nobody could see of a kernel on a CPU, told by its block: that it has stored `bytes` of payload into
  // staging or host memory, has rung (order_ns later, for all others), and has nothing to do until then.
  void (*stored)(std::uint32_t block, std::uint64_t bytes);
  void (*posted)(std::uint32_t block);
  void (*busy_until)(std::uint64_t until_ns);
  // What it has done for the trace of the run: posted a message with its signal, which it began at
  // `begun_ns`; seen one.
  void (*sent)(std::uint32_t block, std::uint64_t bytes, std::uint64_t begun_ns);
  void (*received)(std::uint32_t block, std::uint64_t bytes);
};

// One thing of those, in the order in which a kernel did them.
struct Action {
  enum class Kind : std::uint8_t { kSend, kReceive };
  Kind kind = Kind::kSend;
  std::uint64_t bytes = 0;
  std::uint64_t at_ns = 0;  // when a send was begun; when a message was seen
};

struct Outcome {
  Status status = Status::kOk;
  std::uint64_t messages = 0;
  std::uint64_t wrong_words = 0;
  std::uint64_t seen_ns = 0;  // when the last message of the peer was seen
};

}  // namespace gdx::ranks
