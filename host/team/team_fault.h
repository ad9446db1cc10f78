// Description of what failed on a team, for messages.
#pragma once

#include <string>

#include "host/team/connections.h"
#include "host/team/windows.h"

namespace gdx::team {

// Returns "peer unreachable: rank 3, 8 bytes at heap offset 0x80; connection to rank 3, lane 0: ..."; "ok"
// while all is healthy. For a time at which no kernel runs on the team.
[[nodiscard]] std::string describe_fault(const Table& table, const Windows& windows,
                                         const Connections& connections, const EndpointOptions& options);

}  // namespace gdx::team
