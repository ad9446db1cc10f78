// Mutex of static state, which a child by fork has, too. A fork takes all of them before, so that the child
// finds none that belongs to a thread which it has not, and nothing half changed.
#pragma once

#include <mutex>

namespace gdx {

// Threads: safe, as a std::mutex. Static, because a fork knows it from its making to the end of the process.
// Not for what is held longer than a moment: forks wait for it, two seconds at most.
class ForkMutex {
 public:
  ForkMutex();
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

  // Lets a fork that waits go first, unless this thread holds one already.
  void lock();
  [[nodiscard]] bool try_lock();
  void unlock();

  // Returns whether this thread's last fork had all of them. Else one was held too long, or by this very
  // thread, as where a signal's handler forks: the child has them free, and what they guard as it was.
  [[nodiscard]] static bool fork_had_all();

 private:
  friend struct ForkHooks;

  std::mutex mutex_;
  ForkMutex* next_ = nullptr;
};

}  // namespace gdx
