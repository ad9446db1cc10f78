// Collective calls of kernels, as `gdx run --ranks N` starts them: every rank runs these tests in the same
// order.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/collectives/through_piece.h"
#include "tests/e2e/collectives_of_ranks.h"

namespace gdx {
namespace collectives_test {

INSTANTIATE_TEST_SUITE_P(By, Collectives, ::testing::Values(Ways::kNic, Ways::kDirect, Ways::kMixed),
                         name_of);

// Puts to all ranks, and only the barrier waits. It signals ranks at distances of powers of two, so the
// longest put goes to one at distance 3, which no signal covers.
TEST_P(Collectives, barrier_completes_puts_before_it) {
  auto* const from = allocate<std::uint64_t>(kMostCount);
  auto* const inbox = allocate<std::uint64_t>(team_.size() * kMostCount);
  for (round_ = 1; round_ <= 3; ++round_) {
    for (std::size_t i = 0; i < kMostCount; ++i) from[i] = value(team_.rank(), i);
    in_kernel<Scope::kWarp>([&](const TeamHandle& team) {
      for (std::uint32_t rank = 0; rank < team.size; ++rank) {
        const Status status = gdx_put<Mode::kAuto, Scope::kWarp>(team, inbox + team.rank * kMostCount, from,
                                                                 kMostCount * sizeof *from, rank);
        if (status != Status::kOk) return status;
      }
      for (int i = 0; i < 16; ++i) {
        const Status status =
            gdx_put<Mode::kAuto, Scope::kWarp>(team, inbox + team.rank * kMostCount, from,
                                               kMostCount * sizeof *from, (team.rank + 3) % team.size);
        if (status != Status::kOk) return status;
      }
      return gdx_barrier<Scope::kWarp>(team);
    });
    for (std::size_t i = 0; i < team_.size() * kMostCount; ++i) {
      ASSERT_EQ(inbox[i], value(static_cast<std::uint32_t>(i / kMostCount), i % kMostCount)) << "word " << i;
    }
    in_kernel<Scope::kThread>([](const TeamHandle& team) { return gdx_barrier(team); });  // all have read
  }
}

TEST_P(Collectives, all_reduce_gives_every_rank_the_same_of_all) {
  auto* const x = allocate<std::uint64_t>(kMostCount);
  auto* const sum = allocate<std::uint64_t>(kMostCount);
  auto* const floats = allocate<float>(kMostCount);
  for (const std::size_t count : kCounts) {
    ++round_;
    for (std::size_t i = 0; i < count; ++i) x[i] = value(team_.rank(), i);
    for (std::size_t i = 0; i < count; ++i)
      floats[i] = 1.0f / static_cast<float>(value(team_.rank(), i) % 1000 + 1);
    in_kernel<Scope::kBlock>([&](const TeamHandle& team) {
      Status status = gdx_all_reduce<Reduce::kSum, Scope::kBlock>(team, sum, x, count);
      if (status == Status::kOk)
        status = gdx_all_reduce<Reduce::kSum, Scope::kBlock>(team, floats, floats, count);
      if (status == Status::kOk) status = gdx_all_reduce<Reduce::kMax, Scope::kBlock>(team, x, x, count);
      return status;
    });
    for (std::size_t i = 0; i < count; ++i) {
      std::uint64_t all = 0;
      float near = 0;
      for (std::uint32_t rank = 0; rank < team_.size(); ++rank) {
        all += value(rank, i);
        near += 1.0f / static_cast<float>(value(rank, i) % 1000 + 1);
      }
      ASSERT_EQ(sum[i], all) << "of " << count << ", element " << i;
      ASSERT_EQ(x[i], value(team_.size() - 1, i)) << "of " << count << ", element " << i;
      ASSERT_NEAR(floats[i], near, 1e-4) << "of " << count << ", element " << i;
    }
  }
}

TEST_P(Collectives, broadcast_gives_every_rank_what_any_root_has) {
  auto* const from = allocate<std::uint16_t>(kMostCount);
  auto* const to = allocate<std::uint16_t>(kMostCount);
  for (const std::size_t count : kCounts) {
    for (std::uint32_t root = 0; root < team_.size(); ++root) {
      ++round_;
      for (std::size_t i = 0; i < count; ++i) from[i] = static_cast<std::uint16_t>(value(team_.rank(), i));
      in_kernel<Scope::kWarp>(
          [&](const TeamHandle& team) { return gdx_broadcast<Scope::kWarp>(team, to, from, count, root); });
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(to[i], static_cast<std::uint16_t>(value(root, i)))
            << "of " << count << ", root " << root << ", element " << i;
      }
    }
  }
}

TEST_P(Collectives, all_gather_and_all_to_all_place_every_piece) {
  auto* const from = allocate<std::uint32_t>(team_.size() * kMostCount);
  auto* const gathered = allocate<std::uint32_t>(team_.size() * kMostCount);
  auto* const exchanged = allocate<std::uint32_t>(team_.size() * kMostCount);
  for (const std::size_t count : kCounts) {
    ++round_;
    for (std::size_t i = 0; i < team_.size() * count; ++i)
      from[i] = static_cast<std::uint32_t>(value(team_.rank(), i));
    in_kernel<Scope::kThread>([&](const TeamHandle& team) {
      const Status status = gdx_all_gather(team, gathered, from, count);
      return status == Status::kOk ? gdx_all_to_all(team, exchanged, from, count) : status;
    });
    for (std::uint32_t rank = 0; rank < team_.size(); ++rank) {
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(gathered[rank * count + i], static_cast<std::uint32_t>(value(rank, i)))
            << "of " << count << ", rank " << rank << ", element " << i;
        ASSERT_EQ(exchanged[rank * count + i],
                  static_cast<std::uint32_t>(value(rank, team_.rank() * count + i)))
            << "of " << count << ", rank " << rank << ", element " << i;
      }
    }
  }
}

TEST_P(Collectives, reductions_and_pieces_of_one_root_reach_it_and_no_other) {
  auto* const from = allocate<std::int64_t>(team_.size() * kMostCount);
  auto* const to = allocate<std::int64_t>(team_.size() * kMostCount);
  auto* const piece = allocate<std::int64_t>(kMostCount);
  auto* const least = allocate<std::int64_t>(kMostCount);
  for (const std::size_t count : kCounts) {
    const auto root = static_cast<std::uint32_t>(++round_ % team_.size());
    const auto signed_value = [&](std::uint32_t rank, std::size_t i) {
      return -static_cast<std::int64_t>(value(rank, i));
    };
    for (std::size_t i = 0; i < team_.size() * count; ++i) from[i] = signed_value(team_.rank(), i);
    std::fill_n(to, team_.size() * count, 5);
    std::fill_n(least, count, 5);
    in_kernel<Scope::kBlock>([&](const TeamHandle& team) {
      Status status = gdx_gather<Scope::kBlock>(team, to, from, count, root);
      if (status == Status::kOk)
        status = gdx_reduce<Reduce::kMin, Scope::kBlock>(team, least, from, count, root);
      if (status == Status::kOk) status = gdx_scatter<Scope::kBlock>(team, piece, from, count, root);
      return status;
    });
    const bool is_root = team_.rank() == root;
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(piece[i], signed_value(root, team_.rank() * count + i))
          << "of " << count << ", element " << i;
      ASSERT_EQ(least[i], is_root ? signed_value(team_.size() - 1, i) : 5)
          << "of " << count << ", element " << i;
      for (std::uint32_t rank = 0; rank < team_.size(); ++rank)
        ASSERT_EQ(to[rank * count + i], is_root ? signed_value(rank, i) : 5)
            << "of " << count << ", element " << i;
    }
    in_kernel<Scope::kWarp>([&](const TeamHandle& team) {
      return gdx_reduce_scatter<Reduce::kSum, Scope::kWarp>(team, piece, from, count);
    });
    for (std::size_t i = 0; i < count; ++i) {
      std::int64_t sum = 0;
      for (std::uint32_t rank = 0; rank < team_.size(); ++rank)
        sum += signed_value(rank, team_.rank() * count + i);
      ASSERT_EQ(piece[i], sum) << "of " << count << ", element " << i;
    }
  }
}

TEST_P(Collectives, averages_and_numbers_of_16_bits) {
  auto* const ints = allocate<std::int8_t>(kMostCount);
  auto* const halves = allocate<__half>(kMostCount);
  auto* const brains = allocate<__nv_bfloat16>(kMostCount);
  const auto small = [&](std::uint32_t rank, std::size_t i) { return static_cast<int>((rank + i) % 9) - 4; };
  for (const std::size_t count : kCounts) {
    for (std::size_t i = 0; i < count; ++i) {
      ints[i] = static_cast<std::int8_t>(small(team_.rank(), i));
      halves[i] = __float2half(static_cast<float>(small(team_.rank(), i)));
      brains[i] = __float2bfloat16(static_cast<float>(small(team_.rank(), i)));
    }
    in_kernel<Scope::kWarp>([&](const TeamHandle& team) {
      Status status = gdx_all_reduce<Reduce::kAverage, Scope::kWarp>(team, ints, ints, count);
      if (status == Status::kOk)
        status = gdx_all_reduce<Reduce::kAverage, Scope::kWarp>(team, halves, halves, count);
      if (status == Status::kOk)
        status = gdx_all_reduce<Reduce::kMin, Scope::kWarp>(team, brains, brains, count);
      return status;
    });
    for (std::size_t i = 0; i < count; ++i) {
      int sum = 0;
      int least = 9;
      for (std::uint32_t rank = 0; rank < team_.size(); ++rank) {
        sum += small(rank, i);
        least = std::min(least, small(rank, i));
      }
      const int size = static_cast<int>(team_.size());
      ASSERT_EQ(ints[i], sum / size) << "of " << count << ", element " << i;
      const __half right = static_cast<float>(sum) / static_cast<float>(size);
      ASSERT_EQ(halves[i].bits, right.bits) << "of " << count << ", element " << i;
      ASSERT_EQ(__bfloat162float(brains[i]), static_cast<float>(least))
          << "of " << count << ", element " << i;
    }
  }
}

// Every rank chooses where its pieces come; some are empty.
TEST_P(Collectives, all_to_all_v_places_pieces_of_any_length) {
  constexpr std::size_t kLongest = 30'000;
  const std::uint32_t size = team_.size();
  const std::uint32_t own = team_.rank();
  auto* const from = allocate<std::uint32_t>(size * kLongest);
  auto* const to = allocate<std::uint32_t>(size * kLongest);
  const auto length = [&](std::uint32_t sender, std::uint32_t receiver) -> std::size_t {
    return (sender * 7 + receiver * 3 + round_) % 4 * 9'973;
  };
  for (round_ = 1; round_ <= 4; ++round_) {
    std::vector<std::size_t> to_at(size), from_at(size), counts(size);
    std::size_t end = 0;
    for (std::uint32_t rank = size; rank-- > 0;) {  // backwards, so that a place is no product of the rank
      to_at[rank] = end;
      end += length(rank, own);
      from_at[rank] = rank * kLongest;
      counts[rank] = length(own, rank);
      for (std::size_t i = 0; i < counts[rank]; ++i)
        from[from_at[rank] + i] = static_cast<std::uint32_t>(value(own * size + rank, i));
    }
    std::fill_n(to, size * kLongest, 5);
    in_kernel<Scope::kWarp>([&](const TeamHandle& team) {
      return gdx_all_to_all_v<Scope::kWarp>(team, to, to_at.data(), from, from_at.data(), counts.data());
    });
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      for (std::size_t i = 0; i < length(rank, own); ++i)
        ASSERT_EQ(to[to_at[rank] + i], static_cast<std::uint32_t>(value(rank * size + own, i)))
            << "round " << round_ << ", of rank " << rank << ", element " << i;
    }
    ASSERT_TRUE(std::all_of(to + end, to + size * kLongest, [](std::uint32_t x) { return x == 5; }));
  }
}

// Each call's rounds are those of calls on a stream, whose tests have them all.
TEST_P(Collectives, kernel_passes_memory_outside_the_heap_through_a_piece_of_it) {
  constexpr std::size_t kCount = 201;
  const std::uint32_t size = team_.size();
  auto* const memory = reinterpret_cast<std::byte*>(allocate<std::uint64_t>(256));
  std::vector<std::uint64_t> x(size * kCount);
  std::vector<std::uint64_t> y(size * kCount);
  std::vector<std::uint64_t> sum(kCount);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = value(team_.rank(), i);
  std::vector<std::size_t> places(size);
  for (std::size_t rank = 0; rank < size; ++rank) places[rank] = rank * kCount;
  const std::vector<std::size_t> counts(size, kCount);
  in_kernel<Scope::kWarp>([&](const TeamHandle& team) {
    const HeapPiece piece{memory, 2048};
    const Status status =
        gdx_all_reduce<Reduce::kSum, Scope::kWarp>(team, piece, sum.data(), x.data(), kCount);
    return status == Status::kOk ? gdx_all_to_all_v<Scope::kWarp>(team, piece, y.data(), places.data(),
                                                                  x.data(), places.data(), counts.data())
                                 : status;
  });
  for (std::size_t i = 0; i < y.size(); ++i) {
    std::uint64_t all = 0;
    for (std::uint32_t rank = 0; rank < size; ++rank) all += value(rank, i % kCount);
    ASSERT_EQ(sum[i % kCount], all) << i;
    const auto sender = static_cast<std::uint32_t>(i / kCount);
    ASSERT_EQ(y[i], value(sender, team_.rank() * kCount + i % kCount)) << i;
  }
  in_kernel<Scope::kBlock>([&](const TeamHandle& team) {
    const HeapPiece piece{memory, 2 * sizeof x[0] - 1};
    const Status status =
        gdx_all_reduce<Reduce::kSum, Scope::kBlock>(team, piece, sum.data(), x.data(), kCount);
    return status == Status::kInvalidLength ? Status::kOk : Status::kSystem;
  });
  EXPECT_THAT(team_.describe_fault(), ::testing::HasSubstr("or a larger piece"));
  ASSERT_TRUE(team_.barrier());
  std::vector<Status> ends;
  const auto kernel = [&](const TeamHandle& team) {
    ends.push_back(gdx_all_to_all(team, HeapPiece{memory, 2048}, y.data(), x.data(), kCount));
  };
  ASSERT_EQ(exec::launch({.block = {1}}, kernel, team_.handle().on_lane(2)), Status::kOk);
  EXPECT_EQ(ends, std::vector<Status>{Status::kInvalidArgument}) << "no such lane";
}

// Puts on one lane and the signal on the other, which alone keeps no order with them.
TEST_P(Collectives, signal_after_all_covers_puts_of_every_lane) {
  auto* const from = allocate<std::uint64_t>(kMostCount);
  auto* const inbox = allocate<std::uint64_t>(kMostCount);
  auto* const words = allocate<std::uint64_t>(2);
  const std::uint32_t right = (team_.rank() + 1) % team_.size();
  const std::uint32_t left = (team_.rank() + team_.size() - 1) % team_.size();
  for (round_ = 1; round_ <= 10; ++round_) {
    for (std::size_t i = 0; i < kMostCount; ++i) from[i] = value(team_.rank(), i);
    bool whole = true;
    in_kernel<Scope::kThread>([&](const TeamHandle& team) {
      Status status = gdx_put(team.on_lane(1), inbox, from, kMostCount * sizeof *from, right);
      if (status == Status::kOk)
        status = gdx_signal_after_all(team.on_lane(0), words, round_, SignalOp::kSet, right);
      if (status == Status::kOk) status = gdx_wait(team, words, Compare::kGreaterEqual, round_, left);
      for (std::size_t i = kMostCount; i-- > 0;) whole = whole && inbox[i] == value(left, i);
      return status == Status::kOk ? gdx_barrier(team) : status;
    });
    ASSERT_TRUE(whole) << "round " << round_;
  }
}

// A grid takes a lane for each block, and each block a part of the vector.
TEST_P(Collectives, blocks_of_a_grid_reduce_a_vector_by_a_lane_each) {
  auto* const x = allocate<std::uint64_t>(kMostCount);
  for (std::size_t i = 0; i < kMostCount; ++i) x[i] = value(team_.rank(), i);
  std::vector<Status> ends(2, Status::kPending);
  const auto kernel = [&](const TeamHandle& team) {
    const unsigned block = blockIdx.x;
    const std::size_t at = block * (kMostCount / 2);
    const std::size_t count = block == 0 ? kMostCount / 2 : kMostCount - at;
    const Status end =
        gdx_all_reduce<Reduce::kSum, Scope::kBlock>(team.on_lane(block), x + at, x + at, count);
    if (threadIdx.x == 0) ends[block] = end;
  };
  ASSERT_EQ(exec::launch({.grid = {2}, .block = {32}}, kernel, team_.handle()), Status::kOk);
  ASSERT_EQ(ends, std::vector<Status>(2, Status::kOk)) << team_.describe_fault();
  for (std::size_t i = 0; i < kMostCount; ++i) {
    std::uint64_t sum = 0;
    for (std::uint32_t rank = 0; rank < team_.size(); ++rank) sum += value(rank, i);
    ASSERT_EQ(x[i], sum) << i;
  }
}

// The last rank comes late, when the others are in the call already.
TEST_P(Collectives, memory_of_a_rank_is_written_only_after_its_call) {
  auto* const words = allocate<std::uint64_t>(8);
  auto* const from = allocate<std::uint64_t>(team_.size() * kMostCount);
  auto* const to = allocate<std::uint64_t>(team_.size() * kMostCount);
  std::fill_n(from, team_.size() * kMostCount, 1);
  bool untouched = true;
  const std::uint32_t late = team_.size() - 1;
  const auto wait_for_the_others = [&](const TeamHandle& team, std::uint64_t times) {
    const Status status = team.rank != late
                              ? gdx_signal(team, words, 1, SignalOp::kAdd, late)
                              : gdx_wait(team, words, Compare::kGreaterEqual, times * (team.size - 1));
    const std::uint64_t until_ns = exec::now_ns() + 30'000'000;
    while (team.rank == late && exec::now_ns() < until_ns) {
      for (std::size_t i = 0; i < team.size * kMostCount; i += kMostCount - 1) {
        untouched = untouched && *static_cast<volatile std::uint64_t*>(to + i) == 0;
      }
      exec::relax();
    }
    return status;
  };
  in_kernel<Scope::kThread>([&](const TeamHandle& team) {
    Status status = wait_for_the_others(team, 1);
    if (status == Status::kOk) status = gdx_all_to_all(team, to, from, kMostCount);
    return status;
  });
  std::fill_n(to, team_.size() * kMostCount, 0);
  ASSERT_TRUE(team_.barrier());
  in_kernel<Scope::kThread>([&](const TeamHandle& team) {
    Status status = wait_for_the_others(team, 2);
    if (status == Status::kOk) status = gdx_all_gather(team, to, from, kMostCount);
    return status;
  });
  std::fill_n(to, team_.size() * kMostCount, 0);
  ASSERT_TRUE(team_.barrier());
  in_kernel<Scope::kThread>([&](const TeamHandle& team) {
    Status status = wait_for_the_others(team, 3);
    if (status == Status::kOk) status = gdx_broadcast(team, to, from, kMostCount, 0);
    return status;
  });
  EXPECT_TRUE(untouched);
}

// Teams of some ranks, of which all but the first and the last are in two, and each rank's last is in both.
TEST_P(Collectives, subteams_have_calls_of_their_own) {
  const std::uint32_t size = team_.size();
  if (size < 2) GTEST_SKIP() << "needs two ranks";
  std::vector<std::uint32_t> low(size - 1);
  std::iota(low.rbegin(), low.rend(), 0u);
  std::vector<std::uint32_t> high(size - 1);
  std::iota(high.begin(), high.end(), 1u);
  for (const auto& ranks : {low, high}) {
    if (std::ranges::find(ranks, team_.rank()) == ranks.end()) continue;
    Team part = must(team_.subteam(ranks));
    auto* const x = must(part.allocate<std::uint64_t>(kMostCount));
    auto* const sum = must(part.allocate<std::uint64_t>(kMostCount));
    for (std::size_t i = 0; i < kMostCount; ++i) x[i] = value(team_.rank(), i);
    in_kernel_of<Scope::kWarp>(part, [&](const TeamHandle& team) {
      const Status status = gdx_all_reduce<Reduce::kSum, Scope::kWarp>(team, sum, x, kMostCount);
      return status == Status::kOk ? gdx_broadcast<Scope::kWarp>(team, x, sum, kMostCount, team.size - 1)
                                   : status;
    });
    for (std::size_t i = 0; i < kMostCount; ++i) {
      std::uint64_t all = 0;
      for (const std::uint32_t rank : ranks) all += value(rank, i);
      ASSERT_EQ(x[i], all) << "word " << i;
    }
    ASSERT_TRUE(part.barrier());
  }
  in_kernel<Scope::kThread>([](const TeamHandle& team) { return gdx_barrier(team); });
}

// Run alone, because ranks end.
TEST_P(Collectives, killed_rank_ends_the_calls_of_its_teams_and_of_no_other) {
  const std::uint32_t last = team_.size() - 1;
  if (last < 2) GTEST_SKIP() << "needs three ranks";
  std::vector<std::uint32_t> ranks(last);
  std::iota(ranks.begin(), ranks.end(), 0u);
  std::optional<Team> others;
  if (team_.rank() != last) others = must(team_.subteam(ranks));
  std::optional<Team> pair;
  if (team_.rank() % last == 0) pair = must(team_.subteam(std::vector<std::uint32_t>{last, 0}));
  ASSERT_TRUE(team_.connect(last)) << "so that a barrier has a connection that failed";
  must(team_.barrier());
  if (team_.rank() == last) _exit(::testing::UnitTest::GetInstance()->Failed() ? 1 : 0);
  std::vector<Status> ends;
  const auto kernel = [&](const TeamHandle& team) {
    for (int i = 0; i < 3; ++i) ends.push_back(gdx_barrier(team));
  };
  ASSERT_EQ(exec::launch({.block = {1}}, kernel, team_.handle()), Status::kOk);
  EXPECT_EQ(ends, std::vector<Status>(3, Status::kPeerUnreachable)) << team_.describe_fault();
  if (pair) {
    const auto met = pair->barrier();
    ASSERT_FALSE(met);
    EXPECT_EQ(met.error().status, Status::kPeerGone);
    EXPECT_THAT(met.error().message,
                ::testing::HasSubstr(fmt::format("ranks {} and 0 of the first team", last)));
  }
  for (int i = 0; i < 2; ++i) {
    auto* const x = must(others->allocate<std::uint32_t>(7));
    in_kernel_of<Scope::kThread>(*others, [&](const TeamHandle& team) {
      const Status status = gdx_all_reduce<Reduce::kMax>(team, x, x, 7);
      return status == Status::kOk ? gdx_barrier(team) : status;
    });
    ASSERT_TRUE(others->barrier());
    Team anew = must(others->subteam(ranks, 1));
    others = std::move(anew);
  }
}

TEST_P(Collectives, misuse_is_refused_where_it_is_made) {
  auto* const x = allocate<std::uint32_t>(64);
  std::vector<Status> ends;
  const auto kernel = [&](const TeamHandle& team) { ends.push_back(gdx_barrier(team)); };
  ASSERT_EQ(exec::launch({.block = {1}}, kernel, team_.handle().on_lane(2)), Status::kOk);
  EXPECT_EQ(ends, std::vector<Status>{Status::kInvalidArgument});
  in_kernel<Scope::kThread>([&](const TeamHandle& team) {
    return gdx_broadcast(team, x, x, 64, team.size) == Status::kInvalidArgument ? Status::kOk
                                                                                : Status::kSystem;
  });
}

// Each of them ends well at every rank, with wrong results.
TEST_P(Collectives, arguments_that_differ_fail_the_next_barrier_of_the_host_at_every_rank) {
  const std::uint32_t odd = team_.size() - 1;
  const bool is_odd = team_.rank() == odd;
  auto* const to = allocate<std::uint32_t>(64 * team_.size());
  auto* const from = allocate<std::uint32_t>(64 * team_.size());
  auto* const halves = allocate<__half>(64);
  auto* const brains = allocate<__nv_bfloat16>(64);
  in_kernel<Scope::kThread>([&](const TeamHandle& team) { return gdx_all_gather(team, to, from, 64); });
  ASSERT_TRUE(team_.barrier());
  const auto expect_told = [&](const Result<void>& met, int calls, int lane) {
    ASSERT_EQ(met.has_value(), odd == 0);
    if (met) return;
    EXPECT_EQ(met.error().status, Status::kInvalidArgument);
    EXPECT_EQ(met.error().message,
              fmt::format(
                  "of the first {} collective calls of kernels on lane {} one got other arguments at rank "
                  "{} than at rank 0: give each the same count, type, root and reduction at all ranks, "
                  "and make an all-reduce in place, or a call through a piece of the heap, at all or at none",
                  calls, lane, odd));
  };
  in_kernel<Scope::kThread>([&](const TeamHandle& team) {
    return gdx_all_reduce<Reduce::kSum>(team.on_lane(1), is_odd ? from : to, from, 64);
  });
  expect_told(team_.barrier(), 1, 1);
  in_kernel<Scope::kThread>([&](const TeamHandle& team) {
    if (GetParam() == Ways::kNic) return gdx_all_gather(team, to, from, is_odd ? 32 : 64);
    if (GetParam() == Ways::kMixed)
      return is_odd ? gdx_all_reduce<Reduce::kSum>(team, halves, halves, 64)
                    : gdx_all_reduce<Reduce::kSum>(team, brains, brains, 64);
    return is_odd ? gdx_all_reduce<Reduce::kMax>(team, to, from, 64)
                  : gdx_all_reduce<Reduce::kSum>(team, to, from, 64);
  });
  for (const auto& met : {team_.barrier(), team_.close()}) expect_told(met, 2, 0);
}

}  // namespace collectives_test
}  // namespace gdx
