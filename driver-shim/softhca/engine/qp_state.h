// The queue pair state machine: the permitted transitions of modify, and their required attributes.
// Source: InfiniBand Architecture Specification 1.4, section 10.3.1 and table 96 (queue pair transition).
#pragma once

#include <cstdint>

#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca {

// Returns 0, or EINVAL: the transition is forbidden, lacks a required attribute, or an attribute is out of
// range.
[[nodiscard]] Errno check_modify(QpType type, QpState from, std::uint32_t mask,
                                 const QpAttributes& attributes);

}  // namespace gdx::softhca
