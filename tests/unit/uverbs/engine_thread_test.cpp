#include "driver-shim/softhca/uverbs/engine_thread.h"

#include <gtest/gtest.h>

#include <semaphore>

namespace gdx::softhca::uverbs {

namespace {

// An HCA with nothing to do, which counts how often it is asked.
class IdleHca final : public Hca {
 public:
  const HcaConfig& config() const override { return config_; }
  const wire::Address& address() const override { return address_; }
  Answer<std::uint32_t> alloc_pd() override { return refuse(0); }
  Errno dealloc_pd(std::uint32_t) override { return 0; }
  Answer<std::uint32_t> register_memory(const MemoryRegionSpec&) override { return refuse(0); }
  Errno deregister_memory(std::uint32_t) override { return 0; }
  Errno replace_memory(std::uint32_t, const MemoryRegionSpec&) override { return 0; }
  Errno prefetch(std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t, Prefetch) override { return 0; }
  Answer<std::uint32_t> add_uar(const UarSpec&) override { return refuse(0); }
  Errno remove_uar(std::uint32_t) override { return 0; }
  Answer<std::uint32_t> create_cq(const CompletionQueueSpec&) override { return refuse(0); }
  Errno resize_cq(std::uint32_t, std::byte*, std::uint32_t) override { return 0; }
  Errno destroy_cq(std::uint32_t) override { return 0; }
  Answer<std::uint32_t> create_srq(const SharedReceiveQueueSpec&) override { return refuse(0); }
  Errno set_srq_limit(std::uint32_t, std::uint32_t) override { return 0; }
  Answer<std::uint32_t> srq_limit(std::uint32_t) override { return refuse(0); }
  Errno destroy_srq(std::uint32_t) override { return 0; }
  Answer<std::uint32_t> create_qp(const QueuePairSpec&) override { return refuse(0); }
  Errno modify_qp(std::uint32_t, std::uint32_t, const QpAttributes&) override { return 0; }
  Answer<QpAttributes> query_qp(std::uint32_t) override { return refuse(0); }
  Errno destroy_qp(std::uint32_t) override { return 0; }
  int progress() override {
    steps.fetch_add(1);
    return 0;
  }
  std::uint64_t idle_ns() override { return 0; }
  std::uint64_t rung_at_ns() const override { return 0; }
  int poll_fd() const override { return -1; }
  HcaCounters counters() override { return {}; }

  std::atomic<int> steps{0};

 private:
  HcaConfig config_;
  wire::Address address_;
};

constexpr std::uint64_t kFarAheadNs = std::uint64_t{1} << 62;
constexpr std::uint64_t kLimitNs = 20'000'000'000;

TEST(EngineThread, driven_by_another_keeps_out_until_that_ends) {
  IdleHca hca;
  std::atomic<std::uint64_t> driven_at_ns{kFarAheadNs};
  std::counting_semaphore<> rounds{0};
  EngineThread thread(hca, driven_at_ns, [&rounds] { rounds.release(); });
  thread.set_parked(false);
  rounds.acquire();  // the first when it is no longer parked
  const int while_parked = hca.steps.load();
  for (int round = 0; round < 4; ++round) rounds.acquire();
  EXPECT_EQ(hca.steps.load(), while_parked);
  driven_at_ns.store(0);
  while (hca.steps.load() == while_parked) rounds.acquire();
  EXPECT_TRUE(thread.stop(kLimitNs));
}

TEST(EngineThread, parked_still_serves_what_falls_due) {
  IdleHca hca;
  const std::atomic<std::uint64_t> driven_at_ns{kFarAheadNs};
  EngineThread thread(hca, driven_at_ns, [] {});
  while (hca.steps.load() < 3) std::this_thread::yield();
  EXPECT_TRUE(thread.stop(kLimitNs));
}

TEST(EngineThread, busy_elsewhere_stop_gives_up_at_its_limit) {
  IdleHca hca;
  const std::atomic<std::uint64_t> driven_at_ns{0};
  std::binary_semaphore entered{0};
  std::binary_semaphore leave{0};
  EngineThread thread(hca, driven_at_ns, [&, once = false]() mutable {
    if (std::exchange(once, true)) return;
    entered.release();
    leave.acquire();
  });
  thread.set_parked(false);
  entered.acquire();
  EXPECT_FALSE(thread.stop(0));
  leave.release();
  EXPECT_TRUE(thread.stop(kLimitNs));
}

}  // namespace
}  // namespace gdx::softhca::uverbs
