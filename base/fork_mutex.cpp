#include "base/fork_mutex.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <new>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace gdx {
namespace {

// A machine may stand still for a second. Less than peers wait for this process, whose HCA stands meanwhile.
constexpr std::uint64_t kPatienceNs = 2'000'000'000;
// Between tries. Slept, because who yields on a busy machine comes last.
constexpr std::chrono::microseconds kPause{20};
// Pauses of who locks while a fork waits. Bounded, because the holder of another mutex, for which a holder of
// one of these waits, may lock.
constexpr int kPausesForForks = 10;

constinit std::atomic<ForkMutex*> newest{nullptr};
constinit std::atomic<int> forks{0};          // that have begun and not ended
constinit thread_local int mutexes_held = 0;  // by this thread, and for no fork
// Newest of those that this thread holds for its fork.
constinit thread_local ForkMutex* taken_to_fork = nullptr;
constinit thread_local bool last_had_all = true;
constinit thread_local sigset_t mask_before_fork{};

// Pauses. No point of cancellation, because a fork that has begun must end.
void pause() {
  int state = 0;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  std::this_thread::sleep_for(kPause);
  pthread_setcancelstate(state, nullptr);
}

// Keeps handlers away, because one that forks or locks would wait for what this thread holds. Faults go on.
void block_signals(sigset_t& before) {
  sigset_t all;
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&all, fault);
  pthread_sigmask(SIG_BLOCK, &all, &before);
}

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
    forks.fetch_add(1);  // before the newest is read: one that is made meanwhile is locked by nobody
    ForkMutex* const first = newest.load();
    const std::uint64_t start_ns = monotonic_ns();
    last_had_all = false;
    while (mutexes_held == 0 && monotonic_ns() - start_ns < kPatienceNs) {
      block_signals(mask_before_fork);
      last_had_all = try_lock(first);
      if (last_had_all) break;
      pthread_sigmask(SIG_SETMASK, &mask_before_fork, nullptr);
      pause();
    }
    taken_to_fork = last_had_all ? first : nullptr;
  }

  static void after_in_parent() {
    unlock(std::exchange(taken_to_fork, nullptr), nullptr);
    forks.fetch_sub(1);
    if (last_had_all) pthread_sigmask(SIG_SETMASK, &mask_before_fork, nullptr);
  }

  static void after_in_child() {
    forks.store(1);
    after_in_parent();
    if (last_had_all) return;
    for (ForkMutex* next = newest.load(); next != nullptr; next = next->next_) new (&next->mutex_) std::mutex;
  }
};

namespace {
// As early as can be: what a program does at its forks runs while none is held.
[[maybe_unused]] const int watches_forks =
    pthread_atfork(ForkHooks::before, ForkHooks::after_in_parent, ForkHooks::after_in_child);
}  // namespace

ForkMutex::ForkMutex() {
  next_ = newest.load();
  while (!newest.compare_exchange_weak(next_, this)) {
  }
}

// The thread that forks has all of them, so that what a program does at its forks may lock.
void ForkMutex::lock() {
  if (taken_to_fork != nullptr) return;
  for (int i = 0; i < kPausesForForks && is_for_a_fork(); ++i) pause();
  mutex_.lock();
  ++mutexes_held;
}

bool ForkMutex::try_lock() {
  if (taken_to_fork != nullptr) return true;
  if (is_for_a_fork() || !mutex_.try_lock()) return false;
  ++mutexes_held;
  return true;
}

void ForkMutex::unlock() {
  if (taken_to_fork != nullptr) return;
  mutex_.unlock();
  --mutexes_held;
}

bool ForkMutex::fork_had_all() { return last_had_all; }

}  // namespace gdx
