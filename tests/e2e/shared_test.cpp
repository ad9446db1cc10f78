// Many threads on one shared endpoint, over the software HCA.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "device/endpoint.h"
#include "tests/e2e/comes_true.h"
#include "tests/e2e/pair.h"

namespace gdx {
namespace shared_test {

class SharedEnd : public Pair {
 protected:
  static constexpr std::uint32_t kThreads = 4 * 40;
  static constexpr std::uint64_t kEach = 8;
  static constexpr std::uint64_t kCounterAt = 1u << 19;
  // All threads wait for one another, on a machine that may have much else to do.
  static constexpr std::uint64_t kPatienceNs = 60'000'000'000;

  void SetUp() override {
    Pair::SetUp();
    for (Side* side : {&a_, &b_}) {
      auto endpoint = Endpoint::create(
          *hca_, {staging_.get(), bounce_.get()},
          {.slot_count = 6, .bounce_slot_count = 4, .sharing = Sharing::kShared, .timeout_ns = kPatienceNs});
      ASSERT_TRUE(endpoint) << endpoint.error().message;
      *side->endpoint = std::move(*endpoint);
    }
    ASSERT_TRUE(a_.endpoint->connect(b_.endpoint->address()));
    ASSERT_TRUE(b_.endpoint->connect(a_.endpoint->address()));
  }

  // Runs `body(endpoint, thread)` in kThreads threads of four blocks, on a's endpoint.
  template <typename Body>
  void in_grid(Body body) {
    const auto kernel = [&](EndpointHandle handle) {
      device::SharedEndpoint<> endpoint(handle);
      body(endpoint, blockIdx.x * blockDim.x + threadIdx.x);
    };
    const exec::LaunchConfig config{
        .grid = {4}, .block = {kThreads / 4}, .progress = progress_, .workers = 2};
    ASSERT_EQ(exec::launch(config, kernel, a_.endpoint->handle()), Status::kOk);
  }
};

TEST_F(SharedEnd, puts_and_signals_of_all_threads_arrive) {
  auto* source = reinterpret_cast<std::uint64_t*>(a_.buffer->data());
  for (std::uint64_t i = 0; i < kThreads * kEach; ++i) source[i] = 0x9e3779b97f4a7c15u * (i + 1);
  std::atomic<std::uint32_t> failed{0};
  in_grid([&](auto& ep, std::uint64_t t) {
    device::SharedEndpoint<Scope::kWarp> warp(ep.handle());
    for (std::uint64_t k = 0; k < kEach; k += 2) {
      const std::uint64_t at = 8 * (t * kEach + k);
      failed += gdx_put_warp(warp, a_.peer + at, a_.buffer->local() + at, 8) != Status::kOk;
      failed += gdx_put_signal(ep, a_.peer + at + 8, a_.buffer->local() + at + 8, 8, a_.peer + kCounterAt, 1,
                               SignalOp::kAdd) != Status::kOk;
    }
    failed += gdx_flush(ep) != Status::kOk;
  });
  EXPECT_EQ(failed, 0u);
  EXPECT_EQ(std::memcmp(a_.buffer->data(), b_.buffer->data(), 8 * kThreads * kEach), 0);
  EXPECT_EQ(*reinterpret_cast<const std::uint64_t*>(b_.buffer->data() + kCounterAt), kThreads * kEach / 2);
}

TEST_F(SharedEnd, wrong_key_ends_every_thread_with_its_cause) {
  std::vector<Status> ends(kThreads);
  in_grid([&](auto& ep, std::uint64_t t) {
    Status status = Status::kOk;
    for (std::uint64_t k = 0; status == Status::kOk; ++k) {
      RemoteMemory to = a_.peer + 8 * t;
      if (t == 77 && k == 3) to.rkey = to.rkey ^ 1u;
      status = k % 16 == 15 ? gdx_flush(ep) : gdx_put(ep, to, a_.buffer->local(), 8);
    }
    ends[t] = status;
  });
  EXPECT_EQ(ends, std::vector<Status>(kThreads, Status::kRemoteAccess));
  EXPECT_EQ(a_.endpoint->fault().syndrome, static_cast<std::uint8_t>(mlx5::Syndrome::kRemoteAccess));
  RemoteMemory wrong = a_.peer + 8 * 77;
  wrong.rkey = wrong.rkey ^ 1u;
  EXPECT_THAT(a_.endpoint->describe_fault(), ::testing::StartsWith(text_of("RDMA WRITE of 8 B", wrong)));
}

// Checks that every slot of both pools is free once the endpoints are gone. No endpoint may have returned a
// slot that it did not hold.
void expect_conserved(const StagingPool& pool) {
  EXPECT_EQ(pool.free_slots(), pool.slot_count());
  EXPECT_EQ(pool.bad_returns(), 0u);
}

TEST_F(SharedEnd, pushes_and_bounces_of_all_threads_through_few_slots_arrive) {
  constexpr std::uint64_t kBytes = 64;
  auto* source = reinterpret_cast<std::uint64_t*>(a_.buffer->data());
  for (std::uint64_t i = 0; i < kThreads * kEach * kBytes / 8; ++i) source[i] = 0x9e3779b97f4a7c15u * (i + 1);
  std::atomic<std::uint32_t> failed{0};
  in_grid([&](auto& ep, std::uint64_t t) {
    for (std::uint64_t k = 0; k < kEach; k += 2) {
      const std::uint64_t at = kBytes * (t * kEach + k);
      const LocalMemory from = a_.buffer->local() + at;
      failed += gdx_put<Mode::kPush>(ep, a_.peer + at, from, kBytes) != Status::kOk;
      failed += gdx_put_signal<Mode::kBounce>(ep, a_.peer + at + kBytes, from + kBytes, kBytes,
                                              a_.peer + kCounterAt, 1, SignalOp::kAdd) != Status::kOk;
    }
    failed += gdx_flush(ep) != Status::kOk;
  });
  EXPECT_EQ(failed, 0u);
  EXPECT_EQ(std::memcmp(a_.buffer->data(), b_.buffer->data(), kBytes * kThreads * kEach), 0);
  EXPECT_EQ(*reinterpret_cast<const std::uint64_t*>(b_.buffer->data() + kCounterAt), kThreads * kEach / 2);
  EXPECT_EQ(staging_violations(), 0u);
  a_.endpoint.reset();
  b_.endpoint.reset();
  expect_conserved(*staging_);
  expect_conserved(*bounce_);
}

TEST_F(SharedEnd, blocks_push_messages_of_many_slots_together) {
  constexpr std::uint64_t kBytes = 100'000;
  auto* source = reinterpret_cast<std::uint8_t*>(a_.buffer->data());
  for (std::uint64_t i = 0; i < 4 * kBytes; ++i) source[i] = static_cast<std::uint8_t>(i * 7 + i / 253);
  std::atomic<std::uint32_t> failed{0};
  in_grid([&](auto& ep, std::uint64_t t) {
    const std::uint64_t at = t / (kThreads / 4) * kBytes;
    device::SharedEndpoint<Scope::kBlock> block(ep.handle());
    failed += gdx_put<Mode::kPush>(block, a_.peer + at, a_.buffer->local() + at, kBytes) != Status::kOk;
    failed += gdx_flush(ep) != Status::kOk;
  });
  EXPECT_EQ(failed, 0u);
  EXPECT_EQ(std::memcmp(a_.buffer->data(), b_.buffer->data(), 4 * kBytes), 0);
  EXPECT_EQ(staging_violations(), 0u);
}

TEST_F(SharedEnd, every_mode_at_every_scope_arrives_whole) {
  constexpr std::uint64_t kBytes = 1000;  // 36 WQEs inline: more than one step
  auto* source = reinterpret_cast<std::uint8_t*>(a_.buffer->data());
  for (std::uint64_t i = 0; i < kBufferBytes; ++i) source[i] = static_cast<std::uint8_t>(i * 7 + i / 253);
  std::atomic<std::uint32_t> failed{0};
  std::atomic<std::uint64_t> next{0};
  const auto in_mode = [&]<Mode M>() {
    in_grid([&](auto& ep, std::uint64_t t) {
      const auto put = [&]<Scope S>(std::uint64_t at) {
        device::SharedEndpoint<S> scope(ep.handle());
        failed += gdx_put_signal<M>(scope, a_.peer + at, a_.buffer->local() + at, kBytes,
                                    a_.peer + kCounterAt, 1, SignalOp::kAdd) != Status::kOk;
      };
      const std::uint64_t base = next;
      if (t % 40 == 39) put.template operator()<Scope::kThread>(base + kBytes * (t / 40));
      put.template operator()<Scope::kBlock>(base + kBytes * (4 + t / 40));
      put.template operator()<Scope::kWarp>(base + kBytes * (8 + t / 40 * 2 + t % 40 / kWarpThreads));
      failed += gdx_flush(ep) != Status::kOk;
    });
    next += kBytes * 16;
  };
  in_mode.template operator()<Mode::kPull>();
  in_mode.template operator()<Mode::kInline>();
  in_mode.template operator()<Mode::kPush>();
  in_mode.template operator()<Mode::kBounce>();
  in_mode.template operator()<Mode::kAuto>();
  EXPECT_EQ(failed, 0u);
  EXPECT_EQ(std::memcmp(a_.buffer->data(), b_.buffer->data(), next), 0);
  EXPECT_EQ(*reinterpret_cast<const std::uint64_t*>(b_.buffer->data() + kCounterAt), 5 * 16u);
  EXPECT_EQ(a_.endpoint->handle().modes.inline_bytes, kSharedInlineBytes);
  EXPECT_EQ(staging_violations(), 0u);
}

TEST_F(SharedEnd, waits_of_all_threads_end_with_a_dead_peer_before_their_timeout) {
  b_.endpoint.reset();
  const std::uint64_t signal = 0;
  std::atomic<std::uint32_t> unreachable{0};
  in_grid([&](auto& ep, std::uint64_t) {
    unreachable += gdx_wait(ep, &signal, Compare::kEqual, 1) == Status::kPeerUnreachable;
  });
  EXPECT_EQ(unreachable, kThreads);
}

TEST_F(SharedEnd, wrong_key_of_one_push_brings_every_slot_home) {
  std::vector<Status> ends(kThreads);
  in_grid([&](auto& ep, std::uint64_t t) {
    Status status = Status::kOk;
    for (std::uint64_t k = 0; status == Status::kOk; ++k) {
      RemoteMemory to = a_.peer + 8 * t;
      if (t == 77 && k == 3) to.rkey = to.rkey ^ 1u;
      status = gdx_put<Mode::kPush>(ep, to, a_.buffer->local(), 8);
    }
    ends[t] = status;
  });
  EXPECT_EQ(ends, std::vector<Status>(kThreads, Status::kRemoteAccess));
  b_.endpoint.reset();
  // Lets the scheduler read the returns.
  EXPECT_TRUE(comes_true([&] {
    (void)progress_();
    return staging_->free_slots() == staging_->slot_count();
  })) << "though the failed endpoint still is there";
  a_.endpoint.reset();
  expect_conserved(*staging_);
}

TEST_F(SharedEnd, abort_while_threads_wait_for_credits_leaves_no_slot_behind) {
  b_.endpoint.reset();  // no peer acknowledges
  std::vector<Status> ends(kThreads);
  std::atomic<std::uint32_t> posted{0};
  in_grid([&](auto& ep, std::uint64_t t) {
    Status status = Status::kOk;
    if (t == kThreads - 1) a_.endpoint->abort();
    while (status == Status::kOk) {
      status = gdx_put<Mode::kPush>(ep, a_.peer, a_.buffer->local(), 8);
      posted += status == Status::kOk;
    }
    ends[t] = status;
  });
  EXPECT_EQ(std::count(ends.begin(), ends.end(), Status::kAborted), kThreads);
  EXPECT_LE(posted, 6u);
  a_.endpoint.reset();
  expect_conserved(*staging_);
}

}  // namespace shared_test
}  // namespace gdx
