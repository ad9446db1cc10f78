// A process between a launcher and what it starts, so that no end of the launcher leaves anything behind.
//
// Parent-death signals reach children alone, and a process group is left by whoever calls setsid(). So the
// supervisor is the process to which all orphans below it fall, in a group of its own: whatever ends the
// launcher, even SIGKILL to its whole group, it still ends every descendant. If the supervisor itself is
// killed, orphans fall to the launcher, which ends them. Only the death of both at once leaves grandchildren.
// Ranks stay in the launcher's group: the terminal's signals, job control and reads work as without it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "base/result.h"
#include "host/cli/signal_guard.h"

namespace gdx {

inline constexpr std::uint64_t kKillBoundNs = 10'000'000'000;  // for processes to be gone after SIGKILL

struct Supervision {
  pid_t launcher = 0;  // the parent; another one has its place when it is gone
  pid_t group = 0;     // for what is started
};

// Calls `work` in a supervisor, sends it the signals that come here, and returns what it returns.
// `what`: named in messages. Errors: those of `work`, kSystem. Threads: as launch().
[[nodiscard]] Result<int> supervise(const std::string& what, const SignalGuard& signals,
                                    const std::function<Result<int>(const Supervision&)>& work);

}  // namespace gdx
