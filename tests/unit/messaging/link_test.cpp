// Two links of this process over a real provider: messages both ways, memory that is forgotten, lost peers.
#include <gtest/gtest.h>

#include <functional>

#include "base/clock.h"
#include "host/messaging/link.h"
#include "tests/unit/messaging/links.h"

namespace gdx::messaging {
namespace {

constexpr int kTurns = 1000;  // more than a message takes

class LinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(one_->connect(other_->card()));
    ASSERT_TRUE(other_->connect(one_->card()));
    from_ = one_->register_memory(source_.data(), source_.size(), false).value();
    to_ = other_->register_memory(target_.data(), target_.size(), true).value();
  }
  // Lets both go on until `done` says so.
  void progress() {
    (void)one_->progress(monotonic_ns());
    (void)other_->progress(monotonic_ns());
  }
  bool reaches(const std::function<bool()>& done) {
    for (const std::uint64_t began = monotonic_ns(); monotonic_ns() - began < kHangNs;) {
      progress();
      if (done()) return true;
    }
    return false;
  }
  [[nodiscard]] PortSource source() { return {source_.data(), from_.local}; }
  [[nodiscard]] Part target(std::uint64_t bytes) const {
    Part part{};
    part.address = to_.base;
    part.key = to_.key;
    part.bytes = bytes;
    return part;
  }

  std::vector<std::byte> source_ = std::vector<std::byte>(1 << 20, std::byte{7});
  std::vector<std::byte> target_ = std::vector<std::byte>(1 << 20);
  PortRegion from_;
  PortRegion to_;
  std::unique_ptr<Link> one_ = link_of(End::kConnecting);
  std::unique_ptr<Link> other_ = link_of(End::kAccepting);
};

TEST_F(LinkTest, messages_arrive_whole_and_their_places_are_used_again) {
  for (std::uint64_t round = 0; round < 3 * kMostGroups; ++round) {
    target_[0] = std::byte{0};
    const Part part = target(target_.size());
    const auto group = other_->receive({&part, 1});
    ASSERT_TRUE(group) << group.error().message;
    const auto send = one_->send(0, round * 1000, source());
    ASSERT_TRUE(send);
    std::optional<Link::Received> received;
    ASSERT_TRUE(reaches([&] { return (received = *other_->received(*group)).has_value(); }));
    EXPECT_EQ(received->parts, 1u);
    EXPECT_EQ(received->bytes[0], round * 1000);
    EXPECT_EQ(target_[0], round == 0 ? std::byte{0} : std::byte{7});
    ASSERT_TRUE(reaches([&] { return *one_->sent(*send); }));
    EXPECT_FALSE(one_->sent(*send)) << "a send that has ended";
    ASSERT_TRUE(reaches([&] { return one_->is_quiet() && other_->is_quiet(); }));
  }
  EXPECT_EQ(other_->taken(), 3 * kMostGroups);
}

TEST_F(LinkTest, a_receive_whose_memory_is_forgotten_ends_the_link_and_is_written_no_more) {
  const Part part = target(4096);
  const auto group = other_->receive({&part, 1});
  ASSERT_TRUE(group);
  other_->forget_memory(to_, target_);
  EXPECT_EQ(other_->received(*group).error().status, Status::kInvalidArgument);
  ASSERT_TRUE(one_->send(0, 4096, source()));
  for (int turn = 0; turn < kTurns; ++turn) progress();
  EXPECT_EQ(target_[0], std::byte{0});
}

TEST_F(LinkTest, a_send_whose_memory_is_forgotten_ends_the_link_and_is_read_no_more) {
  const auto send = one_->send(0, 4096, source());
  ASSERT_TRUE(send);
  one_->forget_memory(from_, source_);
  EXPECT_EQ(one_->sent(*send).error().status, Status::kInvalidArgument);
  const Part part = target(4096);
  ASSERT_TRUE(other_->receive({&part, 1}));
  for (int turn = 0; turn < kTurns; ++turn) progress();
  EXPECT_EQ(target_[0], std::byte{0});
}

TEST_F(LinkTest, memory_of_no_open_message_is_forgotten_by_itself) {
  const auto second_source = one_->register_memory(target_.data(), 4096, false).value();
  const auto second_target = other_->register_memory(source_.data(), 4096, true).value();
  const Part part = target(4096);
  const auto first_group = other_->receive({&part, 1});
  const auto first = one_->send(0, 4096, source());
  ASSERT_TRUE(first_group && first);
  // Complete, though nobody has asked.
  ASSERT_TRUE(reaches([&] { return other_->taken() == 1 && one_->delivered() == 1; }));
  one_->forget_memory(from_, source_);
  other_->forget_memory(to_, target_);
  EXPECT_TRUE(*one_->sent(*first));
  EXPECT_TRUE(other_->received(*first_group)->has_value());

  Part again{};
  again.address = second_target.base;
  again.key = second_target.key;
  again.bytes = 4096;
  const auto group = other_->receive({&again, 1});
  const auto send = one_->send(0, 4096, {target_.data(), second_source.local});
  ASSERT_TRUE(group && send);
  ASSERT_TRUE(reaches([&] { return *one_->sent(*send) && other_->received(*group)->has_value(); }));
}

TEST_F(LinkTest, a_group_with_a_send_that_is_too_long_ends_when_all_of_it_has) {
  std::array<Part, 2> parts{target(64), target(64)};
  parts[1].tag = 1;
  const auto group = other_->receive(parts);
  ASSERT_TRUE(group && one_->send(0, 65, source()));
  ASSERT_TRUE(reaches([&] { return other_->taken() == 1; }));
  EXPECT_FALSE(other_->received(*group)->has_value()) << "the other part is under way";
  ASSERT_TRUE(one_->send(1, 64, source()));
  ASSERT_TRUE(reaches([&] { return other_->taken() == 2; }));
  EXPECT_EQ(other_->received(*group).error().status, Status::kInvalidLength);
  EXPECT_FALSE(other_->failure()) << "the link goes on";
}

TEST_F(LinkTest, as_many_sends_and_groups_as_are_promised) {
  for (std::uint32_t i = 0; i < kMostSends; ++i) ASSERT_TRUE(one_->send(0, 0, source())) << i;
  EXPECT_EQ(one_->send(0, 0, source()).error().status, Status::kBusy);
  const Part part = target(0);
  for (std::uint32_t i = 0; i < kMostGroups; ++i) ASSERT_TRUE(other_->receive({&part, 1})) << i;
  EXPECT_EQ(other_->receive({&part, 1}).error().status, Status::kBusy);
}

TEST_F(LinkTest, what_the_peer_has_taken_is_complete_and_the_rest_fails) {
  const Part part = target(64);
  ASSERT_TRUE(other_->receive({&part, 1}));
  ASSERT_TRUE(other_->receive({&part, 1}));
  const auto first = one_->send(0, 64, source());
  const auto second = one_->send(0, 64, source());
  const auto third = one_->send(0, 64, source());
  ASSERT_TRUE(first && second && third);
  // The peer's words come before the provider's.
  ASSERT_TRUE(reaches([&] { return other_->taken() == 2; }));
  one_->peer_has_taken(2);
  one_->lose({Status::kPeerGone, "gone"});
  EXPECT_TRUE(*one_->sent(*first));
  EXPECT_TRUE(*one_->sent(*second));
  EXPECT_EQ(one_->sent(*third).error().status, Status::kPeerGone);
}

TEST_F(LinkTest, a_lost_link_takes_messages_as_before_and_tells_its_error_at_their_tests) {
  const Part part = target(64);
  one_->lose({Status::kPeerGone, "gone"});
  std::uint32_t sends = 0;
  for (auto send = one_->send(0, 64, source()); send; send = one_->send(0, 64, source()), ++sends)
    ASSERT_EQ(one_->sent(*send).error().status, Status::kPeerGone);
  EXPECT_EQ(sends, kMostSends) << "of those that wait for a receive, which none gets";
  EXPECT_EQ(one_->send(0, 64, source()).error().status, Status::kPeerGone);
  std::vector<std::uint64_t> groups;
  for (auto group = one_->receive({&part, 1}); group; group = one_->receive({&part, 1}))
    groups.push_back(*group);
  EXPECT_EQ(groups.size(), kMostGroups);
  EXPECT_EQ(one_->receive({&part, 1}).error().status, Status::kPeerGone);
  for (const std::uint64_t group : groups) EXPECT_EQ(one_->received(group).error().status, Status::kPeerGone);
}

}  // namespace
}  // namespace gdx::messaging
