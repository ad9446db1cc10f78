// Many threads push through few slots of one shared endpoint: no slot is filled without its credit, and every
// slot comes back once, whatever happens.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "device/endpoint.h"
#include "tests/unit/device/serving_nic.h"

namespace gdx::device {
namespace shared_push_test {

constexpr std::uint64_t kSignals = std::uint64_t{1} << 40;
constexpr std::uint32_t kSlots = ServingNic::kSlots;
constexpr std::uint32_t kSlotBytes = ServingNic::kSlotBytes;

ServingNic* serving = nullptr;
int serve() { return serving->step() ? 1 : 0; }

// Thread t's k-th message, as an address that says so, and as the payload.
constexpr std::uint64_t message(std::uint32_t thread, std::uint32_t k) {
  return std::uint64_t{thread + 1} << 20 | (k + 1) << 4;
}
RemoteMemory remote(std::uint64_t address) { return {address, 1 << 20, 0x77, 0}; }

template <typename Body>
void in_grid(ServingNic& nic, unsigned blocks, unsigned threads, unsigned workers, Body body) {
  serving = &nic;
  const auto kernel = [&](EndpointHandle handle) {
    SharedEndpoint<> endpoint(handle);
    body(endpoint, blockIdx.x * blockDim.x + threadIdx.x);
  };
  const exec::LaunchConfig config{
      .grid = {blocks}, .block = {threads}, .progress = serve, .workers = workers};
  ASSERT_EQ(exec::launch(config, kernel, nic.handle()), Status::kOk);
  while (nic.step()) {
  }
}

using Staged = ServingNic::Staged;

template <typename Ep>
Status stage(Ep& endpoint, Staged staged, std::uint64_t word) {
  std::uint64_t payload[2] = {word, word};
  const LocalMemory from{reinterpret_cast<std::byte*>(payload), sizeof payload, 0x88, 0};
  if (staged == Staged::kNic) return gdx_put<Mode::kPush>(endpoint, remote(word), from, sizeof payload);
  return gdx_put<Mode::kBounce>(endpoint, remote(word), from, sizeof payload);
}

// Each test once through the NIC's pool, and once through the host's.
class SharedPush : public ::testing::TestWithParam<Staged> {
 protected:
  template <typename Ep>
  static Status push(Ep& endpoint, std::uint64_t word) {
    return stage(endpoint, GetParam(), word);
  }
};
class SharedPushFailure : public SharedPush {};
std::string name_of(const ::testing::TestParamInfo<Staged>& staged) {
  return staged.param == Staged::kNic ? "nic" : "host";
}
INSTANTIATE_TEST_SUITE_P(Pool, SharedPush, ::testing::Values(Staged::kNic, Staged::kHost), name_of);
INSTANTIATE_TEST_SUITE_P(Pool, SharedPushFailure, ::testing::Values(Staged::kNic, Staged::kHost), name_of);

// The seven invariants' sums: credits held and given back are those granted, and nobody else has a slot.
void expect_conserved(const ServingNic& nic, const ServingNic::Pool& pool, std::uint32_t granted) {
  const SharedCredits& credits = pool.credits;
  const StagingState& books = pool.books;
  const auto filled = static_cast<std::uint32_t>(credits.use);
  const auto ready = static_cast<std::uint32_t>(credits.use >> 32);
  const std::uint32_t given = pool.requests.returned;
  EXPECT_EQ(books.taken, granted);
  EXPECT_EQ(books.returned, filled) << "a slot is still with the NIC or a thread";
  EXPECT_EQ(ready - filled + given, granted);
  EXPECT_EQ(credits.busy, 0u);
  EXPECT_EQ(credits.arrived, credits.left) << "nobody waits";
  std::vector<std::uint32_t> slots;
  for (std::uint32_t p = filled; p != ready; ++p) slots.push_back(pool.held[p % kSlots].slot);
  for (std::uint32_t p = 0; p != given; ++p) slots.push_back(pool.returned_slots[p % kSlots]);
  std::sort(slots.begin(), slots.end());
  for (std::uint32_t i = 0; i < slots.size(); ++i) EXPECT_EQ(slots[i], i) << "each once";
  EXPECT_EQ(nic.overwritten(), 0u);
  EXPECT_EQ(nic.mistakes(), 0u);
}
void expect_conserved(const ServingNic& nic, std::uint32_t granted) {
  expect_conserved(nic, nic.pool, granted);
}

TEST_P(SharedPush, many_threads_share_few_slots_and_lose_nothing) {
  constexpr std::uint32_t kEach = 6;
  ServingNic nic(GetParam());
  nic.pool.grant(4, 4);
  std::atomic<std::uint32_t> failed{0};
  in_grid(nic, 8, 40, 4, [&](auto& ep, std::uint32_t t) {
    for (std::uint32_t k = 0; k < kEach; ++k) {
      if (k % 3 == 2) {  // pulls and pushes mixed, in their order
        const LocalMemory from{reinterpret_cast<std::byte*>(message(t, k)), 16, 0x88, 0};
        failed += gdx_put(ep, remote(message(t, k)), from, 16) != Status::kOk;
      } else {
        failed += push(ep, message(t, k)) != Status::kOk;
      }
    }
    failed += gdx_flush(ep) != Status::kOk;
  });
  EXPECT_EQ(failed, 0u);
  std::map<std::uint64_t, std::uint32_t> next;
  for (const ServingNic::Request& request : nic.requests()) {
    const std::uint64_t thread = (request.remote >> 20) - 1;
    ASSERT_EQ(request.remote, message(static_cast<std::uint32_t>(thread), next[thread]++));
    ASSERT_EQ(request.local, request.remote) << "another's payload";
  }
  EXPECT_EQ(nic.requests().size(), std::size_t{8} * 40 * kEach);
  in_grid(nic, 1, 1, 1, [](auto& ep, std::uint32_t) { EXPECT_EQ(gdx_flush(ep), Status::kOk); });
  expect_conserved(nic, 4);
}

TEST_P(SharedPush, counters_wrap) {
  ServingNic nic(GetParam(), 0xfffffff0u);
  nic.pool.grant(2, 2);
  nic.pool.credits.use = 0xfffffffdfffffffdu;  // both positions
  nic.pool.books.returned = 0xfffffffdu;
  nic.pool.credits.arrived = nic.pool.credits.left = 0xfffffff8u;
  in_grid(nic, 2, 16, 2, [&](auto& ep, std::uint32_t t) {
    for (std::uint32_t k = 0; k < 4; ++k) EXPECT_EQ(push(ep, message(t, k)), Status::kOk);
    EXPECT_EQ(gdx_flush(ep), Status::kOk);
  });
  in_grid(nic, 1, 1, 1, [](auto& ep, std::uint32_t) { EXPECT_EQ(gdx_flush(ep), Status::kOk); });
  EXPECT_EQ(nic.requests().size(), 2u * 16 * 4);
  expect_conserved(nic, 2);
}

TEST_P(SharedPush, warp_fills_slots_together_and_signals_behind_the_last) {
  ServingNic nic(GetParam());
  nic.pool.grant(3, 3);
  std::vector<std::byte> source(10 * kSlotBytes + 8);
  for (std::size_t i = 0; i < source.size(); i += 8) {
    const std::uint64_t word = i + 1;
    std::memcpy(source.data() + i, &word, 8);
  }
  in_grid(nic, 2, 40, 2, [&](auto& ep, std::uint32_t) {
    if (threadIdx.x >= kWarpThreads) return;
    const LocalMemory from{source.data(), source.size(), 0x88, 0};
    const auto put = [&](auto mode) {
      SharedEndpoint<Scope::kWarp> warp(ep.handle());
      return gdx_put_signal<mode()>(warp, remote(0), from, source.size(), remote(kSignals), 7);
    };
    EXPECT_EQ(GetParam() == Staged::kNic ? put(std::integral_constant<Mode, Mode::kPush>())
                                         : put(std::integral_constant<Mode, Mode::kBounce>()),
              Status::kOk);
    EXPECT_EQ(gdx_flush(ep), Status::kOk);
  });
  std::size_t signals = 0;
  for (const ServingNic::Request& request : nic.requests()) {
    signals += request.remote == kSignals;
    const bool payload_is_its_own = request.remote == kSignals || request.local == request.remote + 1;
    EXPECT_TRUE(payload_is_its_own);
  }
  EXPECT_EQ(signals, 2u);
  EXPECT_EQ(nic.requests().size(), 2u * 12);
  in_grid(nic, 1, 1, 1, [](auto& ep, std::uint32_t) { EXPECT_EQ(gdx_flush(ep), Status::kOk); });
  expect_conserved(nic, 3);
}

TEST_P(SharedPush, lowered_limit_takes_idle_credits_back_and_used_ones_when_they_complete) {
  ServingNic nic(GetParam());
  nic.pool.grant(6, 6);
  nic.serves = false;
  in_grid(nic, 1, 1, 1, [&](auto& ep, std::uint32_t) {
    EXPECT_EQ(push(ep, message(0, 0)), Status::kOk);
    EXPECT_EQ(push(ep, message(0, 1)), Status::kOk);
    nic.pool.grant(6, 1);
    (void)(GetParam() == Staged::kNic ? impl::try_poll_credits<impl::NicPool>(nic.state(), 0)
                                      : impl::try_poll_credits<impl::HostPool>(nic.state(), 0));
    EXPECT_EQ(nic.pool.requests.returned, 4u) << "two are with the NIC";
    nic.serves = true;
    EXPECT_EQ(gdx_flush(ep), Status::kOk);
  });
  EXPECT_EQ(nic.pool.requests.returned, 5u);
  expect_conserved(nic, 6);
}

// Without a minimum the scheduler may ask back each slot that it grants.
TEST_P(SharedPush, waiting_thread_uses_a_slot_that_is_asked_back_once) {
  ServingNic nic(GetParam());
  nic.pool.minimum_slots = 0;
  nic.pool.grant(1, 0);
  in_grid(nic, 1, 1, 1, [&](auto& ep, std::uint32_t) {
    EXPECT_EQ(push(ep, message(0, 0)), Status::kOk);
    EXPECT_EQ(gdx_flush(ep), Status::kOk);
  });
  EXPECT_EQ(nic.requests().size(), 1u);
  EXPECT_EQ(nic.pool.requests.returned, 1u);
  expect_conserved(nic, 1);
}

TEST_P(SharedPush, no_credit_times_out_or_is_aborted_and_leaves_the_queue_intact) {
  ServingNic nic(GetParam());
  nic.pool.grant(2, 2);
  nic.serves = false;
  nic.timeout_ns = 200'000'000;
  std::atomic<std::uint32_t> posted{0};
  std::vector<Status> ends(24);
  const auto fill = [&](auto& ep, std::uint32_t t) {
    Status status = Status::kOk;
    while (status == Status::kOk) {
      status = push(ep, message(t, 0));
      posted += status == Status::kOk;
    }
    ends[t] = status;
  };
  in_grid(nic, 1, 24, 1, fill);
  EXPECT_EQ(ends, std::vector<Status>(ends.size(), Status::kTimeout));
  EXPECT_EQ(posted, 2u);
  EXPECT_GT(nic.pool.requests.wanted, 2u);
  nic.abort() = 1;
  in_grid(nic, 1, 24, 1, fill);
  EXPECT_EQ(ends, std::vector<Status>(ends.size(), Status::kAborted));
  EXPECT_EQ(nic.state().fault.status, Status::kOk);
  nic.abort() = 0;
  nic.state().abort_polled_ns = 0;
  nic.serves = true;
  nic.timeout_ns = 60'000'000'000;
  in_grid(nic, 1, 1, 1, [&](auto& ep, std::uint32_t) {
    EXPECT_EQ(push(ep, message(0, 1)), Status::kOk);
    EXPECT_EQ(gdx_flush(ep), Status::kOk);
  });
  EXPECT_EQ(nic.pool.requests.wanted, 2u) << "whoever flushes wants nothing more";
  expect_conserved(nic, 2);
}

// Time goes by in steps of the NIC, which it makes when all threads wait.
std::atomic<std::uint64_t> steps{0};
int serve_in_virtual_time() {
  ++steps;
  return serve();
}
std::uint64_t virtual_now_ns() { return steps; }

// All push without end, and there are credits for four: without an order the first of them takes every freed
// credit, because it comes back before the others poll.
TEST_P(SharedPush, waiting_threads_get_credits_in_turn) {
  constexpr std::uint32_t kThreads = 64;
  constexpr std::uint32_t kEach = 8;
  constexpr std::uint32_t kCredits = 4;  // taken by the first caller before another waits
  ServingNic nic(GetParam());
  nic.pool.grant(kCredits, kCredits);
  nic.timeout_ns = 4 * kThreads;  // several turns of all
  serving = &nic;
  std::vector<Status> ends(kThreads);
  std::vector<std::uint32_t> pushes(kThreads);
  std::atomic<bool> over{false};
  const auto kernel = [&](EndpointHandle handle) {
    SharedEndpoint<> endpoint(handle);
    const std::uint32_t t = threadIdx.x;
    while (!over) {
      ends[t] = push(endpoint, message(t, pushes[t]));
      if (ends[t] == Status::kOk) ++pushes[t];
      if (ends[t] != Status::kOk || (t == kThreads - 1 && pushes[t] == kEach)) over = true;
    }
  };
  const exec::LaunchConfig config{
      .block = {kThreads}, .progress = serve_in_virtual_time, .clock = virtual_now_ns};
  ASSERT_EQ(exec::launch(config, kernel, nic.handle()), Status::kOk);
  EXPECT_EQ(std::count(ends.begin(), ends.end(), Status::kOk), kThreads);
  EXPECT_GE(*std::min_element(pushes.begin(), pushes.end()), kEach - 1);
  EXPECT_LE(*std::max_element(pushes.begin(), pushes.end()), kCredits + kEach + 1);
}

TEST_P(SharedPushFailure, error_brings_every_slot_back_once) {
  for (const std::uint32_t fails_at : {0u, 7u, 130u}) {
    ServingNic nic(GetParam());
    nic.pool.grant(5, 5);
    nic.fails_at = fails_at;
    std::vector<Status> ends(4 * 40);
    in_grid(nic, 4, 40, 4, [&](auto& ep, std::uint32_t t) {
      Status status = Status::kOk;
      for (std::uint32_t k = 0; status == Status::kOk; ++k) status = push(ep, message(t, k));
      ends[t] = status;
      EXPECT_EQ(push(ep, message(t, 0)), Status::kPeerUnreachable);
      EXPECT_EQ(gdx_flush(ep), Status::kPeerUnreachable);
    });
    EXPECT_EQ(ends, std::vector<Status>(ends.size(), Status::kPeerUnreachable));
    EXPECT_EQ(nic.pool.requests.failed, 1u);
    EXPECT_EQ(nic.pool.requests.returned, 5u);
    expect_conserved(nic, 5);
  }
}

// A slot that an error completion frees says that the endpoint has failed: no later push may use it.
TEST_P(SharedPushFailure, error_of_a_slot_is_met_by_whoever_waits_for_it) {
  ServingNic nic(GetParam());
  nic.pool.grant(1, 1);
  nic.fails_at = 0;
  in_grid(nic, 1, 1, 1, [](auto& ep, std::uint32_t) {
    EXPECT_EQ(push(ep, message(0, 0)), Status::kOk);
    EXPECT_EQ(push(ep, message(0, 1)), Status::kPeerUnreachable);
  });
  expect_conserved(nic, 1);
}

// The call that meets the failure may be the last one that there is.
TEST_P(SharedPushFailure, call_that_meets_it_waits_for_what_the_nic_has_yet_to_flush) {
  ServingNic nic(GetParam());
  nic.pool.grant(3, 3);
  nic.fails_at = 0;
  nic.completes_one_a_step = true;
  in_grid(nic, 1, 1, 1, [](auto& ep, std::uint32_t) {
    for (std::uint32_t k = 0; k < 3; ++k) EXPECT_EQ(push(ep, message(0, k)), Status::kOk);
    EXPECT_EQ(push(ep, message(0, 3)), Status::kPeerUnreachable);
  });
  EXPECT_EQ(nic.pool.requests.returned, 3u);
  expect_conserved(nic, 3);
}

// Nobody pushes any more, or flushes: whatever call meets the failure gives the idle credits back.
TEST_P(SharedPushFailure, first_met_by_a_call_without_a_slot_brings_every_slot_back) {
  enum class Call { kPull, kValue, kWarp };
  for (const Call call : {Call::kPull, Call::kValue, Call::kWarp}) {
    ServingNic nic(GetParam());
    nic.pool.grant(5, 5);
    in_grid(nic, 1, 1, 1, [](auto& ep, std::uint32_t) {
      EXPECT_EQ(push(ep, message(0, 0)), Status::kOk);
      EXPECT_EQ(gdx_flush(ep), Status::kOk);
    });
    nic.fails_at = 7;
    const unsigned threads = call == Call::kWarp ? kWarpThreads : 1;
    in_grid(nic, 1, threads, 1, [&](auto& ep, std::uint32_t t) {
      std::byte byte{};
      const LocalMemory from{&byte, 1, 0x88, 0};
      SharedEndpoint<Scope::kWarp> warp(ep.handle());
      Status status = Status::kOk;
      while (status == Status::kOk) {
        if (call == Call::kPull) status = gdx_put(ep, remote(message(t, 0)), from, 1);
        if (call == Call::kValue) status = gdx_put_value(ep, remote(8), std::uint64_t{1});
        if (call == Call::kWarp) status = gdx_put_warp(warp, remote(message(t, 0)), from, 1);
      }
      EXPECT_EQ(status, Status::kPeerUnreachable);
    });
    EXPECT_EQ(nic.pool.requests.failed, 1u);
    EXPECT_EQ(nic.pool.requests.returned, 5u);
    expect_conserved(nic, 5);
  }
}

// The slots are full, and then there is no room for their WQEs.
TEST_P(SharedPushFailure, slots_whose_wqes_found_no_room_come_back_without_the_nic) {
  ServingNic nic(GetParam());
  nic.pool.grant(3, 3);
  nic.serves = false;
  nic.timeout_ns = 200'000'000;
  std::vector<Status> ends(16);
  in_grid(nic, 1, 16, 1, [&](auto& ep, std::uint32_t t) {
    for (std::uint32_t k = 0; k < ServingNic::kBlocks / 16; ++k) {
      EXPECT_EQ(gdx_put_value(ep, remote(8), std::uint64_t{1}), Status::kOk);
    }
    __syncthreads();
    ends[t] = push(ep, message(t, 0));
  });
  EXPECT_EQ(ends, std::vector<Status>(ends.size(), Status::kTimeout));
  EXPECT_EQ(nic.state().fault.status, Status::kTimeout);
  EXPECT_EQ(nic.pool.requests.failed, 1u);
  EXPECT_EQ(nic.pool.requests.returned, 3u);
  expect_conserved(nic, 3);
}

// After a timeout the NIC may still finish: who calls then brings home what has come free since.
TEST_P(SharedPushFailure, slot_that_the_nic_finishes_after_a_timeout_comes_back_with_the_next_call) {
  for (const bool flushes : {false, true}) {
    ServingNic nic(GetParam());
    nic.pool.grant(3, 3);
    nic.serves = false;
    nic.timeout_ns = 2'000'000;
    in_grid(nic, 1, 1, 1, [](auto& ep, std::uint32_t) {
      EXPECT_EQ(push(ep, message(0, 0)), Status::kOk);
      Status status = Status::kOk;
      while (status == Status::kOk) status = gdx_put_value(ep, remote(8), std::uint64_t{1});
      EXPECT_EQ(status, Status::kTimeout);
    });
    EXPECT_EQ(nic.pool.requests.returned, 2u) << "the third is the NIC's";
    nic.serves = true;
    while (nic.step()) {
    }
    in_grid(nic, 1, 1, 1, [&](auto& ep, std::uint32_t) {
      EXPECT_EQ(flushes ? gdx_flush(ep) : push(ep, message(0, 1)), Status::kTimeout);
    });
    EXPECT_EQ(nic.pool.requests.returned, 3u);
    expect_conserved(nic, 3);
  }
}

// Both pools at once: what holds of one must hold of the other when the same call ends.
constexpr std::uint32_t kCredits[] = {5, 4};
void grant_both(ServingNic& nic) {
  nic.nic_pool.grant(kCredits[0], kCredits[0]);
  nic.host_pool.grant(kCredits[1], kCredits[1]);
}
void expect_both_conserved(const ServingNic& nic) {
  expect_conserved(nic, nic.nic_pool, kCredits[0]);
  expect_conserved(nic, nic.host_pool, kCredits[1]);
}

TEST(SharedPools, flush_brings_the_slots_of_both_back_and_wants_nothing_more) {
  ServingNic nic;
  grant_both(nic);
  in_grid(nic, 1, 1, 1, [](auto& ep, std::uint32_t) {
    for (std::uint32_t k = 0; k < 6; ++k) {
      EXPECT_EQ(stage(ep, Staged::kNic, message(0, 2 * k)), Status::kOk);
      EXPECT_EQ(stage(ep, Staged::kHost, message(0, 2 * k + 1)), Status::kOk);
    }
    EXPECT_EQ(gdx_flush(ep), Status::kOk);
  });
  expect_both_conserved(nic);
  EXPECT_EQ(nic.nic_pool.requests.wanted, kCredits[0]);
  EXPECT_EQ(nic.host_pool.requests.wanted, kCredits[1]);
  ASSERT_EQ(nic.requests().size(), 12u);
  for (const ServingNic::Request& request : nic.requests()) EXPECT_EQ(request.local, request.remote);
}

// The call that meets the failure may be the last one, and the NIC flushes one WQE at a time.
TEST(SharedPools, failure_waits_for_what_the_nic_has_of_either) {
  for (const Staged last : {Staged::kNic, Staged::kHost}) {
    for (const bool flushes : {false, true}) {
      ServingNic nic;
      grant_both(nic);
      nic.fails_at = 0;
      nic.completes_one_a_step = true;
      in_grid(nic, 1, 1, 1, [&](auto& ep, std::uint32_t) {
        const auto fill = [&](Staged staged) {
          const std::uint32_t credits = kCredits[staged == Staged::kNic ? 0 : 1];
          for (std::uint32_t k = 0; k < credits; ++k)
            EXPECT_EQ(stage(ep, staged, message(0, k)), Status::kOk);
        };
        fill(last == Staged::kNic ? Staged::kHost : Staged::kNic);
        fill(last);
        EXPECT_EQ(flushes ? gdx_flush(ep) : stage(ep, last, message(0, 9)), Status::kPeerUnreachable);
        for (const ServingNic::Pool* const pool : {&nic.nic_pool, &nic.host_pool}) {
          EXPECT_EQ(pool->requests.failed, 1u);
          EXPECT_EQ(pool->requests.returned, pool->books.taken);
        }
      });
      expect_both_conserved(nic);
    }
  }
}

TEST_P(SharedPush, endpoint_without_slots_says_unsupported) {
  ServingNic nic(GetParam());
  in_grid(nic, 1, 1, 1, [](auto& ep, std::uint32_t) {
    EXPECT_EQ(push(ep, message(0, 0)), Status::kUnsupported);
    std::byte byte{};
    EXPECT_EQ(gdx_put<Mode::kBounce>(ep, remote(0), {&byte, 1, 0, 0}, 1), Status::kUnsupported);
  });
}

}  // namespace shared_push_test
}  // namespace gdx::device
