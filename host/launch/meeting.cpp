#include "host/launch/meeting.h"

#include <unistd.h>

#include <mutex>

namespace gdx::launch {

Result<std::shared_ptr<Meeting>> meet_by(const Launcher& launcher, std::uint64_t deadline_ns) {
  static std::mutex mutex;
  static std::shared_ptr<Meeting> kept;
  static pid_t owner = 0;
  const std::lock_guard lock(mutex);
  if (kept && owner != getpid())
    return fail(
        Status::kInvalidArgument,
        "this process was forked from a rank, whose connection to the launcher is the rank's alone: make "
        "worlds in the rank");
  if (!kept) {
    kept = GDX_TRY(launcher.way == Way::kPmix ? open_pmix(launcher, deadline_ns)
                                              : open_pmi(launcher, deadline_ns));
    owner = getpid();
  }
  return kept;
}

}  // namespace gdx::launch
