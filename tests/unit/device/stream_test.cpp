// Streams of the CPU layer: order, events, errors, and progress of streams that wait for each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdint>
#include <vector>

#include "device/exec/exec.h"

namespace gdx::exec {
namespace stream_test {

using ::testing::ElementsAre;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

Stream made() {
  Stream stream = nullptr;
  EXPECT_EQ(create_stream(&stream), Status::kOk);
  return stream;
}
Event made_event() {
  Event event = nullptr;
  EXPECT_EQ(create_event(&event), Status::kOk);
  return event;
}

void wait_until(const std::uint64_t* word, std::uint64_t value) {
  while (load_acquire(word) < value) relax();
}

__global__ void note(std::vector<int>* order, int number) { order->push_back(number); }
__global__ void note_after(std::vector<int>* order, int number, const std::uint64_t* word) {
  wait_until(word, 1);
  order->push_back(number);
}
// Ends as a divergent barrier does.
__global__ void fail() {
  if (threadIdx.x == 0) sync_block();
  if (threadIdx.x == 1) sync_warp();
}

// Takes turns with a kernel of another stream.
__global__ void take_turns(std::uint64_t* turn, std::uint64_t first, std::uint64_t turns) {
  for (std::uint64_t t = first; t < turns; t += 2) {
    wait_until(turn, t);
    publish(turn, t + 1);
  }
}

TEST(Stream, launches_return_at_once_and_run_in_their_order) {
  const Stream stream = made();
  std::vector<int> order;
  std::uint64_t go = 0;
  ASSERT_EQ(launch_async({.stream = stream}, note_after, &order, 1, &go), Status::kOk);
  for (int i = 2; i <= 5; ++i) ASSERT_EQ(launch_async({.stream = stream}, note, &order, i), Status::kOk);
  EXPECT_EQ(query(stream), Status::kPending);
  publish(&go, 1);  // a launch that waited for its kernel would never come here
  ASSERT_EQ(launch({.stream = stream}, note, &order, 6), Status::kOk);
  EXPECT_THAT(order, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(query(stream), Status::kOk);
  destroy_stream(stream);
}

TEST(Stream, failure_is_kept_until_asked_and_stops_the_launches_behind_it) {
  const Stream stream = made();
  const Event event = made_event();
  std::vector<int> order;
  CaptureStderr();
  ASSERT_EQ(launch_async({.block = {2}, .stream = stream}, fail), Status::kOk);
  ASSERT_EQ(launch_async({.stream = stream}, note, &order, 1), Status::kOk);
  ASSERT_EQ(record(event, stream), Status::kOk);
  EXPECT_EQ(synchronize(event), Status::kOk) << "others must not hang";
  while (query(stream) == Status::kPending) {
  }
  EXPECT_EQ(synchronize(stream), Status::kSystem);
  EXPECT_EQ(synchronize(stream), Status::kOk) << "asked";
  EXPECT_THAT(order, ElementsAre());
  ASSERT_EQ(launch({.stream = stream}, note, &order, 2), Status::kOk);
  EXPECT_THAT(order, ElementsAre(2));
  EXPECT_THAT(GetCapturedStderr(), ::testing::HasSubstr("divergent barrier"));
  destroy_event(event);
  destroy_stream(stream);
}

TEST(Stream, failure_that_nobody_asked_for_is_told_at_the_end) {
  const Stream stream = made();
  CaptureStderr();
  ASSERT_EQ(launch_async({.block = {2}, .stream = stream}, fail), Status::kOk);
  destroy_stream(stream);
  EXPECT_THAT(GetCapturedStderr(), ::testing::HasSubstr("nobody asked for: system error"));
}

TEST(Stream, event_orders_launches_of_two_streams) {
  const Stream first = made();
  const Stream second = made();
  const Event event = made_event();
  ASSERT_EQ(wait_for(second, event), Status::kOk) << "without a record it waits for nothing";
  std::vector<int> order;
  std::uint64_t go = 0;
  ASSERT_EQ(launch_async({.stream = first}, note_after, &order, 1, &go), Status::kOk);
  ASSERT_EQ(record(event, first), Status::kOk);
  ASSERT_EQ(wait_for(second, event), Status::kOk);
  ASSERT_EQ(launch_async({.stream = second}, note, &order, 2), Status::kOk);
  // A record on an idle stream: the wait above names the one before it.
  const Stream idle = made();
  ASSERT_EQ(record(event, idle), Status::kOk);
  ASSERT_EQ(synchronize(event), Status::kOk);
  ASSERT_EQ(synchronize(idle), Status::kOk);
  EXPECT_EQ(query(second), Status::kPending);
  destroy_event(event);
  publish(&go, 1);
  ASSERT_EQ(synchronize(second), Status::kOk);
  EXPECT_THAT(order, ElementsAre(1, 2));
  for (const Stream stream : {first, second, idle}) destroy_stream(stream);
}

// On one core, which is less than any machine has.
TEST(Stream, kernels_that_wait_for_each_other_end_on_one_core) {
  cpu_set_t all;
  cpu_set_t one;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);  // threads of streams inherit it
  const Stream first = made();
  const Stream second = made();
  std::uint64_t turn = 0;
  constexpr std::uint64_t kTurns = 100;
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(launch_async({.stream = first}, take_turns, &turn, 0, kTurns), Status::kOk);
    ASSERT_EQ(launch_async({.stream = second}, take_turns, &turn, 1, kTurns), Status::kOk);
    ASSERT_EQ(synchronize(first), Status::kOk);
    ASSERT_EQ(synchronize(second), Status::kOk);
    EXPECT_EQ(turn, kTurns);
    turn = 0;
  }
  destroy_stream(first);
  destroy_stream(second);
  ASSERT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
}

TEST(Stream, misuse_is_refused) {
  const Stream stream = made();
  const Event event = made_event();
  std::vector<int> order;
  EXPECT_EQ(launch_async({}, note, &order, 1), Status::kInvalidArgument);
  EXPECT_EQ(synchronize(Stream{nullptr}), Status::kInvalidArgument);
  EXPECT_EQ(query(nullptr), Status::kInvalidArgument);
  EXPECT_EQ(record(nullptr, stream), Status::kInvalidArgument);
  EXPECT_EQ(record(event, nullptr), Status::kInvalidArgument);
  EXPECT_EQ(wait_for(stream, nullptr), Status::kInvalidArgument);
  EXPECT_EQ(wait_for(nullptr, event), Status::kInvalidArgument);
  EXPECT_EQ(synchronize(Event{nullptr}), Status::kInvalidArgument);
  EXPECT_EQ(launch({.grid = {0}, .stream = stream}, note, &order, 1), Status::kInvalidArgument);
  EXPECT_THAT(order, ElementsAre());
  destroy_event(event);
  destroy_stream(stream);
}

}  // namespace stream_test
}  // namespace gdx::exec
