// Descriptions of what failed on a team, for messages.
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "host/team/team_state.h"
#include "proto/mlx5/wqe.h"

namespace gdx::team {
namespace {

constexpr double kNsInSecond = 1e9;

// In the order of enum Compare, which TeamFault::waited counts from 1.
constexpr std::array<const char*, 6> kComparisons{"==", "!=", ">=", ">", "<=", "<"};

}  // namespace

std::string TeamState::place_of(const TeamFault& fault) const {
  const std::uint64_t offset = fault.address - reinterpret_cast<std::uintptr_t>(heap_memory().data());
  return offset < heap_memory().size() ? fmt::format("heap offset {:#x}", offset)
                                       : fmt::format("{:#x}", fault.address);
}

// Returns the reason for which a call was refused.
std::string TeamState::reason_of(const TeamFault& fault, const Table& table) const {
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
  for (const Window& window : windows_) {
    const std::uint64_t size = window.memory.bytes();
    const std::uint64_t offset = fault.address - reinterpret_cast<std::uintptr_t>(window.memory.data());
    if (offset >= size) continue;
    if (fault.bytes > size - offset)
      return fmt::format(": ends {} bytes beyond that memory", fault.bytes - (size - offset));
    return ": the lane does not exist, or the window came later";
  }
  return ": neither of the heap nor of a window";
}

// Tells the word, the value, the time, and whether the awaited rank's NIC still answers: a wait that has
// probed it in vain ends as unreachable.
std::string TeamState::wait_text(const TeamFault& fault, const Table& table) const {
  std::string text = ", waited";
  if (fault.status == Status::kTimeout)
    text += fmt::format(" {:.3f} s", static_cast<double>(*options_.endpoint.timeout_ns) / kNsInSecond);
  text += fmt::format(" for the word at {} to be {} {}", place_of(fault),
                      kComparisons[(fault.waited - 1) % kComparisons.size()], fault.bytes);
  const std::uint64_t offset = fault.address - reinterpret_cast<std::uintptr_t>(heap_memory().data());
  if (!gpu_heap_ && offset < heap_memory().size())
    text += fmt::format(", now {}", std::atomic_ref(*reinterpret_cast<std::uint64_t*>(fault.address)).load());
  if (fault.status != Status::kTimeout || fault.rank >= table.size() ||
      options_.endpoint.may_time_out_before_retries)
    return text;
  for (std::uint32_t lane = 0; lane < options_.lanes; ++lane) {
    const ConnectionEnd& end = ends_[end_index(lane, table.members()[fault.rank])];
    if (!end.is_known() || end.endpoint->fault().status != Status::kOk) continue;
    return text + ": that rank's NIC answers, so it is slow, or does not set the word";
  }
  return text;
}

std::string TeamState::describe_fault(const Table& table) const {
  std::string text;
  const TeamFault& fault = *table.fault();
  const std::lock_guard lock(mutex_);
  if (fault.status != Status::kOk) {
    const auto rank = fault.rank == kAnyTeamRank ? std::string("any rank") : name_of(table, fault.rank);
    text = fmt::format("{}: {}", status_name(fault.status), rank);
    if (fault.address != 0 && fault.waited != 0) text += wait_text(fault, table);
    if (fault.address != 0 && fault.waited == 0)
      text += fmt::format(", {} bytes at {}{}", fault.bytes, place_of(fault), reason_of(fault, table));
  }
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    for (std::uint32_t lane = 0; lane < options_.lanes; ++lane) {
      const ConnectionEnd& end = ends_[end_index(lane, table.members()[i])];
      if (!end.why_gone.empty())
        text += fmt::format("{}connection to {}, lane {}: {}", text.empty() ? "" : "; ", name_of(table, i),
                            lane, end.why_gone);
      if (!end.is_known() || end.endpoint->fault().status == Status::kOk) continue;
      text += fmt::format("{}endpoint towards {}, lane {}: {}", text.empty() ? "" : "; ", name_of(table, i),
                          lane, end.endpoint->describe_fault());
    }
  }
  return text.empty() ? status_name(Status::kOk) : text;
}

}  // namespace gdx::team
