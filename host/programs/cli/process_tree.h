// Processes below this one: its children, their children, and so on.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gdx {

struct Process {
  pid_t pid = 0;
  std::uint64_t started = 0;  // in clock ticks, distinguishes later processes of the number; 0: unknown
  bool operator==(const Process&) const = default;
};

// Returns parents before their children, without `spared` and the processes below those. If /proc cannot be
// read, returns children alone. A child of a spared process whose parent has ended counts as any orphan.
[[nodiscard]] std::vector<Process> descendants(const std::vector<Process>& spared = {});

// Sends `signal` to all descendants, and returns them. Never signals a process that reuses the number of one.
std::vector<Process> signal_descendants(int signal);

// Ends descendants() by SIGKILL and waits for them. Complete only in a process that adopts orphans
// (PR_SET_CHILD_SUBREAPER). Returns the number left at the deadline.
[[nodiscard]] std::size_t kill_descendants(std::uint64_t deadline_ns,
                                           const std::vector<Process>& spared = {});

}  // namespace gdx
