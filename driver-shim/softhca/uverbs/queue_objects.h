// State behind queries of queue objects.
#pragma once

#include <rdma/ib_user_ioctl_verbs.h>

#include "driver-shim/softhca/devx/commands.h"
#include "driver-shim/softhca/uverbs/objects.h"

namespace gdx::softhca::uverbs {

struct QueuePairObject : Object {
  ib_uverbs_qp_cap capacity{};
  QpType qp_type = QpType::kRc;
  bool all_signaled = false;
  ib_uverbs_qp_dest destination{};  // as the program gave it
};

struct CompletionQueueObject : Object {
  std::uint32_t entry_bytes = 0;
  std::uint32_t entries = 0;  // as many as it can hold
};

struct SharedReceiveQueueObject : Object {
  std::uint32_t max_wr = 0;
  std::uint32_t max_sge = 0;
};

struct DevxObject : Object {
  devx::Object devx{};
};

}  // namespace gdx::softhca::uverbs
