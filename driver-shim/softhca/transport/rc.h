// The RC transport: one requester and one responder per queue pair. Both are pure: packets, work
// requests and time come in as arguments, everything they do goes out through a Port. They own no
// memory of the user's, no socket, no clock and no thread; whoever drives them serialises the calls.
// Source: InfiniBand Architecture Specification 1.4, sections 9.7 to 9.9.
#pragma once

#include "driver-shim/softhca/transport/rc_types.h"
#include "driver-shim/softhca/transport/requester.h"
#include "driver-shim/softhca/transport/responder.h"
