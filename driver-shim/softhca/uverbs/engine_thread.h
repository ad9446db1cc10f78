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
  // `on_round` runs on the thread now and then; `outside_steps` counts the steps that other threads make.
  // Starts parked. Blocks every signal on the thread.
  EngineThread(Hca& hca, const std::atomic<std::uint32_t>& outside_steps, std::function<void()> on_round);
  ~EngineThread();

  // Parked: nothing is open, so nothing can happen.
  void set_parked(bool parked);

 private:
  void run();
  void sleep(std::uint64_t backoff_ns, bool watch_wire) const;

  Hca& hca_;
  const std::atomic<std::uint32_t>& outside_steps_;
  std::function<void()> on_round_;
  int wake_fd_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> parked_{true};
  std::thread thread_;
};

}  // namespace gdx::softhca::uverbs
