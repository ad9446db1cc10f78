#include "host/queue/host_ringer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/library_thread.h"
#include "device/exec/cpu.h"

namespace gdx {
namespace {

constexpr int kFruitlessLooks = 2'000;  // looks in vain before the thread pauses
constexpr std::chrono::microseconds kPause{20};

struct Bell {
  std::uint64_t* word;
  std::uint64_t* doorbell;
};

// Ordering: what the kernel released before the word, its doorbell record say, is visible before the
// doorbell.
bool ring(const Bell& bell) {
  const std::atomic_ref word(*bell.word);
  if (word.load(std::memory_order_relaxed) == 0) return false;
  const std::uint64_t value = word.exchange(0, std::memory_order_acquire);
  exec::write_combining_barrier();
  std::atomic_ref(*bell.doorbell).store(value, std::memory_order_release);
  exec::write_combining_barrier();  // out of the buffer now, not when it happens to fill
  return true;
}

// The thread that rings for kernels. It runs while there is a bell.
class Ringer {
 public:
  static Ringer& instance() {
    static auto& ringer = *new Ringer;
    return ringer;
  }

  void add(const Bell& bell) {
    const std::lock_guard changing(changing_);
    {
      const std::lock_guard lock(mutex_);
      bells_.push_back(bell);
    }
    if (!thread_.joinable()) thread_ = start_library_thread([this] { serve(); });
  }

  void remove(const std::uint64_t* word) {
    const std::lock_guard changing(changing_);
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::ranges::find(bells_, word, &Bell::word);
      ring(*found);
      bells_.erase(found);
      if (!bells_.empty()) return;
    }
    thread_.join();
    thread_ = {};
  }

 private:
  void serve() {
    for (int fruitless = 0;;) {
      {
        const std::lock_guard lock(mutex_);
        if (bells_.empty()) return;
        const auto rung = std::ranges::count_if(bells_, ring);
        fruitless = rung != 0 ? 0 : std::min(fruitless + 1, kFruitlessLooks);
      }
      if (fruitless < kFruitlessLooks) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(kPause);
      }
    }
  }

  std::mutex changing_;  // guards the start and end of the thread; locked before mutex_
  std::thread thread_;
  std::mutex mutex_;
  std::vector<Bell> bells_;
};

}  // namespace

HostRinger::HostRinger(std::uint64_t* word, std::uint64_t* doorbell) : word_(word) {
  Ringer::instance().add({word, doorbell});
}

HostRinger::~HostRinger() { Ringer::instance().remove(word_); }

}  // namespace gdx
