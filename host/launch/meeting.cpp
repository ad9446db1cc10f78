#include "host/launch/meeting.h"

#include <unistd.h>

#include <atomic>
#include <mutex>

namespace gdx::launch {

Result<std::shared_ptr<Meeting>> meet_by(const Launcher& launcher, std::uint64_t deadline_ns) {
  static std::mutex mutex;  // held for as long as a launcher takes to answer: no ForkMutex
  static std::shared_ptr<Meeting> kept;
  static std::atomic<pid_t> owner = 0;
  // Asked before the lock, which a process forked meanwhile would find held for ever.
  pid_t first = 0;
  if (!owner.compare_exchange_strong(first, getpid()) && first != getpid())
    return fail(
        Status::kInvalidArgument,
        "this process was forked from a rank, whose connection to the launcher is the rank's alone: make "
        "worlds in the rank");
  const std::lock_guard lock(mutex);
  if (!kept)
    kept = GDX_TRY(launcher.way == Way::kPmix ? open_pmix(launcher, deadline_ns)
                                              : open_pmi(launcher, deadline_ns));
  return kept;
}

}  // namespace gdx::launch
