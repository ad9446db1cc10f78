#include "host/poster/poster.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "base/library_thread.h"
#include "base/log.h"

namespace gdx {
namespace {

constexpr int kAtOnce = 64;  // commands of a ring between two polls
constexpr std::uint32_t kMostLogEntries = 20;
constexpr std::chrono::microseconds kPause{20};

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
    : options_(options), executor_(std::move(executor)) {
  for (std::uint32_t lane = 0; lane < executor_->options().lanes; ++lane) {
    auto& ring = *rings_.emplace_back(std::make_unique<Ring>());
    ring.commands.resize(std::size_t{1} << options.log_entries);
    ring.done.resize(executor_->options().ranks);
    executor_->set_done(lane, ring.done.data());
  }
}

Result<std::unique_ptr<Poster>> Poster::start(std::unique_ptr<Executor> executor,
                                              const PosterOptions& options) {
  if (options.log_entries == 0 || options.log_entries > kMostLogEntries || options.timeout_ns == 0) {
    return fail(Status::kInvalidArgument,
                fmt::format("a ring of 2^{} commands, waits of {} ns: use 1 to {}, and a bound",
                            options.log_entries, options.timeout_ns, kMostLogEntries));
  }
  std::unique_ptr<Poster> poster(new Poster(std::move(executor), options));
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

CommandRingHandle Poster::ring(std::uint32_t lane) const {
  Ring& ring = *rings_[lane];
  CommandRingHandle handle{};
  handle.layout_version = kCommandLayoutVersion;
  handle.log_entries = options_.log_entries;
  handle.commands = ring.commands.data();
  handle.state = &ring.state;
  handle.words = &ring.words;
  handle.done = ring.done.data();
  handle.abort = options_.abort;
  handle.timeout_ns = options_.timeout_ns;
  handle.ranks = executor_->options().ranks;
  handle.refused = executor_->refused();
  return handle;
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

Result<void> Poster::connect(std::uint32_t rank, const agent::Card& card) {
  const std::lock_guard lock(mutex_);
  return executor_->connect(rank, card);
}

std::string Poster::describe_fault(std::uint32_t lane) const {
  Ring& ring = *rings_[lane];
  const auto status =
      static_cast<Status>(std::atomic_ref(ring.state.fault.status).load(std::memory_order_acquire));
  if (status == Status::kOk) return {};
  const CommandFault& fault = ring.state.fault;
  std::string reason = text_of(fault.cause);
  const std::lock_guard lock(mutex_);
  if (fault.cause == CommandCause::kPeerFailed) reason = executor_->describe_fault(lane, fault.rank);
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

void Poster::serve() {
  for (std::uint32_t fruitless = 0; !stopping_.load(std::memory_order_relaxed);) {
    int done = 0;
    {
      const std::lock_guard lock(mutex_);
      if (ended_ != Status::kOk) return;
      done = step(options_.clock());
    }
    fruitless = done != 0 ? 0 : std::min(fruitless + 1, options_.fruitless_looks);
    if (options_.fruitless_looks != 0 && fruitless == options_.fruitless_looks) {
      std::this_thread::sleep_for(kPause);
    } else if (done == 0) {
      std::this_thread::yield();
    }
  }
}

int Poster::step(std::uint64_t now_ns) {
  if (ended_ != Status::kOk) return 0;
  int done = 0;
  for (std::uint32_t lane = 0; lane < rings_.size(); ++lane) done += read_ring(lane, now_ns);
  const auto progressed = executor_->progress(now_ns);
  if (progressed) return done + *progressed;
  log::error("poster: {}", progressed.error().message);
  ended_because_ = progressed.error().message;
  end(Status::kQueueError);
  return done;
}

// Copies commands out of the ring, whose slots are free after that. Ordering: the acquire of a sequence makes
// the command and the payload before it visible.
int Poster::read_ring(std::uint32_t lane, std::uint64_t now_ns) {
  Ring& ring = *rings_[lane];
  int taken = 0;
  for (; taken < kAtOnce; ++taken) {
    Command& slot = ring.commands[ring.consumed & (ring.commands.size() - 1)];
    if (std::atomic_ref(slot.sequence).load(std::memory_order_acquire) != ring.consumed + 1) break;
    if (slot.rank >= executor_->options().ranks) {
      ended_because_ = fmt::format("command {} of lane {} names rank {}: the ring was overwritten",
                                   ring.consumed, lane, slot.rank);
      log::error("poster: {}", ended_because_);
      end(Status::kQueueError);
      break;
    }
    if (!executor_->has_room(lane, slot.rank)) break;
    executor_->take(lane, ring.consumed, slot, now_ns);
    ++ring.consumed;
  }
  if (taken != 0) std::atomic_ref(ring.words.consumed).store(ring.consumed, std::memory_order_release);
  return taken;
}

void Poster::end(Status status) {
  if (ended_ != Status::kOk) return;
  ended_ = status;
  for (const auto& ring : rings_)
    std::atomic_ref(ring->words.ended).store(static_cast<std::uint64_t>(status), std::memory_order_release);
}

}  // namespace gdx
