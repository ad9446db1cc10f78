// Order across lanes, and completion of single operations.
#include <gtest/gtest.h>

#include <cstdint>

#include "tests/unit/device/team_records.h"

namespace gdx::device {
namespace team_order_test {

class TeamOrder : public Team {
 protected:
  void SetUp() override {
    Team::SetUp();
    handle_.atomics = TeamAtomics::kNic;
    for (const auto& nic : nics_) nic->completes_one_a_step = true;
  }
  // Returns the operations to `rank` that are posted and not known to be complete.
  std::uint32_t outstanding(std::uint32_t lane, std::uint32_t rank) {
    const SharedState& shared = record(lane, rank).state->shared;
    return exec::load_counter(&shared.published) - exec::load_counter(&shared.completed);
  }
  Status put_some(const TeamHandle& team, std::uint32_t rank, int times) {
    Status status = Status::kOk;
    for (int i = 0; i < times && status == Status::kOk; ++i)
      status = gdx_put(team, heap(), heap() + 64, 64, rank);
    return status;
  }
};

TEST_F(TeamOrder, signal_after_all_waits_for_the_other_lanes_alone) {
  for (const std::uint32_t rank : {kNative, kOwn}) {
    std::uint32_t own_lane = 0;
    EXPECT_EQ(status_of([&](const TeamHandle& team) {
                const TeamHandle second = team.on_lane(1);
                Status status = rank == kNative ? put_some(second, rank, 5)
                                                : gdx_signal(second, word(0), 1, SignalOp::kSet, rank);
                if (status == Status::kOk && rank == kNative) status = put_some(team, rank, 5);
                if (status == Status::kOk)
                  status = gdx_signal_after_all(team.on_lane(0), word(1), 1, SignalOp::kSet, rank);
                EXPECT_EQ(outstanding(1, rank), 0u);
                own_lane = outstanding(0, rank);
                return status;
              }),
              Status::kOk);
    EXPECT_GT(own_lane, 0u) << "its own lane keeps the order, so nothing is waited for";
  }
}

TEST_F(TeamOrder, signal_after_all_tells_what_the_other_lanes_puts_came_to) {
  nic(kNative, 1).fails_at = 0;
  EXPECT_NE(status_of([&](const TeamHandle& team) {
              const Status status = put_some(team.on_lane(1), kNative, 1);
              EXPECT_EQ(status, Status::kOk);
              return gdx_signal_after_all(team, word(1), 1, SignalOp::kSet, kNative);
            }),
            Status::kOk);
  EXPECT_EQ(fault_.rank, kNative);
  EXPECT_TRUE(nic(kNative, 0).requests().empty()) << "no signal for puts that failed";
  EXPECT_EQ(status_of([&](const TeamHandle& team) {
              return gdx_signal_after_all(team, word(1), 1, SignalOp::kSet, kSize);
            }),
            Status::kInvalidArgument);
}

TEST_F(TeamOrder, flush_of_a_mark_does_not_wait_for_what_comes_behind_it) {
  std::uint32_t left = 0;
  EXPECT_EQ(status_of([&](const TeamHandle& team) {
              TeamMark mark{};
              Status status = put_some(team, kNative, 3);
              if (status == Status::kOk) status = gdx_mark(team, &mark, kNative);
              if (status == Status::kOk) status = put_some(team, kNative, 20);
              if (status == Status::kOk) status = gdx_flush(team, mark);
              EXPECT_GE(exec::load_counter(&record(0, kNative).state->shared.completed), 3u);
              left = outstanding(0, kNative);
              return status;
            }),
            Status::kOk);
  EXPECT_GT(left, 0u);
}

TEST_F(TeamOrder, marks_of_every_way_and_scope) {
  std::uint32_t failed = 0;
  in_kernel(
      [&](const TeamHandle& team) {
        for (const std::uint32_t rank : {kOwn, kNative, kDirect, kAbsent, kMapped}) {
          TeamMark mark{};
          Status status = gdx_mark<Scope::kBlock>(team, &mark, rank);
          if (status == Status::kOk) status = gdx_flush<Scope::kBlock>(team, mark);
          if (status != Status::kOk || mark.rank != rank) ++failed;
        }
      },
      3);
  EXPECT_EQ(failed, 0u);
  connect(0, kDirect, PeerWay::kGone);
  EXPECT_EQ(status_of([&](const TeamHandle& team) {
              TeamMark mark{};
              const Status status = gdx_mark(team, &mark, kDirect);
              return status == Status::kOk ? gdx_flush(team, mark) : status;
            }),
            Status::kPeerUnreachable);
  EXPECT_EQ(status_of([&](const TeamHandle& team) {
              TeamMark mark{};
              return gdx_mark(team, &mark, kSize);
            }),
            Status::kInvalidArgument);
}

}  // namespace team_order_test
}  // namespace gdx::device
