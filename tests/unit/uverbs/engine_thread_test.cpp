#include "driver-shim/softhca/uverbs/engine_thread.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <semaphore>
#include <set>

namespace gdx::softhca::uverbs {

namespace engine_thread_test {

// An HCA with nothing to do, which counts how often it is asked.
class IdleHca final : public Hca {
 public:
  const HcaConfig& config() const override { return config_; }
  const wire::Address& address() const override { return address_; }
  ErrnoOr<std::uint32_t> alloc_pd() override { return refuse(0); }
  Errno dealloc_pd(std::uint32_t) override { return 0; }
  ErrnoOr<std::uint32_t> register_memory(const MemoryRegionSpec&) override { return refuse(0); }
  Errno deregister_memory(std::uint32_t) override { return 0; }
  Errno replace_memory(std::uint32_t, const MemoryRegionSpec&) override { return 0; }
  Errno prefetch(std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t, Prefetch) override { return 0; }
  ErrnoOr<std::uint32_t> add_uar(const UarSpec&) override { return refuse(0); }
  Errno remove_uar(std::uint32_t) override { return 0; }
  ErrnoOr<std::uint32_t> create_cq(const CompletionQueueSpec&) override { return refuse(0); }
  Errno resize_cq(std::uint32_t, std::byte*, std::uint32_t) override { return 0; }
  Errno destroy_cq(std::uint32_t) override { return 0; }
  ErrnoOr<std::uint32_t> create_srq(const SharedReceiveQueueSpec&) override { return refuse(0); }
  Errno set_srq_limit(std::uint32_t, std::uint32_t) override { return 0; }
  ErrnoOr<std::uint32_t> srq_limit(std::uint32_t) override { return refuse(0); }
  Errno destroy_srq(std::uint32_t) override { return 0; }
  ErrnoOr<std::uint32_t> create_qp(const QueuePairSpec&) override { return refuse(0); }
  Errno modify_qp(std::uint32_t, std::uint32_t, const QpAttributes&) override { return 0; }
  ErrnoOr<QpAttributes> query_qp(std::uint32_t) override { return refuse(0); }
  Errno destroy_qp(std::uint32_t) override { return 0; }
  int progress() override {
    steps.fetch_add(1);
    return 0;
  }
  std::uint64_t idle_ns() override { return idle_for_ns.load(); }
  std::uint64_t rung_at_ns() const override { return 0; }
  int poll_fd() const override { return -1; }
  bool wire_is_lost() const override { return lost.load(); }
  HcaCounters counters() override { return {}; }

  std::atomic<int> steps{0};
  std::atomic<bool> lost{false};
  std::atomic<std::uint64_t> idle_for_ns{0};

 private:
  HcaConfig config_;
  wire::Address address_;
};

constexpr std::uint64_t kFarAheadNs = std::uint64_t{1} << 62;
constexpr std::uint64_t kLimitNs = 120'000'000'000;

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

TEST(EngineThread, lost_wire_ends_it_and_is_told_once) {
  IdleHca hca;
  hca.lost = true;
  const std::atomic<std::uint64_t> driven_at_ns{0};
  std::counting_semaphore<> told{0};
  EngineThread thread(
      hca, driven_at_ns, [] {}, [&told] { told.release(); });
  told.acquire();
  EXPECT_TRUE(thread.stop(kLimitNs));
  EXPECT_TRUE(thread.lost());
  EXPECT_FALSE(told.try_acquire());
}

std::set<int> open_numbers() {
  std::set<int> numbers;
  for (int number = 0; number < static_cast<int>(sysconf(_SC_OPEN_MAX)) && number < 4096; ++number) {
    if (fcntl(number, F_GETFD) >= 0) numbers.insert(number);
  }
  return numbers;
}

// A program's own system calls close one of the sockets that wake the thread. Or they put a file that can
// always be read in place of the thread's.
TEST(EngineThread, socket_that_wakes_it_is_closed_it_sleeps_all_the_same) {
  constexpr int kSteps = 20;  // each after a sleep of 10 ms, but for the first ones
  const int readable = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
  for (const char* const end : {"reading", "writing", "replaced"}) {
    IdleHca hca;
    hca.idle_for_ns = kFarAheadNs;
    const std::atomic<std::uint64_t> driven_at_ns{0};
    const std::set<int> before = open_numbers();
    EngineThread thread(hca, driven_at_ns, [] {});
    std::vector<int> made;
    std::ranges::set_difference(open_numbers(), before, std::back_inserter(made));
    ASSERT_EQ(made.size(), 2u);
    const int reader = made[0];
    const int writer = made[1];
    while (hca.steps.load() == 0) std::this_thread::yield();
    syscall(SYS_close, *end == 'w' ? writer : reader);
    if (end == std::string("replaced")) {
      ASSERT_EQ(dup3(readable, reader, O_CLOEXEC), reader);
    }
    thread.set_parked(true);  // ends a sleep that began with both
    const auto began = std::chrono::steady_clock::now();
    const int steps = hca.steps.load();
    while (hca.steps.load() < steps + kSteps) std::this_thread::yield();
    EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(100)) << end;
    EXPECT_TRUE(thread.stop(kLimitNs)) << end;
    if (end == std::string("replaced")) syscall(SYS_close, reader);
  }
  ::close(readable);
}

// The device that gave it up has a successor, which it must not disturb.
TEST(EngineThread, stopped_before_it_finds_its_wire_lost_it_ends_without_a_word) {
  IdleHca hca;
  const std::atomic<std::uint64_t> driven_at_ns{kFarAheadNs};
  std::binary_semaphore entered{0};
  std::binary_semaphore leave{0};
  std::atomic<int> told{0};
  EngineThread thread(
      hca, driven_at_ns,
      [&, once = false]() mutable {
        if (std::exchange(once, true)) return;
        entered.release();
        leave.acquire();
      },
      [&told] { told.fetch_add(1); });
  thread.set_parked(false);
  entered.acquire();
  EXPECT_FALSE(thread.stop(0));
  hca.lost = true;
  leave.release();
  EXPECT_TRUE(thread.stop(kLimitNs));
  EXPECT_EQ(told.load(), 0);
  EXPECT_FALSE(thread.lost());
}

}  // namespace engine_thread_test
}  // namespace gdx::softhca::uverbs
