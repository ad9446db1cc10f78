// Refusals and failures of a team's calls, and what they leave for the message.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <vector>

#include "tests/unit/device/team_records.h"

namespace gdx::device {
namespace team_calls_test {

using TeamCall = std::function<Status(const TeamHandle&)>;

struct Wide {
  std::uint64_t of[2];
};

struct Refused {
  const char* what;
  TeamCall call;
  TeamFault left;
};

class TeamFaults : public Team {
 protected:
  std::byte* end() { return heap() + kHeapBytes; }
  static std::uint64_t* as_word(std::byte* at) { return reinterpret_cast<std::uint64_t*>(at); }
  static TeamFault fault(Status status, std::uint32_t rank, const void* address, std::uint64_t bytes,
                         std::uint32_t waited = 0) {
    return {status, rank, reinterpret_cast<std::uint64_t>(address), bytes, 1, waited};
  }
  void expect_refused(const std::vector<Refused>& calls) {
    const auto fields = [](const TeamFault& f) {
      return std::tuple(f.status, f.rank, f.address, f.bytes, f.taken, f.waited);
    };
    for (const Refused& one : calls) {
      SCOPED_TRACE(one.what);
      fault_ = {};
      EXPECT_EQ(status_of(one.call), one.left.status);
      EXPECT_EQ(fields(fault_), fields(one.left));
    }
  }
};

TEST_F(TeamFaults, refusal_of_a_range_or_rank_is_left_whole) {
  using T = const TeamHandle&;
  constexpr Status kBad = Status::kInvalidArgument;
  std::uint64_t* const odd = as_word(heap() + 4);
  std::uint64_t* const beyond = as_word(end());
  constexpr std::size_t kLong = (std::size_t{1} << 30) + 1;
  constexpr std::size_t kInline = kMaxInlinePutBytes;
  expect_refused({
      {"to", [&](T t) { return gdx_put(t, end() - 8, heap(), 16, kNative); },
       fault(kBad, kNative, end() - 8, 16)},
      {"from", [&](T t) { return gdx_put(t, heap(), end() - 8, 17, kDirect); },
       fault(kBad, kDirect, end() - 8, 17)},
      {"rank", [&](T t) { return gdx_put(t, heap() + 1, heap(), 18, kSize); },
       fault(kBad, kSize, heap() + 1, 18)},
      {"length", [&](T t) { return gdx_put(t, heap() + 2, heap(), kLong, kNative); },
       fault(Status::kInvalidLength, kNative, heap() + 2, kLong)},
      {"length inline", [&](T t) { return gdx_put<Mode::kInline>(t, heap(), heap(), kInline + 1, kMapped); },
       fault(Status::kInvalidLength, kMapped, heap(), kInline + 1)},
      {"push without slots", [&](T t) { return gdx_put<Mode::kPush>(t, heap(), heap(), 32, kNative); },
       fault(Status::kUnsupported, kNative, heap(), 32)},
      {"signal of a put",
       [&](T t) { return gdx_put_signal(t, heap(), heap(), 8, odd, 1, SignalOp::kSet, 2); },
       fault(Status::kRemoteInvalid, 2, odd, 8)},
      {"value", [&](T t) { return gdx_put_value(t, reinterpret_cast<Wide*>(end() - 8), Wide{}, kNative); },
       fault(kBad, kNative, end() - 8, 16)},
      {"value's rank", [&](T t) { return gdx_put_value(t, word(1), std::uint64_t{1}, kSize + 1); },
       fault(kBad, kSize + 1, nullptr, 0)},
      {"signal", [&](T t) { return gdx_signal(t, beyond, 1, SignalOp::kAdd, kDirect); },
       fault(kBad, kDirect, beyond, 8)},
      {"signal's rank", [&](T t) { return gdx_signal(t, word(1), 1, SignalOp::kSet, kSize); },
       fault(kBad, kSize, nullptr, 0)},
      {"get to", [&](T t) { return gdx_get(t, end(), heap(), 9, kNative); }, fault(kBad, kNative, end(), 9)},
      {"get from", [&](T t) { return gdx_get(t, heap(), end(), 9, kDirect); },
       fault(kBad, kDirect, end(), 9)},
      {"get's rank", [&](T t) { return gdx_get(t, heap(), heap(), 0, kSize); },
       fault(kBad, kSize, nullptr, 0)},
      {"get's length", [&](T t) { return gdx_get(t, heap(), heap() + 3, kLong, kNative); },
       fault(Status::kInvalidLength, kNative, heap() + 3, kLong)},
      {"add's target", [&](T t) { return gdx_fetch_add(t, word(0), odd, 1, kNative); },
       fault(Status::kRemoteInvalid, kNative, odd, 8)},
      {"add's original", [&](T t) { return gdx_fetch_add(t, beyond, word(0), 1, kDirect); },
       fault(kBad, kDirect, beyond, 8)},
      {"swap's rank", [&](T t) { return gdx_compare_swap(t, word(0), word(1), 1, 2, ~0u); },
       fault(kBad, ~0u, nullptr, 0)},
      {"flush", [&](T t) { return gdx_flush(t, kSize); }, fault(kBad, kSize, nullptr, 0)},
      {"quiet of no lane", [&](T t) { return gdx_quiet(t.on_lane(2)); }, fault(kBad, 0, nullptr, 0)},
      {"put on no lane", [&](T t) { return gdx_put(t.on_lane(2), heap(), heap(), 8, kOwn); },
       fault(kBad, kOwn, heap(), 8)},
  });
  EXPECT_EQ(posted(), 0u);
}

TEST_F(TeamFaults, refusal_or_end_of_a_wait_is_left_whole) {
  using T = const TeamHandle&;
  constexpr Status kBad = Status::kInvalidArgument;
  constexpr Compare kEq = Compare::kEqual;
  static const std::uint32_t ranks[] = {kNative, kSize, kDirect};
  std::uint64_t* const odd = as_word(heap() + 4);
  std::uint64_t* const last = as_word(end() - 8);
  std::uint32_t index = 7;
  expect_refused({
      {"odd", [&](T t) { return gdx_wait(t, odd, kEq, 1, kNative); },
       fault(Status::kRemoteInvalid, kNative, odd, 8)},
      {"of any", [&](T t) { return gdx_wait(t, last + 1, kEq, 1); }, fault(kBad, kAnyTeamRank, last + 1, 8)},
      {"rank of any", [&](T t) { return gdx_wait(t, last, kEq, 1, kAnyTeamRank); },
       fault(kBad, kAnyTeamRank - 1, last, 8)},
      {"second rank", [&](T t) { return gdx_wait_all(t, word(4), ranks, 3, kEq, 1); },
       fault(kBad, kSize, word(5), 8)},
      {"beyond", [&](T t) { return gdx_wait_all(t, last, nullptr, 2, kEq, 1); },
       fault(kBad, kAnyTeamRank, last, 16)},
      {"none", [&](T t) { return gdx_wait_any(t, word(4), nullptr, 0, kEq, 1, &index); },
       fault(Status::kInvalidLength, kAnyTeamRank, word(4), 0)},
      {"no index", [&](T t) { return gdx_wait_any(t, word(4), nullptr, 1, kEq, 0, nullptr); },
       fault(kBad, kAnyTeamRank, nullptr, 4)},
  });
  EXPECT_EQ(index, 7u);
  handle_.timeout_ns = 1000;
  nic(kDirect).fails_at = 0;
  connect(0, kAbsent, PeerWay::kGone);
  static const std::uint32_t waited[] = {kNative, kAbsent};
  *word(20) = 1;
  expect_refused({{"in vain", [&](T t) { return gdx_wait(t, word(9), Compare::kGreater, 77); },
                   fault(Status::kTimeout, kAnyTeamRank, word(9), 77, 4)}});
  handle_.timeout_ns = 60'000'000'000;
  expect_refused({
      {"gone", [&](T t) { return gdx_wait_all(t, word(20), waited, 2, kEq, 1); },
       fault(Status::kPeerUnreachable, kAbsent, word(21), 1, 1)},
      {"put to one that is gone", [&](T t) { return gdx_put(t, heap() + 8, heap(), 24, kAbsent); },
       fault(Status::kPeerUnreachable, kAbsent, heap() + 8, 24)},
      {"value to one that is gone", [&](T t) { return gdx_put_value(t, word(1), std::uint64_t{1}, kAbsent); },
       fault(Status::kPeerUnreachable, kAbsent, nullptr, 0)},
  });
}

// The clock is read behind the look at the signal. What arrives by then still ends the wait well.
TEST_F(TeamFaults, signal_that_arrives_before_the_failure_is_met_ends_the_wait) {
  static std::uint64_t* arrives = nullptr;
  static int reads = 0;
  const auto clock = []() -> std::uint64_t {
    if (++reads < 2) return 0;
    *arrives = 1;
    return ~std::uint64_t{0} / 2;
  };
  for (const bool comes : {true, false}) {
    std::uint64_t elsewhere = 0;
    arrives = comes ? word(9) : &elsewhere;
    reads = 0;
    copy_ = handle_;
    handle_.copy = copy_.copy = &copy_;
    *word(9) = 0;
    Status status = Status::kPending;
    const auto kernel = [&](const TeamHandle& t) { status = gdx_wait(t, word(9), Compare::kEqual, 1); };
    ASSERT_EQ(exec::launch({.progress = progress, .clock = clock}, kernel, handle_), Status::kOk);
    EXPECT_EQ(status, comes ? Status::kOk : Status::kTimeout);
    EXPECT_EQ(fault_.taken, comes ? 0u : 1u);
  }
}

}  // namespace team_calls_test
}  // namespace gdx::device
