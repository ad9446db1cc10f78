// Memory that this process can still get: the machine's, and that of each cgroup with a limit. Whoever takes
// more is ended by the kernel, and with it perhaps others' processes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace gdx {

struct MemoryPlaces {
  std::string proc = "/proc";
  // Mount of cgroups version 2; with the folder of version 1's "memory".
  std::string cgroups = "/sys/fs/cgroup";
};

// A bound on what the processes below it may have together.
struct MemoryLimit {
  std::uint64_t id;  // inode of the cgroup's folder, equal for all processes below it; 0: the machine
  std::uint64_t left_bytes;
  std::string name;  // for messages
};

// Reads the limits, this process's own cgroup first and the machine last. What cannot be read bounds nothing.
// Pages of files count as left, because the kernel takes them back.
[[nodiscard]] std::vector<MemoryLimit> memory_limits(const MemoryPlaces& places = {});

inline constexpr std::size_t kMaxKnownLimits = 8;

// Bytes that one process is about to take. Trivially copyable, because processes exchange it as bytes.
struct MemoryNeed {
  std::uint64_t bytes = 0;
  std::uint32_t limits = 0;  // number of known ones
  std::uint32_t reserved = 0;
  std::array<std::uint64_t, kMaxKnownLimits> ids = {};  // identities of the limits above the process
};
[[nodiscard]] MemoryNeed memory_need(std::uint64_t bytes, std::span<const MemoryLimit> limits);

// Checks what processes of this host take at once against the limits above this one. Leaves 1/16 to others.
// Errors: kNoMemory with the bytes, those that can be had, and the limit.
[[nodiscard]] Result<void> check_memory(std::span<const MemoryLimit> limits,
                                        std::span<const MemoryNeed> needs);

}  // namespace gdx
