// A shared endpoint of the credits' world: production code of device/endpoint.h in several threads, a step of
// one at a time. Contains the rings and words that its queue pair has in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/endpoint.h"
#include "host/staging/credit_scheduler.h"
#include "proto/gpu/queue.h"
#include "tests/sim/credits/steps.h"
#include "tests/sim/random.h"

namespace gdx::sim {

class SharedKernel;

inline constexpr std::uint32_t kNoSlot = ~0u;
inline constexpr std::uint64_t kStepNs = 1'000;  // time of a world's step for device code

// Slots as the world records them, for a thread's accesses.
class SlotBooks {
 public:
  virtual ~SlotBooks() = default;
  virtual void begin_fill(CreditEndpoint endpoint, std::uint32_t slot) = 0;
  virtual void end_fill(std::uint32_t slot, std::uint64_t payload) = 0;
  virtual void abandon(std::uint32_t slot) = 0;  // no queue pair will send it
  virtual void expect(bool holds, const char* what) = 0;
  [[nodiscard]] virtual std::uint64_t now() const = 0;  // in steps
  // Returns all endpoints of a tenant's team, in any of whose rings its threads may write; none where there
  // is no team.
  [[nodiscard]] virtual std::span<SharedKernel* const> team(std::uint32_t tenant) const = 0;
};

class SharedKernel final : public StepWitness {
 public:
  // `staging` without base and slot_bytes, which are of this world. Blocks are numbered from `first_block`.
  SharedKernel(SlotBooks& books, Random& random, const StagingHandle& staging, const StagingState& begin,
               std::uint32_t first_block);

  void set_number(CreditEndpoint number, std::uint32_t tenant) {
    number_ = number;
    tenant_ = tenant;
  }
  [[nodiscard]] std::uint32_t tenant() const { return tenant_; }
  // One step of a thread chosen by chance, but for those that sleep.
  void step();
  // One step of each, awake or not. False: all have ended.
  bool step_all();
  // Of a team: its threads begin no call until this ends.
  void set_idle(bool idle) { idle_ = idle; }
  [[nodiscard]] bool idles() const { return idle_; }
  // Takes back slots without a thread of its own. Called by a thread of another endpoint of the team.
  template <typename Pool>
  void poll_for_others() {
    (void)device::impl::try_poll_credits<Pool>(state_, device::impl::kSameRequest);
  }
  // The threads are no more, wherever they were.
  void kill() { threads_.clear(); }

  // The NIC's side. WQEs that a doorbell has told of since: index, and the slot they send or kNoSlot.
  struct Request {
    std::uint32_t index;
    std::uint32_t slot;
    std::uint64_t payload;
  };
  [[nodiscard]] std::vector<Request> fetch();
  void complete(std::uint32_t index, bool in_error);

  // Returns whether no thread holds the lock of a poll, so that the books add up.
  [[nodiscard]] bool quiet() const { return state_.shared.staging.busy == 0; }
  [[nodiscard]] bool failed() const { return state_.shared.failure != device::impl::kNoFailure; }
  // Its calls never time out and are never aborted.
  [[nodiscard]] bool patient() const { return patient_; }
  [[nodiscard]] StagingState credits() const;
  [[nodiscard]] std::uint64_t least_pushes() const;
  // Slots that threads have filled, or begin to, for WQEs that the NIC has not fetched.
  [[nodiscard]] const std::vector<std::uint32_t>& filling() const { return filling_; }
  [[nodiscard]] std::uint64_t steps() const { return steps_; }
  [[nodiscard]] std::uint32_t waits() const { return state_.shared.staging.arrived - first_ticket_; }

 private:
  struct Thread {
    std::unique_ptr<StepThread> runs;
    std::uint64_t pushes = 0;
    std::uint64_t sleeps_until = 0;
    bool is_between_calls = false;
    bool ended = false;
  };

  void begin_fill(const std::byte* to) override;
  void end_fill(const std::byte* to, const std::byte* from) override;
  void stored(const std::uint32_t* to, std::uint32_t value) override;
  void loaded(const std::uint64_t* from, std::uint64_t value) override;
  void rang(std::uint64_t doorbell) override;

  // Failed, and a thread has closed the door behind it: from now on no call may succeed.
  [[nodiscard]] bool shut() const;
  [[nodiscard]] bool owns(const void* word) const;
  [[nodiscard]] SharedKernel& owner_of(const void* word);
  void check_stored(const std::uint32_t* to, std::uint32_t value);
  [[nodiscard]] bool rests(const Thread& thread) const { return idle_ && thread.is_between_calls; }
  void live(Thread& thread);
  [[nodiscard]] Status call(device::SharedEndpoint<>& endpoint, Thread& thread);
  [[nodiscard]] std::uint32_t slot_at(const std::byte* place) const;
  void forget(std::uint32_t slot);
  void check_tickets();
  [[nodiscard]] Request request_at(std::uint32_t index) const;

  SlotBooks& books_;
  Random& random_;
  CreditEndpoint number_ = 0;
  std::uint32_t tenant_ = 0;
  QueueState state_{};
  std::vector<std::byte> memory_;  // of which only the addresses count
  std::vector<mlx5::WqeBasicBlock> send_queue_;
  std::vector<mlx5::Cqe64> completion_queue_;
  Be32 record_{};
  std::uint64_t doorbell_ = 0;
  std::uint64_t scratch_ = 0;
  std::uint64_t owner_ = 0;
  std::uint32_t abort_ = 0;
  bool patient_ = true;
  bool idle_ = false;
  std::uint32_t first_ticket_;
  std::uint32_t fetched_;
  std::uint16_t rung_;  // the index in the newest doorbell
  std::uint32_t read_limit_ = 0;
  std::uint64_t messages_ = 0;
  std::uint64_t steps_ = 0;
  std::vector<std::uint32_t> filling_;
  std::vector<Thread> threads_;
};

}  // namespace gdx::sim
