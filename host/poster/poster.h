// The host poster: rings of commands in host memory, and the thread that carries their commands out.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "host/poster/executor.h"
#include "host/staging/progress.h"
#include "proto/gpu/command_ring.h"

namespace gdx {

struct PosterOptions {
  std::uint32_t log_entries = 10;            // of each ring
  std::uint64_t timeout_ns = 5'000'000'000;  // bound of a kernel's waits
  bool thread = true;                        // else progress() alone drives it
  std::optional<std::uint32_t> cpu;          // of the thread
  std::uint32_t fruitless_looks = 2'000;     // before the thread sleeps; 0: it never does
  std::uint64_t (*clock)() = monotonic_ns;   // of the executor's bounds
  const std::uint32_t* abort = nullptr;      // word that ends kernels' waits
};

// Ends with stop(). Threads: progress() any; the rest one.
class Poster : public ProgressService {
 public:
  // Takes an executor that has its windows. Errors: kInvalidArgument for an option out of range; kSystem for
  // a processor that the thread may not run on.
  [[nodiscard]] static Result<std::unique_ptr<Poster>> start(std::unique_ptr<Executor> executor,
                                                             const PosterOptions& options);
  ~Poster() override;
  Poster(const Poster&) = delete;
  Poster& operator=(const Poster&) = delete;

  [[nodiscard]] CommandRingHandle ring(std::uint32_t lane) const;

  // Reads rings, posts and polls once, unless another thread does. Part of gdx::progress().
  int progress() override;
  // Ends the poster: kernels' waits return kAborted. Peers find it silent.
  void stop();

  // Connects a rank; see Executor.
  [[nodiscard]] Result<void> connect(std::uint32_t rank, const agent::Card& card);
  // Returns the first failed call of kernels on the lane, and its reason: one line; empty without one.
  [[nodiscard]] std::string describe_fault(std::uint32_t lane) const;

 private:
  struct Ring {
    std::vector<Command> commands;
    std::vector<std::uint64_t> done;  // by rank
    CommandWords words{};
    CommandRingState state{};
    std::uint64_t consumed = 0;
  };
  Poster(std::unique_ptr<Executor> executor, const PosterOptions& options);

  void serve();
  int step(std::uint64_t now_ns);
  int read_ring(std::uint32_t lane, std::uint64_t now_ns);
  void end(Status status);

  PosterOptions options_;
  std::vector<std::unique_ptr<Ring>> rings_;
  mutable std::mutex mutex_;  // of the executor and the host's half of the rings
  std::unique_ptr<Executor> executor_;
  Status ended_ = Status::kOk;
  std::string ended_because_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace gdx
