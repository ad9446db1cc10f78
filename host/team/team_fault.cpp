#include "host/team/team_fault.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "proto/mlx5/wqe.h"

namespace gdx::team {
namespace {

constexpr double kNsInSecond = 1e9;

// In the order of enum Compare, which TeamFault::waited counts from 1.
constexpr std::array<const char*, 6> kComparisons{"==", "!=", ">=", ">", "<=", "<"};

std::uint64_t offset_in(const Memory& memory, const TeamFault& fault) {
  return fault.address - reinterpret_cast<std::uintptr_t>(memory.data());
}

bool is_in_heap(const TeamFault& fault, const Windows& windows) {
  return offset_in(windows.window(0).memory, fault) < windows.window(0).memory.bytes();
}

std::string place_of(const TeamFault& fault, std::span<const std::byte> heap) {
  const std::uint64_t offset = fault.address - reinterpret_cast<std::uintptr_t>(heap.data());
  return offset < heap.size() ? fmt::format("heap offset {:#x}", offset)
                              : fmt::format("{:#x}", fault.address);
}

// Returns whether the word is one of a collective call's.
bool is_of_collective(const TeamFault& fault, const TeamHandle& team) {
  const std::uint64_t offset = fault.address - reinterpret_cast<std::uintptr_t>(team.area);
  return offset < std::uint64_t{team.area_bytes} * team.lanes;
}

// Returns the reason for which a length was refused. Below a message's bound it is an inline put's; of no
// bytes it is a collective call's.
std::string length_reason_of(const TeamFault& fault) {
  if (fault.bytes == 0) {
    return fault.rank == kAnyTeamRank
               ? ": of no signals"
               : ": more elements than the lane's scratch takes, or a piece of the heap "
                 "that is too small: use fewer elements, or a larger piece";
  }
  if (fault.bytes > mlx5::kMaxMessageBytes) return fmt::format(": use 1 to {} bytes", mlx5::kMaxMessageBytes);
  return ": too long to go inline: use another mode";
}

// Returns the reason for which an argument was refused.
std::string argument_reason_of(const TeamFault& fault, const Table& table, const Windows& windows) {
  if (fault.rank >= table.size() && fault.rank != kAnyTeamRank)
    return fmt::format(": the team has {} ranks", table.size());
  if (fault.bytes == kArgumentsDiffer) return ": threads made one call with different arguments";
  if (fault.address == 0) return fault.bytes == 0 ? ": the lane does not exist" : ": a null pointer";
  for (std::uint32_t w = 0; w < windows.count(); ++w) {
    const Memory& memory = windows.window(w).memory;
    const std::uint64_t offset = offset_in(memory, fault);
    if (offset >= memory.bytes()) continue;
    if (fault.bytes > memory.bytes() - offset)
      return fmt::format(": ends {} bytes beyond that memory", fault.bytes - (memory.bytes() - offset));
    // A wait for any rank is refused for its range alone, so this call named the number as a rank.
    if (fault.rank == kAnyTeamRank)
      return fmt::format(": the team has {} ranks, and that is number {}", table.size(), fault.rank);
    return fmt::format(": the lane does not exist, {}or threads made one call with different arguments",
                       w == 0 ? "" : "the window came after the handle, ");
  }
  return ": neither of the heap nor of a window";
}

// Returns the reason for which a call was refused.
std::string reason_of(const TeamFault& fault, const Table& table, const Windows& windows) {
  switch (fault.status) {
    case Status::kRemoteInvalid:
      return fault.address % sizeof(std::uint64_t) != 0 ? ": not 8-byte aligned" : "";
    case Status::kInvalidLength: return length_reason_of(fault);
    case Status::kInvalidArgument: return argument_reason_of(fault, table, windows);
    case Status::kUnsupported: return ": the team was made without the slots of that mode";
    default: return "";
  }
}

// Tells the word, the value, the time, and whether the awaited rank's NIC still answers: a wait that has
// probed it in vain ends as unreachable.
std::string wait_text(const TeamFault& fault, const Table& table, const Windows& windows,
                      const Connections& connections, const EndpointOptions& options) {
  const bool is_collective = is_of_collective(fault, *table.copy());
  std::string text = ", waited";
  if (fault.status == Status::kTimeout)
    text += fmt::format(" {:.3f} s", static_cast<double>(*options.timeout_ns) / kNsInSecond);
  if (is_collective) {
    text += " in a collective call";
  } else {
    text += fmt::format(" for the word at {} to be {} {}", place_of(fault, windows.heap()),
                        kComparisons[(fault.waited - 1) % kComparisons.size()], fault.bytes);
  }
  if (!is_collective && !windows.is_heap_in_gpu() && is_in_heap(fault, windows))
    text += fmt::format(", now {}", std::atomic_ref(*reinterpret_cast<std::uint64_t*>(fault.address)).load());
  const bool probed =
      fault.status == Status::kTimeout && fault.rank < table.size() && !options.may_time_out_before_retries;
  if (probed && connections.answers(table.members()[fault.rank]))
    text += fmt::format(": that rank's NIC answers, so it is slow, or does not {}",
                        is_collective ? "make that call with the same arguments" : "set the word");
  return text;
}

// Tells the bound of a call that ended by it, and what gives a transfer of many bytes more.
std::string bound_text(const TeamFault& fault, const Table& table, const Connections& connections,
                       const EndpointOptions& options) {
  const bool answers = fault.rank < table.size() && !options.may_time_out_before_retries &&
                       connections.answers(table.members()[fault.rank]);
  return fmt::format(", after {:.3f} s{}", static_cast<double>(*options.timeout_ns) / kNsInSecond,
                     answers ? fmt::format(": that rank's NIC answers, so {} above that gives slow or large "
                                           "transfers the time that they need",
                                           kCallTimeoutVariable)
                             : "");
}

}  // namespace

std::string describe_fault(const Table& table, const Windows& windows, const Connections& connections,
                           const EndpointOptions& options) {
  std::string text;
  const TeamFault& fault = *table.fault();
  if (fault.status != Status::kOk) {
    const auto rank = fault.rank == kAnyTeamRank ? std::string("any rank") : name_of(table, fault.rank);
    text = fmt::format("{}: {}", status_name(fault.status), rank);
    if (fault.address != 0 && fault.waited != 0)
      text += wait_text(fault, table, windows, connections, options);
    if (fault.waited == 0) {
      if (fault.address != 0 || (fault.bytes != 0 && fault.bytes != kArgumentsDiffer))
        text += fmt::format(", {} bytes at {}", fault.bytes, place_of(fault, windows.heap()));
      text += reason_of(fault, table, windows);
    }
    if (fault.status == Status::kTimeout && fault.waited == 0)
      text += bound_text(fault, table, connections, options);
  }
  const std::string failures = connections.describe_failures(table);
  if (!text.empty() && !failures.empty()) text += "; ";
  text += failures;
  return text.empty() ? status_name(Status::kOk) : text;
}

}  // namespace gdx::team
