#include "host/team/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace gdx::team {
namespace {

std::string text(const Statement& statement) {
  const auto [first, second] = statement.arguments;
  switch (statement.call) {
    case Call::kCreate: return fmt::format("create with heap_bytes = {}, lanes = {}", first, second);
    case Call::kRest: return "the rest of a call";
    case Call::kAllocate: return fmt::format("allocate of {} bytes aligned to {}", first, second);
    case Call::kFree: return fmt::format("free of heap offset {:#x}", first);
    case Call::kWindow: return fmt::format("register_window of {} bytes", first);
    case Call::kBarrier: return "barrier";
    case Call::kSplit: return "split";
    case Call::kSubteam: return "the begin of a team of some ranks";
    case Call::kClose: return "close";
  }
  return "a call of another gdx";
}

// Returns text that names the statement's team. Teams are numbered as rank 0 created them.
std::string place(const Statement& statement) {
  return statement.team == 0 ? std::string() : fmt::format(" (team {})", statement.team);
}

// Makes a peer's text printable.
std::string shown_reason(const Statement& statement) {
  std::string shown(statement.reason, strnlen(statement.reason, sizeof statement.reason));
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return shown;
}

// Refuses what kernels gave to as many collective calls, where it differs.
Result<void> check_kernel_calls(const Statement& first, const Statement& other, std::uint32_t rank) {
  for (std::uint32_t lane = 0; lane < kComparedLanes; ++lane) {
    const std::uint64_t ours = first.kernel_calls[lane];
    const std::uint64_t theirs = other.kernel_calls[lane];
    if (ours == theirs || ours >> 32 != theirs >> 32) continue;
    return fail(
        Status::kInvalidArgument,
        fmt::format("of the first {} collective calls of kernels on lane {} one got other arguments "
                    "at rank {} than at "
                    "rank 0: give each the same count, type, root and reduction at all ranks, and make "
                    "an all-reduce in place, or a call through a piece of the heap, at all or at none",
                    ours >> 32, lane, rank));
  }
  return {};
}

}  // namespace

Result<std::vector<Statement>> agree(World& world, Statement mine, const Result<void>& done,
                                     std::uint64_t timeout_ns) {
  if (!done) {
    mine.status = done.error().status;
    const std::string& reason = done.error().message;
    std::copy_n(reason.begin(), std::min(reason.size(), sizeof mine.reason - 1), std::begin(mine.reason));
  }
  auto all = world.allgather_value(mine, timeout_ns);
  // A rank that is lost may be why this one's part has failed.
  if (!all && (done || all.error().status == Status::kPeerGone)) return tl::unexpected(all.error());
  if (!done) return tl::unexpected(done.error());
  for (std::uint32_t rank = 0; rank < all->size(); ++rank) {
    const Statement& other = (*all)[rank];
    if (other.status == Status::kOk) continue;
    return fail(other.status, fmt::format("rank {}: {}", rank, shown_reason(other)));
  }
  const Statement& first = all->front();
  for (std::uint32_t rank = 1; rank < all->size(); ++rank) {
    const Statement& other = (*all)[rank];
    if (other.call == first.call && other.team == first.team &&
        std::ranges::equal(other.arguments, first.arguments)) {
      GDX_TRY(check_kernel_calls(first, other, rank));
      continue;
    }
    return fail(Status::kInvalidArgument,
                fmt::format("team call of rank {}: {}; of rank 0: {}; all ranks must make the same calls, in "
                            "the same order",
                            rank, text(other) + place(other), text(first) + place(first)));
  }
  return all;
}

}  // namespace gdx::team
