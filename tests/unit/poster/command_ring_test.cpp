// The kernel's side of a ring, beside words that the test stores as a poster does.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <vector>

#include "device/exec/exec.h"
#include "device/impl/command_ring.h"

namespace gdx {
namespace {

using device::impl::await_command;
using device::impl::flush_commands;
using device::impl::post_command;

class CommandRingTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kLogEntries = 2;
  static constexpr std::uint32_t kEntries = 1u << kLogEntries;
  static constexpr std::uint32_t kRanks = 3;

  CommandRingTest() : commands_(kEntries), done_(kRanks) {
    handle_.layout_version = kCommandLayoutVersion;
    handle_.log_entries = kLogEntries;
    handle_.commands = commands_.data();
    handle_.state = &state_;
    handle_.words = &words_;
    handle_.done = done_.data();
    handle_.abort = &abort_;
    handle_.timeout_ns = 1'000;
    handle_.ranks = kRanks;
  }

  // Takes the next command, if it is whole.
  bool take(Command& taken) {
    const Command& slot = commands_[words_.consumed % kEntries];
    if (slot.sequence != words_.consumed + 1) return false;
    taken = slot;
    ++words_.consumed;
    return true;
  }
  template <typename Call>
  Status in_kernel(Call call, unsigned threads = 1) {
    Status status = Status::kPending;
    exec::LaunchConfig config;
    config.block = {threads};
    const Status launched = exec::launch(
        config, [&](const CommandRingHandle& ring) { status = call(ring); }, handle_);
    return launched == Status::kOk ? status : launched;
  }
  Status post(const Command& command) {
    return in_kernel([&](const CommandRingHandle& ring) {
      std::uint64_t index = 0;
      return post_command(ring, command, index);
    });
  }
  static Command put(std::uint32_t rank) {
    Command command{};
    command.operation = CommandOperation::kPut;
    command.flags = kCommandSignalAdd | kCommandMore;
    command.local_window = 1;
    command.remote_window = 2;
    command.rank = rank;
    command.local_offset = 0x1111111122222222;
    command.remote_offset = 0x3333333344444444;
    command.bytes = 0x5555555566666666;
    command.value = 0x7777777788888888;
    command.signal_offset = 0x99999999aaaaaaaa;
    command.signal_window = 3;
    return command;
  }

  std::vector<Command> commands_;
  CommandRingState state_{};
  CommandWords words_{};
  std::vector<std::uint64_t> done_;
  std::uint32_t abort_ = 0;
  CommandRingHandle handle_{};
};

TEST_F(CommandRingTest, command_arrives_whole_on_each_lap) {
  for (std::uint64_t index = 0; index < 3 * kEntries; ++index) {
    Command taken{};
    EXPECT_FALSE(take(taken));
    Command posted = put(static_cast<std::uint32_t>(index % kRanks));
    ASSERT_EQ(post(posted), Status::kOk);
    ASSERT_TRUE(take(taken));
    posted.sequence = index + 1;
    EXPECT_EQ(std::memcmp(&taken, &posted, sizeof posted), 0);
  }
}

TEST_F(CommandRingTest, threads_take_each_slot_once) {
  constexpr unsigned kThreads = 64;
  std::atomic<unsigned> got{0};
  std::uint64_t taken_count = 0;
  handle_.timeout_ns = 100'000'000'000;
  exec::LaunchConfig config;
  config.block = {kThreads + 1};
  const Status launched = exec::launch(
      config,
      [&](const CommandRingHandle& ring) {
        const std::uint32_t thread = exec::thread_rank<Scope::kBlock>();
        if (thread == kThreads) {  // the poster's part
          Command taken{};
          while (taken_count < kThreads) {
            if (take(taken)) {
              EXPECT_EQ(taken.value, taken.bytes);
              ++taken_count;
            }
            exec::relax();
          }
          return;
        }
        Command command = put(0);
        command.value = command.bytes = thread;
        std::uint64_t index = 0;
        if (post_command(ring, command, index) == Status::kOk) got.fetch_add(1);
      },
      handle_);
  EXPECT_EQ(launched, Status::kOk);
  EXPECT_EQ(got.load(), kThreads);
  EXPECT_EQ(state_.reserved, kThreads);
}

TEST_F(CommandRingTest, full_ring_is_told_and_goes_on) {
  for (std::uint32_t i = 0; i < kEntries; ++i) ASSERT_EQ(post(put(0)), Status::kOk);
  EXPECT_EQ(post(put(1)), Status::kTimeout);
  EXPECT_EQ(state_.fault.cause, CommandCause::kPosterSilent);
  EXPECT_EQ(state_.fault.rank, 1u);
  EXPECT_EQ(state_.fault.call, packed_call(put(1)));
  EXPECT_EQ(state_.reserved, kEntries);
  Command taken{};
  EXPECT_TRUE(take(taken));
  EXPECT_EQ(post(put(1)), Status::kOk);
}

TEST_F(CommandRingTest, each_end_of_a_wait_has_its_cause) {
  struct Case {
    Status status;
    CommandCause cause;
    std::function<void()> arrange;
  };
  const std::vector<Case> cases{
      {Status::kTimeout, CommandCause::kPosterSilent, [] {}},
      {Status::kTimeout, CommandCause::kPeerSilent, [this] { words_.consumed = 1; }},
      {Status::kAborted, CommandCause::kAborted, [this] { abort_ = 1; }},
      {Status::kQueueError, CommandCause::kPosterEnded,
       [this] { words_.ended = static_cast<std::uint64_t>(Status::kQueueError); }},
      {Status::kRemoteAccess, CommandCause::kPeerFailed,
       [this] { done_[1] = pack_done(1, Status::kRemoteAccess); }}};
  for (const Case& one : cases) {
    state_ = {};
    words_ = {};
    abort_ = 0;
    done_.assign(kRanks, 0);
    one.arrange();
    EXPECT_EQ(in_kernel([](const CommandRingHandle& ring) { return flush_commands(ring, 1); }), one.status);
    EXPECT_EQ(state_.fault.cause, one.cause) << static_cast<int>(one.cause);
    EXPECT_EQ(state_.fault.status, static_cast<std::uint32_t>(one.status));
  }
}

TEST_F(CommandRingTest, wait_ends_with_its_own_rank_and_index) {
  const Command command = put(1);
  done_[0] = pack_done(9, Status::kOk);
  done_[1] = pack_done(5, Status::kOk);
  const auto await = [&](std::uint64_t index) {
    return in_kernel([&](const CommandRingHandle& ring) { return await_command(ring, command, index); });
  };
  EXPECT_EQ(await(4), Status::kOk);
  EXPECT_EQ(await(5), Status::kTimeout);
}

TEST_F(CommandRingTest, refused_calls_take_no_slot) {
  EXPECT_EQ(post(put(kRanks)), Status::kInvalidArgument);
  handle_.refused = refused_bits(CommandOperation::kFetchAdd, kCommandSignalSet | kCommandSignalAdd);
  EXPECT_EQ(post(put(0)), Status::kUnsupported);
  Command plain = put(0);
  plain.flags = kCommandMore;
  EXPECT_EQ(post(plain), Status::kOk);
  plain.operation = CommandOperation::kFetchAdd;
  EXPECT_EQ(post(plain), Status::kUnsupported);
  handle_.layout_version = kCommandLayoutVersion + 1;
  EXPECT_EQ(post(plain), Status::kVersionMismatch);
  EXPECT_EQ(state_.reserved, 1u);
}

}  // namespace
}  // namespace gdx
