// Congestion marks on every third packet (CTest sets GDX_SOFTHCA_MARK): the sender gets CNPs, and all data
// arrives.
#include <cstring>

#include "tests/e2e/pair.h"

namespace gdx {
namespace congestion_test {

class Congested : public Pair {};

TEST_F(Congested, marked_puts_draw_notifications_and_arrive) {
  constexpr std::uint64_t kBytes = 100'000;
  for (std::uint64_t i = 0; i < kBytes; ++i) a_.buffer->data()[i] = static_cast<std::byte>(i * 7);
  in_kernel(a_, [&](auto& ep) {
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(gdx_put<Mode::kPush>(ep, a_.peer, a_.buffer->local(), kBytes), Status::kOk);
      ASSERT_EQ(gdx_flush(ep), Status::kOk);
    }
  });
  EXPECT_EQ(std::memcmp(a_.buffer->data(), b_.buffer->data(), kBytes), 0);
  EXPECT_GT(counter("np_ecn_marked_roce_packets"), 10u);
  EXPECT_GT(counter("np_cnp_sent"), 0u);
  EXPECT_GT(counter("rp_cnp_handled"), 0u);
  EXPECT_LE(counter("rp_cnp_handled"), counter("np_cnp_sent"));
  // A tail that is late on a busy machine is sent again without a timeout.
  EXPECT_EQ(counter("softhca_retransmitted_packets"), counter("softhca_tail_resends"));
  EXPECT_EQ(staging_violations(), 0u);
}

}  // namespace congestion_test
}  // namespace gdx
