// Collective calls of a team: every rank states its call, and all get the same verdict. A rank that fails
// takes part too, so that the others need not wait for it until the timeout.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "host/bootstrap/world.h"
#include "proto/gpu/memory.h"

namespace gdx::team {

enum class Call : std::uint32_t {
  kCreate,
  kRest,  // a later meeting of the same call
  kAllocate,
  kFree,
  kWindow,
  kBarrier,
  kSplit,
  kSubteam,
  kClose
};

inline constexpr std::uint32_t kComparedLanes = 8;

// Statement of one rank. Trivially copyable, because ranks exchange it as bytes.
struct Statement {
  Call call{};
  Status status{};
  std::uint64_t team{};          // equal at all ranks; 0 until it is created
  std::uint64_t arguments[2]{};  // equal at all ranks
  std::uint64_t own[2]{};        // of this rank
  RemoteMemory memory{};         // of this rank
  // Of a barrier and the end: TeamAreaWords::alike of each lane. Equal where as many calls have begun.
  std::uint64_t kernel_calls[kComparedLanes]{};
  char reason[256]{};  // message for a status other than kOk
};

// Gathers the statements of all ranks; `done` is this rank's part so far. Errors: `done`'s; another rank's,
// naming it; kInvalidArgument at every rank where calls, teams or arguments differ, naming a rank that
// differs, and where collective calls of kernels did; those of World::allgather.
[[nodiscard]] Result<std::vector<Statement>> agree(World& world, Statement mine, const Result<void>& done,
                                                   std::uint64_t timeout_ns);

}  // namespace gdx::team
