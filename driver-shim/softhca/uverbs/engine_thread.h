// The thread that drives the HCA for programs that do not drive it themselves.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "base/descriptor.h"
#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca::uverbs {

class EngineThread {
 public:
  // `driven_at_ns`: time at which another thread last drove the HCA; soon after it this thread pauses.
  // `on_round` runs on the thread at intervals. `on_lost` is its last act after the program closed the HCA's
  // descriptors by system calls of its own. Starts parked. Blocks every signal on the thread. Throws
  // std::system_error without a thread.
  EngineThread(
      Hca& hca, const std::atomic<std::uint64_t>& driven_at_ns, std::function<void()> on_round,
      std::function<void()> on_lost = [] {});
  // Waits for the thread however long it takes: stop() first where that must be bounded.
  ~EngineThread();

  // Ends the thread. False: it has not ended within `limit_ns`, and this object must not be destroyed.
  [[nodiscard]] bool stop(std::uint64_t limit_ns);

  // Parks the thread: no file is open, so no doorbell rings. Packets remain, and connections that end by
  // themselves.
  void set_parked(bool parked);

  // Ends a sleep, as if there had just been work. Threads: any.
  void rouse();

  // Returns whether the HCA's descriptors have gone; see on_lost.
  [[nodiscard]] bool lost() const { return lost_.load(); }

 private:
  void run();
  void wake() const;
  [[nodiscard]] bool wire_is_lost();
  [[nodiscard]] bool driven_elsewhere() const;
  void sleep(std::uint64_t backoff_ns, bool watch_wire);
  void sleep_until_due(std::uint64_t longest_ns);

  Hca& hca_;
  const std::atomic<std::uint64_t>& driven_at_ns_;
  std::function<void()> on_round_;
  std::function<void()> on_lost_;
  // Pair of sockets. An eventfd shares its inode with others, so it could not be distinguished from the
  // program's. A pipe whose reading end the program has closed would end the program by SIGPIPE.
  Descriptor wake_;
  Descriptor waker_;
  bool deaf_ = false;  // used by the thread alone: the program has closed one end of the pair
  std::atomic<bool> stop_{false};
  std::atomic<bool> roused_{false};
  std::atomic<bool> lost_{false};
  std::atomic<bool> ended_{false};
  std::atomic<bool> parked_{true};
  std::thread thread_;
};

}  // namespace gdx::softhca::uverbs
