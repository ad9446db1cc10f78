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
  kClose
};

// Statement of one rank. Trivially copyable, because ranks exchange it as bytes.
struct Statement {
  Call call{};
  Status status{};
  std::uint64_t team{};          // equal at all ranks; 0 until it is created
  std::uint64_t arguments[2]{};  // equal at all ranks
  std::uint64_t own[2]{};        // of this rank
  RemoteMemory memory{};         // of this rank
  char reason[256]{};            // for a status other than kOk
};

// Gathers the statements of all ranks; `done` is this rank's part so far. Errors: `done`'s; another rank's,
// naming it; kInvalidArgument at every rank where calls, teams or arguments differ, naming a rank that
// differs; those of World::allgather.
[[nodiscard]] Result<std::vector<Statement>> agree(World& world, Statement mine, const Result<void>& done,
                                                   std::uint64_t timeout_ns);

}  // namespace gdx::team
