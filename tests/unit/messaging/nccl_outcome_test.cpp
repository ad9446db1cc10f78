// Results that NCCL is given for a status.
#include <gtest/gtest.h>

#include "host/plugins/nccl/log.h"

namespace gdx::nccl {
namespace {

// A call that fails has made nothing, so that NCCL must not take it for one that has.
TEST(Outcome, no_status_but_ok_is_success) {
  constexpr std::uint32_t kStatuses = 0x1000;
  EXPECT_EQ(outcome_of(Status::kOk), Outcome::kSuccess);
  for (std::uint32_t status = 1; status < kStatuses; ++status)
    EXPECT_NE(outcome_of(static_cast<Status>(status)), Outcome::kSuccess) << status;
  EXPECT_EQ(outcome_of(Status::kBusy), Outcome::kSystemError);
  EXPECT_EQ(outcome_of(Status::kPeerGone), Outcome::kRemoteError);
}

}  // namespace
}  // namespace gdx::nccl
