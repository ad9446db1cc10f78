// Two posters of this process over real providers: each failure of a peer, of the provider and of the poster
// is bounded and named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "device/exec/exec.h"
#include "device/impl/command_ring.h"
#include "host/poster/libfabric_port.h"
#include "host/poster/poster.h"

namespace gdx {
namespace {

using device::impl::flush_commands;
using device::impl::post_command;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kHeapBytes = 1 << 16;
constexpr std::uint64_t kSecondNs = 1'000'000'000;

// Clock of posters: real, or later by `hurry_ns` at each look, so that a bound passes on a machine of any
// speed.
std::atomic<std::uint64_t> hurry_ns{0};
std::uint64_t test_clock() {
  static std::atomic<std::uint64_t> ahead_ns{0};
  ahead_ns += hurry_ns;
  return monotonic_ns() + ahead_ns;
}

std::unique_ptr<Executor> executor_of(const std::string& provider, const ExecutorOptions& options) {
  auto port = open_libfabric_port({.provider = provider, .address = {}, .insecure = false});
  EXPECT_TRUE(port) << port.error().message;
  if (!port) std::abort();
  return Executor::create(std::move(*port), options).value();
}

class PosterFailures : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { make(ExecutorOptions{}, {}); }
  void TearDown() override { hurry_ns = 0; }

  // Connects two ranks. `spoil` changes the card of rank 1 before rank 0 sees it.
  void make(ExecutorOptions options, const std::function<void(agent::Card&)>& spoil) {
    for (auto& poster : posters_) poster.reset();
    options.ranks = 2;
    options.peer_timeout_ns = 100 * kSecondNs;
    std::vector<std::unique_ptr<Executor>> executors;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      options.rank = rank;
      executors.push_back(executor_of(GetParam(), options));
      heaps_[rank].assign(kHeapBytes, std::byte{0});
      ASSERT_TRUE(executors.back()->add_window(heaps_[rank].data(), kHeapBytes));
    }
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      agent::Card card = executors[1 - rank]->card();
      if (rank == 0 && spoil) spoil(card);
      ASSERT_TRUE(executors[rank]->connect(1 - rank, card));
    }
    PosterOptions poster_options;
    poster_options.timeout_ns = timeout_ns_;
    poster_options.log_entries = 4;
    poster_options.clock = test_clock;
    for (std::uint32_t rank = 0; rank < 2; ++rank)
      posters_[rank] = Poster::start(std::move(executors[rank]), poster_options).value();
  }

  Status in_kernel(const std::function<Status(const CommandRingHandle&)>& call) {
    Status status = Status::kPending;
    const Status launched = exec::launch(
        exec::LaunchConfig{}, [&](const CommandRingHandle& ring) { status = call(ring); },
        posters_[0]->ring(0));
    return launched == Status::kOk ? status : launched;
  }
  Status post(const Command& command) {
    return in_kernel([&](const CommandRingHandle& ring) {
      std::uint64_t index = 0;
      return post_command(ring, command, index);
    });
  }
  Status flush() {
    return in_kernel([](const CommandRingHandle& ring) { return flush_commands(ring, 1); });
  }
  static Command put(std::uint64_t bytes = 64) {
    Command command{};
    command.operation = CommandOperation::kPut;
    command.rank = 1;
    command.bytes = bytes;
    return command;
  }

  std::uint64_t timeout_ns_ = 200 * kSecondNs;
  std::array<std::vector<std::byte>, 2> heaps_;
  std::array<std::unique_ptr<Poster>, 2> posters_;
};

TEST_P(PosterFailures, put_and_signal_arrive) {
  heaps_[0][5] = std::byte{7};
  Command command = put();
  command.flags = kCommandSignalSet;
  command.signal_offset = 1024;
  command.value = 3;
  ASSERT_EQ(post(command), Status::kOk);
  ASSERT_EQ(flush(), Status::kOk);
  EXPECT_EQ(heaps_[1][5], std::byte{7});
  EXPECT_EQ(heaps_[1][1024], std::byte{3});
  EXPECT_EQ(posters_[0]->describe_fault(0), "");
}

TEST_P(PosterFailures, dead_peer_is_unreachable_and_its_commands_end) {
  ASSERT_EQ(post(put()), Status::kOk);
  ASSERT_EQ(flush(), Status::kOk);
  // With an endpoint of this process shm's memory would go, which the other one still uses.
  if (GetParam() == "shm") {
    posters_[1]->stop();
  } else {
    posters_[1].reset();
  }
  hurry_ns = kSecondNs;
  ASSERT_EQ(post(put()), Status::kOk);
  const Status status = flush();
  EXPECT_TRUE(status == Status::kPeerUnreachable || status == Status::kFlushed) << status_name(status);
  EXPECT_THAT(posters_[0]->describe_fault(0), HasSubstr("rank 1"));
  EXPECT_THAT(posters_[0]->describe_fault(0), HasSubstr("provider"));
  // Any number of later ones ends at once with the same.
  for (int i = 0; i < 100; ++i) ASSERT_EQ(post(put()), Status::kOk);
  EXPECT_EQ(flush(), status);
}

TEST_P(PosterFailures, key_that_the_peer_does_not_know_is_an_error_of_the_provider) {
  make(ExecutorOptions{}, [](agent::Card& card) { card.windows[0].key ^= 1; });
  ASSERT_EQ(post(put()), Status::kOk);
  // No error comes over shm. Looks are so many that an answer behind the write would come before the bound.
  if (GetParam() == "shm") hurry_ns = kSecondNs / 100;
  EXPECT_NE(flush(), Status::kOk);
  EXPECT_THAT(posters_[0]->describe_fault(0), HasSubstr("to rank 1"));
  // tcp connects anew, so a put that was complete before would be lost in silence.
  if (GetParam() == "tcp") {
    EXPECT_THAT(posters_[0]->describe_fault(0), Not(HasSubstr("is not complete")));
  }
  EXPECT_EQ(heaps_[1], std::vector<std::byte>(kHeapBytes));
}

TEST_P(PosterFailures, message_without_the_token_changes_nothing) {
  make(ExecutorOptions{}, [](agent::Card& card) { card.token ^= 1; });
  hurry_ns = kSecondNs;
  Command command = put(0);
  command.flags = kCommandSignalSet;
  command.value = 3;
  ASSERT_EQ(post(command), Status::kOk);
  EXPECT_EQ(flush(), Status::kPeerUnreachable);
  EXPECT_EQ(heaps_[1], std::vector<std::byte>(kHeapBytes));
}

TEST_P(PosterFailures, ranges_outside_a_window_are_named_before_they_are_posted) {
  for (const auto& [change, status] : std::vector<std::pair<std::function<void(Command&)>, Status>>{
           {[](Command& command) { command.remote_offset = kHeapBytes - 63; }, Status::kRemoteAccess},
           {[](Command& command) { command.local_offset = ~std::uint64_t{0}; }, Status::kLocalProtection},
           {[](Command& command) { command.remote_window = 1; }, Status::kRemoteAccess},
           {[](Command& command) { command.flags = kCommandSignalSet, command.signal_offset = 4; },
            Status::kInvalidArgument},
           {[](Command& command) { command.flags = kCommandSignalAdd, command.signal_offset = kHeapBytes; },
            Status::kRemoteAccess}}) {
    make(ExecutorOptions{}, {});
    Command command = put();
    change(command);
    ASSERT_EQ(post(command), Status::kOk);
    EXPECT_EQ(flush(), status);
    EXPECT_THAT(posters_[0]->describe_fault(0), HasSubstr("of rank 1: "));
  }
}

TEST_P(PosterFailures, stopped_poster_ends_waits) {
  posters_[0]->stop();
  EXPECT_EQ(flush(), Status::kAborted);
  EXPECT_THAT(posters_[0]->describe_fault(0), HasSubstr("a flush to rank 1 on lane 0"));
  EXPECT_THAT(posters_[0]->describe_fault(0), HasSubstr("the poster has ended"));
}

TEST_P(PosterFailures, poster_without_a_processor_is_named) {
  timeout_ns_ = 1'000'000;
  ExecutorOptions options;
  options.ranks = 2;
  PosterOptions idle;
  idle.thread = false;
  idle.timeout_ns = 1'000'000;
  idle.log_entries = 2;
  auto executor = executor_of(GetParam(), options);
  posters_[0] = Poster::start(std::move(executor), idle).value();
  for (int i = 0; i < 4; ++i) ASSERT_EQ(post(put()), Status::kOk);
  EXPECT_EQ(post(put()), Status::kTimeout);
  EXPECT_THAT(posters_[0]->describe_fault(0), HasSubstr("the poster took nothing"));
}

TEST_P(PosterFailures, emulation_that_is_refused_names_the_call) {
  ExecutorOptions refuses;
  refuses.emulation = Emulation::kRefuse;
  make(refuses, {});
  Command command = put();
  EXPECT_EQ(post(command), Status::kOk);
  EXPECT_EQ(flush(), Status::kOk);
  command.flags = kCommandSignalSet;
  EXPECT_EQ(post(command), Status::kUnsupported);
  EXPECT_THAT(posters_[0]->describe_fault(0), HasSubstr("a put with signal to rank 1"));
  EXPECT_THAT(posters_[0]->describe_fault(0), HasSubstr("GDX_EMULATION=refuse"));
}

INSTANTIATE_TEST_SUITE_P(Providers, PosterFailures, ::testing::Values("tcp", "shm"));

TEST(PosterConnect, ranks_with_different_providers_are_refused_by_name) {
  ExecutorOptions options;
  options.ranks = 2;
  const auto tcp = executor_of("tcp", options);
  const auto shm = executor_of("shm", options);
  const auto refused = tcp->connect(1, shm->card());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("rank 1 uses provider shm"));
  agent::Card card = tcp->card();
  card.version += 1;
  EXPECT_EQ(tcp->connect(1, card).error().status, Status::kVersionMismatch);
  card = tcp->card();
  card.address_bytes = agent::kMostAddressBytes + 1;
  EXPECT_EQ(tcp->connect(1, card).error().status, Status::kInvalidArgument);
  card = tcp->card();
  card.ranks = 3;
  EXPECT_EQ(tcp->connect(1, card).error().status, Status::kInvalidArgument);
}

TEST(PosterConnect, other_hosts_need_leave_where_nobody_is_authenticated) {
  ExecutorOptions options;
  options.ranks = 2;
  const auto tcp = executor_of("tcp", options);
  agent::Card card = tcp->card();
  card.address[4] = 10;  // of sockaddr_in: 10.0.0.1
  const auto refused = tcp->connect(1, card);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("GDX_INSECURE=1"));
}

TEST(PosterConnect, unknown_provider_is_not_found) {
  const auto port = open_libfabric_port({.provider = "nope", .address = {}, .insecure = false});
  ASSERT_FALSE(port);
  EXPECT_EQ(port.error().status, Status::kNotFound);
  EXPECT_THAT(port.error().message, HasSubstr("'nope'"));
}

}  // namespace
}  // namespace gdx
