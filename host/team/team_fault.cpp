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

std::string place_of(const TeamFault& fault, std::span<const std::byte> heap) {
  const std::uint64_t offset = fault.address - reinterpret_cast<std::uintptr_t>(heap.data());
  return offset < heap.size() ? fmt::format("heap offset {:#x}", offset)
                              : fmt::format("{:#x}", fault.address);
}

// Returns the reason for which a call was refused.
std::string reason_of(const TeamFault& fault, const Table& table, const Windows& windows) {
  switch (fault.status) {
    case Status::kRemoteInvalid:
      return fault.address % sizeof(std::uint64_t) != 0 ? ": not 8-byte aligned" : "";
    case Status::kInvalidLength:
      return fault.bytes == 0 ? ": of no signals"
                              : fmt::format(": use 1 to {} bytes", mlx5::kMaxMessageBytes);
    case Status::kInvalidArgument: break;
    default: return "";
  }
  if (fault.rank >= table.size() && fault.rank != kAnyTeamRank)
    return fmt::format(": the team has {} ranks", table.size());
  for (std::uint32_t w = 0; w < windows.count(); ++w) {
    const Memory& memory = windows.window(w).memory;
    const std::uint64_t offset = offset_in(memory, fault);
    if (offset >= memory.bytes()) continue;
    if (fault.bytes > memory.bytes() - offset)
      return fmt::format(": ends {} bytes beyond that memory", fault.bytes - (memory.bytes() - offset));
    return ": the lane does not exist, or the window came later";
  }
  return ": neither of the heap nor of a window";
}

// Tells the word, the value, the time, and whether the awaited rank's NIC still answers: a wait that has
// probed it in vain ends as unreachable.
std::string wait_text(const TeamFault& fault, const Table& table, const Windows& windows,
                      const Connections& connections, const EndpointOptions& options) {
  const Memory& heap = windows.window(0).memory;  // with the words of collective calls
  std::string text = ", waited";
  if (fault.status == Status::kTimeout)
    text += fmt::format(" {:.3f} s", static_cast<double>(*options.timeout_ns) / kNsInSecond);
  text += fmt::format(" for the word at {} to be {} {}", place_of(fault, windows.heap()),
                      kComparisons[(fault.waited - 1) % kComparisons.size()], fault.bytes);
  if (!windows.is_heap_in_gpu() && offset_in(heap, fault) < heap.bytes())
    text += fmt::format(", now {}", std::atomic_ref(*reinterpret_cast<std::uint64_t*>(fault.address)).load());
  const bool probed =
      fault.status == Status::kTimeout && fault.rank < table.size() && !options.may_time_out_before_retries;
  if (probed && connections.answers(table.members()[fault.rank]))
    text += ": that rank's NIC answers, so it is slow, or does not set the word";
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
    if (fault.address != 0 && fault.waited == 0)
      text += fmt::format(", {} bytes at {}{}", fault.bytes, place_of(fault, windows.heap()),
                          reason_of(fault, table, windows));
    if (fault.status == Status::kTimeout && fault.waited == 0)
      text += bound_text(fault, table, connections, options);
  }
  const std::string failures = connections.describe_failures(table);
  if (!text.empty() && !failures.empty()) text += "; ";
  text += failures;
  return text.empty() ? status_name(Status::kOk) : text;
}

}  // namespace gdx::team
