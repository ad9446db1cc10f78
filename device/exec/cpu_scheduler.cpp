#include "device/exec/cpu_scheduler.h"

#include <boost/context/detail/fcontext.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "device/exec/fiber_annotations.h"

namespace gdx::exec {
namespace {

namespace ctx = boost::context;

constexpr std::size_t kStackBytes = 256 * 1024;

// A barrier over the live threads of a warp or a block. The generation is atomic so that leaving it
// acquires what the others did before they arrived: on a GPU, too, that is all a barrier promises.
struct Barrier {
  std::uint32_t members = 0;
  std::uint32_t arrived = 0;
  std::atomic<std::uint32_t> generation{0};
  std::atomic<std::uint32_t> broadcast{0};
};

enum class FiberState { kRunnable, kSpinning, kAtBarrier, kDone };

struct Block;

// What both the fiber and the scheduler write is atomic (relaxed: they never run at once) because a
// switch into a fiber orders nothing for ThreadSanitizer.
struct Fiber {
  ThreadContext context;
  Block* block = nullptr;
  Barrier* warp = nullptr;
  std::atomic<Barrier*> waits_at{nullptr};
  std::atomic<FiberState> state{FiberState::kRunnable};
  ctx::detail::fcontext_t resumption = nullptr;  // the scheduler's way in
  ctx::detail::fcontext_t back = nullptr;        // the fiber's way out
  ctx::stack_context stack;
  FiberAnnotation annotation;
};

struct Block {
  Barrier barrier;
  std::deque<Barrier> warps;
  std::deque<Fiber> fibers;
  BulkEngine bulk;
};

// One host thread's share of the grid: round robin over its fibers, `progress` once a round.
class Worker {
 public:
  Worker(const LaunchConfig& config, const std::function<void()>& body) : config_(config), body_(body) {}

  void add_block(Dim3 index);
  Status run();

  // From inside a fiber: back to the scheduler.
  void suspend(Fiber& fiber);
  void arrive(Fiber& fiber, Barrier& barrier);
  Fiber* running() { return running_.load(std::memory_order_relaxed); }
  [[nodiscard]] const LaunchConfig& config() const { return config_; }

 private:
  static void enter(ctx::detail::transfer_t from);
  void start(Fiber& fiber);
  void resume(Fiber& fiber);
  void leave_barriers(Fiber& fiber);
  static bool release_if_complete(Barrier& barrier);
  bool round();

  const LaunchConfig& config_;
  const std::function<void()>& body_;
  std::deque<Block> blocks_;
  std::size_t alive_ = 0;
  std::atomic<Fiber*> running_{nullptr};
  FiberAnnotation scheduler_annotation_;
};

thread_local Worker* current_worker = nullptr;

FiberState state_of(const Fiber& fiber) { return fiber.state.load(std::memory_order_relaxed); }
void set_state(Fiber& fiber, FiberState state) { fiber.state.store(state, std::memory_order_relaxed); }

Dim3 unflatten(unsigned linear, const Dim3& size) {
  return {linear % size.x, linear / size.x % size.y, linear / size.x / size.y};
}

void Worker::add_block(Dim3 index) {
  Block& block = blocks_.emplace_back();
  const unsigned threads = config_.block.count();
  block.barrier.members = threads;
  for (unsigned t = 0; t < threads; ++t) {
    if (t % kWarpThreads == 0) {
      block.warps.emplace_back().members = std::min(kWarpThreads, threads - t);
    }
    Fiber& fiber = block.fibers.emplace_back();
    fiber.block = &block;
    fiber.warp = &block.warps.back();
    fiber.context = {unflatten(t, config_.block), index, config_.block, config_.grid, t};
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
  fiber.annotation.leave_for_good(worker.scheduler_annotation_);
  ctx::detail::jump_fcontext(back, nullptr);
}

void Worker::start(Fiber& fiber) {
  fiber.stack = ctx::protected_fixedsize_stack(kStackBytes).allocate();
  fiber.annotation.create(static_cast<std::byte*>(fiber.stack.sp) - fiber.stack.size, fiber.stack.size);
  fiber.resumption = ctx::detail::make_fcontext(fiber.stack.sp, fiber.stack.size, enter);
  resume(fiber);
}

// Between an annotation's switch and the jump nothing may run: it would count for the other side.
void Worker::resume(Fiber& fiber) {
  running_.store(&fiber, std::memory_order_relaxed);
  const ctx::detail::fcontext_t in = fiber.resumption;
  scheduler_annotation_.leave_for(fiber.annotation);
  const ctx::detail::transfer_t from = ctx::detail::jump_fcontext(in, &fiber);
  scheduler_annotation_.arrived_back();
  fiber.resumption = from.fctx;
  running_.store(nullptr, std::memory_order_relaxed);
  if (state_of(fiber) != FiberState::kDone) return;
  fiber.annotation.destroy();
  ctx::protected_fixedsize_stack(kStackBytes).deallocate(fiber.stack);
  --alive_;
  leave_barriers(fiber);
}

void Worker::suspend(Fiber& fiber) {
  const ctx::detail::fcontext_t back = fiber.back;
  fiber.annotation.leave_for_scheduler(scheduler_annotation_);
  const ctx::detail::transfer_t from = ctx::detail::jump_fcontext(back, nullptr);
  fiber.annotation.arrived();
  fiber.back = from.fctx;
}

bool Worker::release_if_complete(Barrier& barrier) {
  if (barrier.arrived == 0 || barrier.arrived < barrier.members) return false;
  barrier.arrived = 0;
  return true;
}

void Worker::arrive(Fiber& fiber, Barrier& barrier) {
  // An acquire-release read-modify-write by everybody orders all arrivals before all departures.
  barrier.generation.fetch_add(1, std::memory_order_acq_rel);
  fiber.waits_at.store(&barrier, std::memory_order_relaxed);
  set_state(fiber, FiberState::kAtBarrier);
  suspend(fiber);
  (void)barrier.generation.load(std::memory_order_acquire);
}

// A thread that has returned no longer counts: a barrier is over the threads that still run.
void Worker::leave_barriers(Fiber& fiber) {
  --fiber.block->barrier.members;
  --fiber.warp->members;
}

bool Worker::round() {
  bool ran = false;
  for (Block& block : blocks_) {
    for (Fiber& fiber : block.fibers) {
      if (state_of(fiber) != FiberState::kRunnable) continue;
      ran = true;
      resume(fiber);
      if (state_of(fiber) == FiberState::kAtBarrier)
        ++fiber.waits_at.load(std::memory_order_relaxed)->arrived;
    }
    const auto wake = [&block](Barrier& barrier) {
      if (!release_if_complete(barrier)) return;
      for (Fiber& fiber : block.fibers) {
        if (state_of(fiber) == FiberState::kAtBarrier &&
            fiber.waits_at.load(std::memory_order_relaxed) == &barrier) {
          set_state(fiber, FiberState::kRunnable);
        }
      }
    };
    wake(block.barrier);
    for (Barrier& warp : block.warps) wake(warp);
  }
  return ran;
}

Status Worker::run() {
  current_worker = this;
  scheduler_annotation_.adopt_thread();
  for (Block& block : blocks_) {
    for (Fiber& fiber : block.fibers) start(fiber);
  }
  Status status = Status::kOk;
  while (alive_ != 0) {
    const bool ran = round();
    bool runnable = false;
    bool spinning = false;
    for (Block& block : blocks_) {
      for (Fiber& fiber : block.fibers) {
        runnable |= state_of(fiber) == FiberState::kRunnable;
        if (state_of(fiber) == FiberState::kSpinning) {
          spinning = true;
          set_state(fiber, FiberState::kRunnable);
        }
      }
    }
    if (!runnable && spinning && config_.progress != nullptr && config_.progress() == 0) {
      std::this_thread::yield();
    }
    if (!ran && !runnable && !spinning && alive_ != 0) {
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
  if (blocks == 0 || threads == 0 || threads > kMaxBlockThreads || config.workers == 0) {
    return Status::kInvalidArgument;
  }
  const unsigned workers = std::min(config.workers, blocks);
  std::vector<Status> results(workers, Status::kOk);
  const auto work = [&](unsigned w) {
    Worker worker(config, body);
    for (unsigned b = w; b < blocks; b += workers) worker.add_block(unflatten(b, config.grid));
    results[w] = worker.run();
  };
  std::vector<std::thread> others;
  for (unsigned w = 1; w < workers; ++w) others.emplace_back(work, w);
  work(0);
  for (std::thread& thread : others) thread.join();
  const auto bad = std::find_if(results.begin(), results.end(), [](Status s) { return s != Status::kOk; });
  return bad == results.end() ? Status::kOk : *bad;
}

const ThreadContext& current_thread() { return current_worker->running()->context; }
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
void sync_warp() {
  Fiber& self = *current_worker->running();
  current_worker->arrive(self, *self.warp);
}

std::atomic<std::uint32_t>& broadcast_slot(Scope scope) {
  Fiber& self = *current_worker->running();
  return scope == Scope::kWarp ? self.warp->broadcast : self.block->barrier.broadcast;
}

BulkEngine& bulk_engine() { return current_worker->running()->block->bulk; }

std::uint64_t now_ns() {
  const Worker* const worker = current_worker;
  if (worker != nullptr && worker->config().clock != nullptr) return worker->config().clock();
  timespec ts{};
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<std::uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(ts.tv_nsec);
}

void relax() {
  Fiber& self = *current_worker->running();
  set_state(self, FiberState::kSpinning);
  current_worker->suspend(self);
}

}  // namespace gdx::exec
