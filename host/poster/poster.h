// The host poster: rings of commands in host memory, and the thread that carries their commands out.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fair_mutex.h"
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
  // Words by lane, then rank, which kernels set to find out whether a silent rank still answers; null: none.
  std::uint32_t* asked = nullptr;
};

// Ends with stop(). Threads: progress() and calls that return text, any; the rest one.
class Poster : public ProgressService {
 public:
  // Errors: kInvalidArgument for an option out of range; kNoMemory; kSystem for a processor that the thread
  // may not run on.
  [[nodiscard]] static Result<std::unique_ptr<Poster>> start(std::unique_ptr<Executor> executor,
                                                             const PosterOptions& options);
  ~Poster() override;
  Poster(const Poster&) = delete;
  Poster& operator=(const Poster&) = delete;

  [[nodiscard]] const CommandRingHandle& ring(std::uint32_t lane) const { return *rings_[lane].handle; }
  // All rings and their words, in whole pages: for a GPU whose kernels are to reach them.
  [[nodiscard]] std::span<std::byte> memory() const { return {memory_.get(), memory_bytes_}; }

  // Reads rings, posts and polls once, unless another thread does. Part of gdx::progress().
  int progress() override;
  // Ends the poster: kernels' waits return kAborted. Peers find it silent.
  void stop();

  // Waits until all commands of kernels to `ranks` before this call are complete, or `*aborted` is nonzero.
  // Errors: the failure of one of them; kTimeout; the poster's end.
  [[nodiscard]] Result<void> flush(std::span<const std::uint32_t> ranks, std::uint64_t deadline_ns);

  // Those of the executor.
  [[nodiscard]] Result<void> set_window(std::size_t number, std::byte* address, std::uint64_t bytes);
  void drop_window(std::size_t number);
  [[nodiscard]] agent::Card card() const;
  [[nodiscard]] Result<void> connect(std::uint32_t rank, const agent::Card& card);
  [[nodiscard]] std::string describe_failure(std::uint32_t lane, std::uint32_t rank) const;
  [[nodiscard]] const PortTraits& traits() const { return executor_->traits(); }
  [[nodiscard]] SignalOrder order() const { return executor_->order(); }

  // Returns the first failed call of kernels on the lane, and its reason: one line; empty without one.
  [[nodiscard]] std::string describe_fault(std::uint32_t lane) const;
  // Forgets that call, so that the next one is told. Call it when no kernel uses the lane.
  void clear_fault(std::uint32_t lane);

 private:
  struct Ring {
    CommandRingHandle* handle;
    CommandWords* words;
    CommandRingState* state;
    std::uint64_t* done;  // by rank
    Command* commands;
    std::uint64_t consumed;
  };
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  Poster(std::unique_ptr<Executor> executor, const PosterOptions& options);

  [[nodiscard]] Result<void> make_rings();
  void serve();
  int step(std::uint64_t now_ns);
  int read_ring(std::uint32_t lane);
  void read_asked(std::uint64_t now_ns);
  void end(Status status);

  PosterOptions options_;
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t memory_bytes_ = 0;
  std::vector<Ring> rings_;     // by lane, in `memory_`
  std::uint64_t asked_ns_ = 0;  // of the newest look at options_.asked
  mutable FairMutex mutex_;     // of the executor and the host's half of the rings
  std::unique_ptr<Executor> executor_;
  Status ended_ = Status::kOk;
  std::string ended_because_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace gdx
