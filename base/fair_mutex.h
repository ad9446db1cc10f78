// Mutex that serves threads in the order in which they came.
#pragma once

#include <atomic>
#include <cstdint>

namespace gdx {

// Lets nobody starve beside a thread that unlocks it and locks it again at once, as it may with std::mutex.
// For std::lock_guard and std::unique_lock. At most 2^32 threads may wait.
class FairMutex {
 public:
  void lock() {
    const std::uint32_t turn = next_.fetch_add(1, std::memory_order_relaxed);
    for (;;) {
      const std::uint32_t served = served_.load(std::memory_order_acquire);
      if (served == turn) return;
      served_.wait(served, std::memory_order_relaxed);
    }
  }
  // Takes no place among those that wait.
  bool try_lock() {
    std::uint32_t served = served_.load(std::memory_order_acquire);
    return next_.compare_exchange_strong(served, served + 1, std::memory_order_relaxed);
  }
  void unlock() {
    served_.fetch_add(1, std::memory_order_release);
    served_.notify_all();
  }

 private:
  std::atomic<std::uint32_t> next_{0};  // turn of the thread that comes next
  std::atomic<std::uint32_t> served_{0};
};

}  // namespace gdx
