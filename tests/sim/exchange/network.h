// Local sockets in virtual time, below production code: calls of ranks on sockets, poll(2) and
// clock_gettime(2) end here. A seed chooses how long a rank takes to wake up, and how much a socket holds.
// Each rank is a fiber. One rank may die or fall silent at any of its calls, also in the midst of a send.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <span>
#include <tuple>
#include <vector>

#include "tests/sim/fiber.h"
#include "tests/sim/random.h"

namespace gdx::sim {

struct Traffic {
  std::uint64_t frames = 0;
  std::uint64_t bytes = 0;
};

// Ways to lose a rank: its sockets close, or stand while it makes no further call.
enum class Loss : std::uint8_t { kNone, kDeath, kSilence };

class Network {
 public:
  static constexpr int kFirstProcess = 1'000'000;  // of rank 0

  Network(std::uint64_t seed, std::uint32_t ranks);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  void start(std::uint32_t rank, std::uint64_t after_ns, std::function<void()> body);
  void lose(std::uint32_t rank, Loss loss, std::uint64_t after_calls);
  // Runs all ranks to their end. A silent one then finds its sockets closed.
  void run();
  [[nodiscard]] std::uint64_t now_ns() const { return now_ns_; }
  [[nodiscard]] bool is_lost(std::uint32_t rank) const { return ranks_[rank].lost; }
  [[nodiscard]] bool has_ended(std::uint32_t rank) const { return ranks_[rank].fiber->is_done(); }
  [[nodiscard]] Traffic sent_by_root() const { return sent_; }
  [[nodiscard]] Traffic received_by_root() const { return received_; }

  // For the calls that stand in for the C library's.
  static Network* running();
  [[nodiscard]] bool has(int file) const;
  std::uint64_t clock_ns();
  int make_socket();
  void listen(int file);
  int connect(int file);
  int accept();
  ssize_t send(int file, std::span<const std::byte> bytes);
  ssize_t receive(int file, std::span<std::byte> bytes, bool stays);
  void end(int file);
  void close(int file);
  int poll(std::span<pollfd> files, int timeout_ms);
  [[nodiscard]] int process_at_peer(int file);

 private:
  struct Socket {
    std::uint32_t owner = 0;
    int peer = -1;
    bool listens = false;
    bool ended = false;   // sends nothing more
    bool closed = false;  // and takes nothing more
    short polled = 0;     // events that its owner waits for
    std::vector<std::byte> inbox;
    std::size_t taken = 0;
  };
  struct Rank {
    std::unique_ptr<Fiber> fiber;
    Loss loss = Loss::kNone;
    std::uint64_t calls_left = 0;  // before the loss
    bool lost = false;
    bool waits = true;
    bool woken = false;
    std::uint64_t turn = 0;
    std::uint64_t skipped_ns = 0;  // lost: deadlines have passed
    std::vector<int> files;
  };
  using Event =
      std::tuple<std::uint64_t, std::uint64_t, std::uint32_t, std::uint64_t>;  // time, order, rank, turn

  Socket& at(int file);
  Rank& here() { return ranks_[rank_here_]; }
  [[nodiscard]] bool act();
  void strike();
  void cut();
  void resume(std::uint32_t rank);
  void pause(std::uint64_t duration_ns);
  void plan(std::uint32_t rank, std::uint64_t time_ns);
  void wake(const Socket& socket, short events);
  int look(std::span<pollfd> files);
  short state_of(const Socket& socket);

  Random random_;
  std::size_t room_;
  std::uint64_t now_ns_ = 1'000'000'000;
  std::uint64_t order_ = 0;
  std::vector<Rank> ranks_;
  std::uint32_t rank_here_ = 0;
  std::deque<Socket> sockets_;
  int listener_ = -1;
  std::deque<int> callers_;  // connected, and not accepted
  Traffic sent_, received_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace gdx::sim
