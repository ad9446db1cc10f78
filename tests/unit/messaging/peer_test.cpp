// Last words of a peer: what it has is complete, and what it has delivered arrives.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>

#include "base/clock.h"
#include "host/messaging/peer.h"
#include "tests/unit/messaging/links.h"

namespace gdx::messaging {
namespace {

using bootstrap::MeetingMessage;

constexpr std::uint64_t kMessages = 100;  // more than one look takes

// A peer, and its other end in the test's own hands.
class PeerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> sockets{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets.data()), 0);
    words_ = bootstrap::Connection(Descriptor(sockets[1]));
    auto link = link_of(End::kAccepting, &trouble_);
    ASSERT_TRUE(link->connect(other_->card()));
    ASSERT_TRUE(other_->connect(link->card()));
    peer_ = std::make_unique<Peer>(keeper_, std::move(link), bootstrap::Connection(Descriptor(sockets[0])),
                                   End::kAccepting);
  }
  void say_bye(std::uint64_t taken, std::uint64_t sent) {
    MeetingMessage bye{};
    bye.version = bootstrap::kMeetingVersion;
    bye.kind = static_cast<std::uint32_t>(bootstrap::MeetingKind::kBye);
    bye.taken = taken;
    bye.sent = sent;
    words_.queue(meeting_frame(End::kConnecting, bye));
    ASSERT_TRUE(words_.flush());
  }
  bool reaches(const std::function<bool()>& done) {
    for (const std::uint64_t began = monotonic_ns(); monotonic_ns() - began < kHangNs;) {
      (void)other_->progress(monotonic_ns());
      if (done()) return true;
    }
    return false;
  }
  // Sends twice to a peer that takes the first and closes, and waits until the second has failed.
  void lose_second_of_two_sends() {
    const Part part{};
    ASSERT_TRUE(other_->receive({&part, 1}));
    const auto first = peer_->send(0, 0, {});
    const auto second = peer_->send(0, 0, {});
    ASSERT_TRUE(first && second);
    ASSERT_TRUE(reaches([&] {
      peer_->progress();
      return other_->taken() == 1;
    }));
    say_bye(1, 0);
    std::optional<Result<bool>> end;
    ASSERT_TRUE(reaches([&] {
      end = peer_->sent(*second);
      return !*end;
    }));
    first_ = *first;
    loss_ = end->error();
  }

  Trouble trouble_;  // of the peer's port
  std::shared_ptr<Keeper> keeper_ = std::make_shared<Keeper>();
  std::unique_ptr<Link> other_ = link_of(End::kConnecting);
  bootstrap::Connection words_;
  std::unique_ptr<Peer> peer_;
  std::uint64_t first_ = 0;
  Error loss_;
};

TEST(Grace, is_not_over_by_a_clock_that_was_read_before_it) {
  Grace grace;
  grace.begin(5 * kGraceNs);
  for (std::uint32_t look = 0; look < kGraceLooks; ++look) grace.on_look(false);
  EXPECT_FALSE(grace.is_over(5 * kGraceNs - 1));
  EXPECT_FALSE(grace.is_over(6 * kGraceNs - 1));
  EXPECT_TRUE(grace.is_over(6 * kGraceNs));
  grace.on_look(true);
  EXPECT_FALSE(grace.is_over(7 * kGraceNs)) << "while anything arrives";
  EXPECT_TRUE(grace.is_over(10 * kGraceNs)) << "whatever arrives";
}

TEST_F(PeerTest, what_the_peer_has_is_complete_and_the_rest_is_told) {
  ASSERT_NO_FATAL_FAILURE(lose_second_of_two_sends());
  EXPECT_EQ(loss_.status, Status::kPeerGone);
  const auto sent = peer_->sent(first_);
  ASSERT_TRUE(sent) << sent.error().message;
  EXPECT_TRUE(*sent);
}

TEST_F(PeerTest, what_the_peer_has_delivered_arrives_after_its_last_words) {
  Part part{};
  std::vector<std::uint64_t> groups;
  for (std::uint64_t i = 0; i < kMessages / 4; ++i) {
    const std::array<Part, 4> parts{part, part, part, part};
    const auto group = peer_->receive(parts);
    ASSERT_TRUE(group);
    groups.push_back(*group);
  }
  say_bye(0, kMessages);
  for (std::uint64_t i = 0; i < kMessages; ++i) ASSERT_TRUE(other_->send(0, 0, {}));
  for (const std::uint64_t group : groups) {
    std::optional<Link::Received> received;
    ASSERT_TRUE(reaches([&] {
      const auto now = peer_->received(group);
      EXPECT_TRUE(now) << now.error().message;
      if (!now) return true;
      received = *now;
      return received.has_value();
    }));
    ASSERT_TRUE(received);
  }
  ASSERT_TRUE(reaches([&] { return !words_.receive({bootstrap::FrameType::kMeeting}); })) << "it hangs up";
}

// A completion does not say that the other end's program has the message: its provider may still drop it with
// the connection.
TEST_F(PeerTest, one_that_has_sent_goes_on_until_the_other_end_hangs_up) {
  const Part part{};
  ASSERT_TRUE(other_->receive({&part, 1}));
  const auto send = peer_->send(0, 0, {});
  ASSERT_TRUE(send);
  ASSERT_TRUE(reaches([&] { return *peer_->sent(*send); }));
  Peer::close(std::move(peer_));
  ASSERT_TRUE(reaches([&] { return words_.receive({bootstrap::FrameType::kMeeting})->has_value(); }));
  EXPECT_TRUE(words_.expect_silence());
}

TEST_F(PeerTest, a_peer_that_hangs_up_without_a_word_is_gone) {
  const auto group = peer_->receive(std::array<Part, 1>{});
  ASSERT_TRUE(group);
  words_ = bootstrap::Connection();
  std::optional<Error> error;
  ASSERT_TRUE(reaches([&] {
    const auto now = peer_->received(*group);
    if (!now) error = now.error();
    return !now;
  }));
  EXPECT_EQ(error->status, Status::kPeerGone);
}

// A program's other end may close before this one has posted what it will never get.
TEST_F(PeerTest, what_a_lost_peer_is_asked_fails_at_its_test) {
  words_ = bootstrap::Connection();
  const Part part{};
  const auto before = peer_->receive({&part, 1});
  ASSERT_TRUE(before);
  ASSERT_TRUE(reaches([&] { return !peer_->received(*before); }));
  const auto send = peer_->send(0, 0, {});
  const auto group = peer_->receive({&part, 1});
  ASSERT_TRUE(send && group);
  EXPECT_EQ(peer_->sent(*send).error().status, Status::kPeerGone);
  EXPECT_EQ(peer_->received(*group).error().status, Status::kPeerGone);
}

TEST_F(PeerTest, a_wire_that_ends_before_the_last_words_is_told_as_the_peers_end) {
  trouble_.error = {Status::kFlushed, "cancelled"};
  trouble_.fails = true;
  ASSERT_NO_FATAL_FAILURE(lose_second_of_two_sends());
  EXPECT_EQ(loss_.status, Status::kPeerGone);
  EXPECT_NE(loss_.message.find("closed"), std::string::npos) << loss_.message;
  EXPECT_NE(loss_.message.find("cancelled"), std::string::npos) << loss_.message;
  EXPECT_TRUE(*peer_->sent(first_));
}

TEST_F(PeerTest, what_the_peer_has_is_complete_by_its_words_alone) {
  trouble_.withholds = true;
  const Part part{};
  ASSERT_TRUE(other_->receive({&part, 1}));
  ASSERT_TRUE(other_->receive({&part, 1}));
  const auto first = peer_->send(0, 0, {});
  const auto second = peer_->send(0, 0, {});
  ASSERT_TRUE(first && second);
  ASSERT_TRUE(reaches([&] {
    peer_->progress();
    return other_->taken() == 2;
  }));
  EXPECT_FALSE(*peer_->sent(*first));
  say_bye(1, 0);
  std::optional<Result<bool>> end;
  ASSERT_TRUE(reaches([&] {
    end = peer_->sent(*second);
    return !*end;
  }));
  const auto sent = peer_->sent(*first);
  ASSERT_TRUE(sent) << sent.error().message;
  EXPECT_TRUE(*sent);
}

TEST_F(PeerTest, last_words_count_what_was_taken_and_delivered) {
  const Part part{};
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(other_->receive({&part, 1}));
  std::vector<std::uint64_t> sends(4);  // one more than receives
  std::vector<std::uint64_t> groups(2);
  for (std::uint64_t& send : sends) send = peer_->send(0, 0, {}).value();
  for (std::uint64_t& group : groups) group = peer_->receive({&part, 1}).value();
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(other_->send(0, 0, {}));
  for (std::size_t i = 0; i < 3; ++i) ASSERT_TRUE(reaches([&] { return *peer_->sent(sends[i]); }));
  for (const std::uint64_t group : groups)
    ASSERT_TRUE(reaches([&] { return peer_->received(group)->has_value(); }));
  peer_.reset();
  std::optional<bootstrap::Frame> frame;
  ASSERT_TRUE(reaches([&] {
    auto now = words_.receive({bootstrap::FrameType::kMeeting});
    EXPECT_TRUE(now);
    if (now) frame = std::move(*now);
    return !now || frame.has_value();
  }));
  ASSERT_TRUE(frame);
  MeetingMessage bye{};
  std::memcpy(&bye, frame->payload.data(), sizeof bye);
  EXPECT_EQ(std::uint64_t{bye.taken}, 2u);
  EXPECT_EQ(std::uint64_t{bye.sent}, 3u);
}

TEST_F(PeerTest, an_exception_in_a_turn_ends_the_peer_and_no_more) {
  const auto group = peer_->receive(std::array<Part, 1>{});
  ASSERT_TRUE(group);
  trouble_.throws = 1;
  ASSERT_TRUE(reaches([&] { return trouble_.throws == 0; }));  // in the keeper's thread
  std::optional<Error> error;
  ASSERT_TRUE(reaches([&] {
    const auto now = peer_->received(*group);
    if (!now) error = now.error();
    return !now;
  }));
  EXPECT_EQ(error->status, Status::kSystem);
}

}  // namespace
}  // namespace gdx::messaging
