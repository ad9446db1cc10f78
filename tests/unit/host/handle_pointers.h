#pragma once

#include <vector>

#include "proto/gpu/queue.h"

namespace gdx {

// Returns all pointers by which a kernel reaches memory through the handle of an endpoint with staging.
inline std::vector<const void*> pointers_of(const EndpointHandle& handle) {
  return {handle.send_queue,
          handle.completion_queue,
          handle.send_record,
          handle.doorbell,
          handle.scratch,
          handle.state,
          handle.owner,
          handle.abort,
          handle.staging.base,
          handle.staging.grants,
          handle.staging.granted_slots,
          handle.staging.requests,
          handle.staging.returned_slots,
          handle.staging.held};
}

}  // namespace gdx
