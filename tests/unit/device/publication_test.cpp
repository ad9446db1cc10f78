// Ends of a wait for the turn on a shared endpoint, at the instants at which another thread publishes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "device/exec/exec.h"
#include "device/impl/shared_wait.h"

namespace gdx {
namespace publication_test {

constexpr std::uint64_t kTimeoutNs = 1000;
constexpr std::uint64_t kLateNs = 100 * kTimeoutNs;
constexpr std::uint32_t kQpn = 0x123456;

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
Status publish_late(Queue& on, std::uint32_t published, std::uint32_t first,
                    std::uint64_t doorbell_value = 0) {
  queue = &on;
  on.state.handle.qpn = kQpn;
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
    status = device::impl::publish_late<Placement::kHost>(&on.state, first, first + 1, doorbell_value);
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

std::uint64_t write_doorbell(std::uint32_t index) {
  return device::impl::doorbell_value(device::impl::control_segment(
      mlx5::WqeOpcode::kRdmaWrite, index, device::impl::queue_pair_word(kQpn), 3, 0));
}

TEST(Publication, post_with_its_turn_is_announced_with_the_marked_ones_behind_it) {
  for (const std::uint32_t first : {4u, 510u, 0x1fffeu}) {
    Queue alone;
    EXPECT_EQ(publish_late(alone, first, first, 0x5a5a), Status::kOk);
    EXPECT_EQ(alone.doorbell, 0x5a5au) << "its own";
    EXPECT_EQ(byte_swap(alone.record.raw), (first + 1) & 0xffff);
    EXPECT_EQ(alone.state.shared.published, first + 1);
    EXPECT_EQ(alone.state.shared.claimed, 0u);
    Queue on;
    on.state.shared.marks[(first + 1) % kMarkedBlocks] = 2;
    on.state.shared.marks[(first + 3) % kMarkedBlocks] = 1;
    EXPECT_EQ(publish_late(on, first, first, 0x5a5a), Status::kOk);
    EXPECT_EQ(on.doorbell, write_doorbell(first + 3)) << "of the last block";
    EXPECT_EQ(byte_swap(on.record.raw), (first + 4) & 0xffff);
    EXPECT_EQ(on.state.shared.published, first + 4);
    EXPECT_EQ(on.state.shared.claimed, first + 4);
  }
}

// An entry further ahead is that of a post of the lap before.
TEST(Publication, post_marks_itself_only_within_a_lap_of_the_turn) {
  for (const std::uint32_t ahead : {1u, kMarkedBlocks - 1, kMarkedBlocks, kMarkedBlocks + 1}) {
    Queue on;
    EXPECT_EQ(publish_late(on, 7, 7 + ahead), Status::kTimeout);
    const std::uint32_t mark = on.state.shared.marks[(7 + ahead) % kMarkedBlocks];
    EXPECT_EQ(mark, ahead < kMarkedBlocks ? 1u : 0u) << ahead;
    EXPECT_EQ(on.state.fault.status, Status::kTimeout);
    EXPECT_EQ(on.state.shared.published, 7u);
    EXPECT_EQ(on.record.raw, 0u);
  }
}

// Lengths of marked posts behind a post of `own` blocks.
TEST(Publication, claim_takes_posts_of_any_lengths_up_to_the_first_gap) {
  const std::vector<std::uint32_t> ones(19, 1);
  const std::vector<std::uint32_t> runs[] = {{},
                                             {1},
                                             {ones.begin(), ones.begin() + 7},
                                             {ones.begin(), ones.begin() + 8},
                                             {ones.begin(), ones.begin() + 9},
                                             ones,
                                             {2, 2, 2},
                                             {1, 3, 1, 1, 2},
                                             {2, 1},
                                             {32, 32, 1},
                                             {1, 1, 2, 1}};
  for (const std::vector<std::uint32_t>& run : runs) {
    for (const std::uint32_t own : {1u, 2u, 32u}) {
      for (const std::uint32_t failure : {device::impl::kNoFailure, device::impl::kFailing}) {
        SharedState shared{};
        shared.failure = failure;
        constexpr std::uint32_t kFirst = 3 * kMarkedBlocks - 5;  // the ring wraps
        std::uint32_t at = kFirst + own;
        for (const std::uint32_t blocks : run) {
          shared.marks[at % kMarkedBlocks] = blocks;
          at += blocks;
        }
        shared.marks[(at + 1) % kMarkedBlocks] = 1;
        const bool goes_on = failure == device::impl::kNoFailure && !run.empty();
        EXPECT_EQ(device::impl::claim_marked(shared, kFirst, kFirst + own), goes_on ? at : kFirst + own);
        EXPECT_EQ(shared.claimed, run.empty() ? 0 : goes_on ? at : kFirst + own);
        EXPECT_EQ(std::count(std::begin(shared.marks), std::end(shared.marks), 0u), kMarkedBlocks - 1);
        EXPECT_EQ(shared.failure, failure);
      }
    }
  }
}

TEST(Publication, claim_is_of_a_post_up_to_two_laps_before_its_end) {
  SharedState shared{};
  for (const std::uint32_t end : {100u, 0xffffff00u}) {
    for (const std::uint32_t beyond : {0u, 1u, 2 * kMarkedBlocks - 1, 2 * kMarkedBlocks, ~0u}) {
      shared.claimed = end + beyond;
      EXPECT_EQ(device::impl::is_claimed(shared, end), beyond < 2 * kMarkedBlocks) << beyond;
    }
  }
}

}  // namespace publication_test
}  // namespace gdx
