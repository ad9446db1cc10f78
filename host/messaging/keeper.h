// Thread that gives turns to what must go on while its callers are elsewhere: a peer's writes need this
// process's answers with providers in software, handshakes have bounds, and a lost peer must be seen.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace gdx::messaging {

// Object that has turns.
class Kept {
 public:
  virtual ~Kept() = default;
  // Does what can be done without waiting, unless another thread is at it.
  virtual void take_turn() = 0;
  // Takes what a turn of it has thrown: nothing, where another turn may succeed.
  virtual void give_up(const char* /*why*/) {}
};

// Threads: any.
class Keeper {
 public:
  // Throws std::system_error without a thread.
  Keeper();
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;
  void add(Kept& object);
  // Returns once no turn of the object goes on.
  void remove(Kept& object);
  // Gives no more turns; returns once none goes on.
  void stop();

 private:
  void serve();

  std::mutex mutex_;
  std::vector<Kept*> objects_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace gdx::messaging
