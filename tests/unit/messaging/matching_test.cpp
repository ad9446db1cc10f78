// Matching by seed against what MPI promises: the k-th send of a tag goes to the k-th receive of that tag.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>

#include "host/messaging/matching.h"

namespace gdx::messaging {
namespace {

constexpr std::uint64_t kBytes = 1000;

Part part_of(std::int32_t tag, std::uint64_t bytes = kBytes) {
  Part part{};
  part.tag = tag;
  part.bytes = bytes;
  return part;
}

// Two ends. Announcements and arrivals are under way for as long as the seed says, each kind in its order.
class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed), tags_(1 + random_() % 4) {}

  void run() {
    for (int turn = 0; turn < 4000; ++turn) {
      switch (random_() % 5) {
        case 0: post_receives(); break;
        case 1: post_send(); break;
        case 2: announce(); break;
        case 3: match(); break;
        case 4: arrive(); break;
      }
    }
    ASSERT_GT(complete_, 20u);
  }

 private:
  std::int32_t tag() { return static_cast<std::int32_t>(random_() % tags_); }

  void post_receives() {
    std::vector<Part> parts(1 + random_() % kMostParts);
    for (Part& part : parts) part = part_of(tag());
    const bool is_free =
        receiver_.groups() < kMostGroups || !open_.contains(receiver_.groups() - kMostGroups);
    const auto made = receiver_.post(parts);
    ASSERT_EQ(made.has_value(), is_free);
    if (!made) return;
    open_[made->group] = *made;
    for (std::uint32_t i = 0; i < made->parts; ++i)
      expected_[{made->group, i}] = {made->part[i].tag, receives_of_[made->part[i].tag]++};
    announced_.push_back(*made);
  }
  void post_send() {
    const std::int32_t to = tag();
    const std::uint64_t order = sends_of_[to];
    // Bytes tell which send of its tag it is.
    const auto number = sender_.post(to, order % kBytes);
    ASSERT_EQ(number.has_value(), waiting_ < kMostSends);
    if (!number) return;
    ++waiting_;
    ++sends_of_[to];
  }
  void announce() {
    if (announced_.empty()) return;
    ASSERT_TRUE(sender_.on_announcement(announced_.front()));
    announced_.pop_front();
  }
  void match() {
    while (const auto match = sender_.next_match()) {
      ASSERT_TRUE(match->fits);
      --waiting_;
      arrivals_.push_back(*match);
    }
  }
  void arrive() {
    if (arrivals_.empty()) return;
    const auto match = arrivals_.front();
    arrivals_.pop_front();
    const auto [to, order] = expected_.at({match.place.group, match.place.part});
    ASSERT_EQ(match.receive.tag, to);
    ASSERT_EQ(match.receive.bytes, order % kBytes) << "the send is not the one that is due for tag " << to;
    const auto early = receiver_.on_word(match.place, 0);
    ASSERT_TRUE(early && !*early);
    const auto arrived = receiver_.on_word(match.place, pack_arrival(match.place.group, match.receive.bytes));
    ASSERT_TRUE(arrived && *arrived);
    const auto bytes = receiver_.complete(match.place.group);
    if (bytes.empty()) return;
    ASSERT_EQ(bytes.size(), open_.at(match.place.group).parts);
    receiver_.retire(match.place.group);
    open_.erase(match.place.group);
    ++complete_;
  }

  std::mt19937_64 random_;
  std::uint64_t tags_;
  SendMatcher sender_;
  ReceiveMatcher receiver_;
  std::deque<Announcement> announced_;
  std::deque<SendMatcher::Match> arrivals_;
  std::map<std::uint64_t, Announcement> open_;
  std::map<std::int32_t, std::uint64_t> sends_of_;
  std::map<std::int32_t, std::uint64_t> receives_of_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::pair<std::int32_t, std::uint64_t>> expected_;
  std::uint64_t waiting_ = 0;
  std::uint64_t complete_ = 0;
};

TEST(Matching, sends_and_receives_of_a_tag_keep_their_order_whatever_the_others_do) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    ASSERT_NO_FATAL_FAILURE(World(seed).run());
  }
}

TEST(Matching, a_send_waits_for_no_other_tag) {
  SendMatcher sender;
  ASSERT_TRUE(sender.post(1, 8));
  ASSERT_TRUE(sender.post(2, 8));
  Announcement announcement{};
  announcement.parts = 1;
  announcement.part[0] = part_of(2);
  ASSERT_TRUE(sender.on_announcement(announcement));
  const auto match = sender.next_match();
  ASSERT_TRUE(match);
  EXPECT_EQ(match->send, 1u);
  EXPECT_FALSE(sender.next_match());
}

TEST(Matching, a_send_that_is_too_long_is_told_to_both_ends) {
  SendMatcher sender;
  ReceiveMatcher receiver;
  const std::array<Part, 2> parts{part_of(0, 10), part_of(1, 10)};
  ASSERT_TRUE(sender.on_announcement(*receiver.post(parts)));
  ASSERT_TRUE(sender.post(0, 11));
  const auto match = sender.next_match();
  ASSERT_TRUE(match);
  EXPECT_FALSE(match->fits);
  const auto word = receiver.on_word(match->place, pack_arrival(0, kTooLong));
  ASSERT_TRUE(word && *word);
  EXPECT_TRUE(receiver.complete(0).empty()) << "the other part is under way";
  ASSERT_TRUE(*receiver.on_word({0, 1}, pack_arrival(0, 10)));
  EXPECT_EQ(receiver.complete(0).size(), 2u);
  EXPECT_EQ(receiver.arrived(), 2u);
  ASSERT_TRUE(receiver.refusal(0));
  EXPECT_EQ(receiver.refusal(0)->status, Status::kInvalidLength);
}

TEST(Matching, words_that_no_peer_sends_are_refused) {
  SendMatcher sender;
  Announcement announcement{};
  for (const std::uint32_t parts : {0u, kMostParts + 1, ~0u}) {
    announcement.parts = parts;
    EXPECT_EQ(sender.on_announcement(announcement).error().status, Status::kRemoteInvalid);
  }
  announcement.parts = 1;
  announcement.group = 1;
  EXPECT_EQ(sender.on_announcement(announcement).error().status, Status::kRemoteInvalid);
  // More receives than a receiver may have open.
  for (announcement.group = 0; announcement.group < kMostSends; ++announcement.group)
    ASSERT_TRUE(sender.on_announcement(announcement));
  EXPECT_EQ(sender.on_announcement(announcement).error().status, Status::kRemoteInvalid);

  ReceiveMatcher receiver;
  const Part part = part_of(0, 10);
  ASSERT_TRUE(receiver.post({&part, 1}));
  EXPECT_EQ(receiver.on_word({0, 0}, pack_arrival(0, 11)).error().status, Status::kRemoteInvalid);
  EXPECT_FALSE(*receiver.on_word({0, 0}, pack_arrival(kMostGroups, 1))) << "of a group a lap away";
  EXPECT_EQ(receiver.post({}).error().status, Status::kInvalidArgument);
}

TEST(Matching, a_word_of_a_lap_before_is_none) {
  for (const std::uint64_t group : {std::uint64_t{0}, std::uint64_t{31}, (std::uint64_t{1} << 24) - 1}) {
    EXPECT_NE(pack_arrival(group, 0), 0u);
    EXPECT_NE(pack_arrival(group, 0), pack_arrival(group + kMostGroups, 0));
  }
}

}  // namespace
}  // namespace gdx::messaging
