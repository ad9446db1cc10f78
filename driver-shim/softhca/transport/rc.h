// The RC transport: one requester and one responder per queue pair. Both are pure: packets, work requests and
// time come in as arguments, and all effects go out through a Port. They own no user memory, socket, clock or
// thread; the caller serialises all calls.
// Source: InfiniBand Architecture Specification 1.4, sections 9.7 to 9.9.
#pragma once

#include "driver-shim/softhca/transport/rc_types.h"
#include "driver-shim/softhca/transport/requester.h"
#include "driver-shim/softhca/transport/responder.h"
