// Many threads on one endpoint: nothing lost, nothing twice, nothing out of turn, and one end for all.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "device/endpoint.h"
#include "tests/unit/device/serving_nic.h"
#include "tests/unit/device/stepped_time.h"

// As kernel authors write it: outside namespace gdx.
__global__ void post_and_flush(gdx::EndpointHandle handle, gdx::Status* end) {
  gdx::device::SharedEndpoint<> endpoint(handle);
  *end = gdx_put_value(endpoint, gdx::RemoteMemory{0x10000, 8, 0x77, 0}, std::uint64_t{1});
  if (*end == gdx::Status::kOk) *end = gdx_flush(endpoint);
}

namespace gdx::device {
namespace shared_test {

using mlx5::WqeOpcode;

constexpr std::uint64_t kSignals = std::uint64_t{1} << 40;  // address of signal words, far from all others

ServingNic* serving = nullptr;
int serve() { return serving->step() ? 1 : 0; }

// Thread t's k-th message, as an address that says so.
constexpr std::uint64_t message(std::uint32_t thread, std::uint32_t k) {
  return std::uint64_t{thread} << 20 | (k + 1) << 4;
}
RemoteMemory remote(std::uint64_t address) { return {address, 16, 0x77, 0}; }
LocalMemory local(std::uint64_t address) { return {reinterpret_cast<std::byte*>(address), 16, 0x88, 0}; }

std::uint32_t global_thread() { return blockIdx.x * blockDim.x + threadIdx.x; }

// Runs `body(endpoint, thread)` in every thread of the grid, each with an endpoint of its own on the one
// queue. By `clock`, unless null, goes their time.
template <Scope S = Scope::kThread, typename Body>
void in_grid(ServingNic& nic, unsigned blocks, unsigned threads, unsigned workers, Body body,
             std::uint64_t (*clock)() = nullptr) {
  serving = &nic;
  const auto kernel = [&](EndpointHandle handle) {
    SharedEndpoint<S> endpoint(handle);
    body(endpoint, global_thread());
  };
  const exec::LaunchConfig config{
      .grid = {blocks}, .block = {threads}, .progress = serve, .workers = workers, .clock = clock};
  ASSERT_EQ(exec::launch(config, kernel, nic.handle()), Status::kOk);
  while (nic.step()) {
  }
}

// Every thread's messages, each once and in its order.
void expect_all_in_order(const ServingNic& nic, std::uint32_t threads, std::uint32_t each) {
  std::map<std::uint32_t, std::uint32_t> next;
  std::size_t puts = 0;
  for (const ServingNic::Request& request : nic.requests()) {
    if (request.remote >= kSignals) continue;
    const auto thread = static_cast<std::uint32_t>(request.remote >> 20);
    ASSERT_EQ(request.remote, message(thread, next[thread]++));
    ASSERT_EQ(request.local, request.remote);
    ++puts;
  }
  EXPECT_EQ(puts, std::size_t{threads} * each);
  EXPECT_EQ(nic.mistakes(), 0u);
}

TEST(Shared, threads_of_several_workers_post_everything_once_and_in_their_order) {
  constexpr std::uint32_t kEach = 12;
  ServingNic nic;
  std::atomic<std::uint32_t> failed{0};
  in_grid(nic, 8, 40, 4, [&](auto& ep, std::uint32_t t) {
    for (std::uint32_t k = 0; k < kEach; ++k) {
      failed += gdx_put(ep, remote(message(t, k)), local(message(t, k)), 16) != Status::kOk;
      if (k % 4 == 0) exec::yield();
    }
    failed += gdx_flush(ep) != Status::kOk;
  });
  EXPECT_EQ(failed, 0u);
  expect_all_in_order(nic, 8 * 40, kEach);
  EXPECT_EQ(nic.state().shared.reserved, nic.state().shared.published);
}

TEST(Shared, kernel_in_the_global_namespace_finds_the_calls) {
  ServingNic nic;
  serving = &nic;
  Status end = Status::kPending;
  ASSERT_EQ(exec::launch({.progress = serve}, post_and_flush, nic.handle(), &end), Status::kOk);
  EXPECT_EQ(end, Status::kOk);
  EXPECT_EQ(nic.requests().size(), 1u);
}

TEST(Shared, signal_stands_right_behind_its_put) {
  constexpr std::uint32_t kEach = 8;
  ServingNic nic;
  std::atomic<std::uint32_t> failed{0};
  in_grid(nic, 6, 20, 3, [&](auto& ep, std::uint32_t t) {
    for (std::uint32_t k = 0; k < kEach; ++k) {
      const SignalOp op = k % 2 == 0 ? SignalOp::kSet : SignalOp::kAdd;
      failed += gdx_put_signal(ep, remote(message(t, k)), local(message(t, k)), 16,
                               remote(kSignals + message(t, k)), 1, op) != Status::kOk;
    }
  });
  EXPECT_EQ(failed, 0u);
  expect_all_in_order(nic, 6 * 20, kEach);
  const auto& requests = nic.requests();
  ASSERT_EQ(requests.size(), 2u * 6 * 20 * kEach);
  for (std::size_t i = 0; i < requests.size(); i += 2) {
    ASSERT_EQ(requests[i + 1].remote, kSignals + requests[i].remote);
  }
}

TEST(Shared, warps_post_in_the_order_of_lanes_and_never_in_part) {
  constexpr std::uint32_t kEach = 20;
  ServingNic nic;
  std::jthread looks_all_the_time([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) nic.step();
  });
  std::atomic<std::uint32_t> failed{0};
  in_grid<Scope::kWarp>(
      nic, 6, 72, 3, [&](auto& ep, std::uint32_t t) {  // the last warp of a block has 8 lanes
        for (std::uint32_t k = 0; k < kEach; ++k) {
          failed += gdx_put_warp(ep, remote(message(t, k)), local(message(t, k)), 16) != Status::kOk;
        }
      });
  looks_all_the_time.request_stop();
  looks_all_the_time.join();
  while (nic.step()) {  // rung while the thread had the NIC to itself
  }
  EXPECT_EQ(failed, 0u);
  expect_all_in_order(nic, 6 * 72, kEach);
  const auto& requests = nic.requests();
  const auto lane_of = [&](std::size_t i) {
    return static_cast<std::uint32_t>(requests[i].remote >> 20) % 72 % kWarpThreads;
  };
  for (const std::size_t next : nic.seen()) {
    if (next == requests.size()) continue;
    ASSERT_EQ(lane_of(next), 0u) << "a doorbell between two lanes of a warp";
  }
  for (std::size_t i = 1; i < requests.size(); ++i) {
    if (lane_of(i) == 0) continue;
    ASSERT_EQ(requests[i].remote - requests[i - 1].remote, std::uint64_t{1} << 20);
  }
}

// The steps of a put with pauses between them. So threads publish in another order than they have reserved
// in.
TEST(Shared, publication_waits_for_its_turn) {
  constexpr std::uint32_t kEach = 10;
  ServingNic nic;
  std::atomic<std::uint32_t> failed{0};
  in_grid(nic, 4, 24, 2, [&](auto& ep, std::uint32_t t) {
    auto& open = impl::Access::state_of(ep);
    for (std::uint32_t k = 0; k < kEach; ++k) {
      const std::uint32_t first = open.take_blocks(1);
      failed += !open.owns_blocks(first, 1) && open.wait_owned(first, 1) != Status::kOk;
      for (std::uint32_t pause = 0; pause < (t * 7 + k * 5) % 6; ++pause) exec::relax();
      const auto newest =
          impl::store_wqe(open, first,
                          impl::transfer_wqe(open, first, WqeOpcode::kRdmaWrite, remote(message(t, k)),
                                             local(message(t, k)), 16));
      failed += open.template publish<Placement::kHost>(first, 1, newest, Doorbell::kRing) != Status::kOk;
    }
  });
  EXPECT_EQ(failed, 0u);
  expect_all_in_order(nic, 4 * 24, kEach);
}

TEST(Shared, counters_wrap) {
  for (const std::uint32_t start : {0xfff0u, 0xfffffff0u}) {
    ServingNic nic(ServingNic::Staged::kNic, start);
    in_grid(nic, 2, 32, 2, [&](auto& ep, std::uint32_t t) {
      for (std::uint32_t k = 0; k < 4; ++k) {
        EXPECT_EQ(gdx_put(ep, remote(message(t, k)), local(message(t, k)), 16), Status::kOk);
      }
      EXPECT_EQ(gdx_flush(ep), Status::kOk);
    });
    expect_all_in_order(nic, 64, 4);
  }
}

TEST(SharedFailure, error_completion_ends_all_threads_with_the_first_cause) {
  constexpr std::uint32_t kFails = 150;
  ServingNic nic;
  nic.fails_at = kFails;
  std::vector<Status> ends(4 * 40);
  in_grid(nic, 4, 40, 4, [&](auto& ep, std::uint32_t t) {
    Status status = Status::kOk;
    for (std::uint32_t k = 0; status == Status::kOk; ++k) {
      status = k % 8 == 7 ? gdx_flush(ep) : gdx_put(ep, remote(message(t, k)), local(message(t, k)), 16);
    }
    ends[t] = status;
    EXPECT_EQ(gdx_put(ep, remote(message(t, 0)), local(message(t, 0)), 16), Status::kPeerUnreachable);
  });
  EXPECT_EQ(ends, std::vector<Status>(ends.size(), Status::kPeerUnreachable));
  EXPECT_EQ(nic.state().fault.syndrome, static_cast<std::uint8_t>(mlx5::Syndrome::kRetryExceeded));
  EXPECT_EQ(nic.state().fault.wqe_counter, kFails);
  EXPECT_EQ(nic.mistakes(), 0u);
}

TEST(SharedFailure, known_failure_is_returned_though_there_is_room) {
  ServingNic nic;
  nic.fails_at = 0;
  in_grid(nic, 1, 1, 1, [&](auto& ep, std::uint32_t) {
    EXPECT_EQ(gdx_put(ep, remote(16), local(16), 16), Status::kOk);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(gdx_flush(ep), Status::kPeerUnreachable);
      EXPECT_EQ(gdx_put(ep, remote(32), local(32), 16), Status::kPeerUnreachable);
    }
  });
  EXPECT_EQ(nic.requests().size(), 1u);
}

// Time goes by only once the queue is full, because a worker may stand still before it publishes.
TEST(SharedFailure, full_queue_times_out_once_and_for_all) {
  ServingNic nic;
  nic.timeout_ns = 1'000'000;
  nic.serves = false;
  static std::atomic<std::uint32_t> posted;
  posted = 0;
  const auto clock = [] {
    const bool full = posted.load(std::memory_order_relaxed) == ServingNic::kBlocks;
    return full ? step_time() : stepped_ns.load(std::memory_order_relaxed);
  };
  std::vector<Status> ends(2 * 50);
  const auto post_without_end = [&](auto& ep, std::uint32_t t) {
    Status status = Status::kOk;
    while (status == Status::kOk) {
      status = gdx_put(ep, remote(message(t, 0)), local(message(t, 0)), 16);
      posted += status == Status::kOk;
    }
    ends[t] = status;
  };
  in_grid(nic, 2, 50, 2, post_without_end, clock);
  EXPECT_EQ(ends, std::vector<Status>(ends.size(), Status::kTimeout));
  EXPECT_EQ(posted, ServingNic::kBlocks);
  EXPECT_EQ(nic.state().fault.status, Status::kTimeout);
  nic.serves = true;  // too late
  in_grid(nic, 1, 1, 1, [&](auto& ep, std::uint32_t) {
    EXPECT_EQ(gdx_put(ep, remote(16), local(16), 16), Status::kTimeout);
    EXPECT_EQ(gdx_flush(ep), Status::kTimeout);
  });
  EXPECT_EQ(nic.requests().size(), ServingNic::kBlocks);
}

TEST(SharedFailure, abort_ends_all_who_wait) {
  ServingNic nic;
  nic.serves = false;
  nic.abort() = 1;
  std::vector<Status> ends(2 * 50);
  in_grid(nic, 2, 50, 2, [&](auto& ep, std::uint32_t t) {
    Status status = Status::kOk;
    while (status == Status::kOk) status = gdx_put(ep, remote(message(t, 0)), local(message(t, 0)), 16);
    ends[t] = status;
  });
  EXPECT_EQ(ends, std::vector<Status>(ends.size(), Status::kAborted));
}

TEST(SharedFailure, abort_ends_the_next_of_waits_shorter_than_the_pause_between_polls) {
  ServingNic nic;
  nic.timeout_ns = kHostPollNs / 2;
  nic.serves = false;
  in_grid(nic, 1, 1, 1, [&](auto& ep, std::uint32_t) {
    EXPECT_EQ(gdx_put(ep, remote(16), local(16), 16), Status::kOk);
    EXPECT_EQ(gdx_flush(ep), Status::kTimeout);
    nic.abort() = 1;
    int waits = 1;
    while (gdx_flush(ep) == Status::kTimeout) ASSERT_LT(++waits, 100);
    EXPECT_EQ(gdx_flush(ep), Status::kAborted) << "every wait from now on";
  });
}

TEST(SharedFailure, flush_that_times_out_leaves_the_queue_intact) {
  ServingNic nic;
  nic.timeout_ns = 1'000'000;
  nic.serves = false;
  in_grid(nic, 1, 1, 1, [&](auto& ep, std::uint32_t) {
    EXPECT_EQ(gdx_put(ep, remote(16), local(16), 16), Status::kOk);
    EXPECT_EQ(gdx_flush(ep), Status::kTimeout);
  });
  nic.timeout_ns = 60'000'000'000;
  nic.serves = true;
  in_grid(nic, 1, 1, 1, [&](auto& ep, std::uint32_t) {
    EXPECT_EQ(gdx_put(ep, remote(32), local(32), 16), Status::kOk);
    EXPECT_EQ(gdx_flush(ep), Status::kOk);
  });
  EXPECT_EQ(nic.requests().size(), 2u);
}

TEST(SharedWait, signal_ends_it_for_all_and_nothing_is_posted) {
  ServingNic nic;
  std::uint64_t signal = 0;
  in_grid(nic, 2, 40, 2, [&](auto& ep, std::uint32_t t) {
    if (t == 79) std::atomic_ref<std::uint64_t>(signal).store(5, std::memory_order_release);
    EXPECT_EQ(gdx_wait(ep, &signal, Compare::kGreaterEqual, 5), Status::kOk);
  });
  EXPECT_EQ(nic.requests().size(), 0u);
}

TEST(SharedWait, dead_peer_ends_it_for_all_by_one_probe) {
  ServingNic nic;
  nic.probe_after_ns = 100'000;
  nic.fails_at = 0;
  const std::uint64_t signal = 0;
  in_grid(nic, 2, 40, 2, [&](auto& ep, std::uint32_t) {
    EXPECT_EQ(gdx_wait(ep, &signal, Compare::kEqual, 1), Status::kPeerUnreachable);
  });
  ASSERT_EQ(nic.requests().size(), 1u);
  EXPECT_EQ(nic.requests()[0].opcode, WqeOpcode::kRdmaWrite);
  EXPECT_EQ(nic.state().fault.syndrome, static_cast<std::uint8_t>(mlx5::Syndrome::kRetryExceeded));
}

TEST(SharedWait, live_but_silent_peer_is_probed_again_and_the_wait_times_out) {
  ServingNic nic;
  nic.probe_after_ns = 1'000'000;
  nic.timeout_ns = 20'000'000;
  const std::uint64_t signal = 0;
  const std::uint64_t began_ns = stepped_ns;
  const auto wait = [&](auto& ep, std::uint32_t) {
    EXPECT_EQ(gdx_wait(ep, &signal, Compare::kEqual, 1), Status::kTimeout);
    EXPECT_EQ(gdx_flush(ep), Status::kOk) << "the queue is intact";
  };
  in_grid(nic, 1, 32, 1, wait, step_time);
  EXPECT_GE(nic.requests().size(), 10u);
  EXPECT_LE(nic.requests().size(), (stepped_ns - began_ns) / nic.probe_after_ns)
      << "of all threads together, one a period";
  EXPECT_EQ(nic.mistakes(), 0u);
}

TEST(SharedWait, work_under_way_takes_the_place_of_a_probe) {
  ServingNic nic;
  nic.probe_after_ns = 0;
  nic.timeout_ns = 2'000'000;
  nic.serves = false;
  const std::uint64_t signal = 0;
  in_grid(nic, 1, 1, 1, [&](auto& ep, std::uint32_t) {
    EXPECT_EQ(gdx_put(ep, remote(16), local(16), 16), Status::kOk);
    EXPECT_EQ(gdx_wait(ep, &signal, Compare::kEqual, 1), Status::kTimeout);
    nic.serves = true;
  });
  EXPECT_EQ(nic.requests().size(), 1u);
}

TEST(SharedWait, abort_ends_it) {
  ServingNic nic;
  nic.abort() = 1;
  const std::uint64_t signal = 0;
  in_grid(nic, 1, 4, 1, [&](auto& ep, std::uint32_t) {
    EXPECT_EQ(gdx_wait(ep, &signal, Compare::kEqual, 1), Status::kAborted);
  });
}

// Calls gdx_put of `bytes` at scope S in a block of 40 threads, and returns the requests.
template <Mode M, Scope S>
std::vector<ServingNic::Request> put_together(ServingNic& nic, const std::byte* from, std::uint64_t bytes) {
  in_grid<S>(nic, 1, 40, 1, [&](auto& ep, std::uint32_t) {
    EXPECT_EQ(gdx_put<M>(ep, remote(0x10000), {const_cast<std::byte*>(from), bytes, 0x88, 0}, bytes),
              Status::kOk);
    EXPECT_EQ(gdx_flush(ep), Status::kOk);
  });
  EXPECT_EQ(nic.mistakes(), 0u);
  return nic.requests();
}

TEST(SharedModes, scope_posts_once_for_all_its_threads) {
  std::array<std::byte, 64> source{};
  const auto count = [&]<Mode M, Scope S>() {
    ServingNic nic;
    nic.modes = {28, 28, kNoSizeLimit};
    return put_together<M, S>(nic, source.data(), 28).size();
  };
  EXPECT_EQ((count.template operator()<Mode::kPull, Scope::kThread>()), 40u);
  EXPECT_EQ((count.template operator()<Mode::kPull, Scope::kWarp>()), 2u) << "a warp of 32 and one of 8";
  EXPECT_EQ((count.template operator()<Mode::kPull, Scope::kBlock>()), 1u);
  EXPECT_EQ((count.template operator()<Mode::kInline, Scope::kThread>()), 40u);
  EXPECT_EQ((count.template operator()<Mode::kInline, Scope::kWarp>()), 2u);
  EXPECT_EQ((count.template operator()<Mode::kInline, Scope::kBlock>()), 1u);
  EXPECT_EQ((count.template operator()<Mode::kAuto, Scope::kWarp>()), 2u);
}

// Steps have 16 requests, so the last one is full, or has one request, or lacks one.
TEST(SharedModes, one_signal_follows_inline_data_of_any_length) {
  std::array<std::byte, 1024> source{};
  for (const std::uint64_t bytes : {1, 28, 29, 447, 448, 449, 896}) {
    ServingNic nic;
    in_grid(nic, 1, 1, 1, [&](auto& ep, std::uint32_t) {
      EXPECT_EQ((gdx_put_signal<Mode::kInline>(ep, remote(0x10000), {source.data(), bytes, 0x88, 0}, bytes,
                                               remote(0x20000), 7, SignalOp::kSet)),
                Status::kOk);
      EXPECT_EQ(gdx_flush(ep), Status::kOk);
    });
    ASSERT_EQ(nic.requests().size(), (bytes + 27) / 28 + 1) << bytes << " B";
    EXPECT_EQ(nic.requests().back().remote, 0x20000u);
    EXPECT_EQ(nic.requests().back().local, 7u);
  }
}

TEST(SharedModes, auto_goes_by_the_table) {
  std::array<std::byte, 64> source{};
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i + 1);
  std::uint64_t first_bytes = 0;
  std::memcpy(&first_bytes, source.data(), sizeof first_bytes);
  // Returns the way by which the first request's payload came.
  const auto taken = [&](const ModeTable& modes, std::uint64_t bytes) {
    ServingNic nic(ServingNic::Staged::kHost);
    nic.modes = modes;
    nic.pool.grant(ServingNic::kSlots, ServingNic::kSlots);
    nic.nic_pool.grant(ServingNic::kSlots, ServingNic::kSlots);
    const auto requests = put_together<Mode::kAuto, Scope::kBlock>(nic, source.data(), bytes);
    EXPECT_EQ(requests.size(), 1u);
    const bool filled =
        nic.state().staging.filled != 0 || impl::filled_of(nic.state().shared.staging.use) != 0;
    const bool bounced = impl::filled_of(nic.state().shared.bounce.use) != 0;
    if (requests[0].local == reinterpret_cast<std::uint64_t>(source.data())) return Mode::kPull;
    EXPECT_EQ(requests[0].local, first_bytes);
    return filled ? Mode::kPush : bounced ? Mode::kBounce : Mode::kInline;
  };
  const ModeTable modes{20, 40, 50};
  EXPECT_EQ(taken(modes, 20), Mode::kInline);
  EXPECT_EQ(taken(modes, 21), Mode::kPush);
  EXPECT_EQ(taken(modes, 40), Mode::kPush);
  EXPECT_EQ(taken(modes, 41), Mode::kPull);
  EXPECT_EQ(taken(modes, 50), Mode::kPull);
  EXPECT_EQ(taken(modes, 51), Mode::kBounce);
}

TEST(SharedOpen, endpoint_that_is_not_connected_is_refused_before_it_posts) {
  ServingNic nic;
  nic.owner() = kMostOpeners;
  in_grid(nic, 1, 4, 1, [](auto& ep, std::uint32_t) {
    const std::uint64_t signal = 0;
    EXPECT_EQ(ep.status(), Status::kNotConnected);
    EXPECT_EQ(gdx_put(ep, remote(16), local(16), 16), Status::kNotConnected);
    EXPECT_EQ(gdx_put_signal(ep, {}, {}, 0, remote(8), 1), Status::kNotConnected);
    EXPECT_EQ(gdx_wait(ep, &signal, Compare::kEqual, 1), Status::kNotConnected);
    EXPECT_EQ(gdx_flush(ep), Status::kNotConnected);
  });
  EXPECT_EQ(nic.state().shared.reserved, 0u);
}

TEST(SharedOpen, other_policy_version_placement_or_length_is_refused) {
  ServingNic nic;
  const auto kernel = [](EndpointHandle h, Status expected) {
    SharedEndpoint<> ep(h);
    EXPECT_EQ(ep.status(), expected);
    EXPECT_EQ(gdx_put(ep, remote(16), local(16), 16), expected);
    EXPECT_EQ(gdx_flush(ep), expected);
  };
  const auto expect = [&](Status expected, auto change) {
    EndpointHandle handle = nic.handle();
    change(handle);
    ASSERT_EQ(exec::launch({}, kernel, handle, expected), Status::kOk);
  };
  expect(Status::kVersionMismatch, [](EndpointHandle& h) { --h.layout_version; });
  expect(Status::kInvalidArgument, [](EndpointHandle& h) { h.sharing = Sharing::kExclusive; });
  expect(Status::kInvalidArgument, [](EndpointHandle& h) { h.log_send_queue = 5; });
  const auto for_gpu = [](EndpointHandle h) {
    SharedEndpoint<Scope::kThread, Placement::kGpu> ep(h);
    EXPECT_EQ(ep.status(), Status::kInvalidArgument);
  };
  ASSERT_EQ(exec::launch({}, for_gpu, nic.handle()), Status::kOk);
  const auto exclusive = [](EndpointHandle h) {
    Endpoint<> ep(h);
    EXPECT_EQ(ep.status(), Status::kInvalidArgument);
  };
  ASSERT_EQ(exec::launch({}, exclusive, nic.handle()), Status::kOk);
  EXPECT_EQ(nic.state().shared.reserved, 0u);
}

// Puts five times from each lane t of a warp, `bytes_of(t)` bytes.
template <typename Ep, typename Bytes>
void put_warps(ServingNic& nic, std::vector<Status>* ends, Bytes bytes_of) {
  serving = &nic;
  const auto kernel = [&](EndpointHandle handle) {
    Ep ep(handle);
    const std::uint32_t t = threadIdx.x;
    for (std::uint32_t k = 0; k < 5; ++k) {
      (*ends)[t] = gdx_put_warp(ep, remote(message(t, k)), local(message(t, k)), bytes_of(t));
    }
  };
  ASSERT_EQ(exec::launch({.block = {kWarpThreads}, .progress = serve}, kernel, nic.handle()), Status::kOk);
  while (nic.step()) {
  }
}

// Puts on an endpoint of either sharing; returns how all lanes ended.
template <typename Bytes>
std::vector<Status> put_warps(ServingNic& nic, Sharing sharing, Bytes bytes_of) {
  std::vector<Status> ends(kWarpThreads);
  if (sharing == Sharing::kExclusive) {
    put_warps<Endpoint<Scope::kWarp>>(nic, &ends, bytes_of);
  } else {
    put_warps<SharedEndpoint<Scope::kWarp>>(nic, &ends, bytes_of);
  }
  return ends;
}

TEST(PutWarp, exclusive_endpoint_posts_every_lane_in_order) {
  ServingNic nic(ServingNic::Staged::kNic, 0, Sharing::kExclusive);
  EXPECT_EQ(put_warps(nic, Sharing::kExclusive, [](std::uint32_t) { return 16u; }),
            std::vector<Status>(kWarpThreads, Status::kOk));
  expect_all_in_order(nic, kWarpThreads, 5);
  for (const std::size_t seen : nic.seen()) EXPECT_EQ(seen % kWarpThreads, 0u);
  EXPECT_EQ(nic.state().messages, 5u * kWarpThreads);
}

TEST(PutWarp, lanes_without_bytes_post_nothing_and_the_others_keep_their_order) {
  for (const Sharing sharing : {Sharing::kExclusive, Sharing::kShared}) {
    for (const std::uint32_t posting : {0u, 0x80000000u, 0x00000001u, 0x5a5a0ff0u, 0xfffffffeu}) {
      ServingNic nic(ServingNic::Staged::kNic, 0, sharing);
      const auto bytes_of = [=](std::uint32_t t) { return (posting >> t & 1) * 16; };
      EXPECT_EQ(put_warps(nic, sharing, bytes_of), std::vector<Status>(kWarpThreads, Status::kOk));
      std::vector<std::uint64_t> wanted;
      for (std::uint32_t k = 0; k < 5; ++k) {
        for (std::uint32_t t = 0; t < kWarpThreads; ++t) {
          if (bytes_of(t) != 0) wanted.push_back(message(t, k));
        }
      }
      ASSERT_EQ(nic.requests().size(), wanted.size());
      for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(nic.requests()[i].remote, wanted[i]);
      EXPECT_EQ(nic.mistakes(), 0u);
      if (sharing == Sharing::kExclusive) {
        EXPECT_EQ(nic.state().messages, wanted.size());
      }
    }
  }
}

TEST(PutWarp, bad_length_in_one_lane_posts_nothing) {
  for (const Sharing sharing : {Sharing::kExclusive, Sharing::kShared}) {
    ServingNic nic(ServingNic::Staged::kNic, 0, sharing);
    const auto bytes_of = [](std::uint32_t t) {
      return t == 5 ? (std::uint64_t{1} << 30) + 1 : t == 6 ? 0 : 16;
    };
    EXPECT_EQ(put_warps(nic, sharing, bytes_of), std::vector<Status>(kWarpThreads, Status::kInvalidLength));
    EXPECT_EQ(nic.requests().size(), 0u);
  }
}

TEST(PutWarp, full_queue_times_out_in_every_lane_and_stays_intact) {
  ServingNic nic(ServingNic::Staged::kNic, 0, Sharing::kExclusive);
  nic.timeout_ns = 200'000'000;
  nic.serves = false;
  EXPECT_EQ(put_warps(nic, Sharing::kExclusive, [](std::uint32_t) { return 16u; }),
            std::vector<Status>(kWarpThreads, Status::kTimeout));
  EXPECT_EQ(nic.state().fault.status, Status::kOk);
  nic.serves = true;
  while (nic.step()) {
  }
  EXPECT_EQ(nic.requests().size(), ServingNic::kBlocks);
}

}  // namespace shared_test
}  // namespace gdx::device
