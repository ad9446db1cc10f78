// Doorbell registers of endpoints.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "host/calibration/choose_modes.h"
#include "host/hca/hca.h"
#include "proto/doorbell_kind.h"

namespace gdx {

// MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED: a page of one's own without write-combining. Headers and libmlx5 before
// rdma-core 45 lack it, and such a libmlx5 refuses it. Type NC is one page for all of a context.
inline constexpr std::uint32_t kDedicatedDoorbellPage = 1u << 31;

struct DoorbellRegister {
  UarHandle uar;
  std::uint32_t blueflame_half_bytes = 0;  // as in EndpointHandle
};

// Checks that kernels of `modes`'s site may ring so. Hardware needs a passed probe for BlueFlame. The
// software HCA needs none, because it executes a copy only where that equals the ring's WQE. Errors: those of
// check_blueflame_probe.
[[nodiscard]] Result<void> check_doorbell(const Hca& hca, DoorbellKind kind, const ModeOptions& modes);

// Allocates a register for doorbells of `kind`. BlueFlame needs a register of its own, of which an HCA has
// few. When they are used up the register takes plain doorbells, and blueflame_half_bytes is 0. A register
// for plain doorbells is the endpoint's own too, while there are pages. Threads of one kernel that store to
// one register at once slow each other. `shares_page`: it is the context's, for plain doorbells. Errors:
// kSystem. Threads: any.
[[nodiscard]] Result<DoorbellRegister> allocate_doorbell(const Hca& hca, DoorbellKind kind,
                                                         bool shares_page = false);

}  // namespace gdx
