// Thread that gives turns to what must go on while its callers are elsewhere: a peer's writes need this
// process's answers with providers in software, handshakes have bounds, and a lost peer must be seen.
#pragma once

#include <atomic>
#include <memory>
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
  // Returns whether an object that the keeper owns needs no more turns. Threads: that of turns.
  [[nodiscard]] virtual bool is_over() const { return true; }
};

// Threads: any.
class Keeper {
 public:
  // Throws std::system_error without a thread.
  Keeper();
  // Waits at most 10 s until what it owns is over.
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;
  void add(Kept& object);
  // Returns once no turn of the object goes on.
  void remove(Kept& object);
  // Takes ownership of an object that has turns already, until it is over. The object keeps no keeper.
  void own(std::unique_ptr<Kept> object);
  // Gives no more turns; returns once none goes on.
  void stop();

 private:
  struct Entry {
    Kept* object;
    std::unique_ptr<Kept> owned;
  };
  void serve();
  [[nodiscard]] bool owns_any();

  std::mutex mutex_;
  std::vector<Entry> objects_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace gdx::messaging
