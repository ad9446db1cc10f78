#include "device/exec/cpu_scheduler.h"

#include <boost/context/detail/fcontext.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "device/exec/carrier.h"
#include "device/exec/fiber_annotations.h"
#include "device/exec/nic_stores.h"
#include "device/exec/spare_stack.h"

namespace gdx::exec {
namespace {

namespace ctx = boost::context;

constexpr std::size_t kStackBytes = 256 * 1024;
// Rounds in which all wait in vain before a worker yields: some 30 us. A yield costs more than a round, and
// milliseconds beside another load.
constexpr unsigned kVainRounds = 64;
// The same where another process drives the NIC: it may need this very processor.
constexpr unsigned kVainRoundsElsewhere = 1;
// Calls of pause_now_and_then for one pause.
constexpr std::uint32_t kCallsPerPause = 64;
// Asks, in place of a lane's value, for the lanes whose value is not 0.
constexpr std::uint32_t kBallot = kWarpThreads;

std::atomic<bool> has_shared_variables{false};

// A thread's meetings with its warp or its block so far.
struct Meetings {
  std::uint32_t broadcasts = 0;
  std::atomic<std::uint32_t> gathers{0};  // scheduler and leader read it
  // The newest call, which the leader compares.
  std::atomic<const char*> call{nullptr};
  std::atomic<std::uint64_t> arguments{0};
};

struct Fiber;
struct Block;

// A barrier over the live threads of a warp or a block.
struct Barrier {
  std::atomic<std::uint32_t> members = 0;  // its threads read it while the scheduler lowers it
  std::uint32_t arrived = 0;
  Fiber* leader = nullptr;         // waits for the others' calls of sync_leader
  std::uint32_t first_thread = 0;  // in the block
  std::uint32_t exchanging = 0;    // threads of a warp in an exchange that is not complete
  MeetingAnnotation meeting;
  std::array<std::atomic<std::uint32_t>, 2> broadcasts{};
};

// A thread's part of an exchange between lanes of its warp.
struct Exchange {
  std::atomic<std::uint32_t> lanes{0};
  std::atomic<std::uint32_t> source{0};
  std::atomic<std::uint64_t> value{0};  // given, then received
};

enum class FiberState { kRunnable, kSpinning, kAtBarrier, kLeads, kExchanges, kDone };

// Fields that both the fiber and the scheduler write are atomic (relaxed: they never run at once), because a
// switch into a fiber orders nothing for ThreadSanitizer.
struct Fiber {
  ThreadContext context;
  Block* block = nullptr;
  Barrier* warp = nullptr;
  Meetings in_warp;
  Meetings in_block;
  Exchange exchange;
  std::uint32_t calls_of_pause = 0;
  std::atomic<Barrier*> waits_at{nullptr};
  std::atomic<FiberState> state{FiberState::kRunnable};
  ctx::detail::fcontext_t resumption = nullptr;  // the scheduler's way in
  ctx::detail::fcontext_t back = nullptr;        // the fiber's way out
  ctx::stack_context stack;
  FiberAnnotation annotation;
};

struct FreeShared {
  void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{kSharedAlignment}); }
};

struct Block {
  unsigned index = 0;
  bool waits = false;  // all its threads called relax() in its last turn
  Barrier barrier;
  std::deque<Barrier> warps;
  std::deque<Fiber> fibers;
  BulkEngine bulk;
  std::unique_ptr<std::byte, FreeShared> shared;
  std::unique_ptr<Carrier> carrier;  // null: the worker's own thread runs the block
  FiberAnnotation host;              // of the thread that runs the block
};

// One host thread's share of the grid: round robin over its fibers, `progress` once a round.
class Worker {
 public:
  Worker(const LaunchConfig& config, const std::function<void()>& body) : config_(config), body_(body) {}

  void add_block(unsigned index);
  Status run();

  // From inside a fiber: back to the scheduler.
  void suspend(Fiber& fiber);
  void arrive(Fiber& fiber, Barrier& barrier);
  void meet_leader(Fiber& fiber, Scope scope);
  std::uint64_t exchange(Fiber& fiber, std::uint32_t lanes, std::uint64_t value, std::uint32_t source);
  void on_doorbell() { rung_.store(true, std::memory_order_relaxed); }
  Fiber* running() { return running_.load(std::memory_order_relaxed); }
  [[nodiscard]] const LaunchConfig& config() const { return config_; }

 private:
  static void enter(ctx::detail::transfer_t from);
  template <typename Work>
  void on_thread_of(Block& block, const Work& work) {
    if (block.carrier == nullptr) return work();
    block.carrier->run(std::cref(work));
  }
  void start(Block& block);
  void start(Fiber& fiber);
  void resume(Fiber& fiber);
  void leave_barriers(Fiber& fiber);
  static bool release_if_complete(Barrier& barrier, std::deque<Fiber>& fibers);
  static bool release_leader(Barrier& barrier);
  static bool release_exchanges(Barrier& warp, std::deque<Fiber>& fibers);
  struct Round {
    bool ran = false;       // a fiber
    bool spinning = false;  // some fiber called relax()
    bool released = false;  // a barrier opened
  };
  Round round();
  bool turn(Block& block, Round& round);
  int make_progress() {
    idle_nic_ = !rung_.exchange(false, std::memory_order_relaxed);
    return config_.progress == nullptr ? 0 : config_.progress();
  }

  const LaunchConfig& config_;
  const std::function<void()>& body_;
  std::deque<Block> blocks_;
  std::size_t alive_ = 0;
  std::atomic<Fiber*> running_{nullptr};
  std::atomic<bool> rung_{false};  // since the last call of progress
  bool idle_nic_ = true;           // no doorbell since all waited
  NicStores* const recorder_ = nic_stores;
};

thread_local Worker* current_worker = nullptr;
thread_local SpareStack spare_stack(kStackBytes);

FiberState state_of(const Fiber& fiber) { return fiber.state.load(std::memory_order_relaxed); }
void set_state(Fiber& fiber, FiberState state) { fiber.state.store(state, std::memory_order_relaxed); }

void Worker::add_block(unsigned index) {
  Block& block = blocks_.emplace_back();
  block.index = index;
  const unsigned threads = config_.block.count();
  block.barrier.members = threads;
  if (blocks_.size() > 1 && has_shared_variables.load()) block.carrier = std::make_unique<Carrier>();
  if (const std::size_t bytes = config_.shared_bytes; bytes != 0) {
    block.shared.reset(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kSharedAlignment})));
    std::memset(block.shared.get(), 0xff, bytes);  // no zeros, which a GPU does not promise either
  }
  for (unsigned t = 0; t < threads; ++t) {
    if (t % kWarpThreads == 0) {
      Barrier& warp = block.warps.emplace_back();
      warp.members = std::min(kWarpThreads, threads - t);
      warp.first_thread = t;
    }
    Fiber& fiber = block.fibers.emplace_back();
    fiber.block = &block;
    fiber.warp = &block.warps.back();
    fiber.context = {config_.block.place(t), config_.grid.place(index), config_.block, config_.grid, t};
    ++alive_;
  }
}

// A fiber's first frame. It never returns: the last switch leaves it for good.
void Worker::enter(ctx::detail::transfer_t from) {
  Fiber& fiber = *static_cast<Fiber*>(from.data);
  fiber.annotation.arrived();
  fiber.back = from.fctx;
  Worker& worker = *current_worker;
  // Back at once: all fibers start ordered after the launch and after nothing that another fiber did.
  worker.suspend(fiber);
  worker.body_();
  set_state(fiber, FiberState::kDone);
  const ctx::detail::fcontext_t back = fiber.back;
  fiber.annotation.leave_for_good(fiber.block->host);
  ctx::detail::jump_fcontext(back, nullptr);
}

// Runs on the thread of the block. Writes its variables once, because fibers read them without an order.
void Worker::start(Block& block) {
  if (current_worker != this) {
    current_worker = this;
    nic_stores = recorder_;
  }
  block.host.adopt_thread();
  for (Fiber& fiber : block.fibers) start(fiber);
}

void Worker::start(Fiber& fiber) {
  fiber.stack = spare_stack.take();
  fiber.annotation.create(static_cast<std::byte*>(fiber.stack.sp) - fiber.stack.size, fiber.stack.size);
  fiber.resumption = ctx::detail::make_fcontext(fiber.stack.sp, fiber.stack.size, enter);
  resume(fiber);
}

// Between an annotation's switch and the jump nothing may run: it would count for the other side.
void Worker::resume(Fiber& fiber) {
  running_.store(&fiber, std::memory_order_relaxed);
  const ctx::detail::fcontext_t in = fiber.resumption;
  FiberAnnotation& host = fiber.block->host;
  host.leave_for(fiber.annotation);
  const ctx::detail::transfer_t from = ctx::detail::jump_fcontext(in, &fiber);
  host.arrived_back();
  fiber.resumption = from.fctx;
  running_.store(nullptr, std::memory_order_relaxed);
  if (state_of(fiber) != FiberState::kDone) return;
  fiber.annotation.destroy();
  spare_stack.give(fiber.stack);
  --alive_;
  leave_barriers(fiber);
}

void Worker::suspend(Fiber& fiber) {
  const ctx::detail::fcontext_t back = fiber.back;
  fiber.annotation.leave_for_scheduler(fiber.block->host);
  const ctx::detail::transfer_t from = ctx::detail::jump_fcontext(back, nullptr);
  fiber.annotation.arrived();
  fiber.back = from.fctx;
}

bool Worker::release_if_complete(Barrier& barrier, std::deque<Fiber>& fibers) {
  if (barrier.arrived == 0 || barrier.arrived < barrier.members) return false;
  barrier.arrived = 0;
  for (Fiber& fiber : fibers) {
    if (state_of(fiber) == FiberState::kAtBarrier &&
        fiber.waits_at.load(std::memory_order_relaxed) == &barrier) {
      set_state(fiber, FiberState::kRunnable);
    }
  }
  return true;
}

// Has every live thread called sync_leader as often as `leader`?
bool all_gathered(const Barrier& barrier, const Fiber& leader) {
  const bool of_warp = &barrier == leader.warp;
  const auto gathers = [of_warp](const Fiber& of) {
    return (of_warp ? of.in_warp : of.in_block).gathers.load(std::memory_order_relaxed);
  };
  return std::ranges::all_of(leader.block->fibers, [&](const Fiber& fiber) {
    if ((of_warp && fiber.warp != &barrier) || state_of(fiber) == FiberState::kDone) return true;
    return gathers(fiber) >= gathers(leader);
  });
}

bool Worker::release_leader(Barrier& barrier) {
  if (barrier.leader == nullptr || !all_gathered(barrier, *barrier.leader)) return false;
  set_state(*std::exchange(barrier.leader, nullptr), FiberState::kRunnable);
  return true;
}

using Lanes = std::array<Fiber*, kWarpThreads>;

// Gives each lane of `group` what it asked for.
void deliver(std::uint32_t group, const Lanes& lanes) {
  std::array<std::uint64_t, kWarpThreads> given{};
  std::uint32_t yes = 0;
  for (std::uint32_t left = group; left != 0; left &= left - 1) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(left));
    given[lane] = lanes[lane]->exchange.value.load(std::memory_order_relaxed);
    yes |= static_cast<std::uint32_t>(given[lane] != 0) << lane;
  }
  for (std::uint32_t left = group; left != 0; left &= left - 1) {
    Fiber& fiber = *lanes[static_cast<std::uint32_t>(std::countr_zero(left))];
    const std::uint32_t source = fiber.exchange.source.load(std::memory_order_relaxed);
    if (source == kBallot) {
      fiber.exchange.value.store(yes, std::memory_order_relaxed);
    } else if ((group >> source & 1) != 0) {
      fiber.exchange.value.store(given[source], std::memory_order_relaxed);
    }
    set_state(fiber, FiberState::kRunnable);
  }
}

// Completes each exchange that all its living lanes have come to. Lanes with the same mask belong together.
bool Worker::release_exchanges(Barrier& warp, std::deque<Fiber>& fibers) {
  Lanes lanes{};
  std::array<std::uint32_t, kWarpThreads> masks{};
  std::uint32_t alive = 0;
  std::uint32_t waiting = 0;
  auto fiber = fibers.begin() + warp.first_thread;
  for (std::uint32_t lane = 0; lane < kWarpThreads && fiber != fibers.end(); ++lane, ++fiber) {
    const FiberState state = state_of(*fiber);
    alive |= static_cast<std::uint32_t>(state != FiberState::kDone) << lane;
    waiting |= static_cast<std::uint32_t>(state == FiberState::kExchanges) << lane;
    masks[lane] = fiber->exchange.lanes.load(std::memory_order_relaxed);
    lanes[lane] = &*fiber;
  }
  bool released = false;
  for (std::uint32_t left = waiting; left != 0;) {
    const std::uint32_t mask = masks[static_cast<std::uint32_t>(std::countr_zero(left))];
    std::uint32_t group = 0;
    for (std::uint32_t lane = 0; lane < kWarpThreads; ++lane) {
      group |= static_cast<std::uint32_t>(masks[lane] == mask) << lane;
    }
    group &= left;
    left &= ~group;
    if ((mask & alive & ~group) != 0) continue;
    deliver(group, lanes);
    warp.exchanging -= static_cast<std::uint32_t>(std::popcount(group));
    released = true;
  }
  return released;
}

std::uint64_t Worker::exchange(Fiber& fiber, std::uint32_t lanes, std::uint64_t value, std::uint32_t source) {
  fiber.exchange.lanes.store(lanes, std::memory_order_relaxed);
  fiber.exchange.source.store(source, std::memory_order_relaxed);
  fiber.exchange.value.store(value, std::memory_order_relaxed);
  set_state(fiber, FiberState::kExchanges);
  suspend(fiber);
  return fiber.exchange.value.load(std::memory_order_relaxed);
}

void Worker::arrive(Fiber& fiber, Barrier& barrier) {
  barrier.meeting.arrive();
  if (barrier.members.load(std::memory_order_relaxed) != 1) {  // a lone thread waits for no other
    fiber.waits_at.store(&barrier, std::memory_order_relaxed);
    set_state(fiber, FiberState::kAtBarrier);
    suspend(fiber);
  }
  barrier.meeting.leave();
}

void Worker::meet_leader(Fiber& fiber, Scope scope) {
  Barrier& barrier = scope == Scope::kWarp ? *fiber.warp : fiber.block->barrier;
  // Not a read-modify-write: the fiber alone writes it.
  auto& gathers = (scope == Scope::kWarp ? fiber.in_warp : fiber.in_block).gathers;
  gathers.store(gathers.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  const std::uint32_t index = fiber.context.linear_index;
  if ((scope == Scope::kWarp ? index % kWarpThreads : index) != 0) return barrier.meeting.arrive();
  if (!all_gathered(barrier, fiber)) {
    fiber.waits_at.store(&barrier, std::memory_order_relaxed);
    set_state(fiber, FiberState::kLeads);
    suspend(fiber);
  }
  barrier.meeting.leave();
}

// A thread that has returned no longer counts: a barrier is over the threads that still run.
void Worker::leave_barriers(Fiber& fiber) {
  --fiber.block->barrier.members;
  --fiber.warp->members;
}

Worker::Round Worker::round() {
  Round round;
  for (Block& block : blocks_) {
    if (block.barrier.members == 0) continue;
    if (block.waits && config_.may_find_news != nullptr && !config_.may_find_news(block.index)) {
      round.ran = round.spinning = true;
      continue;
    }
    on_thread_of(block, [&] {
      // A carrier goes on while its block can, because a handover costs more than a turn.
      while (turn(block, round) && block.carrier != nullptr && !rung_.load(std::memory_order_relaxed)) {
      }
    });
  }
  return round;
}

// Returns whether a barrier or an exchange opened, so that the block can go on.
bool Worker::turn(Block& block, Round& round) {
  bool opened = false;
  block.waits = true;
  for (Fiber& fiber : block.fibers) {
    const FiberState before = state_of(fiber);
    if (before != FiberState::kRunnable && before != FiberState::kSpinning) continue;
    round.ran = true;
    set_state(fiber, FiberState::kRunnable);
    resume(fiber);
    Barrier* const barrier = fiber.waits_at.load(std::memory_order_relaxed);
    switch (state_of(fiber)) {
      case FiberState::kAtBarrier: ++barrier->arrived; break;
      case FiberState::kLeads: barrier->leader = &fiber; break;
      case FiberState::kExchanges: ++fiber.warp->exchanging; break;
      case FiberState::kSpinning: round.spinning = true; break;
      case FiberState::kRunnable:  // back from its first switch
      case FiberState::kDone: break;
    }
    block.waits = block.waits && state_of(fiber) == FiberState::kSpinning;
  }
  const auto open = [&](Barrier& barrier) {
    opened |= release_leader(barrier);
    opened |= release_if_complete(barrier, block.fibers);
    if (barrier.exchanging != 0) opened |= release_exchanges(barrier, block.fibers);
  };
  open(block.barrier);
  for (Barrier& warp : block.warps) open(warp);
  round.released |= opened;
  return opened;
}

Status Worker::run() {
  for (Block& block : blocks_) on_thread_of(block, [&] { start(block); });
  Status status = Status::kOk;
  unsigned vain = 0;
  while (alive_ != 0) {
    const Round last = round();
    if (last.released || (last.ran && !last.spinning)) {
      vain = 0;
      if (idle_nic_ && rung_.load(std::memory_order_relaxed)) make_progress();
    } else if (last.spinning) {
      idle_nic_ = true;
      if (config_.progress == nullptr) continue;
      const int done = make_progress();
      vain = done > 0 ? 0 : vain + 1;
      if (vain < (done < 0 ? kVainRoundsElsewhere : kVainRounds)) continue;
      std::this_thread::yield();
      vain = 0;
    } else {
      std::fprintf(stderr,
                   "gdx: divergent barrier: %zu threads wait and none can arrive; check that every "
                   "thread of the scope reaches the call\n",
                   alive_);
      // The stuck fibers' stacks are kept: unwinding them would run destructors that may wait again.
      status = Status::kSystem;
      break;
    }
  }
  current_worker = nullptr;
  return status;
}

}  // namespace

Status run_grid(const LaunchConfig& config, const std::function<void()>& body) {
  const unsigned blocks = config.grid.count();
  const unsigned threads = config.block.count();
  if (blocks == 0 || threads == 0 || threads > kMaxBlockThreads || config.workers == 0 ||
      config.shared_bytes > kMaxSharedBytes) {
    return Status::kInvalidArgument;
  }
  const unsigned workers = std::min(config.workers, blocks);
  std::vector<Status> results(workers, Status::kOk);
  std::optional<NicStores> recorder;
  if (std::getenv(kStrictVariable) != nullptr) recorder.emplace();
  const auto work = [&](unsigned w) {
    NicStores* const outer = std::exchange(nic_stores, recorder ? &*recorder : nullptr);
    Worker worker(config, body);
    try {
      for (unsigned b = w; b < blocks; b += workers) worker.add_block(b);
      results[w] = worker.run();
    } catch (const std::system_error& error) {
      std::fprintf(
          stderr,
          "gdx: no host thread for each block of a kernel with __shared__ variables: %s; launch fewer "
          "blocks or raise the limit of threads (ulimit -u)\n",
          error.what());
      results[w] = Status::kSystem;
    }
    nic_stores = outer;
  };
  std::vector<std::thread> others;
  for (unsigned w = 1; w < workers; ++w) others.emplace_back(work, w);
  work(0);
  for (std::thread& thread : others) thread.join();
  if (const std::string offence = recorder ? recorder->report() : ""; !offence.empty()) {
    std::fprintf(stderr, "gdx: a kernel %s\n", offence.c_str());
    return Status::kSystem;
  }
  const auto bad = std::find_if(results.begin(), results.end(), [](Status s) { return s != Status::kOk; });
  return bad == results.end() ? Status::kOk : *bad;
}

const ThreadContext& current_thread() { return current_worker->running()->context; }
const ThreadContext& first_thread(Scope scope) {
  const Fiber& self = *current_worker->running();
  const std::uint32_t in_warp = self.context.linear_index % kWarpThreads;
  return self.block->fibers[scope == Scope::kWarp ? self.context.linear_index - in_warp : 0].context;
}
std::uint32_t warp_size() {
  const Fiber& self = *current_worker->running();
  const std::uint32_t first = self.context.linear_index / kWarpThreads * kWarpThreads;
  return std::min(kWarpThreads, self.context.block_size.count() - first);
}
std::uint32_t block_threads() { return current_thread().block_size.count(); }

void sync_block() {
  Fiber& self = *current_worker->running();
  current_worker->arrive(self, self.block->barrier);
}
void sync_warp(std::uint32_t lanes) {
  Fiber& self = *current_worker->running();
  if (lanes == kAllLanes) return current_worker->arrive(self, *self.warp);
  self.warp->meeting.arrive();
  static_cast<void>(exchange(lanes, 0, kBallot));
  self.warp->meeting.leave();
}

std::uint64_t exchange(std::uint32_t lanes, std::uint64_t value, std::uint32_t source) {
  return current_worker->exchange(*current_worker->running(), lanes, value, source);
}
std::uint32_t ballot(std::uint32_t lanes, bool yes) {
  return static_cast<std::uint32_t>(exchange(lanes, static_cast<std::uint64_t>(yes), kBallot));
}

std::byte* dynamic_shared() { return current_worker->running()->block->shared.get(); }

bool note_shared_variables() {
  has_shared_variables = true;
  return true;
}

void sync_leader(Scope scope) { current_worker->meet_leader(*current_worker->running(), scope); }

void note_call(Scope scope, const char* name, std::uint64_t arguments) {
  Fiber& self = *current_worker->running();
  Meetings& mine = scope == Scope::kWarp ? self.in_warp : self.in_block;
  mine.call.store(name, std::memory_order_relaxed);
  mine.arguments.store(arguments, std::memory_order_relaxed);
}

bool calls_agree(Scope scope) {
  const Fiber& self = *current_worker->running();
  const bool of_warp = scope == Scope::kWarp;
  const auto call_of = [of_warp](const Fiber& fiber) {
    const Meetings& meetings = of_warp ? fiber.in_warp : fiber.in_block;
    return std::pair(meetings.call.load(std::memory_order_relaxed),
                     meetings.arguments.load(std::memory_order_relaxed));
  };
  const auto mine = call_of(self);
  const auto other = std::ranges::find_if(self.block->fibers, [&](const Fiber& fiber) {
    const bool meets = (!of_warp || fiber.warp == self.warp) && state_of(fiber) != FiberState::kDone;
    return meets && call_of(fiber) != mine;
  });
  if (other == self.block->fibers.end()) return true;
  const auto name = [](const char* call) { return call == nullptr ? "nothing" : call; };
  std::fprintf(stderr,
               "gdx: %s: thread %u of block %u calls %s with other arguments than thread %u; all threads of "
               "a %s make one call together, with equal arguments\n",
               name(mine.first), other->context.linear_index, self.block->index, name(call_of(*other).first),
               self.context.linear_index, of_warp ? "warp" : "block");
  return false;
}

std::atomic<std::uint32_t>& broadcast_slot(Scope scope) {
  Fiber& self = *current_worker->running();
  const bool of_warp = scope == Scope::kWarp;
  const std::uint32_t turn = ++(of_warp ? self.in_warp : self.in_block).broadcasts;
  return (of_warp ? self.warp : &self.block->barrier)->broadcasts[turn % 2];
}

BulkEngine& bulk_engine() { return current_worker->running()->block->bulk; }

std::uint64_t now_ns() {
  const Worker* const worker = current_worker;
  if (worker != nullptr && worker->config().clock != nullptr) return worker->config().clock();
  timespec ts{};
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<std::uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(ts.tv_nsec);
}

void wake_nic() {
  if (current_worker != nullptr) current_worker->on_doorbell();
}

void relax() {
  Fiber& self = *current_worker->running();
  set_state(self, FiberState::kSpinning);
  current_worker->suspend(self);
}

void pause_now_and_then() {
  Fiber* const self = current_worker == nullptr ? nullptr : current_worker->running();
  if (self != nullptr && ++self->calls_of_pause % kCallsPerPause == 0) relax();
}

}  // namespace gdx::exec
