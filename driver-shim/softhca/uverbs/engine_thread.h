// The thread that drives the HCA for programs that do not drive it themselves.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "base/descriptor.h"
#include "base/file_identity.h"
#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca::uverbs {

class EngineThread {
 public:
  // `driven_at_ns`: when somebody else last drove the HCA; while that is recent the thread keeps out of
  // their way. `on_round` runs on the thread now and then, `on_lost` as its last
  // act where the program closed the HCA's descriptors by system calls of its own. Starts parked. Blocks
  // every signal on the thread. Throws std::system_error where no thread can be had.
  EngineThread(
      Hca& hca, const std::atomic<std::uint64_t>& driven_at_ns, std::function<void()> on_round,
      std::function<void()> on_lost = [] {});
  // Waits for the thread however long it takes: stop() first where that must be bounded.
  ~EngineThread();

  // Ends the thread. False: it has not ended within `limit_ns`, and this object must live on.
  [[nodiscard]] bool stop(std::uint64_t limit_ns);

  // Parked: nothing is open, so no doorbell rings. What remains are packets, and connections that end by
  // themselves.
  void set_parked(bool parked);

  // The HCA's descriptors are gone, see on_lost.
  [[nodiscard]] bool lost() const { return lost_.load(); }

 private:
  void run();
  void wake() const;
  [[nodiscard]] bool wire_is_lost();
  [[nodiscard]] bool driven_elsewhere() const;
  void sleep(std::uint64_t backoff_ns, bool watch_wire) const;
  void sleep_until_due(std::uint64_t longest_ns) const;

  Hca& hca_;
  const std::atomic<std::uint64_t>& driven_at_ns_;
  std::function<void()> on_round_;
  std::function<void()> on_lost_;
  const FileIdentity wire_file_;
  Descriptor wake_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> lost_{false};
  std::atomic<bool> ended_{false};
  std::atomic<bool> parked_{true};
  std::thread thread_;
};

}  // namespace gdx::softhca::uverbs
