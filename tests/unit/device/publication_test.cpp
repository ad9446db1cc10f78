// Ends of a wait for the turn on a shared endpoint, at the instants at which another thread publishes.
#include <gtest/gtest.h>

#include <cstdint>

#include "device/exec/exec.h"
#include "device/impl/shared_wait.h"

namespace gdx {
namespace {

constexpr std::uint64_t kTimeoutNs = 1000;
constexpr std::uint64_t kLateNs = 100 * kTimeoutNs;

struct Queue {
  mlx5::WqeBasicBlock blocks[1024]{};
  mlx5::Cqe64 entries[1024]{};
  Be32 record{};
  std::uint64_t doorbell = 0;
  QueueState state{};
  int clock_reads = 0;
  std::uint64_t second_read_ns = kLateNs;
  void (*on_second_clock_read)(Queue&) = nullptr;
};
Queue* queue;

std::uint64_t read_clock() {
  if (++queue->clock_reads == 2 && queue->on_second_clock_read != nullptr)
    queue->on_second_clock_read(*queue);
  return queue->clock_reads < 2 ? 0 : queue->second_read_ns;
}

// Publishes [first, first + 1) on a queue whose turn is at `published`. The wait is over its time when it
// reads the clock again.
Status publish_late(Queue& on, std::uint32_t published, std::uint32_t first) {
  queue = &on;
  on.state.handle.send_queue = on.blocks;
  on.state.handle.completion_queue = on.entries;
  on.state.handle.log_send_queue = on.state.handle.log_completion_queue = 10;
  on.state.handle.send_record = &on.record;
  on.state.handle.doorbell = &on.doorbell;
  on.state.handle.timeout_ns = kTimeoutNs;
  on.state.handle.state = &on.state;
  on.state.handle.sharing = Sharing::kShared;
  on.state.shared.published = published;
  on.state.shared.reserved = first + 1;
  Status status{};
  exec::LaunchConfig config;
  config.clock = read_clock;
  static_cast<void>(exec::run_grid(config, [&] {
    status = device::impl::publish_late<Placement::kHost>(&on.state, first, first + 1, 0);
  }));
  return status;
}

// The failure is found between the load of `published` and that of `claimed`, when others have gone on by
// laps.
TEST(Publication, post_that_others_published_before_the_failure_was_met_is_posted) {
  Queue on;
  on.on_second_clock_read = [](Queue& at) { at.state.shared.claimed = at.state.shared.published = 2005; };
  EXPECT_EQ(publish_late(on, 0, 4), Status::kOk);
}

TEST(Publication, post_that_nobody_claimed_is_taken_back) {
  Queue on;
  EXPECT_EQ(publish_late(on, 0, 4), Status::kTimeout);
}

TEST(Publication, claimed_post_is_waited_for) {
  Queue on;
  on.on_second_clock_read = [](Queue& at) {
    at.state.shared.claimed = 5;
    at.state.shared.published = 5;
  };
  EXPECT_EQ(publish_late(on, 0, 4), Status::kOk);
}

// A lap later that entry is another post's, which would be claimed before it is stored.
TEST(Publication, mark_of_a_post_whose_turn_comes_is_cleared) {
  Queue on;
  on.second_read_ns = 0;
  on.on_second_clock_read = [](Queue& at) {
    EXPECT_EQ(at.state.shared.marks[4], 1u);
    at.state.shared.published = 4;
  };
  EXPECT_EQ(publish_late(on, 0, 4), Status::kOk);
  EXPECT_EQ(on.state.shared.published, 5u);
  EXPECT_EQ(on.state.shared.marks[4], 0u);
}

// `claimed` is 0 since the queue was made, and the post ends 2^32 blocks later.
TEST(Publication, claim_of_a_number_before_the_wrap_does_not_keep_a_thread) {
  Queue on;
  EXPECT_EQ(publish_late(on, 0xffffffef, 0xfffffff0), Status::kTimeout);
}

}  // namespace
}  // namespace gdx
