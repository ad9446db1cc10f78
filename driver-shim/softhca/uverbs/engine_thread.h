// The thread that drives the HCA for programs that do not drive it themselves.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca::uverbs {

class EngineThread {
 public:
  // `driven_at_ns`: when somebody else last drove the HCA; while that is recent the thread keeps out of
  // their way. `on_round` runs on the thread now and then. Starts parked. Blocks every signal on the thread.
  EngineThread(Hca& hca, const std::atomic<std::uint64_t>& driven_at_ns, std::function<void()> on_round);
  // Waits for the thread however long it takes: stop() first where that must be bounded.
  ~EngineThread();

  // Ends the thread. False: it has not ended within `limit_ns`, and this object must live on.
  [[nodiscard]] bool stop(std::uint64_t limit_ns);

  // Parked: nothing is open, so no doorbell rings. What remains are packets, and connections that end by
  // themselves.
  void set_parked(bool parked);

 private:
  void run();
  [[nodiscard]] bool driven_elsewhere() const;
  void sleep(std::uint64_t backoff_ns, bool watch_wire) const;
  void sleep_until_due(std::uint64_t longest_ns) const;

  Hca& hca_;
  const std::atomic<std::uint64_t>& driven_at_ns_;
  std::function<void()> on_round_;
  int wake_fd_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> ended_{false};
  std::atomic<bool> parked_{true};
  std::thread thread_;
};

}  // namespace gdx::softhca::uverbs
