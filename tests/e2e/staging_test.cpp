// One staging pool under many endpoints: every endpoint progresses, and none keeps slots that others need.
#include <dlfcn.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "proto/softhca.h"
#include "tests/e2e/comes_true.h"
#include "tests/e2e/pair.h"

namespace gdx {
namespace staging_test {

constexpr std::uint64_t kPartBytes = 64 * 1024;  // more than any endpoint's share of the pool

class Sharing : public Pair {
 protected:
  Endpoint make(const EndpointOptions& options) {
    auto endpoint = Endpoint::create(*hca_, staging_.get(), options);
    EXPECT_TRUE(endpoint) << endpoint.error().message;
    return std::move(*endpoint);
  }

  // Fills the pool from an endpoint whose peer is gone, and leaves it all with the NIC.
  Endpoint stuck() {
    EndpointOptions options{.slot_count = 32, .timeout_ns = 100'000'000};
    options.ack_timeout = 31;  // it does not give up while the test runs
    options.may_time_out_before_retries = true;
    auto silent = std::make_unique<Endpoint>(make({}));
    Endpoint endpoint = make(options);
    EXPECT_TRUE(endpoint.connect(silent->address()));
    silent.reset();
    const auto kernel = [&](EndpointHandle handle) {
      device::Endpoint<> ep(handle);
      EXPECT_EQ(gdx_put<Mode::kPush>(ep, a_.peer, a_.buffer->local(), kBufferBytes), Status::kTimeout);
    };
    // The pool's thread may be late.
    EXPECT_TRUE(comes_true([&] {
      EXPECT_EQ(exec::launch({.progress = progress_}, kernel, endpoint.handle()), Status::kOk);
      const StagingState credits = endpoint.state().staging;
      return credits.filled - credits.returned > 1;
    }));
    return endpoint;
  }

  void push_a_megabyte() {
    for (std::size_t i = 0; i < kBufferBytes; ++i)
      a_.buffer->data()[i] = static_cast<std::byte>(i * 7 + i / 4096);
    in_kernel(a_, [&](auto& ep) {
      ASSERT_EQ(gdx_put<Mode::kPush>(ep, a_.peer, a_.buffer->local(), kBufferBytes), Status::kOk);
      ASSERT_EQ(gdx_flush(ep), Status::kOk);
    });
    EXPECT_EQ(std::memcmp(a_.buffer->data(), b_.buffer->data(), kBufferBytes), 0);
  }
};

// Opens as many endpoints as the pool has minima for, each requesting the whole pool, all at once.
TEST_F(Sharing, endpoints_that_want_more_than_the_pool_all_get_on) {
  a_.endpoint.reset();
  b_.endpoint.reset();
  const std::uint32_t count = staging_->slot_count();
  std::vector<Endpoint> endpoints;
  std::vector<EndpointHandle> handles;
  for (std::uint32_t i = 0; i < count; ++i) {
    endpoints.push_back(make({.slot_count = staging_->slot_count(), .timeout_ns = 60'000'000'000}));
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    ASSERT_TRUE(endpoints[i].connect(endpoints[i ^ 1].address()));
    handles.push_back(endpoints[i].handle());
  }
  EXPECT_EQ(Endpoint::create(*hca_, staging_.get(), {.slot_count = 1}).error().status, Status::kBusy);

  constexpr std::uint64_t kPieces = kBufferBytes / kPartBytes;
  for (std::size_t i = 0; i < kBufferBytes; ++i)
    a_.buffer->data()[i] = static_cast<std::byte>(i * 5 + i / 4096);
  const auto kernel = [&](const EndpointHandle* all, LocalMemory from, RemoteMemory to) {
    device::Endpoint<> ep(all[blockIdx.x]);
    const std::uint64_t at = blockIdx.x % kPieces * kPartBytes;
    ASSERT_EQ(gdx_put<Mode::kPush>(ep, to + at, from + at, kPartBytes), Status::kOk);
    ASSERT_EQ(gdx_flush(ep), Status::kOk);
  };
  ASSERT_EQ(exec::launch({.grid = {count}, .progress = progress_, .workers = 2}, kernel,
                         static_cast<const EndpointHandle*>(handles.data()), a_.buffer->local(), a_.peer),
            Status::kOk);
  EXPECT_EQ(std::memcmp(a_.buffer->data(), b_.buffer->data(), kBufferBytes), 0);
  EXPECT_EQ(staging_violations(), 0u);
  endpoints.clear();
  EXPECT_EQ(staging_->free_slots(), staging_->slot_count());
  EXPECT_EQ(staging_->bad_returns(), 0u);
}

TEST_F(Sharing, peer_that_does_not_answer_starves_nobody) {
  const Endpoint held_up = stuck();
  push_a_megabyte();
  EXPECT_EQ(staging_violations(), 0u);
}

TEST_F(Sharing, endpoint_killed_in_mid_push_gives_its_slots_back) {
  const std::uint32_t free_before = staging_->free_slots();
  {
    const Endpoint held_up = stuck();
    EXPECT_LT(staging_->free_slots(), free_before - 1);
  }
  EXPECT_EQ(staging_->free_slots(), free_before);
  push_a_megabyte();
  EXPECT_EQ(staging_violations(), 0u);
}

TEST_F(Sharing, failed_endpoint_gives_its_slots_back_before_it_goes) {
  const std::uint32_t free_before = staging_->free_slots();
  RemoteMemory wrong = a_.peer;
  wrong.rkey = wrong.rkey ^ 1u;
  in_kernel(a_, [&](auto& ep) {
    const Status put = gdx_put<Mode::kPush>(ep, wrong, a_.buffer->local(), kPartBytes);
    EXPECT_EQ(put == Status::kOk ? gdx_flush(ep) : put, Status::kRemoteAccess);
  });
  const StagingState credits = a_.endpoint->state().staging;
  EXPECT_EQ(credits.ready, credits.returned);
  EXPECT_TRUE(comes_true([&] {
    (void)progress();
    return staging_->free_slots() == free_before + 1;  // its minimum, too
  })) << staging_->free_slots()
      << " free slots, " << free_before << " before";
}

// Ends its kernel with slots at the NIC. Then the NIC fails the queue pair, and no poll happens before the
// endpoint is destroyed.
TEST_F(Sharing, endpoint_that_failed_unseen_gives_its_slots_back_when_it_goes) {
  const std::uint32_t free_before = staging_->free_slots();
  RemoteMemory wrong = a_.peer;
  wrong.rkey = wrong.rkey ^ 1u;
  Endpoint peer = make({});
  {
    Endpoint failing = make({.slot_count = 32});
    ASSERT_TRUE(failing.connect(peer.address()));
    ASSERT_TRUE(peer.connect(failing.address()));
    const std::uint64_t naks_before = counter("packet_seq_err");
    const auto kernel = [&](EndpointHandle handle) {
      device::Endpoint<> ep(handle);
      ASSERT_EQ(gdx_put<Mode::kPush>(ep, a_.peer, a_.buffer->local(), kBufferBytes), Status::kOk);
      ASSERT_EQ(gdx_flush(ep), Status::kOk);
      // Without a wait: one for each credit at hand.
      while (ep.status() == Status::kOk && device::impl::Access::state_of(ep).credits().available()) {
        (void)gdx_put<Mode::kPush>(ep, wrong, a_.buffer->local(), kDefaultSlotBytes);
      }
    };
    ASSERT_EQ(exec::launch({.progress = progress_}, kernel, failing.handle()), Status::kOk);
    ASSERT_TRUE(comes_true([&] {
      (void)progress();
      return counter("packet_seq_err") > naks_before;
    }));
    // A quick thread of the HCA brings the fault to the kernel after all.
    if (failing.fault().status == Status::kOk) {
      EXPECT_LT(staging_->free_slots(), free_before - 1);
    }
  }
  EXPECT_EQ(staging_->free_slots(), free_before);
  push_a_megabyte();
  EXPECT_EQ(staging_violations(), 0u);
  EXPECT_EQ(staging_->bad_returns(), 0u);
}

// The overload experiment on the software HCA: 16 blocks push at once, with credits and without.
TEST_F(Sharing, push_without_credits_is_what_credits_prevent) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP()
      << "without credits kernels do race for slots, and ThreadSanitizer says so: preset cpu runs this";
#endif
  constexpr std::uint32_t kSenders = 16;
  for (const bool unsafe : {false, true}) {
    const std::uint64_t before = staging_violations();
    std::vector<Endpoint> endpoints;
    std::vector<EndpointHandle> handles;
    for (std::uint32_t i = 0; i < kSenders; ++i) {
      endpoints.push_back(make({.slot_count = 32, .unsafe_push_without_credits = unsafe}));
    }
    for (std::uint32_t i = 0; i < kSenders; ++i) {
      ASSERT_TRUE(endpoints[i].connect(endpoints[i ^ 1].address()));
      handles.push_back(endpoints[i].handle());
    }
    const auto kernel = [&](const EndpointHandle* all, LocalMemory from, RemoteMemory to) {
      device::Endpoint<> ep(all[blockIdx.x]);
      ASSERT_EQ(gdx_put<Mode::kPush>(ep, to, from, kBufferBytes), Status::kOk);
      ASSERT_EQ(gdx_flush(ep), Status::kOk);
    };
    ASSERT_EQ(exec::launch({.grid = {kSenders}, .progress = progress_}, kernel,
                           static_cast<const EndpointHandle*>(handles.data()), a_.buffer->local(), a_.peer),
              Status::kOk);
    const std::uint64_t violations = staging_violations() - before;
    RecordProperty(unsafe ? "violations_without_credits" : "violations_with_credits",
                   std::to_string(violations));
    if (unsafe) {
      EXPECT_GT(violations, kSenders);
    } else {
      EXPECT_EQ(violations, 0u);
    }
  }
}

// Only its thread drives the scheduler, as with kernels on a GPU.
TEST_F(Sharing, pool_driven_by_its_thread_alone_still_serves) {
  progress_ = reinterpret_cast<SofthcaProgress>(dlsym(RTLD_DEFAULT, kSofthcaProgressSymbol));
  do {
    push_a_megabyte();
  } while (a_.endpoint->state().staging.taken == 1);  // until the thread was there in time
}

TEST_F(Sharing, kernel_that_ends_keeps_the_minimum) {
  push_a_megabyte();
  EXPECT_GT(a_.endpoint->state().staging.stalls, 0u);
  const StagingState credits = a_.endpoint->state().staging;
  EXPECT_EQ(credits.ready - credits.returned, 1u);
}

TEST_F(Sharing, aborted_endpoint_keeps_nothing_that_the_nic_does_not_need) {
  push_a_megabyte();
  a_.endpoint->abort();
  in_kernel(a_, [&](auto& ep) {
    EXPECT_EQ(gdx_put<Mode::kPush>(ep, a_.peer, a_.buffer->local(), kBufferBytes), Status::kAborted);
  });
  const StagingState credits = a_.endpoint->state().staging;
  EXPECT_EQ(credits.ready, credits.filled);
}

// The endpoint requested nothing, and has just read the scheduler's words.
TEST_F(Sharing, endpoint_aborted_with_credits_in_hand_keeps_none) {
  push_a_megabyte();
  std::uint64_t never = 0;
  in_kernel(a_, [&](auto& ep) {
    EXPECT_EQ(gdx_put<Mode::kPush>(ep, a_.peer, a_.buffer->local(), 8), Status::kOk);
    EXPECT_EQ(gdx_flush(ep), Status::kOk);
    a_.endpoint->abort();
    EXPECT_EQ(gdx_wait(ep, &never, Compare::kEqual, 1), Status::kAborted);
  });
  const StagingState credits = a_.endpoint->state().staging;
  EXPECT_EQ(credits.ready, credits.returned) << "nothing is with the NIC";
}

}  // namespace staging_test
}  // namespace gdx
