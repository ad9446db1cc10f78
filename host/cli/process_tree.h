// The processes below this one: its children, theirs, and so on.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gdx {

// Parents before their children. None where /proc is not mounted.
[[nodiscard]] std::vector<pid_t> descendants();

// Sends `signal` to all descendants but `spared`; never to a process that merely got the number of one.
void signal_descendants(int signal, const std::vector<pid_t>& spared = {});

// Ends all descendants but `spared` by SIGKILL and waits for them. Whole only in a process to which orphans
// fall (PR_SET_CHILD_SUBREAPER). Returns how many were left at the deadline.
[[nodiscard]] std::size_t kill_descendants(std::uint64_t deadline_ns, const std::vector<pid_t>& spared = {});

}  // namespace gdx
