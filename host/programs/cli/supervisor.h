// A process between a launcher and its ranks, so that no end of the launcher leaves processes behind.
//
//   launcher -- supervisor (subreaper, a group of its own) -- ranks (the launcher's group) -- ...
//
// Parent-death signals reach children alone, and setsid() leaves a process group. So the supervisor adopts
// all orphans below it, in a group of its own. It ends every descendant after any end of the launcher, even
// SIGKILL to its whole group. If the supervisor itself is killed, the launcher adopts the orphans and ends
// them. Only the death of both at once leaves grandchildren. So the supervisor's name differs from names by
// which the launcher is killed.
// Ranks stay in the launcher's group, so the terminal's signals, job control and reads work as without it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "base/descriptor.h"
#include "base/result.h"
#include "host/programs/cli/signal_guard.h"

namespace gdx {

inline constexpr std::uint64_t kKillBoundNs = 10'000'000'000;  // bound for processes to be gone after SIGKILL

struct Pipe {
  Descriptor reader;
  Descriptor writer;
};

// Makes a pipe that no executed program inherits. Errors: kSystem.
[[nodiscard]] Result<Pipe> make_pipe();

struct Supervision {
  pid_t launcher = 0;  // the parent; another parent means that it has ended
  pid_t group = 0;     // process group of the processes to start
};

// Calls `work` in a supervisor, forwards this process's signals to it, and returns its result. `what`: named
// in messages. Errors: those of `work`, kSystem. Threads: those of run_ranks().
[[nodiscard]] Result<int> supervise(const std::string& what, const SignalGuard& signals,
                                    const std::function<Result<int>(const Supervision&)>& work);

}  // namespace gdx
