// Commands that a kernel gives to the host's poster, for peers whose NIC no kernel can ring. Each lane has a
// ring. Kernels store commands into it, and the poster's words tell what became of them.
//
//   kernel   Command[], sequence last -----------> poster
//   kernel   <---- CommandWords, a word for each rank   poster
//
// Source: docs/any_nic.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/status.h"

namespace gdx {

// Must rise on every change of a struct here, because kernels refuse a handle of another version.
inline constexpr std::uint32_t kCommandLayoutVersion = 1;

enum class CommandOperation : std::uint8_t {
  kPut = 1,          // `bytes` from the local to the remote window; 0 with a signal: the signal alone
  kPutValue = 2,     // `bytes` of `value`, at most 8
  kGet = 3,          // `bytes` from the remote to the local window
  kFetchAdd = 4,     // `value` to the remote word; the old word to the local window
  kCompareSwap = 5,  // `value` if the word equals `bytes`; the old word to the local window
  kFlush = 6,        // complete once all earlier commands of this ring to the rank are
};

// Flags of a command.
inline constexpr std::uint8_t kCommandSignalSet = 1;  // after a put: `value` to the word at `signal_offset`
inline constexpr std::uint8_t kCommandSignalAdd = 2;
inline constexpr std::uint8_t kCommandMore = 4;  // another command follows at once: the poster may batch

// Windows are numbers that host and kernel agree on; offsets count from a window's begin. `sequence` is the
// command's index in the ring plus one, stored last, with release. Memory that was never used holds 0.
struct alignas(64) Command {
  CommandOperation operation;
  std::uint8_t flags;
  std::uint8_t local_window;
  std::uint8_t remote_window;
  std::uint32_t rank;
  std::uint64_t local_offset;
  std::uint64_t remote_offset;
  std::uint64_t bytes;
  std::uint64_t value;
  std::uint64_t signal_offset;
  std::uint8_t signal_window;
  std::uint8_t reserved[7];
  std::uint64_t sequence;
};

// Words that the poster stores for one ring, with release. In host memory, pinned where a GPU reads them.
struct alignas(64) CommandWords {
  std::uint64_t consumed;  // commands read: their slots are free again
  std::uint64_t ended;     // a Status, once the poster reads no more
};

// Word for each rank: the count of this ring's commands before which all of that rank are complete, and the
// first failure, which lasts. One load reads both. 2^48 commands take months at 10 million a second.
inline constexpr std::uint32_t kCommandStatusShift = 48;
constexpr std::uint64_t pack_done(std::uint64_t done, Status failure) {
  return static_cast<std::uint64_t>(failure) << kCommandStatusShift | done;
}
constexpr std::uint64_t done_of(std::uint64_t word) {
  return word & ((std::uint64_t{1} << kCommandStatusShift) - 1);
}
constexpr Status failure_of(std::uint64_t word) { return static_cast<Status>(word >> kCommandStatusShift); }

// Part that ended a call, beside its Status.
enum class CommandCause : std::uint32_t {
  kNone = 0,
  kRefused = 1,       // the ring has no such rank, or the call would be emulated
  kFull = 2,          // the poster took commands, but gave no room within the bound
  kPosterSilent = 3,  // the poster took nothing within the bound: its thread is stopped or starved
  kPosterEnded = 4,   // it has said that it reads no more
  kPeerSilent = 5,    // the poster took the command, which is not complete within the bound
  kPeerFailed = 6,    // the poster told the failure of that rank
  kAborted = 7,
};

// First call on the ring that failed; all zero while there is none.
struct CommandFault {
  std::uint32_t status;  // a Status; stored last, with release
  CommandCause cause;
  std::uint32_t rank;
  std::uint32_t call;   // packed_call() of the command; 0: no call has claimed the record
  std::uint64_t index;  // of the command
};

constexpr std::uint32_t packed_call(const Command& command) {
  return std::uint32_t{1} << 31 | std::uint32_t{command.flags} << 8 |
         static_cast<std::uint32_t>(command.operation);
}

// Half of the ring that kernels change, in memory of the host, too, which kernels of a GPU have mapped.
struct CommandRingState {
  std::uint64_t reserved;  // commands whose slots were handed out
  std::uint64_t consumed;  // newest known CommandWords::consumed
  CommandFault fault;
};

struct CommandRingHandle {
  std::uint32_t layout_version;
  std::uint32_t log_entries;
  Command* commands;  // 1 << log_entries
  CommandRingState* state;
  const CommandWords* words;
  const std::uint64_t* done;   // by rank
  const std::uint32_t* abort;  // nonzero: waits return kAborted; null: cannot be aborted
  std::uint64_t timeout_ns;    // bound of every wait on this ring
  std::uint32_t ranks;
  std::uint32_t refused;  // refused_bits() of calls that GDX_EMULATION=refuse forbids
};

// Bits of a command in CommandRingHandle::refused: one for its operation, others for its flags.
inline constexpr std::uint32_t kCommandRefusedFlagsShift = 16;
constexpr std::uint32_t refused_bits(CommandOperation operation, std::uint8_t flags) {
  return 1u << static_cast<std::uint32_t>(operation) | std::uint32_t{flags} << kCommandRefusedFlagsShift;
}

static_assert(sizeof(Command) == 64 && offsetof(Command, sequence) == 56);
static_assert(offsetof(Command, local_offset) == 8 && offsetof(Command, signal_window) == 48);
static_assert(sizeof(CommandWords) == 64 && sizeof(CommandFault) == 24 && sizeof(CommandRingState) == 40);
static_assert(sizeof(CommandRingHandle) == 64);

}  // namespace gdx
