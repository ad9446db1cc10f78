// Section D of the bring-up, of two hosts in one process: what each tells, and what of letters that are
// spoilt. GDX_SOFTHCA_FAULT, which holds for a process, chooses the cases.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/commit.h"
#include "host/programs/doctor/bring_up.h"
#include "tests/expected_text.h"
#include "tests/unit/host/loopback.h"
#include "tests/unit/host/secret_file.h"

namespace {

enum class Spoil : std::uint8_t { kNothing, kLetter, kNames };
constexpr std::size_t kTextBytes = 512;

// Letters that this thread's host sends: their kinds, t for a text, and which one is spoilt.
struct Letters {
  std::string kinds;
  Spoil spoil = Spoil::kNothing;
  std::size_t spoilt = 0;
};
thread_local Letters letters;

using Gathered = gdx::Result<std::vector<std::byte>>;

// A text without an end; or a letter that is too short, or whose names have no end.
void spoil_letter(std::vector<std::byte>& letter) {
  if (letter.size() == kTextBytes) return letter.assign(kTextBytes, std::byte{'!'});
  if (letters.spoil == Spoil::kLetter) return letter.pop_back();
  const auto commit = std::as_bytes(std::span(std::string_view(gdx::commit())));
  const auto at = std::search(letter.begin(), letter.end(), commit.begin(), commit.end());
  std::fill(at - kTextBytes, at + kTextBytes, std::byte{'!'});
}

}  // namespace

// The linker gives gdx's own code this for World::allgather (--wrap).
Gathered real_allgather(gdx::World* world, std::span<const std::byte> mine, std::uint64_t timeout_ns) asm(
    "__real__ZN3gdx5World9allgatherESt4spanIKSt4byteLm18446744073709551615EEm");
Gathered wrapped_allgather(gdx::World* world, std::span<const std::byte> mine, std::uint64_t timeout_ns) asm(
    "__wrap__ZN3gdx5World9allgatherESt4spanIKSt4byteLm18446744073709551615EEm");
Gathered wrapped_allgather(gdx::World* world, std::span<const std::byte> mine, std::uint64_t timeout_ns) {
  std::vector<std::byte> letter(mine.begin(), mine.end());
  if (letters.spoil != Spoil::kNothing && letters.kinds.size() == letters.spoilt) spoil_letter(letter);
  letters.kinds += mine.size() == kTextBytes ? 't' : 's';
  return real_allgather(world, letter, timeout_ns);
}

namespace gdx::doctor {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using PeerStep = StepResult (*)(Bench&);
using Told = std::array<std::string, 2>;  // by rank

// The text of a result, without what is the run's or the machine's.
std::string text_of(const StepResult& result) {
  std::string text = fmt::format("{} {}\n", name(result.verdict), result.value);
  if (!result.advice.empty()) text += fmt::format("  advice: {}\n", result.advice);
  for (const Fact& fact : result.facts) text += fmt::format("  {}: {}\n", fact.name, fact.value);
  std::array<char, kTextBytes> host{};
  gethostname(host.data(), host.size() - 1);
  text = replaced(text, fmt::format("host there: {}\n", host.data()), "host there: HOST\n");
  for (const char* const verdict : {"OK", "UNKNOWN"})
    text =
        replaced(text, fmt::format("{} {} at ", verdict, host.data()), fmt::format("{} HOST at ", verdict));
  text = replaced(text, fmt::format("commit there: {}\n", commit()), "commit there: COMMIT\n");
  const std::pair<const char*, const char*> varying[] = {
      {"!{511}", "511 marks"},
      {"[0-9]+(\\.[0-9]+){3}", "A.D.D.R"},
      {"(index here|seconds of .* there): [0-9]+", "$1: N"},
      {"after [0-9.]+ s", "after S s"},
      {"(milliseconds|puts, MB/s): [0-9]+", "$1: N"},
      {"processor: [0-9.e+]+ GB", "processor: N GB"},
      {"address path: [0-9a-f]{88}\n", "address path: 44 bytes\n"},
      {"; (no counter of errors rose|rose: [^\n]*)", "; COUNTERS"},
      {"(before|after): [0-9]+", "$1: N"},
      {"(QP|at|local|rkey|lkey) 0x[0-9a-f]+", "$1 0xN"}};
  return masked(std::move(text), varying);
}

class Peers : public ::testing::Test {
 protected:
  test::SecretFile secret_;  // of both hosts

  // Makes the host of `rank`; it has met none.
  [[nodiscard]] Bench host(std::uint32_t rank) {
    Bench bench{{}};
    auto hca = Hca::open({.name = fmt::format("gdx{}", rank), .in_this_process = true});
    EXPECT_TRUE(hca) << hca.error().message;
    if (hca) bench.hca.emplace(std::move(*hca));
    bench.peer.emplace(PeerPlace{rank == 0 ? "" : "127.0.0.1", port()});
    bench.tell = [this, rank](const std::string& line) { lines_[rank] += line + "\n"; };
    return bench;
  }
  // Both hosts meet and go through `steps`. `spoil`: a letter of the host of rank `by`.
  Told take(std::span<const PeerStep> steps, Spoil spoil = Spoil::kNothing, std::uint32_t by = 0,
            std::size_t number = 0) {
    Told told;
    lines_ = {};
    test::run_ranks(2, [&](std::uint32_t rank) {
      Bench bench = host(rank);
      join_peer(bench);
      ASSERT_TRUE(bench.world) << bench.unmet.message;
      bench.obstacle = obstacles_[rank];
      letters = {{}, rank == by ? spoil : Spoil::kNothing, number};
      for (const PeerStep step : steps) {
        letters.kinds.clear();
        told[rank] += fmt::format("{}  letters: {}\n", text_of(step(bench)), letters.kinds);
      }
      letters = {};
    });
    return told;
  }
  // Reports of a step by both hosts, and by one whose peer's letters are spoilt, one at a time.
  std::string spoil_each(const char* what, PeerStep step, std::size_t count, std::uint32_t by) {
    std::string text;
    for (std::size_t number = 0; number < count; ++number) {
      const Told told = take(std::span(&step, 1), Spoil::kLetter, by, number);
      if (number + 1 < count) {
        EXPECT_THAT(told[by], StartsWith("FAIL ")) << what << " " << number;
      }
      text += fmt::format("{}, letter {} of rank {}: {}", what, number, by, told[1 - by]);
    }
    return text;
  }

  [[nodiscard]] std::uint16_t port() const {
    return static_cast<std::uint16_t>(std::stoi(root_.root.substr(root_.root.find(':') + 1)));
  }

  test::LoopbackRoot root_;
  Told lines_;
  Told obstacles_;
};

std::string both(const char* what, const Told& told) {
  return fmt::format("{}\nrank 0: {}rank 1: {}", what, told[0], told[1]);
}

TEST_F(Peers, sound_go_through_all_steps_and_tell_the_same) {
  const PeerStep all[] = {meet_peer, put_all_ways, lose_peer, compare_bandwidth};
  setenv("PATH", "/nowhere", 1);
  std::string text = both("sound", take(all));
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    text +=
        fmt::format("rank {} says before:\n{}", rank, replaced(lines_[rank], std::to_string(port()), "P"));
  }
  expect_text("peers.txt", text);
}

TEST_F(Peers, figures_of_perftest_stand_beside_those_of_puts) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / fmt::format("gdx_peers_{}", getpid());
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "ib_write_bw") << "#!/bin/sh\necho \"$@\" >>" << (folder / "called").string()
                                        << "\necho ' #bytes'\necho ' 1048576 1000 1.0 10000.00 0.01'\n";
  std::filesystem::permissions(folder / "ib_write_bw", std::filesystem::perms::owner_all);
  setenv("PATH", (folder.string() + ":/usr/bin:/bin").c_str(), 1);
  const PeerStep step[] = {compare_bandwidth};
  std::string text = both("bandwidth", take(step));
  std::ifstream called(folder / "called");
  const std::string calls(std::istreambuf_iterator<char>(called), {});
  EXPECT_THAT(calls, HasSubstr(" -F -s 1048576 -n 1000 127.0.0.1\n"));
  std::filesystem::remove_all(folder);
  expect_text("peers_perftest.txt", text);
}

TEST_F(Peers, tell_what_either_lacks_and_which_letter_was_wrong) {
  const PeerStep meet[] = {meet_peer};
  std::string text;
  for (const Told& obstacles : {Told{"a", ""}, Told{"", "b"}, Told{"a", "b"}}) {
    obstacles_ = obstacles;
    text += both("obstacles", take(meet));
  }
  obstacles_ = {};
  text += both("names without an end", take(meet, Spoil::kNames, 0, 2));
  for (const std::uint32_t by : {0u, 1u}) text += spoil_each("meeting", meet_peer, 8, by);
  text += spoil_each("modes", put_all_ways, 8, 1);
  text += spoil_each("lost peer", lose_peer, 7, 1);
  setenv("PATH", "/nowhere", 1);
  text += spoil_each("bandwidth", compare_bandwidth, 9, 1);
  expect_text("peers_spoilt.txt", text);
}

TEST_F(Peers, that_has_not_been_met_is_told_with_what_to_do) {
  root_.listen();
  Bench bench = host(0);
  join_peer(bench);
  EXPECT_FALSE(bench.world);
  EXPECT_THAT(lines_[0], HasSubstr("no second host, so step 17 will fail: "));
  std::string text = fmt::format("the port is taken: {}\n", meet_peer(bench).advice);
  for (const char* const host : {"", "there"}) {
    for (const Status why : {Status::kTimeout, Status::kInvalidArgument, Status::kPeerGone}) {
      bench.unmet = {why, "why"};
      bench.peer.emplace(PeerPlace{host, 7});
      text += text_of(meet_peer(bench));
    }
  }
  watch_peer(bench);
  expect_text("peers_unmet.txt", text);
}

TEST_F(Peers, that_has_ended_is_told_once) {
  test::run_ranks(2, [&](std::uint32_t rank) {
    Bench bench = host(rank);
    join_peer(bench);
    ASSERT_TRUE(bench.world) << bench.unmet.message;
    if (rank == 1) return;
    lines_[0].clear();
    while (!bench.peer_lost) watch_peer(bench);
    watch_peer(bench);
    EXPECT_EQ(meet_peer(bench).verdict, Verdict::kFail);
    EXPECT_THAT(lines_[0], ::testing::MatchesRegex("the other host has ended, see its report: [^\n]*\n"));
  });
}

class PeersWithFault : public Peers {};

// Each on a rail of its own.
TEST_F(PeersWithFault, rails_lets_no_put_arrive) {
  const PeerStep steps[] = {meet_peer};
  expect_text("peers_rails.txt", both("rails", take(steps)));
}

TEST_F(PeersWithFault, stale_payload_is_told_by_both) {
  const PeerStep steps[] = {meet_peer, put_all_ways, compare_bandwidth};
  expect_text("peers_stale_payload.txt", both("stale payload", take(steps)));
}

}  // namespace
}  // namespace gdx::doctor
