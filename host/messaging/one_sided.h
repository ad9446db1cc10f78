// Puts, gets and signals by rank between memory that all ranks of a group have registered together. Knows no
// socket and no thread: whoever owns it carries cards and places between the ranks, and watches them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "host/poster/executor.h"

namespace gdx::messaging {

// One rank's part of shared memory, for the others alone.
struct MemoryPlace {
  std::uint64_t address;  // there
  std::uint64_t base;     // of PortTarget::address
  std::uint64_t key;
  std::uint64_t bytes;
};

struct SharedMemory {
  std::span<std::byte> own;
  PortRegion region;
  std::uint32_t users = 1;              // registrations that have it
  bool is_ending = false;               // one of them has ended, and what it had may be freed
  std::uint64_t number = 0;             // the same at all ranks, from 1; 0 until share() has given it
  std::vector<MemoryPlace> places;      // by rank; empty until share() has them
  std::vector<std::uint64_t> begun_by;  // by rank: the index behind the newest transfer in it
};

// Part of shared memory, at the rank that the call names or here.
struct MemoryPart {
  SharedMemory* memory;
  std::uint64_t offset;
};

// Word to which `value` is added once the payload, and all puts and signals before, are there.
struct WordSignal {
  MemoryPart word;
  std::uint64_t value;
};

struct OneSidedRequest {
  std::uint32_t rank;
  std::uint64_t index;
};

// Threads: one at a time. Nothing here waits. The caller bounds how many requests are open.
class OneSided {
 public:
  // Errors: those of Executor::create.
  [[nodiscard]] static Result<std::unique_ptr<OneSided>> open(std::unique_ptr<Port> port, std::uint32_t rank,
                                                              std::uint32_t ranks);
  [[nodiscard]] agent::Card card() const { return executor_->card(); }
  // Errors: those of Executor::connect.
  [[nodiscard]] Result<void> connect(std::uint32_t rank, const agent::Card& card) {
    return executor_->connect(rank, card);
  }
  [[nodiscard]] const PortTraits& traits() const { return executor_->traits(); }
  [[nodiscard]] SignalOrder order() const { return executor_->order(); }

  // Registers this rank's part. Errors: the port's.
  [[nodiscard]] Result<SharedMemory*> add_memory(std::span<std::byte> own);
  [[nodiscard]] MemoryPlace place_of(const SharedMemory& memory) const;
  // Takes the parts of all ranks, by rank, and the number by which all know it.
  static void share(SharedMemory& memory, std::span<const MemoryPlace> places, std::uint64_t number);
  // Returns shared memory of this rank that begins with `own` and has all of it, with one more user; null
  // where there is none, and where a user has ended, because its part may be other memory by now.
  [[nodiscard]] SharedMemory* use_again(std::span<const std::byte> own);
  // Ends one use, and with the last the registration. Requests in it that are not complete end all then,
  // because its owner frees it next.
  void forget_memory(SharedMemory* memory);
  // Takes use_again() back: no user has ended.
  void leave_memory(SharedMemory* memory);

  // Ends all registrations.
  void forget_all();

  // Writes `bytes` from here to the rank, and then signals, where it is to. `more`: another put to the rank
  // follows at once. A request is complete when its source is free and the rank has the payload; the word
  // changes later, in the order of signals. Errors: kInvalidArgument for what the memory does not hold; the
  // rank's failure; that of lose().
  [[nodiscard]] Result<OneSidedRequest> put(std::uint32_t rank, const MemoryPart& from, const MemoryPart& to,
                                            std::uint64_t bytes, const std::optional<WordSignal>& signal,
                                            bool more);
  // Reads, behind all earlier puts and signals to the rank. Complete when it has landed. Errors: as of put().
  [[nodiscard]] Result<OneSidedRequest> get(std::uint32_t rank, const MemoryPart& from, const MemoryPart& to,
                                            std::uint64_t bytes);
  // Complete once all earlier puts and gets of the rank are, and it has applied all earlier signals.
  [[nodiscard]] Result<OneSidedRequest> flush(std::uint32_t rank);
  // Errors: the failure by which the request ended.
  [[nodiscard]] Result<bool> is_complete(const OneSidedRequest& request) const;

  // Posts and polls once. Returns whether anything was done.
  bool progress(std::uint64_t now_ns);
  // Returns the first failure, towards any rank.
  [[nodiscard]] const std::optional<Error>& failure() const { return failure_; }
  // Ends all requests that are not complete with `error`.
  void lose(Error error);
  [[nodiscard]] bool is_idle() const { return executor_->idle(); }

 private:
  OneSided(std::unique_ptr<Executor> executor, std::uint32_t rank, std::uint32_t ranks)
      : rank_(rank), ranks_(ranks), executor_(std::move(executor)) {}
  [[nodiscard]] Result<void> check(std::uint32_t rank) const;
  [[nodiscard]] Result<OneSidedRequest> transfer(const Command& command, const MemoryPart& here,
                                                 const MemoryPart& there);
  [[nodiscard]] Result<OneSidedRequest> put_here(const MemoryPart& from, const MemoryPart& to,
                                                 std::uint64_t bytes,
                                                 const std::optional<WordSignal>& signal) const;

  std::uint32_t rank_;
  std::uint32_t ranks_;
  std::vector<std::unique_ptr<SharedMemory>> memories_;
  std::uint64_t next_index_ = 0;
  bool lost_ = false;
  std::optional<Error> failure_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace gdx::messaging
