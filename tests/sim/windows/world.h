// Production windows in virtual time: senders with many connections, each behind a path of its own, and
// receivers whose sockets charge as Linux does. A seed chooses sockets, paths, packet sizes, receivers'
// pauses, losses, and peers that are late, fall silent, die or restart.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <vector>

#include "driver-shim/softhca/transport/peer_window.h"
#include "tests/sim/random.h"
#include "tests/sim/seeds.h"

namespace gdx::sim {

namespace transport = softhca::transport;

struct WindowOutcome {
  std::string problem;  // empty: every promise was kept
  std::uint64_t packets = 0;
  std::uint64_t lost = 0;
  std::uint64_t waits = 0;
  std::uint64_t deaths = 0;
  std::uint64_t restarts = 0;
  std::uint64_t pauses = 0;
  double fullest = 0;  // of a socket's room
  std::uint64_t end_ns = 0;

  void add(const WindowOutcome& other);
};

class WindowWorld {
 public:
  explicit WindowWorld(std::uint64_t seed);
  [[nodiscard]] WindowOutcome run();

 private:
  // Data, or a marker.
  struct Packet {
    std::size_t sender = 0;
    std::uint32_t life = 0;  // of the sender when it left
    std::uint64_t bytes = 0;
    std::uint64_t truesize = 0;
    std::optional<roce::WindowMarker> marker;
  };
  struct Event {
    std::uint64_t time_ns = 0;
    std::uint64_t order = 0;
    std::function<void()> act;
    bool operator>(const Event& other) const {
      return time_ns != other.time_ns ? time_ns > other.time_ns : order > other.order;
    }
  };
  struct Sender {
    std::unique_ptr<transport::SendWindow> window;
    std::uint32_t life = 0;
    std::uint64_t path_ns = 0;
    std::uint64_t arrives_ns = 0;     // no packet of this path arrives before
    std::uint64_t backlog_bytes = 0;  // still to be sent, of all its connections
    std::uint64_t packet_bytes = 0;
    std::uint64_t asleep_until_ns = 0;
    std::uint64_t step_ns = transport::kNever;  // of the next one
    bool dead = false;
    std::uint64_t renewed_ns = 0;                   // its newest marker came out of the socket
    std::optional<std::uint64_t> mourned_at_bytes;  // taken_bytes_ when its lease had certainly ended
  };
  static constexpr std::uint64_t kMostPauses = 8;

  void at(std::uint64_t time_ns, std::function<void()> act);
  void start(std::size_t number);
  void step(std::size_t number);
  void schedule_step(std::size_t number, std::uint64_t time_ns);
  void send_packet(std::size_t number);
  void transmit(Packet packet);
  void arrive(Packet packet);
  void serve();
  void take(const Packet& packet);
  void answer(const Packet& packet, std::optional<roce::WindowGrant> grant);
  void misfortune();
  void check_books();
  void check_invariants();
  [[nodiscard]] std::uint64_t truesize_of(std::uint64_t bytes);
  [[nodiscard]] bool done() const;
  void fail(const std::string& what);

  Random random_;
  std::uint64_t socket_bytes_;
  transport::ReceiveShares shares_;
  double loss_;
  double pauses_;
  bool reorders_;  // then a socket may overflow, and nothing may stop all the same
  bool slow_;
  std::vector<Sender> senders_;
  std::deque<Packet> socket_;
  std::uint64_t held_bytes_ = 0;        // charged for what lies in it
  std::uint64_t unreleased_bytes_ = 0;  // and for what has been taken, until the kernel releases it
  std::uint64_t taken_bytes_ = 0;
  std::uint64_t now_ns_ = 1'000'000;
  std::uint64_t order_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  WindowOutcome outcome_;
};

}  // namespace gdx::sim
