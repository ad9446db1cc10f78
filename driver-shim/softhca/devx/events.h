// Subscribers to events of an object that was made through DevX.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "proto/mlx5/prm.h"

namespace gdx::softhca::devx {

enum class ObjectKind : std::uint8_t { kCq, kQp, kRmp, kMkey };

// The device's number for an asynchronous event of a queue pair (enum ib_event_type).
[[nodiscard]] mlx5::prm::Event prm_event(int event_type);
// Returns whether this device ever raises `event` for an object of that kind.
[[nodiscard]] bool is_raised_here(ObjectKind kind, std::uint16_t event);

// Threads: all methods lock. raise() calls the sinks with the HCA locked; they must not call back into it.
class ObjectEvents {
 public:
  using Sink = std::function<void()>;

  void subscribe(std::uint16_t event, Sink sink);
  void raise(mlx5::prm::Event event);

 private:
  struct Subscription {
    std::uint16_t event;
    Sink sink;
  };
  std::mutex mutex_;
  std::vector<Subscription> subscriptions_;
};

}  // namespace gdx::softhca::devx
