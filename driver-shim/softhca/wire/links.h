// The two ends of a link, which is one ring in one direction. The sender makes it, so two HCAs that begin at
// once need no tie-break.
#pragma once

#include <cstdint>
#include <memory>

#include "driver-shim/softhca/wire/meeting.h"
#include "driver-shim/softhca/wire/ring.h"
#include "driver-shim/softhca/wire/shared_memory.h"

namespace gdx::softhca::wire {

class OutgoingLink {
 public:
  OutgoingLink(Descriptor socket, SharedMemory memory)
      : socket_(std::move(socket)), memory_(std::move(memory)), ring_(memory_.control(), memory_.data()) {}

  [[nodiscard]] int fd() const { return socket_.value(); }
  [[nodiscard]] RingProducer& ring() { return ring_; }
  // Returns the full-sized packets that may be begun. A ring that stays full for kStalledNs holds nothing
  // back any more. Packets that do not fit are lost, so that the transports' timers judge the peer, as on any
  // wire.
  [[nodiscard]] std::size_t room();
  // Publishes committed packets to the peer and wakes it if it sleeps.
  void publish();

  static constexpr std::uint64_t kStalledNs = 1'000'000'000;

 private:
  Descriptor socket_;
  SharedMemory memory_;
  RingProducer ring_;
  std::uint64_t full_at_ = ~std::uint64_t{0};  // the peer's position when its ring was last found full
  std::uint64_t full_since_ns_ = 0;
};

class IncomingLink {
 public:
  IncomingLink(Address source, Descriptor socket, SharedMemory memory)
      : source_(source),
        socket_(std::move(socket)),
        memory_(std::move(memory)),
        ring_(memory_.control(), memory_.data()) {}

  [[nodiscard]] const Address& source() const { return source_; }
  [[nodiscard]] int fd() const { return socket_.value(); }
  [[nodiscard]] RingConsumer& ring() { return ring_; }

 private:
  Address source_;
  Descriptor socket_;
  SharedMemory memory_;
  RingConsumer ring_;
};

// Reads the wake-up bytes from a link's socket. False: the other end has gone.
[[nodiscard]] bool drain_wakeups(int fd);

// Opens a link. Errors: those of reach_peer and send_call, and of making the memory.
[[nodiscard]] Result<std::unique_ptr<OutgoingLink>> open_link(const Address& local, const Address& peer);

// A link from an HCA to itself.
struct LinkPair {
  std::unique_ptr<OutgoingLink> outgoing;
  std::unique_ptr<IncomingLink> incoming;
};
[[nodiscard]] Result<LinkPair> open_loop(const Address& local);

}  // namespace gdx::softhca::wire
