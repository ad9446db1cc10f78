#include "host/poster/poster.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <mutex>

#include "base/library_thread.h"
#include "base/log.h"
#include "base/page_size.h"

namespace gdx {
namespace {

constexpr int kAtOnce = 64;  // commands of a ring between two polls
constexpr std::uint32_t kMostLogEntries = 20;
constexpr std::chrono::microseconds kPause{20};
constexpr std::uint64_t kAskedPeriodNs = 10'000'000;

const char* text_of(CommandCause cause) {
  switch (cause) {
    case CommandCause::kNone: return "no cause";
    case CommandCause::kRefused: return "refused";
    case CommandCause::kFull:
      return "the ring stayed full: the poster takes fewer commands than kernels give";
    case CommandCause::kPosterSilent:
      return "the poster took nothing: its thread is stopped or gets no processor";
    case CommandCause::kPosterEnded: return "the poster has ended";
    case CommandCause::kPeerSilent: return "the poster took it, and the rank has not completed it";
    case CommandCause::kPeerFailed: return "the rank failed";
    case CommandCause::kAborted: return "aborted";
  }
  return "unknown cause";
}

std::string call_text(std::uint32_t packed) {
  constexpr std::uint32_t kSignals = kCommandSignalSet | kCommandSignalAdd;
  const bool signals = (packed >> 8 & kSignals) != 0;
  switch (static_cast<CommandOperation>(packed & 0xff)) {
    case CommandOperation::kPut: return signals ? "a put with signal" : "a put";
    case CommandOperation::kPutValue: return "a put of a value";
    case CommandOperation::kGet: return "a get";
    case CommandOperation::kFetchAdd: return "a fetch-and-add";
    case CommandOperation::kCompareSwap: return "a compare-and-swap";
    case CommandOperation::kFlush: return "a flush";
  }
  return "a call";
}

}  // namespace

Poster::Poster(std::unique_ptr<Executor> executor, const PosterOptions& options)
    : options_(options), executor_(std::move(executor)) {}

// Each ring is a handle, words, state and the ranks' words, each on lines of its own, and the commands.
Result<void> Poster::make_rings() {
  const auto lines = [](std::size_t bytes) { return (bytes + alignof(Command) - 1) / alignof(Command); };
  const ExecutorOptions& shape = executor_->options();
  const std::size_t entries = std::size_t{1} << options_.log_entries;
  const std::size_t ring_lines = lines(sizeof(CommandRingHandle)) + lines(sizeof(CommandWords)) +
                                 lines(sizeof(CommandRingState)) +
                                 lines(shape.ranks * sizeof(std::uint64_t)) + entries;
  const std::size_t bytes = ring_lines * sizeof(Command) * shape.lanes;
  memory_bytes_ = (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(page_bytes(), memory_bytes_)));
  if (!memory_)
    return fail(Status::kNoMemory,
                fmt::format("no memory for {} B of command rings: use fewer lanes", memory_bytes_));
  std::memset(memory_.get(), 0, memory_bytes_);
  std::byte* at = memory_.get();
  const auto take = [&]<typename T>(T*& object, std::size_t count) {
    object = reinterpret_cast<T*>(at);
    at += lines(count * sizeof(T)) * alignof(Command);
  };
  for (std::uint32_t lane = 0; lane < shape.lanes; ++lane) {
    Ring ring{};
    take(ring.handle, 1);
    take(ring.words, 1);
    take(ring.state, 1);
    take(ring.done, shape.ranks);
    take(ring.commands, entries);
    *ring.handle = {.layout_version = kCommandLayoutVersion,
                    .log_entries = options_.log_entries,
                    .commands = ring.commands,
                    .state = ring.state,
                    .words = ring.words,
                    .done = ring.done,
                    .abort = options_.abort,
                    .timeout_ns = options_.timeout_ns,
                    .ranks = shape.ranks,
                    .refused = executor_->refused()};
    executor_->set_done(lane, ring.done);
    rings_.push_back(ring);
  }
  return {};
}

Result<std::unique_ptr<Poster>> Poster::start(std::unique_ptr<Executor> executor,
                                              const PosterOptions& options) {
  if (options.log_entries == 0 || options.log_entries > kMostLogEntries || options.timeout_ns == 0) {
    return fail(Status::kInvalidArgument,
                fmt::format("a ring of 2^{} commands, waits of {} ns: use 1 to {}, and a bound",
                            options.log_entries, options.timeout_ns, kMostLogEntries));
  }
  std::unique_ptr<Poster> poster(new Poster(std::move(executor), options));
  GDX_TRY(poster->make_rings());
  if (options.thread) {
    poster->thread_ = start_library_thread([raw = poster.get()] { raw->serve(); });
    if (options.cpu) {
      cpu_set_t set;
      CPU_ZERO(&set);
      if (*options.cpu < CPU_SETSIZE) CPU_SET(*options.cpu, &set);
      if (pthread_setaffinity_np(poster->thread_.native_handle(), sizeof set, &set) != 0) {
        return fail(Status::kSystem,
                    fmt::format("the poster's thread may not run on processor {}: choose one that "
                                "taskset -p shows",
                                *options.cpu));
      }
    }
  }
  detail::add_service(*poster);
  return poster;
}

Poster::~Poster() {
  detail::remove_service(*this);
  stop();
}

int Poster::progress() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock ? step(options_.clock()) : 0;
}

void Poster::stop() {
  stopping_.store(true);
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  end(Status::kAborted);
}

// Leaves the work to the poster's thread, which it would hold up by each of its own looks; without a thread
// it does the work itself.
Result<void> Poster::flush(std::span<const std::uint32_t> ranks, std::uint64_t deadline_ns) {
  std::vector<Executor::Target> targets;
  for (std::uint32_t lane = 0; lane < rings_.size(); ++lane) {
    const std::uint64_t reserved =
        std::atomic_ref(rings_[lane].state->reserved).load(std::memory_order_acquire);
    targets.push_back({lane, reserved, {ranks.begin(), ranks.end()}, {}});
  }
  const auto is_aborted = [&] {
    return options_.abort != nullptr &&
           std::atomic_ref(const_cast<std::uint32_t&>(*options_.abort)).load() != 0;
  };
  while (!is_aborted()) {
    bool complete = true;
    std::uint64_t now_ns = 0;
    {
      const std::lock_guard lock(mutex_);
      now_ns = options_.clock();
      if (ended_ != Status::kOk) return fail(ended_, fmt::format("the poster has ended: {}", ended_because_));
      if (!thread_.joinable()) step(now_ns);
      for (Executor::Target& target : targets) {
        if (rings_[target.lane].consumed < target.index || !GDX_TRY(executor_->is_complete(target)))
          complete = false;
      }
    }
    if (complete) return {};
    if (now_ns >= deadline_ns)
      return fail(Status::kTimeout, "the poster has not completed what kernels gave it");
    if (thread_.joinable()) {
      std::this_thread::sleep_for(kPause);
    } else {
      std::this_thread::yield();
    }
  }
  return {};
}

Result<void> Poster::set_window(std::size_t number, std::byte* address, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  GDX_TRY(executor_->add_window(address, bytes, number));
  return {};
}

void Poster::drop_window(std::size_t number) {
  const std::lock_guard lock(mutex_);
  executor_->drop_window(number);
}

agent::Card Poster::card() const {
  const std::lock_guard lock(mutex_);
  return executor_->card();
}

std::string Poster::describe_failure(std::uint32_t lane, std::uint32_t rank) const {
  const std::lock_guard lock(mutex_);
  return executor_->failure(lane, rank).message;
}

Result<void> Poster::connect(std::uint32_t rank, const agent::Card& card) {
  const std::lock_guard lock(mutex_);
  return executor_->connect(rank, card);
}

std::string Poster::describe_fault(std::uint32_t lane) const {
  CommandFault& fault = rings_[lane].state->fault;
  const auto status = static_cast<Status>(std::atomic_ref(fault.status).load(std::memory_order_acquire));
  if (status == Status::kOk) return {};
  std::string reason = text_of(fault.cause);
  const std::lock_guard lock(mutex_);
  if (fault.cause == CommandCause::kPeerFailed) reason = executor_->failure(lane, fault.rank).message;
  if (fault.cause == CommandCause::kPosterEnded && !ended_because_.empty()) reason += ": " + ended_because_;
  if (fault.cause == CommandCause::kRefused && status == Status::kUnsupported) {
    reason = fmt::format(
        "provider {} does not do it, and GDX_EMULATION=refuse forbids to emulate it (gdx proxy "
        "--explain tells how)",
        executor_->traits().provider);
  }
  return fmt::format("{} to rank {} on lane {}: {}: {}", call_text(fault.call), fault.rank, lane,
                     status_name(status), reason);
}

void Poster::clear_fault(std::uint32_t lane) { rings_[lane].state->fault = {}; }

// Looks without a yield between: on a loaded machine one lasts as long as all other threads' turns. Calls of
// the host come between two looks, because the mutex is fair.
void Poster::serve() {
  for (std::uint32_t fruitless = 0; !stopping_.load(std::memory_order_relaxed);) {
    int done = 0;
    {
      const std::lock_guard lock(mutex_);
      if (ended_ != Status::kOk) return;
      done = step(options_.clock());
    }
    fruitless = done != 0 ? 0 : std::min(fruitless + 1, options_.fruitless_looks);
    if (options_.fruitless_looks != 0 && fruitless == options_.fruitless_looks)
      std::this_thread::sleep_for(kPause);
  }
}

int Poster::step(std::uint64_t now_ns) {
  if (ended_ != Status::kOk) return 0;
  int done = 0;
  for (std::uint32_t lane = 0; lane < rings_.size(); ++lane) done += read_ring(lane);
  if (options_.asked != nullptr && now_ns - asked_ns_ >= kAskedPeriodNs) read_asked(now_ns);
  const auto progressed = executor_->progress(now_ns);
  if (progressed) return done + *progressed;
  log::error("poster: {}", progressed.error().message);
  ended_because_ = progressed.error().message;
  end(Status::kQueueError);
  return done;
}

// Copies commands out of the ring, whose slots are free after that. Ordering: the acquire of a sequence makes
// the command and the payload before it visible.
int Poster::read_ring(std::uint32_t lane) {
  Ring& ring = rings_[lane];
  const std::uint64_t mask = (std::uint64_t{1} << options_.log_entries) - 1;
  int taken = 0;
  for (; taken < kAtOnce; ++taken) {
    Command& slot = ring.commands[ring.consumed & mask];
    if (std::atomic_ref(slot.sequence).load(std::memory_order_acquire) != ring.consumed + 1) break;
    if (slot.rank >= executor_->options().ranks) {
      ended_because_ = fmt::format("command {} of lane {} names rank {}: the ring was overwritten",
                                   ring.consumed, lane, slot.rank);
      log::error("poster: {}", ended_because_);
      end(Status::kQueueError);
      break;
    }
    if (!executor_->has_room(lane, slot.rank)) break;
    executor_->take(lane, ring.consumed, slot);
    ++ring.consumed;
  }
  if (taken != 0) std::atomic_ref(ring.words->consumed).store(ring.consumed, std::memory_order_release);
  return taken;
}

void Poster::read_asked(std::uint64_t now_ns) {
  asked_ns_ = now_ns;
  const std::uint32_t ranks = executor_->options().ranks;
  for (std::uint32_t i = 0; i < ranks * rings_.size(); ++i) {
    const std::atomic_ref asked(options_.asked[i]);
    if (asked.load(std::memory_order_relaxed) == 0) continue;
    asked.store(0, std::memory_order_relaxed);
    executor_->probe(i / ranks, i % ranks);
  }
}

void Poster::end(Status status) {
  if (ended_ != Status::kOk) return;
  ended_ = status;
  for (const Ring& ring : rings_)
    std::atomic_ref(ring.words->ended).store(static_cast<std::uint64_t>(status), std::memory_order_release);
}

}  // namespace gdx
