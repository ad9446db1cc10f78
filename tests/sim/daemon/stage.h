// Threads of production code in virtual time, as fibers of one thread. A seed chooses the next.
//
// The stage stands below poll(2), clock_gettime(2) and the threads of the C library. A fiber that waits is
// one in poll() or pthread_join(); the stage looks at its files and at its deadline. Files and sockets are
// the kernel's own. Threads that a connection of gdxd starts serve the software HCA and the pools of staging
// slots: they run beside the stage, in real time, and have nothing to do where no kernel posts.
#pragma once

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>

#include "tests/sim/fiber.h"
#include "tests/sim/random.h"

namespace gdx::sim {

struct Line;

// Threads that these start: of gdxd one for each connection, of a client one that watches notices.
enum class Role : std::uint8_t { kDaemon, kConnection, kClient, kWatcher };

struct Actor {
  enum class Waits : std::uint8_t { kNot, kPolls, kJoins };
  Role role = Role::kClient;
  std::shared_ptr<Line> line;  // of a client, or of a connection
  int socket = -1;             // of a connection
  Waits waits = Waits::kNot;
  std::span<pollfd> files;
  std::uint64_t deadline_ns = 0;
  const Actor* joined = nullptr;
  std::unique_ptr<Fiber> fiber;
};

// Sees the moments at which gdxd's state and its clients' view change. Each call is on the running thread.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual ucred accepted() = 0;  // gdxd reads who has connected
  virtual void refuses(
      std::span<const std::byte> answer) = 0;             // gdxd tells who has connected that it may not
  virtual std::shared_ptr<Line> connection_begins() = 0;  // gdxd starts the thread of that connection
  virtual void received(Line& line) = 0;                  // gdxd has taken the next message
  virtual void answers(Line& line, std::span<const std::byte> answer) = 0;  // gdxd has acted on it
  virtual void answer_left(Line& line) = 0;                                 // the answer is in the socket
  virtual void shuts_down(Line& line) = 0;       // gdxd has ended what the client made, or a kick of its own
  virtual void connection_ends(Line& line) = 0;  // and gives its place back
  virtual void joined(Line& line) = 0;
  virtual void accept_ends() = 0;                                         // gdxd waits again for connections
  virtual void sent(Line& line, std::span<const std::byte> message) = 0;  // a client has sent it
};

class Stage {
 public:
  Stage(std::uint64_t seed, Observer& observer);
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  void start(Role role, std::function<void()> body);
  // Runs all threads to their end, and `after_step` behind each step. Returns the reason where they come to
  // none, and the fibers still exist.
  std::string run(const std::function<void()>& after_step);
  [[nodiscard]] std::uint64_t now_ns() const { return now_ns_; }
  [[nodiscard]] std::uint64_t steps() const { return steps_; }
  // Lets the running thread wait.
  static void sleep(std::uint64_t duration_ns);
  // The line of the running thread.
  static void set_line(std::shared_ptr<Line> line);

  // For the calls that stand in for the C library's.
  static Actor* self();
  static Stage* current();
  static void wait(Actor& actor, Actor::Waits waits);
  void create(pthread_t* thread, void* (*begin)(void*), void* argument);
  [[nodiscard]] const Actor* find(pthread_t thread) const;
  [[nodiscard]] Observer& observer() { return observer_; }

 private:
  Actor& add(Role role, std::function<void()> body, std::shared_ptr<Line> line);
  static void step(Actor& actor);
  Actor* next();
  [[nodiscard]] bool is_ready(Actor& actor) const;
  bool skip_to_next_deadline();

  Random random_;
  Observer& observer_;
  std::uint64_t now_ns_;
  std::uint64_t steps_ = 0;
  std::list<Actor> actors_;
};

}  // namespace gdx::sim
