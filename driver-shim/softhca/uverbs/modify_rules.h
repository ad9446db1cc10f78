// Attributes that a program may, and must, change together with a queue pair's state.
// Source: Linux drivers/infiniband/core/verbs.c, ib_modify_qp_is_ok(); InfiniBand Architecture Specification
// 1.4, table 96.
#pragma once

#include <cstdint>

#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca::uverbs {

// Bits of enum ib_qp_attr_mask that change nothing: what they state must be so already.
inline constexpr std::uint32_t kCurrentStateAttribute = 1u << 1;
inline constexpr std::uint32_t kMigrationStateAttribute = 1u << 18;

// Checks before the device does, as the kernel: the device accepts more attributes for more transitions.
[[nodiscard]] bool may_modify(QpType type, QpState from, QpState to, std::uint32_t mask);

}  // namespace gdx::softhca::uverbs
