// The executor and the poster over a port of the test, which does what it is told: whom the executor gives
// up, what it posts while a rank takes nothing, and when calls of the host come.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "host/poster/executor.h"
#include "host/poster/poster.h"

namespace gdx {
namespace {

constexpr std::uint64_t kBoundNs = 1000;
constexpr std::uint64_t kHeapBytes = 1 << 16;

class TestPort final : public Port {
 public:
  struct Posted {
    std::uint32_t rank;
    std::uint32_t flags;
    std::uint64_t bytes;
    PortContext* context;
    agent::Message message;  // of a send
  };

  TestPort() {
    traits_.provider = "test";
    traits_.message_after_write = true;
    traits_.early_writes = true;
    traits_.immediate_bytes = 4;
    traits_.read_after_write = true;
    traits_.most_bytes = kHeapBytes;
  }
  const PortTraits& traits() const override { return traits_; }
  const std::vector<std::byte>& address() const override { return address_; }
  Result<void> connect(std::uint32_t, std::span<const std::byte>) override { return {}; }
  Result<PortRegion> register_memory(std::byte* address, std::uint64_t, bool remote) override {
    PortRegion region;
    region.object = address;
    if (remote) regions.push_back(region.key = next_key_++);
    return region;
  }
  void forget_memory(const PortRegion& region) override { std::erase(regions, region.key); }
  Result<Posting> write(std::uint32_t rank, PortSource, PortTarget, std::uint64_t bytes, std::uint32_t flags,
                        std::uint32_t, PortContext* context) override {
    return post(writes, {rank, flags, bytes, context, {}});
  }
  Result<Posting> read(std::uint32_t rank, PortSource, PortTarget, std::uint64_t bytes,
                       PortContext* context) override {
    return post(reads, {rank, 0, bytes, context, {}});
  }
  Result<Posting> send(std::uint32_t rank, PortSource message, PortContext* context) override {
    Posted posted{rank, 0, kPortMessageBytes, context, {}};
    std::memcpy(&posted.message, message.address, sizeof posted.message);
    return post(sends, posted);
  }
  Result<void> poll(std::vector<PortEvent>& events) override {
    if (on_poll) on_poll();
    events.insert(events.end(), arrived.begin(), arrived.end());
    arrived.clear();
    if (fails) return fail(Status::kQueueError, "the port has failed");
    return {};
  }

  void set_reads_see_writes(bool see) { traits_.read_after_write = see; }
  void forbid_early_writes() { traits_.early_writes = false; }
  void set_most_bytes(std::uint64_t bytes) { traits_.most_bytes = bytes; }
  void complete_at_departure() { traits_.delivery_complete = false; }
  void complete(const Posted& posted) {
    PortEvent& event = arrived.emplace_back();
    event.context = posted.context;
  }
  void deliver(const agent::Message& message) {
    PortEvent& event = arrived.emplace_back();
    event.kind = PortEvent::Kind::kMessage;
    std::memcpy(event.message.data(), &message, sizeof message);
  }

  std::vector<Posted> writes;
  std::vector<Posted> reads;
  std::vector<Posted> sends;
  std::vector<PortEvent> arrived;
  std::vector<std::uint64_t> regions;  // keys of those that peers may write
  Error refusal{Status::kOk, {}};      // of the next posting
  std::function<void()> on_poll;
  bool fails = false;  // polls, behind what has arrived

 private:
  Result<Posting> post(std::vector<Posted>& list, const Posted& posted) {
    if (refusal.status != Status::kOk) return tl::unexpected(std::exchange(refusal, {Status::kOk, {}}));
    list.push_back(posted);
    return Posting::kPosted;
  }

  PortTraits traits_;
  std::vector<std::byte> address_;
  std::uint64_t next_key_ = 1;
};

class ExecutorTest : public ::testing::Test {
 protected:
  void make(std::uint32_t ranks, std::uint32_t lanes = 1, Emulation emulation = Emulation::kPermit) {
    auto port = std::make_unique<TestPort>();
    port_ = port.get();
    ExecutorOptions options;
    options.ranks = ranks;
    options.lanes = lanes;
    options.peer_timeout_ns = kBoundNs;
    options.emulation = emulation;
    executor_ = Executor::create(std::move(port), options).value();
    heap_.resize(kHeapBytes);
    ASSERT_TRUE(executor_->add_window(heap_.data(), kHeapBytes));
    token_ = executor_->card().token;
    done_.assign(ranks, 0);
    for (std::uint32_t lane = 0; lane < lanes; ++lane) executor_->set_done(lane, done_.data());
    for (std::uint32_t rank = 1; rank < ranks; ++rank)
      ASSERT_TRUE(executor_->connect(rank, executor_->card()));
  }
  void give(std::uint32_t rank, std::uint64_t bytes, std::uint8_t flags = 0, std::uint32_t lane = 0) {
    Command command{};
    command.operation = CommandOperation::kPut;
    command.flags = flags;
    command.rank = rank;
    command.bytes = bytes;
    executor_->take(lane, index_++, command);
  }
  // Lets rank 1's agent answer a message of lane 0.
  void answer(const agent::Message& message) {
    agent::Message answer{};
    answer.kind = agent::Kind::kAnswer;
    answer.token = token_;
    answer.flow = 1;
    answer.sequence = message.sequence;
    answer.request = message.request;
    port_->deliver(answer);
  }
  void turn(std::uint64_t later_ns = 1) {
    now_ns_ += later_ns;
    ASSERT_TRUE(executor_->progress(now_ns_));
  }
  Status failure(std::uint32_t rank) const { return failure_of(done_[rank]); }

  std::uint64_t now_ns_ = 1'000'000;
  std::uint64_t index_ = 0;
  std::uint64_t token_ = 0;
  TestPort* port_ = nullptr;
  std::vector<std::byte> heap_;
  std::vector<std::uint64_t> done_;
  std::unique_ptr<Executor> executor_;
};

TEST_F(ExecutorTest, rank_that_answered_during_a_pause_of_this_process_is_not_given_up) {
  make(2);
  turn();
  give(1, 64);
  turn();
  port_->complete(port_->writes.at(0));
  turn(100 * kBoundNs);
  turn();
  EXPECT_EQ(failure(1), Status::kOk);
  EXPECT_EQ(done_[1], index_);
}

TEST_F(ExecutorTest, bound_counts_only_time_in_which_the_executor_runs) {
  make(2);
  turn();
  give(1, 64);
  turn();
  turn(100 * kBoundNs);  // a pause
  turn();                // whatever came meanwhile may need another look
  EXPECT_EQ(failure(1), Status::kOk);
  for (std::uint64_t ran_ns = 0; ran_ns < kBoundNs; ran_ns += kBoundNs / 10) turn(kBoundNs / 10);
  EXPECT_EQ(failure(1), Status::kPeerUnreachable);
}

TEST_F(ExecutorTest, silent_rank_is_given_up_while_another_is_busy) {
  make(3);
  turn();
  give(1, 64);
  for (int i = 0; i < 100 && failure(1) == Status::kOk; ++i) {
    give(2, 64);
    turn(kBoundNs / 10);
    port_->complete(port_->writes.back());
  }
  EXPECT_EQ(failure(1), Status::kPeerUnreachable);
  EXPECT_EQ(failure(2), Status::kOk);
}

// Answers that cannot be sent now are sent later: no other message says that the rank's words are changed.
TEST_F(ExecutorTest, answer_that_the_port_refuses_is_sent_later_unless_the_rank_is_gone) {
  make(2);
  agent::Message echo{};
  echo.kind = agent::Kind::kEcho;
  echo.token = token_;
  echo.flow = 1;
  echo.wants_answer = 1;
  port_->deliver(echo);
  turn();
  port_->refusal = {Status::kNoMemory, "no memory"};
  turn();
  EXPECT_TRUE(port_->sends.empty());
  turn();
  ASSERT_EQ(port_->sends.size(), 1u);
  EXPECT_EQ(port_->sends[0].message.kind, agent::Kind::kAnswer);
  echo.sequence = 1;
  port_->deliver(echo);
  turn();
  port_->refusal = {Status::kPeerUnreachable, "gone"};
  turn();
  turn();
  EXPECT_EQ(port_->sends.size(), 1u);
  EXPECT_TRUE(executor_->idle());
}

TEST_F(ExecutorTest, rank_that_stands_still_leaves_operations_to_others_and_to_answers) {
  constexpr std::uint32_t kLanes = 8;
  make(3, kLanes);
  turn();
  const auto flood = [&](std::uint32_t rank) {
    const std::size_t before = port_->writes.size();
    for (std::uint32_t i = 0; i < kLanes * agent::kMostWrites; ++i) give(rank, 64, 0, i % kLanes);
    turn();
    return port_->writes.size() - before;
  };
  EXPECT_GT(flood(1), agent::kMostWrites);
  // Operations in flight to a rank that failed stay there.
  for (int i = 0; i < 12; ++i) turn(kBoundNs / 10);
  ASSERT_EQ(failure(1), Status::kPeerUnreachable);
  EXPECT_GT(flood(2), 256u);
  agent::Message echo{};
  echo.kind = agent::Kind::kEcho;
  echo.token = token_;
  echo.flow = 2;
  echo.wants_answer = 1;
  port_->deliver(echo);
  turn();
  turn();
  EXPECT_EQ(port_->sends.back().message.kind, agent::Kind::kAnswer);
}

// A write of iWARP completes when its source is free. What waits for its arrival asks the rank's agent once,
// and nothing more while no write follows.
TEST_F(ExecutorTest, flush_asks_the_agent_where_writes_complete_before_they_arrive) {
  make(2);
  port_->complete_at_departure();
  const auto flush = [&] {
    Command command{};
    command.operation = CommandOperation::kFlush;
    command.rank = 1;
    executor_->take(0, index_++, command);
    turn();
  };
  const auto answer = [&] {
    agent::Message message{};
    message.kind = agent::Kind::kAnswer;
    message.token = token_;
    message.flow = 1;
    message.sequence = port_->sends.back().message.sequence;
    message.request = port_->sends.back().message.request;
    port_->deliver(message);
    turn();
  };
  turn();
  give(1, 64);
  turn();
  port_->complete(port_->writes.back());
  turn();
  flush();
  ASSERT_EQ(port_->sends.size(), 1u);
  EXPECT_EQ(port_->sends[0].message.kind, agent::Kind::kEcho);
  EXPECT_EQ(done_[1], index_ - 1) << "the put alone is complete";
  answer();
  EXPECT_EQ(done_[1], index_);
  flush();
  EXPECT_EQ(port_->sends.size(), 1u) << "nothing was written since";
  give(1, 64);
  turn();
  port_->complete(port_->writes.back());
  turn();
  Executor::Target target{0, index_, {1}, {}};
  EXPECT_FALSE(executor_->is_complete(target).value()) << "the host waits as kernels do";
  turn();
  ASSERT_EQ(port_->sends.size(), 2u);
  answer();
  EXPECT_TRUE(executor_->is_complete(target).value());
}

// A provider may hold back a posting with that flag until the next one comes.
TEST_F(ExecutorTest, more_is_promised_only_where_the_next_posting_follows) {
  make(2);
  turn();
  for (int i = 0; i < 300; ++i) give(1, 64, kCommandSignalSet | kCommandMore);
  for (int i = 0; i < 3; ++i) turn();
  ASSERT_EQ(port_->sends.size(), agent::kMostUnanswered);
  ASSERT_EQ(port_->writes.size(), agent::kMostUnanswered + 1) << "whose signal waits for answers";
  EXPECT_EQ(port_->writes.front().flags & kPortMore, kPortMore);
  EXPECT_EQ(port_->writes.back().flags & kPortMore, 0u);
}

TEST_F(ExecutorTest, more_is_not_promised_behind_the_last_write_in_flight_nor_before_a_flush) {
  make(2);
  turn();
  for (int i = 0; i < 1000; ++i) give(1, 64, kCommandMore);
  for (int i = 0; i < 3; ++i) turn();
  ASSERT_LE(port_->writes.size(), agent::kMostWrites);
  EXPECT_EQ(port_->writes.front().flags & kPortMore, kPortMore);
  EXPECT_EQ(port_->writes.back().flags & kPortMore, 0u);
  make(2);
  give(1, 64, kCommandMore);
  Command flush{};
  flush.operation = CommandOperation::kFlush;
  flush.rank = 1;
  executor_->take(0, index_++, flush);
  turn();
  EXPECT_EQ(port_->writes.at(0).flags & kPortMore, 0u);
}

// Writes complete before their delivery there, so the answer to a message behind them ends the flush, or lets
// a get go where reads are not ordered.
TEST_F(ExecutorTest, flush_and_get_wait_for_an_answer_behind_writes_that_complete_early) {
  for (const CommandOperation operation : {CommandOperation::kFlush, CommandOperation::kGet}) {
    make(2);
    port_->set_reads_see_writes(false);
    give(1, 64);
    Command command{};
    command.operation = operation;
    command.rank = 1;
    command.bytes = 64;
    executor_->take(0, index_++, command);
    turn();
    EXPECT_EQ(port_->writes.at(0).flags, kPortSourceFree | kPortImmediate);
    port_->complete(port_->writes.at(0));
    for (int i = 0; i < 3; ++i) turn();
    ASSERT_EQ(port_->sends.size(), 1u);
    EXPECT_EQ(port_->sends[0].message.kind, agent::Kind::kEcho);
    EXPECT_EQ(port_->sends[0].message.after, 1u) << "a write that is lost keeps it";
    EXPECT_TRUE(port_->reads.empty());
    EXPECT_EQ(done_[1], index_ - 1) << "the put alone";
    answer(port_->sends[0].message);
    for (int i = 0; i < 2; ++i) turn();
    if (operation == CommandOperation::kGet) {
      ASSERT_EQ(port_->reads.size(), 1u);
      port_->complete(port_->reads[0]);
      turn();
    }
    EXPECT_EQ(done_[1], index_);
  }
}

// The host's flush, too, and there the command behind the puts is not its own.
TEST_F(ExecutorTest, puts_are_complete_for_the_host_once_an_answer_behind_them_came) {
  make(2);
  give(1, 64);
  turn();
  port_->complete(port_->writes.at(0));
  turn();
  ASSERT_EQ(done_[1], index_);
  Executor::Target target{0, index_, {1}, {}};
  EXPECT_FALSE(executor_->is_complete(target).value());
  turn();
  ASSERT_EQ(port_->sends.size(), 1u);
  EXPECT_FALSE(executor_->is_complete(target).value());
  answer(port_->sends[0].message);
  turn();
  EXPECT_TRUE(executor_->is_complete(target).value());
}

// The plugins' transfers complete at delivery, and so does all where emulation is refused, or where a message
// may arrive behind a write that was lost. A flush has nothing to ask then.
TEST_F(ExecutorTest, transfers_complete_at_delivery) {
  make(2);
  Command put{};
  put.operation = CommandOperation::kPut;
  put.rank = 1;
  put.bytes = 64;
  executor_->take_transfer(0, index_++, put, {{heap_.data(), nullptr}, {0, 1}});
  turn();
  EXPECT_EQ(port_->writes.at(0).flags & kPortSourceFree, 0u);
  make(2, 1, Emulation::kRefuse);
  give(1, 64);
  turn();
  EXPECT_EQ(port_->writes.at(0).flags & kPortSourceFree, 0u);
  make(2);
  port_->forbid_early_writes();
  give(1, 64);
  Command flush{};
  flush.operation = CommandOperation::kFlush;
  flush.rank = 1;
  executor_->take(0, index_++, flush);
  turn();
  EXPECT_EQ(port_->writes.at(0).flags & kPortSourceFree, 0u);
  EXPECT_LT(done_of(done_[1]), index_);
  port_->complete(port_->writes.at(0));
  turn();
  EXPECT_EQ(done_[1], index_);
  EXPECT_TRUE(port_->sends.empty());
}

TEST_F(ExecutorTest, window_that_is_replaced_or_dropped_is_no_longer_registered) {
  make(2);
  std::vector<std::byte> memory(64);
  ASSERT_EQ(port_->regions.size(), 1u);
  ASSERT_TRUE(executor_->add_window(memory.data(), 64, 1));
  ASSERT_TRUE(executor_->add_window(memory.data(), 32, 1));
  EXPECT_EQ(port_->regions, (std::vector<std::uint64_t>{1, 3}));
  executor_->drop_window(1);
  EXPECT_EQ(port_->regions, (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(executor_->card().window_count, 1u);
  executor_->drop_window(1);  // never added at a rank that could not
  EXPECT_EQ(port_->regions.size(), 1u);
  EXPECT_TRUE(executor_->add_window(memory.data(), 64, 1));
}

TEST_F(ExecutorTest, long_put_shows_by_its_parts_that_it_moves) {
  constexpr std::uint64_t kLongBytes = std::uint64_t{1} << 30;
  make(2);
  port_->set_most_bytes(kLongBytes);
  Command command{};
  command.operation = CommandOperation::kPut;
  command.rank = 1;
  command.bytes = kLongBytes;
  executor_->take_transfer(0, index_++, command, {{heap_.data(), nullptr}, {0, 1}});
  turn();
  for (std::size_t part = 0; part < port_->writes.size(); ++part) {
    turn(kBoundNs / 10);  // a link that takes a tenth of the bound for each part
    port_->complete(port_->writes[part]);
    turn();
  }
  EXPECT_GT(port_->writes.size(), 10u);
  EXPECT_EQ(failure(1), Status::kOk);
  EXPECT_EQ(done_[1], index_);
}

// Returns once the thread sleeps, which it does in a lock.
void wait_until_asleep(pid_t thread) {
  for (char state = 0; state != 'S'; std::this_thread::yield()) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
    std::string line;
    std::getline(file, line);
    state = line.at(line.rfind(')') + 2);
  }
}

// The poster's thread looks again at once: a mutex that it may take first keeps the host waiting for long.
TEST_F(ExecutorTest, call_of_the_host_comes_before_the_next_look_of_the_posters_thread) {
  make(2);
  std::atomic<pid_t> caller{0};
  std::atomic<int> looks{0};  // before the call's window is there
  port_->on_poll = [&] {
    if (caller != 0 && port_->regions.size() == 1 && looks++ == 0) wait_until_asleep(caller);
  };
  std::vector<std::byte> memory(64);
  PosterOptions options;
  options.fruitless_looks = 0;
  const auto poster = Poster::start(std::move(executor_), options).value();
  std::thread host([&] {
    const sched_param lowest{};
    sched_setscheduler(0, SCHED_BATCH, &lowest);  // it takes no processor from the thread that wakes it
    caller = gettid();
    EXPECT_TRUE(poster->set_window(1, memory.data(), memory.size()));
  });
  host.join();
  EXPECT_LE(looks, 1);
}

TEST_F(ExecutorTest, flush_of_the_host_looks_itself_only_where_there_is_no_thread) {
  for (const bool has_thread : {true, false}) {
    make(2);
    std::atomic<int> own_looks{0};
    port_->on_poll = [&, host = std::this_thread::get_id()] {
      if (std::this_thread::get_id() == host) ++own_looks;
      for (const TestPort::Posted& read : std::exchange(port_->reads, {})) port_->complete(read);
    };
    PosterOptions options;
    options.thread = has_thread;
    const auto poster = Poster::start(std::move(executor_), options).value();
    const CommandRingHandle& ring = poster->ring(0);
    Command get{};
    get.operation = CommandOperation::kGet;
    get.rank = 1;
    get.bytes = 64;
    get.sequence = 1;
    ring.state->reserved = 1;
    std::memcpy(ring.commands, &get, offsetof(Command, sequence));
    std::atomic_ref(ring.commands->sequence).store(get.sequence, std::memory_order_release);
    const std::array<std::uint32_t, 1> ranks{1};
    EXPECT_TRUE(poster->flush(ranks, options.clock() + 100'000'000'000));
    EXPECT_EQ(own_looks == 0, has_thread);
  }
}

TEST_F(ExecutorTest, what_was_complete_before_a_failure_of_the_same_poll_is_told) {
  make(3);
  for (const std::uint32_t rank : {1u, 1u, 2u}) give(rank, 64);
  turn();
  port_->complete(port_->writes[0]);
  PortEvent& event = port_->arrived.emplace_back();
  event.kind = PortEvent::Kind::kFailed;
  event.context = port_->writes[1].context;
  event.error = {Status::kRemoteAccess, "refused"};
  turn();
  EXPECT_EQ(executor_->completed(0, 1), 1u);
  EXPECT_EQ(executor_->failure(0, 1).status, Status::kRemoteAccess);

  port_->complete(port_->writes[2]);
  port_->fails = true;
  EXPECT_FALSE(executor_->progress(++now_ns_));
  EXPECT_EQ(executor_->completed(0, 2), 3u);
}

}  // namespace
}  // namespace gdx
