// Order of a team's calls, as device/team.h and docs/any_nic.md promise it, over whatever way there is: every
// rank of `gdx run --ranks 3` runs these tests in the same order. GDX_PROVIDER: the way. GDX_LITMUS_ROUNDS:
// of each test (100).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

#include "device/team.h"
#include "host/gdx.h"
#include "tests/e2e/must.h"

namespace gdx {
namespace team_litmus_test {

constexpr std::uint64_t kPatienceNs = 200'000'000'000;
constexpr std::size_t kWord = sizeof(std::uint64_t);

std::uint64_t round_count() {
  const char* const asked = std::getenv("GDX_LITMUS_ROUNDS");
  return asked == nullptr ? 100 : std::strtoull(asked, nullptr, 10);
}

// No rank maps another; rank 0 maps none, and the others each other; all map all.
enum class Ways { kApart, kBeside, kMapped };

// The sender's calls are judged, by what the target and a witness see.
class TeamLitmus : public ::testing::TestWithParam<Ways> {
 protected:
  TeamLitmus() : team_(make_team()) {}

  static Team make_team() {
    TeamOptions options;
    options.heap_bytes = 2 << 20;
    options.timeout_ns = kPatienceNs;
    const auto world = must(WorldOptions::from_environment());
    const bool off = GetParam() == Ways::kApart || (GetParam() == Ways::kBeside && world.rank == 0);
    options.direct = off ? DirectChoice::kOff : DirectChoice::kAuto;
    return must(Team::create(options));
  }
  void SetUp() override { ASSERT_EQ(team_.size(), 3u); }

  std::uint64_t* allocate(std::size_t words) { return must(team_.allocate<std::uint64_t>(words)); }

  // Runs `step(handle, round)` at this rank until a call fails, and waits for the others.
  template <typename Step>
  void in_rounds(std::uint64_t rounds, Step step) {
    Status status = Status::kOk;
    const auto kernel = [&](const TeamHandle& handle) {
      for (std::uint64_t round = 1; round <= rounds && status == Status::kOk; ++round)
        status = step(handle, round);
      if (status == Status::kOk) status = gdx_quiet(handle);
    };
    const exec::LaunchConfig config{.grid = {1}, .block = {1}, .progress = progress};
    EXPECT_EQ(exec::launch(config, kernel, team_.handle()), Status::kOk);
    EXPECT_EQ(status, Status::kOk) << team_.describe_fault();
    must(team_.barrier());
  }

  bool sends() const { return team_.rank() == sender_; }
  bool witnesses() const { return team_.rank() == witness_; }
  bool is_target() const { return team_.rank() == kTarget; }

  static constexpr std::uint32_t kTarget = 2;
  const std::uint32_t sender_ = GetParam() == Ways::kBeside ? 1 : 0;
  const std::uint32_t witness_ = 1 - sender_;
  Team team_;
};
INSTANTIATE_TEST_SUITE_P(Ranks, TeamLitmus, ::testing::Values(Ways::kApart, Ways::kBeside, Ways::kMapped),
                         [](const auto& test) {
                           switch (test.param) {
                             case Ways::kApart: return "apart";
                             case Ways::kBeside: return "beside";
                             case Ways::kMapped: return "mapped";
                           }
                           return "";
                         });

std::uint64_t load(const std::uint64_t* word) { return exec::load_acquire(word); }

constexpr std::uint64_t pattern(std::uint64_t round, std::uint64_t at) {
  return (round << 24 | at) * 0x9e3779b97f4a7c15u;
}
std::uint64_t differing(const std::uint64_t* words, std::uint64_t count, std::uint64_t round) {
  std::uint64_t differ = 0;
  for (std::uint64_t at = 0; at < count; ++at) differ += words[at] != pattern(round, at) ? 1 : 0;
  return differ;
}
void fill(std::uint64_t* words, std::uint64_t count, std::uint64_t round) {
  for (std::uint64_t at = 0; at < count; ++at) words[at] = pattern(round, at);
}

constexpr std::uint64_t kPuts = 6;
constexpr std::uint64_t kPutWords = 512;
constexpr std::uint64_t kAreas = 4;

// Puts of a round, by number of words; equal at all ranks.
std::array<std::uint64_t, kPuts> lengths_of(std::uint64_t round) {
  std::mt19937_64 random(round);
  std::array<std::uint64_t, kPuts> lengths{};
  for (std::uint64_t& words : lengths) words = 1 + random() % (round % 8 == 0 ? kPutWords : 8);
  return lengths;
}

// Makes the word of the round `round`, in each round by another call.
Status tell(const TeamHandle& team, std::uint64_t* old, std::uint64_t* word, std::uint64_t round,
            std::uint32_t rank) {
  if (round % 3 == 0) return gdx_signal(team, word, round, SignalOp::kSet, rank);
  if (round % 3 == 1) return gdx_signal(team, word, 1, SignalOp::kAdd, rank);
  return gdx_fetch_add(team, old, word, 1, rank);
}

// The next round's puts follow while these may still be on their way.
TEST_P(TeamLitmus, signal_or_atomic_comes_after_the_puts_and_values_before_it) {
  constexpr std::uint64_t kAreaWords = kPuts * kPutWords;
  auto* const from = allocate(kAreas * kAreaWords);
  auto* const to = allocate(kAreas * kAreaWords);
  auto* const values = allocate(kAreas);
  auto* const words = allocate(3);
  std::uint64_t early = 0;
  const auto send = [&](const TeamHandle& handle, std::uint64_t round, std::uint64_t area) {
    if (round >= kAreas) {  // areas are compared before they are written again
      const Status read = gdx_wait(handle, words + 1, Compare::kGreaterEqual, round + 1 - kAreas, kTarget);
      if (read != Status::kOk) return read;
    }
    Status sent = gdx_put_value(handle, values + round % kAreas, round, kTarget);
    for (std::uint64_t i = 0; i < kPuts && sent == Status::kOk; ++i) {
      const std::uint64_t at = area + i * kPutWords;
      const std::uint64_t count = lengths_of(round)[i];
      fill(from + at, count, round);
      sent = gdx_put(handle, to + at, from + at, count * kWord, kTarget);
    }
    return sent == Status::kOk ? tell(handle, words + 2, words, round, kTarget) : sent;
  };
  const auto look = [&](const TeamHandle& handle, std::uint64_t round, std::uint64_t area) {
    const Status came = gdx_wait(handle, words, Compare::kGreaterEqual, round, sender_);
    if (came != Status::kOk) return came;
    early += values[round % kAreas] != round ? 1 : 0;
    for (std::uint64_t i = 0; i < kPuts; ++i)
      early += differing(to + area + i * kPutWords, lengths_of(round)[i], round);
    return gdx_signal(handle, words + 1, round, SignalOp::kSet, sender_);
  };
  in_rounds(round_count(), [&](const TeamHandle& handle, std::uint64_t round) {
    const std::uint64_t area = round % kAreas * kAreaWords;
    if (sends()) return send(handle, round, area);
    return is_target() ? look(handle, round, area) : Status::kOk;
  });
  EXPECT_EQ(early, 0u) << "words that came after the signal behind them";
}

// Two words change in turn: the first is never behind the second, and neither goes back.
TEST_P(TeamLitmus, signal_comes_after_the_signals_before_it) {
  const std::uint64_t rounds = round_count();
  auto* const words = allocate(3);
  std::uint64_t early = 0;
  std::uint64_t seen = 0;
  in_rounds(rounds, [&](const TeamHandle& handle, std::uint64_t round) {
    if (sends()) {
      const Status sent = gdx_signal(handle, words, round, SignalOp::kSet, kTarget);
      return sent == Status::kOk ? tell(handle, words + 2, words + 1, round, kTarget) : sent;
    }
    if (!is_target() || seen == rounds) return Status::kOk;
    const Status came = gdx_wait(handle, words + 1, Compare::kGreaterEqual, seen + 1, sender_);
    const std::uint64_t second = load(words + 1);
    early += load(words) < second || (came == Status::kOk && second <= seen) ? 1 : 0;
    seen = second;
    return came;
  });
  EXPECT_EQ(early, 0u) << "signals that came before an earlier one";
}

// A get sees what was put and signalled before it; behind a flush, where nothing more is promised.
TEST_P(TeamLitmus, get_sees_the_puts_and_signals_before_it) {
  constexpr std::uint64_t kMostWords = 8192;
  auto* const from = allocate(kMostWords);
  auto* const to = allocate(kMostWords);
  auto* const got = allocate(kMostWords);
  auto* const words = allocate(3);
  const bool flushes = team_.way(kTarget, 0) != PeerWay::kProxied;
  std::uint64_t stale = 0;
  in_rounds(round_count(), [&](const TeamHandle& handle, std::uint64_t round) {
    if (!sends()) return Status::kOk;
    const std::uint64_t count = round % 16 == 0 ? kMostWords : 1 + round % 64;
    fill(from, count, round);
    Status status = gdx_put(handle, to, from, count * kWord, kTarget);
    if (status == Status::kOk && flushes) status = gdx_flush(handle, kTarget);
    if (status == Status::kOk) status = gdx_get(handle, got, to, count * kWord, kTarget);
    if (status == Status::kOk) status = tell(handle, words + 2, words, round, kTarget);
    if (status == Status::kOk && flushes) status = gdx_flush(handle, kTarget);
    if (status == Status::kOk) status = gdx_get(handle, words + 1, words, kWord, kTarget);
    if (status == Status::kOk) status = gdx_flush(handle, kTarget);
    stale += differing(got, count, round) + (words[1] != round ? 1 : 0);
    return status;
  });
  EXPECT_EQ(stale, 0u) << "words that a get did not see";
}

// A rank that learns of the flush by another way finds what came before it: the sender itself, where it maps
// the target's words, and the witness by a get.
TEST_P(TeamLitmus, flush_ends_when_the_target_has_puts_and_signals) {
  constexpr std::uint64_t kCount = 64;
  auto* const from = allocate(kCount);
  auto* const to = allocate(kCount);
  auto* const got = allocate(kCount);
  auto* const words = allocate(8);  // signal, its copy, old value, flushed, seen
  const TeamHandle own = team_.handle();
  const std::byte* const mapped = own.peers[kTarget].windows[0].mapped;
  const auto at_target = [&](const std::uint64_t* word) {
    const auto offset = reinterpret_cast<const std::byte*>(word) - own.windows[0].address;
    return reinterpret_cast<const std::uint64_t*>(mapped + offset);
  };
  std::uint64_t late = 0;
  const auto send = [&](const TeamHandle& handle, std::uint64_t round) {
    fill(from, kCount, round);
    Status status = gdx_put(handle, to, from, kCount * kWord, kTarget);
    if (status == Status::kOk) status = tell(handle, words + 2, words, round, kTarget);
    if (status == Status::kOk) status = gdx_flush(handle, kTarget);
    if (status == Status::kOk && mapped != nullptr)
      late += differing(at_target(to), kCount, round) + (load(at_target(words)) != round ? 1 : 0);
    if (status == Status::kOk) status = gdx_signal(handle, words + 3, round, SignalOp::kSet, witness_);
    return status == Status::kOk ? gdx_wait(handle, words + 4, Compare::kEqual, round, witness_) : status;
  };
  const auto witness = [&](const TeamHandle& handle, std::uint64_t round) {
    Status status = gdx_wait(handle, words + 3, Compare::kEqual, round, sender_);
    if (status == Status::kOk) status = gdx_get(handle, words + 1, words, kWord, kTarget);
    if (status == Status::kOk) status = gdx_get(handle, got, to, kCount * kWord, kTarget);
    if (status == Status::kOk) status = gdx_flush(handle, kTarget);
    late += differing(got, kCount, round) + (words[1] != round ? 1 : 0);
    return status == Status::kOk ? gdx_signal(handle, words + 4, round, SignalOp::kSet, sender_) : status;
  };
  in_rounds(round_count(), [&](const TeamHandle& handle, std::uint64_t round) {
    if (sends()) return send(handle, round);
    return witnesses() ? witness(handle, round) : Status::kOk;
  });
  EXPECT_EQ(late, 0u) << "words that came after a flush had ended";
}

// Returns how many calls the queue or ring to the rank has been given.
std::uint64_t given(const TeamPeer& peer) {
  if (peer.commands != nullptr) return exec::load_counter(&peer.commands->state->reserved);
  return peer.state == nullptr ? 0 : exec::load_counter(&peer.state->shared.published);
}

// All ranks, the target too, take numbers of one word, and each number is taken once. The software HCA and
// the agents change words by atomics of a processor, so others of a processor would do no harm here, as they
// do beside a NIC's. So the queues tell whether each change went to the NIC or the agent.
TEST_P(TeamLitmus, atomics_of_all_ranks_are_of_one_way) {
  const std::uint64_t each = std::max<std::uint64_t>(round_count() / 4, 1);
  auto* const words = allocate(3);  // numbers, signals that add, the number taken
  auto* const taken = allocate(2 * each * team_.size());
  std::uint64_t elsewhere = 0;  // changes that took no queue
  in_rounds(each, [&](const TeamHandle& handle, std::uint64_t) {
    const auto changed = [&, peer = handle.peers + kTarget](Status status, std::uint64_t before) {
      elsewhere += given(*peer) == before ? 1 : 0;
      return status;
    };
    const auto before = [&] { return given(handle.peers[kTarget]); };
    std::uint64_t count = before();
    Status status = changed(gdx_fetch_add(handle, words + 2, words, 1, kTarget), count);
    count = before();
    if (status == Status::kOk) status = changed(gdx_signal(handle, words, 1, SignalOp::kAdd, kTarget), count);
    if (status == Status::kOk) status = gdx_flush(handle, kTarget);
    count = before();
    return status == Status::kOk
               ? changed(gdx_signal(handle, taken + words[2], 1, SignalOp::kAdd, kTarget), count)
               : status;
  });
  const bool by_processors = team_.atomics() == TeamAtomics::kProcessor;
  EXPECT_TRUE(!by_processors || GetParam() == Ways::kMapped) << "where some rank cannot";
  EXPECT_EQ(elsewhere, by_processors ? 3 * each : 0u) << "changes that no queue was given";
  if (!is_target()) return;
  EXPECT_EQ(words[0], 2 * each * team_.size());
  EXPECT_LE(*std::max_element(taken, taken + 2 * each * team_.size()), 1u) << "a number was taken twice";
  EXPECT_EQ(std::count(taken, taken + 2 * each * team_.size(), 1u), each * team_.size());
}

}  // namespace team_litmus_test
}  // namespace gdx
