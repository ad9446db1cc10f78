// The target's agent: each message is applied after the messages and writes that it names, in whatever order
// they come, and what no peer could have sent is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "host/poster/agent.h"

namespace gdx {
namespace {

using agent::Kind;
using agent::Message;

class AgentTest : public ::testing::Test {
 protected:
  Message message(std::uint64_t sequence, std::uint64_t after, std::uint64_t value) const {
    Message made{};
    made.kind = Kind::kSet;
    made.flow = kFlow;
    made.sequence = sequence;
    made.after = after;
    made.value = value;
    made.request = 100 + sequence;
    return made;
  }
  Result<void> write(std::uint64_t number) {
    return agent_.on_write(agent::pack_number(kFlow, number), windows_, answers_);
  }
  Result<void> give(const Message& made) { return agent_.on_message(made, windows_, answers_); }

  static constexpr std::uint32_t kFlow = 2;
  Agent agent_{4};
  std::array<std::uint64_t, 4> words_{};
  std::array<PosterWindow, 1> windows_{{{reinterpret_cast<std::byte*>(words_.data()), sizeof words_}}};
  std::vector<Agent::Answer> answers_;
};

TEST_F(AgentTest, message_waits_for_each_earlier_write_and_not_for_as_many) {
  ASSERT_TRUE(give(message(0, 2, 7)));
  ASSERT_TRUE(write(0));
  ASSERT_TRUE(write(2));
  EXPECT_EQ(words_[0], 0u);
  ASSERT_TRUE(write(1));
  EXPECT_EQ(words_[0], 7u);
}

TEST_F(AgentTest, messages_are_applied_in_their_order) {
  ASSERT_TRUE(give(message(1, 0, 2)));
  EXPECT_EQ(words_[0], 0u);
  ASSERT_TRUE(give(message(0, 0, 1)));
  EXPECT_EQ(words_[0], 2u);
}

TEST_F(AgentTest, other_flows_do_not_wait) {
  ASSERT_TRUE(give(message(0, 1, 7)));
  Message other = message(0, 0, 9);
  other.flow = 1;
  other.offset = 8;
  ASSERT_TRUE(give(other));
  EXPECT_EQ(words_[0], 0u);
  EXPECT_EQ(words_[1], 9u);
}

TEST_F(AgentTest, orders_by_chance_over_laps_of_numbers) {
  std::mt19937_64 random(5);
  std::uint64_t number = 0;
  for (std::uint64_t sequence = 0; sequence < 4096; sequence += 8) {
    std::vector<std::uint64_t> writes(agent::kMostWrites);
    for (std::uint64_t& one : writes) one = number++;
    std::vector<Message> messages;
    for (std::uint64_t i = 0; i < 8; ++i)
      messages.push_back(message(sequence + i, number - 1, sequence + i + 1));
    std::ranges::shuffle(writes, random);
    std::ranges::shuffle(messages, random);
    for (const Message& made : messages) ASSERT_TRUE(give(made));
    const auto last = std::ranges::find_if(writes, [&](std::uint64_t one) { return one + 1 < number; });
    std::swap(*last, writes.back());
    for (const std::uint64_t one : writes) {
      EXPECT_EQ(words_[0], sequence);
      ASSERT_TRUE(write(one));
    }
    EXPECT_EQ(words_[0], sequence + 8);
  }
  EXPECT_GT(number, 200'000u);
}

TEST_F(AgentTest, numbers_go_on_after_their_last_bit) {
  const std::uint64_t lap = std::uint64_t{1} << agent::kNumberBits;
  for (std::uint64_t number = 0; number < lap + 10; ++number) ASSERT_TRUE(write(number));
  ASSERT_TRUE(give(message(0, lap + 11, 3)));
  EXPECT_EQ(words_[0], 0u);
  ASSERT_TRUE(write(lap + 10));
  EXPECT_EQ(words_[0], 3u);
}

TEST_F(AgentTest, atomics_return_the_old_word) {
  words_[0] = 40;
  Message add = message(0, 0, 2);
  add.kind = Kind::kFetchAdd;
  add.wants_answer = 1;
  Message swap = message(1, 0, 9);
  swap.kind = Kind::kCompareSwap;
  swap.compare = 41;
  swap.wants_answer = 1;
  Message winner = swap;
  winner.sequence = 2;
  winner.compare = 42;
  for (const Message& made : {add, swap, winner}) ASSERT_TRUE(give(made));
  ASSERT_EQ(answers_.size(), 3u);
  EXPECT_EQ(answers_[0].message.value, 40u);
  EXPECT_EQ(answers_[0].message.request, 100u);
  EXPECT_EQ(answers_[1].message.value, 42u);
  EXPECT_EQ(answers_[2].message.value, 42u);
  EXPECT_EQ(words_[0], 9u);
}

TEST_F(AgentTest, word_outside_its_window_is_refused_and_told) {
  for (const std::uint64_t offset : {std::uint64_t{4}, sizeof words_, sizeof words_ - 4, ~std::uint64_t{7}}) {
    answers_.clear();
    Agent fresh(4);
    Message made = message(0, 0, 1);
    made.offset = offset;
    ASSERT_TRUE(fresh.on_message(made, windows_, answers_));
    ASSERT_EQ(answers_.size(), 1u);
    EXPECT_EQ(answers_[0].message.refused, 1);
  }
  EXPECT_EQ(words_, (std::array<std::uint64_t, 4>{}));
}

TEST_F(AgentTest, word_by_address_changes_while_it_is_shown) {
  std::array<std::uint64_t, 2> other{};
  const PosterWindow shown{reinterpret_cast<std::byte*>(other.data()), sizeof other};
  std::uint64_t sequence = 0;
  const auto is_refused = [&](std::uint64_t address) {
    Message made = message(sequence++, 0, 5);
    made.window = agent::kByAddress;
    made.offset = address;
    answers_.clear();
    EXPECT_TRUE(give(made));
    return !answers_.empty() && answers_.front().message.refused != 0;
  };
  const auto begin = reinterpret_cast<std::uintptr_t>(other.data());
  EXPECT_TRUE(is_refused(begin));
  agent_.show(shown);
  agent_.show(shown);  // registered twice
  EXPECT_FALSE(is_refused(begin + 8));
  EXPECT_EQ(other[1], 5u);
  EXPECT_TRUE(is_refused(begin - 8));
  EXPECT_TRUE(is_refused(begin + 4));
  EXPECT_TRUE(is_refused(begin + 16));
  agent_.hide(shown);
  EXPECT_FALSE(is_refused(begin));
  agent_.hide(shown);
  EXPECT_TRUE(is_refused(begin));
  EXPECT_EQ(words_[0], 0u);
}

TEST_F(AgentTest, what_no_peer_could_have_sent_is_refused) {
  EXPECT_FALSE(give(message(agent::kMostUnanswered, 0, 1)));
  ASSERT_TRUE(give(message(1, 0, 1)));
  EXPECT_FALSE(give(message(1, 0, 1)));
  EXPECT_FALSE(write(2 * agent::kMostWrites));
  ASSERT_TRUE(write(3));
  EXPECT_FALSE(write(3));
  Message made = message(0, 0, 1);
  made.flow = 4;
  EXPECT_FALSE(give(made));
  EXPECT_FALSE(agent_.on_write(agent::pack_number(4, 0), windows_, answers_));
}

}  // namespace
}  // namespace gdx
