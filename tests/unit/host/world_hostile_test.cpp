// Peers that lie: every one must end in one clear error, or be dropped, never in a hang or a crash.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <regex>
#include <set>

#include "host/bootstrap/reception.h"
#include "host/bootstrap/world.h"
#include "tests/open_files.h"
#include "tests/unit/host/loopback.h"
#include "tests/unit/host/skipped_time.h"

namespace gdx {
namespace world_hostile_test {

using bootstrap::encode_frame;
using bootstrap::encode_hello;
using bootstrap::FrameHeader;
using bootstrap::FrameType;
using test::join_in_background;
using test::kLongNs;
using test::LoopbackRoot;
using test::RawPeer;
using ::testing::HasSubstr;

TEST(WorldHostile, stranger_with_wrong_magic_is_dropped_and_the_job_goes_on) {
  const LoopbackRoot root;
  auto joined = join_in_background(root.options(0, 2));
  const RawPeer scanner = RawPeer::connect(root);
  scanner.send(std::string("GET / HTTP/1.1\r\n\r\n"));
  EXPECT_TRUE(scanner.sees_close());
  const auto other = World::join(root.options(1, 2));
  EXPECT_TRUE(other) << other.error().message;
  const auto world = joined.get();
  EXPECT_TRUE(world) << world.error().message;
}

TEST(WorldHostile, stranger_that_closes_in_mid_hello_is_dropped_and_the_job_goes_on) {
  const LoopbackRoot root;
  auto joined = join_in_background(root.options(0, 2));
  RawPeer half = RawPeer::connect(root);
  const auto hello = encode_hello(1, 2);
  half.send(std::span(hello).first(10));
  half.close();
  const auto other = World::join(root.options(1, 2));
  EXPECT_TRUE(other) << other.error().message;
  EXPECT_TRUE(joined.get());
}

TEST(WorldHostile, only_strangers_come_the_timeout_says_so) {
  test::SkippedTime time;
  const LoopbackRoot root;
  auto joined = join_in_background(root.options(0, 2));
  const RawPeer scanner = RawPeer::connect(root);
  scanner.send(std::string(64, '\0'));
  scanner.wait_until_sent();
  time.skip(kLongNs);
  const auto world = joined.get();
  ASSERT_FALSE(world);
  EXPECT_EQ(world.error().status, Status::kTimeout);
  EXPECT_THAT(world.error().message, HasSubstr("rank 1 of 2 never came"));
  EXPECT_THAT(world.error().message, HasSubstr("not a gdx rank"));
}

TEST(WorldHostile, more_silent_connections_than_are_kept_the_job_goes_on) {
  const LoopbackRoot root;
  auto joined = join_in_background(root.options(0, 2));
  std::vector<RawPeer> silent;
  for (std::size_t i = 0; i < bootstrap::kMaxStrangers + 40; ++i) silent.push_back(RawPeer::connect(root));
  EXPECT_TRUE(silent.front().sees_close());
  const auto other = World::join(root.options(1, 2));
  EXPECT_TRUE(other) << other.error().message;
  const auto world = joined.get();
  EXPECT_TRUE(world) << world.error().message;
}

TEST(WorldHostile, silent_connections_expire_and_the_timeout_names_them) {
  test::SkippedTime time;
  const LoopbackRoot root;
  auto joined = join_in_background(root.options(0, 2));
  const RawPeer first = RawPeer::connect(root);
  const RawPeer second = RawPeer::connect(root);
  EXPECT_TRUE(first.sees_close());
  EXPECT_TRUE(second.sees_close());
  time.skip(kLongNs);
  const auto world = joined.get();
  ASSERT_FALSE(world);
  EXPECT_THAT(world.error().message, HasSubstr("rank 1 of 2 never came"));
  EXPECT_THAT(world.error().message, HasSubstr("(dropped 2 connections, the last: 127.0.0.1:"));
  EXPECT_THAT(world.error().message, HasSubstr("sent no hello within 5 s"));
}

// While ranks arrive, and while one of them is late for the first collective.
TEST(WorldHostile, silent_connections_expire_long_before_the_ranks_own_timeout) {
  const LoopbackRoot gathering;
  auto joined = join_in_background(gathering.options(0, 2));
  const RawPeer early = RawPeer::connect(gathering);
  const LoopbackRoot meeting;
  auto met = std::async(std::launch::async, [options = meeting.options(0, 2)]() -> Result<void> {
    auto world = GDX_TRY(World::join(options));
    return world.barrier(kLongNs);
  });
  auto late = World::join(meeting.options(1, 2));
  ASSERT_TRUE(late) << late.error().message;
  const RawPeer stranger = RawPeer::connect(meeting);
  EXPECT_TRUE(early.sees_close());
  EXPECT_TRUE(stranger.sees_close());
  EXPECT_TRUE(World::join(gathering.options(1, 2)));
  EXPECT_TRUE(joined.get());
  EXPECT_TRUE(late->barrier(kLongNs));
  EXPECT_TRUE(met.get());
}

TEST(WorldHostile, silent_connections_are_counted_by_a_timeout_that_comes_first) {
  test::SkippedTime time;
  const LoopbackRoot root;
  auto joined = join_in_background(root.options(0, 2));
  const RawPeer silent = RawPeer::connect(root);
  time.skip(kLongNs);
  const auto world = joined.get();
  ASSERT_FALSE(world);
  EXPECT_THAT(world.error().message, HasSubstr("(1 connected and sent no hello, 127.0.0.1:"));
}

// The first of two connections takes the last descriptor.
TEST(WorldHostile, rank_that_came_before_the_descriptors_were_used_up_is_kept) {
  const LoopbackRoot root;
  auto listener = bootstrap::listen_at(root.root);
  ASSERT_TRUE(listener) << listener.error().message;
  bootstrap::Reception reception(std::move(*listener));
  const RawPeer first = RawPeer::connect(root);
  const RawPeer second = RawPeer::connect(root);
  first.send(encode_hello(1, 3));
  const test::OpenFileLimit one_more(test::next_open_file() + 1);
  const auto arrivals = reception.receive();
  const auto beyond = reception.receive();
  ASSERT_TRUE(arrivals) << arrivals.error().message;
  ASSERT_EQ(arrivals->size(), 1u);
  EXPECT_EQ(arrivals->front().hello.rank, 1u);
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().status, Status::kNoMemory);
  EXPECT_THAT(beyond.error().message, HasSubstr("this rank has no file descriptors left"));
}

std::string without_ports(const std::string& text) {
  return std::regex_replace(text, std::regex("127\\.0\\.0\\.1:[0-9]+"), "PEER");
}

TEST(WorldHostile, dropped_connections_are_logged_up_to_a_bound_and_then_counted) {
  constexpr int kLogged = 16;
  const LoopbackRoot root;
  auto listener = bootstrap::listen_at(root.root);
  ASSERT_TRUE(listener) << listener.error().message;
  bootstrap::Reception reception(std::move(*listener));
  const std::string why = "PEER is not a gdx rank: its stream begins with 0x47455420";
  std::string log;
  testing::internal::CaptureStderr();
  for (int dropped = 1; dropped <= kLogged + 2; ++dropped) {
    const RawPeer scanner = RawPeer::connect(root);
    scanner.send(std::string("GET / HTTP/1.1\r\n"));
    const std::string seen = dropped == 1
                                 ? fmt::format(" (dropped a connection: {})", why)
                                 : fmt::format(" (dropped {} connections, the last: {})", dropped, why);
    while (without_ports(reception.seen()) != seen) ASSERT_TRUE(reception.receive());
    if (dropped > kLogged) continue;
    log += fmt::format("gdx[{}] warning: bootstrap: dropped a connection: {}{}\n", ::getpid(), why,
                       dropped == kLogged ? "; those after it are counted alone" : "");
  }
  EXPECT_EQ(without_ports(testing::internal::GetCapturedStderr()), log);
  const RawPeer silent = RawPeer::connect(root);
  const std::string seen = without_ports(reception.seen()) + " (1 connected and sent no hello, PEER first)";
  while (without_ports(reception.seen()) != seen) ASSERT_TRUE(reception.receive());
}

TEST(WorldHostile, stranger_holds_the_place_of_a_rank_that_rank_and_rank_0_name_it) {
  test::SkippedTime time;
  const LoopbackRoot root;
  auto met = std::async(std::launch::async, [options = root.options(0, 2)]() -> Result<void> {
    auto world = GDX_TRY(World::join(options));
    return world.barrier(kLongNs);
  });
  const RawPeer stranger = RawPeer::connect(root);
  stranger.send(encode_hello(1, 2));
  EXPECT_EQ(stranger.receive(sizeof(FrameHeader)).size(), sizeof(FrameHeader));
  const auto refused = World::join(root.options(1, 2));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kBusy);
  const std::string place = stranger.own_text();
  EXPECT_THAT(refused.error().message, HasSubstr(place + " took the place of rank 1"));
  time.skip(kLongNs);
  const auto error = met.get();
  ASSERT_FALSE(error);
  EXPECT_THAT(error.error().message, HasSubstr("rank 1 at " + place + " did not come to collective 1"));
  EXPECT_THAT(error.error().message, HasSubstr("came as rank 1 later"));
}

TEST(WorldHostile, hellos_that_do_not_fit_are_refused_and_named_and_the_job_goes_on) {
  auto other_version = encode_hello(1, 2);
  other_version[5] = std::byte{9};
  const std::pair<std::vector<std::byte>, const char*> misfits[] = {
      {other_version, "version 9"},
      {encode_hello(1, 3), "came as rank 1 of 3 ranks, rank 0 expects 2"},
      {encode_hello(0, 2), "came as rank 0: ranks other than 0 go from 1 to 1"},
      {encode_hello(2, 2), "came as rank 2: ranks other than 0 go from 1 to 1"},
      {encode_hello(0xffffffffu, 2), "came as rank 4294967295"}};
  for (const auto& [hello, why] : misfits) {
    const LoopbackRoot root;
    testing::internal::CaptureStderr();
    auto joined = join_in_background(root.options(0, 2));
    const RawPeer stranger = RawPeer::connect(root);
    stranger.send(hello);
    EXPECT_EQ(stranger.receive(sizeof(FrameHeader)).size(), sizeof(FrameHeader));
    const auto other = World::join(root.options(1, 2));
    EXPECT_TRUE(other) << other.error().message;
    const auto world = joined.get();
    EXPECT_TRUE(world) << world.error().message;
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_THAT(log, HasSubstr("dropped a connection: " + stranger.own_text() + " "));
    EXPECT_THAT(log, HasSubstr(why));
  }
}

TEST(WorldHostile, rank_of_another_world_size_learns_why_it_is_refused) {
  const LoopbackRoot root;
  auto joined = join_in_background(root.options(0, 2));
  const auto other = World::join(root.options(1, 3));
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().status, Status::kInvalidArgument);
  EXPECT_THAT(other.error().message, HasSubstr("rank 0 refused this rank: 127.0.0.1:"));
  EXPECT_THAT(other.error().message, HasSubstr("came as rank 1 of 3 ranks, rank 0 expects 2"));
  const auto right = World::join(root.options(1, 2));
  EXPECT_TRUE(right && joined.get());
}

TEST(WorldHostile, of_two_that_come_as_one_rank_the_later_is_refused_and_the_job_goes_on) {
  const LoopbackRoot root;
  auto joined = join_in_background(root.options(0, 3));
  const RawPeer peers[] = {RawPeer::connect(root), RawPeer::connect(root)};
  for (const RawPeer& peer : peers) peer.send(encode_hello(1, 3));
  const auto last = World::join(root.options(2, 3));
  EXPECT_TRUE(last && joined.get());
  std::multiset<std::uint16_t> answers;
  for (const RawPeer& peer : peers) {
    FrameHeader header;
    const auto bytes = peer.receive(sizeof header);
    ASSERT_EQ(bytes.size(), sizeof header);
    std::memcpy(&header, bytes.data(), sizeof header);
    answers.insert(header.type);
  }
  EXPECT_EQ(answers, (std::multiset{static_cast<std::uint16_t>(FrameType::kWelcome),
                                    static_cast<std::uint16_t>(FrameType::kFailed)}));
}

TEST(WorldHostile, member_leaves_before_all_have_come_ends_the_join) {
  const LoopbackRoot root;
  auto joined = join_in_background(root.options(0, 3));
  RawPeer member = RawPeer::connect(root);
  member.send(encode_hello(1, 3));
  // Once a later one is refused, the first has come.
  const auto later = World::join(root.options(1, 3));
  ASSERT_FALSE(later);
  member.close();
  const auto world = joined.get();
  ASSERT_FALSE(world);
  EXPECT_EQ(world.error().status, Status::kPeerGone);
  EXPECT_THAT(world.error().message, HasSubstr("rank 1"));
}

// A member that joined as it should and then sends `bytes` where a contribution is due.
Error barrier_after_member_sends(const std::vector<std::byte>& bytes) {
  const LoopbackRoot root;
  auto joined = join_in_background(root.options(0, 2));
  RawPeer member = RawPeer::connect(root);
  member.send(encode_hello(1, 2));
  EXPECT_EQ(member.receive(sizeof(FrameHeader)).size(), sizeof(FrameHeader));
  auto world = joined.get();
  if (!world) return world.error();
  member.send(bytes);
  member.close();
  const auto met = world->barrier(kLongNs);
  return met ? Error{Status::kOk, "met"} : met.error();
}

TEST(WorldHostile, member_sends_an_oversize_frame_breaks_the_world) {
  FrameHeader header{
      bootstrap::kMagic, bootstrap::kVersion, static_cast<std::uint16_t>(FrameType::kContribution), 1, 1,
      0xffffffffu};
  std::vector<std::byte> bytes(sizeof header);
  std::memcpy(bytes.data(), &header, sizeof header);
  const Error error = barrier_after_member_sends(bytes);
  EXPECT_EQ(error.status, Status::kInvalidArgument);
  EXPECT_THAT(error.message, HasSubstr("rank 1 sent a frame of type 3 with the impossible length"));
}

TEST(WorldHostile, member_dies_in_mid_frame_breaks_the_world) {
  const std::byte payload[64] = {};
  auto bytes = encode_frame(FrameType::kContribution, 1, 1, payload);
  bytes.resize(bytes.size() - 1);
  const Error error = barrier_after_member_sends(bytes);
  EXPECT_EQ(error.status, Status::kPeerGone);
  EXPECT_THAT(error.message, HasSubstr("rank 1"));
}

TEST(WorldHostile, member_speaks_for_another_or_out_of_turn_breaks_the_world) {
  for (const auto& bytes :
       {encode_frame(FrameType::kContribution, 0, 1), encode_frame(FrameType::kContribution, 1, 2),
        encode_frame(FrameType::kWelcome, 1, 1), encode_hello(1, 2)}) {
    const Error error = barrier_after_member_sends(bytes);
    EXPECT_EQ(error.status, Status::kInvalidArgument) << error.message;
    EXPECT_THAT(error.message, HasSubstr("rank 1"));
  }
  EXPECT_EQ(barrier_after_member_sends(encode_frame(FrameType::kContribution, 0, 1)).message,
            "rank 1 contributed as rank 0 to collective 1, rank 0 is at 1");
  EXPECT_EQ(barrier_after_member_sends(encode_frame(FrameType::kContribution, 1, 0)).message,
            "rank 1 contributed as rank 1 to collective 0, rank 0 is at 1");
}

// The result is far more than their connections hold: 1 MiB through segments of 1000 bytes.
TEST(WorldHostile, members_that_take_no_result_end_the_collective_in_time) {
  constexpr std::uint32_t kSize = 65;
  constexpr std::size_t kBytes = 16 << 10;
  const LoopbackRoot root;
  auto joined = join_in_background(root.options(0, kSize));
  RawPeer::connect(root).close();
  std::vector<RawPeer> members;
  members.reserve(kSize);
  for (std::uint32_t rank = 1; rank < kSize; ++rank) {
    members.push_back(RawPeer::connect_narrow(root));
    members.back().send(encode_hello(rank, kSize));
  }
  auto world = joined.get();
  ASSERT_TRUE(world) << world.error().message;
  const std::vector<std::byte> most(bootstrap::kMaxContributionBytes);
  EXPECT_EQ(
      world->allgather(most, kLongNs).error().message,
      "1048576 bytes of each of 65 ranks are too many to gather: at most 1048576 each and 67108864 in all");
  for (std::uint32_t rank = 1; rank < kSize; ++rank) {
    const RawPeer& member = members[rank - 1];
    EXPECT_EQ(member.receive(sizeof(FrameHeader)), encode_frame(FrameType::kWelcome, 0, 0));
    member.send(encode_frame(FrameType::kContribution, rank, 1, std::span(most).first(kBytes)));
    member.wait_until_sent();
  }
  const auto met = world->allgather(std::span(most).first(kBytes), test::kShortNs);
  ASSERT_FALSE(met);
  EXPECT_EQ(met.error().status, Status::kTimeout);
  EXPECT_EQ(met.error().message, "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 56 more, the first at " +
                                     members.front().own_text() +
                                     " did not take the result of collective 1 within 0.100 s, and its "
                                     "connection stands: it is slow, or stopped");
  EXPECT_EQ(world->barrier(kLongNs).error().message, met.error().message);
  // Bytes that have begun to come are the result, and nothing follows it.
  const auto result = encode_frame(FrameType::kGathered, 0, 1, std::vector<std::byte>(kSize * kBytes));
  auto came = members.front().receive(result.size());
  EXPECT_LT(came.size(), result.size());
  ASSERT_GE(came.size(), sizeof(FrameHeader));
  EXPECT_TRUE(std::equal(came.begin(), came.end(), result.begin()));
}

// Rank 1 of two whose rank 0 answers the hello with `bytes` and ends the connection.
Error rank_1_receives(const std::vector<std::byte>& bytes, void (RawPeer::*end)() = &RawPeer::close) {
  const LoopbackRoot root;
  auto joined = join_in_background(root.options(1, 2));
  RawPeer rank_0 = RawPeer::accept(root);
  EXPECT_EQ(rank_0.receive(encode_hello(1, 2).size()), encode_hello(1, 2));
  rank_0.send(bytes);
  (rank_0.*end)();
  auto world = joined.get();
  if (!world) return world.error();
  const auto met = world->barrier(kLongNs);
  return met ? Error{Status::kOk, "met"} : met.error();
}

// It is there, and takes what is said to it.
TEST(WorldHostile, root_that_says_nothing_ends_join_and_collective_in_time) {
  for (const bool welcomes : {false, true}) {
    const LoopbackRoot root;
    root.listen();  // before a short join begins
    auto ended = std::async(std::launch::async, [&]() -> Error {
      auto world = World::join(root.options(1, 2, welcomes ? kLongNs : test::kShortNs));
      if (!world) return world.error();
      const auto met = world->barrier(test::kShortNs);
      return met ? Error{Status::kOk, "met"} : met.error();
    });
    const RawPeer rank_0 = RawPeer::accept(root);
    if (welcomes) rank_0.send(encode_frame(FrameType::kWelcome, 0, 0));
    const bool in_time = ended.wait_for(std::chrono::minutes(1)) == std::future_status::ready;
    EXPECT_TRUE(in_time) << welcomes;
    if (!in_time) rank_0.send(std::string(64, '\0'));  // so that it ends all the same
    const Error error = ended.get();
    EXPECT_EQ(error.status, Status::kTimeout) << error.message;
    EXPECT_THAT(
        error.message,
        HasSubstr(welcomes ? "collective 1 did not end within 0.100 s: rank 0, or a rank that it waits for"
                           : "have not come: start all 2 ranks"));
  }
}

TEST(WorldHostile, root_is_no_gdx_rank_join_says_so) {
  const std::string text = "SSH-2.0-OpenSSH_9.2\r\n";
  const auto bytes = std::as_bytes(std::span(text));
  const Error error = rank_1_receives({bytes.begin(), bytes.end()});
  EXPECT_EQ(error.status, Status::kInvalidArgument);
  EXPECT_THAT(error.message, HasSubstr("not a gdx rank"));
}

TEST(WorldHostile, root_closes_before_the_welcome_is_peer_gone) {
  EXPECT_EQ(rank_1_receives({}).status, Status::kPeerGone);
}

// By a reset rank 1's own words fail before it has read the reason.
TEST(WorldHostile, root_sends_its_reason_and_ends_the_reason_is_told) {
  auto bytes = encode_frame(FrameType::kWelcome, 0, 0);
  const auto failure = bootstrap::encode_failure({Status::kNoMemory, 0, "no room for it"});
  bytes.insert(bytes.end(), failure.begin(), failure.end());
  for (const auto end : {&RawPeer::close, &RawPeer::reset}) {
    const Error error = rank_1_receives(bytes, end);
    EXPECT_EQ(error.status, Status::kNoMemory) << error.message;
    EXPECT_EQ(error.message, "rank 0 ended the job: no room for it");
  }
}

// The barrier is collective 1, of no bytes.
TEST(WorldHostile, root_answers_with_a_wrong_result_breaks_the_world) {
  const struct {
    std::uint32_t sequence;
    std::size_t bytes;
  } cases[] = {{1, 3}, {1, 2}, {0, 0}, {2, 0}, {2, 3}};
  for (const auto& [sequence, payload] : cases) {
    auto bytes = encode_frame(FrameType::kWelcome, 0, 0);
    const auto wrong = encode_frame(FrameType::kGathered, 0, sequence, std::vector<std::byte>(payload));
    bytes.insert(bytes.end(), wrong.begin(), wrong.end());
    const Error error = rank_1_receives(bytes);
    EXPECT_EQ(error.status, Status::kInvalidArgument) << error.message;
    EXPECT_EQ(error.message,
              fmt::format("rank 0 answered collective {} with {} bytes, where 1 with 0 were due", sequence,
                          payload));
  }
}

// Rank 1 of two after a first collective of 4 bytes each, which `bytes` follow.
Error rank_1_receives_behind_a_collective(const std::vector<std::byte>& bytes, bool polls) {
  const LoopbackRoot root;
  auto ended = std::async(std::launch::async, [&]() -> Error {
    auto world = World::join(root.options(1, 2));
    if (!world) return world.error();
    const auto first = world->allgather_value(std::uint32_t{7}, kLongNs);
    if (!first) return first.error();
    Result<void> next;
    while (polls && next) next = world->poll_peers();
    if (!polls) next = world->barrier(kLongNs);
    return next ? Error{Status::kOk, "met"} : next.error();
  });
  const RawPeer rank_0 = RawPeer::accept(root);
  EXPECT_EQ(rank_0.receive(encode_hello(1, 2).size()), encode_hello(1, 2));
  const std::uint32_t seven = 7;
  const std::uint32_t both[2] = {6, 7};
  const auto contribution = encode_frame(FrameType::kContribution, 1, 1, std::as_bytes(std::span(&seven, 1)));
  rank_0.send(encode_frame(FrameType::kWelcome, 0, 0));
  EXPECT_EQ(rank_0.receive(contribution.size()), contribution);
  rank_0.send(encode_frame(FrameType::kGathered, 0, 1, std::as_bytes(std::span(both))));
  rank_0.send(bytes);
  return ended.get();
}

TEST(WorldHostile, second_collective_has_the_next_number_and_polling_takes_no_result) {
  const auto answer = [](std::uint32_t sequence) { return encode_frame(FrameType::kGathered, 0, sequence); };
  EXPECT_EQ(rank_1_receives_behind_a_collective(answer(2), false).message, "met");
  for (const std::uint32_t wrong : {1u, 3u}) {
    EXPECT_EQ(rank_1_receives_behind_a_collective(answer(wrong), false).message,
              fmt::format("rank 0 answered collective {} with 0 bytes, where 2 with 0 were due", wrong));
  }
  EXPECT_THAT(rank_1_receives_behind_a_collective(answer(2), true).message, HasSubstr("rank 0 sent"));
  const auto failure = bootstrap::encode_failure({Status::kNoMemory, 0, "no room"});
  EXPECT_EQ(rank_1_receives_behind_a_collective(failure, true).message, "rank 0 ended the job: no room");
}

}  // namespace world_hostile_test
}  // namespace gdx
