#include "base/fork_mutex.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <new>
#include <thread>

#include "base/clock.h"

namespace gdx {
namespace {

constexpr std::uint64_t kPatienceNs = 10'000'000'000;  // a machine may stand still for seconds
// Between tries. Slept, because who yields on a busy machine comes last.
constexpr std::chrono::microseconds kPause{20};

constinit std::atomic<ForkMutex*> newest{nullptr};
constinit std::atomic<int> forks{0};          // that have begun and not ended
constinit thread_local int mutexes_held = 0;  // by this thread, and for no fork
constinit thread_local ForkMutex* taken_to_fork =
    nullptr;  // newest of those that this thread holds for its fork
constinit thread_local bool last_had_all = true;

// Returns whether a fork comes first, which those who lock again and again would keep out.
bool is_for_a_fork() { return mutexes_held == 0 && forks.load(std::memory_order_relaxed) != 0; }

}  // namespace

struct ForkHooks {
  static void unlock(ForkMutex* first, const ForkMutex* end) {
    for (; first != end; first = first->next_) first->mutex_.unlock();
  }

  // All or none, so that it holds none while it waits for another, and no order matters.
  static bool try_lock(ForkMutex* first) {
    for (ForkMutex* next = first; next != nullptr; next = next->next_) {
      if (next->mutex_.try_lock()) continue;
      unlock(first, next);
      return false;
    }
    return true;
  }

  static void before() {
    ForkMutex* const first = newest.load();
    const std::uint64_t start_ns = monotonic_ns();
    forks.fetch_add(1);
    last_had_all = false;
    while (mutexes_held == 0 && !last_had_all && monotonic_ns() - start_ns < kPatienceNs) {
      last_had_all = try_lock(first);
      if (!last_had_all) std::this_thread::sleep_for(kPause);
    }
    taken_to_fork = last_had_all ? first : nullptr;
  }

  static void after_in_parent() {
    unlock(taken_to_fork, nullptr);
    taken_to_fork = nullptr;
    forks.fetch_sub(1);
  }

  static void after_in_child() {
    after_in_parent();
    forks.store(0);
    if (last_had_all) return;
    for (ForkMutex* next = newest.load(); next != nullptr; next = next->next_) new (&next->mutex_) std::mutex;
  }
};

namespace {
// As early as can be: what a program does at its forks runs while none is mutexes_held.
[[maybe_unused]] const int watches_forks =
    pthread_atfork(ForkHooks::before, ForkHooks::after_in_parent, ForkHooks::after_in_child);
}  // namespace

ForkMutex::ForkMutex() {
  next_ = newest.load();
  while (!newest.compare_exchange_weak(next_, this)) {
  }
}

void ForkMutex::lock() {
  while (is_for_a_fork()) std::this_thread::sleep_for(kPause);
  mutex_.lock();
  ++mutexes_held;
}

bool ForkMutex::try_lock() {
  if (is_for_a_fork() || !mutex_.try_lock()) return false;
  ++mutexes_held;
  return true;
}

void ForkMutex::unlock() {
  mutex_.unlock();
  --mutexes_held;
}

bool ForkMutex::fork_had_all() { return last_had_all; }

}  // namespace gdx
