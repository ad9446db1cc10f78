// State of a process, read from /proc.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace gdx {

struct ProcessStat {
  char state = 0;  // 'Z': has ended, and its parent has not read that yet
  pid_t parent = 0;
  std::uint64_t started = 0;  // in clock ticks, distinguishes later processes of the number
};

// Returns zeros for a process that is not there, or that /proc does not show.
[[nodiscard]] ProcessStat stat_of(pid_t pid);

}  // namespace gdx
