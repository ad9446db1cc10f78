// Device calls on the machine that this binary is for: device_test on the CPU layer, device_test_cuda on a
// GPU. A NIC of memory serves them from another thread, as a NIC would.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <new>
#include <thread>
#include <vector>

#include "perf/machine.h"
#include "tests/gpu/device_kernels.h"
#include "tests/unit/device/serving_nic.h"

namespace gdx::gpu_tests {
namespace device_test {

using device::ServingNic;

constexpr std::uint64_t kRemoteBytes = 1u << 20;
constexpr std::uint64_t kRemoteAddress = 0x100000;
constexpr std::size_t kMaxThreads = 1024;

class DeviceCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = machine::unavailable();
    if (!reason.empty()) GTEST_SKIP() << reason;
    outcomes_ = machine::allocate(machine::Place::kHost, kMaxThreads * sizeof(Status));
    signal_ = machine::allocate(machine::Place::kHost, sizeof(std::uint64_t));
    nic_memory_ = machine::allocate(machine::Place::kHost, sizeof(ServingNic));
    ASSERT_TRUE(outcomes_ && signal_ && nic_memory_);
    make_nic(Sharing::kExclusive);
  }
  void TearDown() override {
    if (nic_ != nullptr) nic_->~ServingNic();
  }

  // Makes the NIC in memory that the GPU reaches.
  void make_nic(Sharing sharing) {
    if (nic_ != nullptr) nic_->~ServingNic();
    nic_ = new (nic_memory_.get()) ServingNic(ServingNic::Staged::kNic, 0, sharing);
  }
  [[nodiscard]] Job job(std::uint32_t count, std::uint32_t threads = 1, std::uint32_t blocks = 1) {
    return {nic_->handle(),
            {kRemoteAddress, kRemoteBytes, 0x77, 0},
            {nullptr, kRemoteBytes, 0x88, 0},
            signal(),
            count,
            blocks,
            threads,
            outcome()};
  }
  [[nodiscard]] Status* outcome() { return reinterpret_cast<Status*>(outcomes_.get()); }
  [[nodiscard]] std::uint64_t* signal() { return reinterpret_cast<std::uint64_t*>(signal_.get()); }
  [[nodiscard]] ServingNic& nic() { return *nic_; }

  // Runs a kernel while `serve` is called again and again on a thread of its own.
  template <typename Kernel, typename Serve>
  void run(Kernel kernel, const Job& job, Serve serve) {
    std::atomic<bool> over{false};
    std::thread server([&] {
      while (!over) {
        serve();
        std::this_thread::yield();
      }
    });
    const Status launched = kernel(job);
    over = true;
    server.join();
    EXPECT_EQ(launched, Status::kOk) << status_name(launched);
    while (nic_->step()) {
    }
  }
  template <typename Kernel>
  void run(Kernel kernel, const Job& job) {
    run(kernel, job, [this] { nic_->step(); });
  }

  void expect_outcomes(std::uint32_t threads, Status wanted) {
    for (std::uint32_t t = 0; t < threads; ++t) {
      ASSERT_EQ(outcome()[t], wanted) << "thread " << t << ": " << status_name(outcome()[t]);
    }
  }
  // Every message of every thread, each once, whole, and in its thread's order.
  void expect_messages(std::uint32_t threads, std::uint32_t count) {
    EXPECT_EQ(nic().mistakes(), 0u);
    std::map<std::uint64_t, std::uint32_t> next;
    ASSERT_EQ(nic().requests().size(), std::size_t{threads} * count);
    for (const ServingNic::Request& request : nic().requests()) {
      const std::uint64_t index = (request.remote - kRemoteAddress) / kBytes;
      ASSERT_EQ(request.opcode, mlx5::WqeOpcode::kRdmaWrite);
      ASSERT_EQ(request.local, index * kBytes);
      ASSERT_EQ(index % count, next[index / count]++);
    }
    EXPECT_EQ(next.size(), threads);
  }

 private:
  machine::Memory outcomes_;
  machine::Memory signal_;
  machine::Memory nic_memory_;
  ServingNic* nic_ = nullptr;
};

// More than the queue holds: completions are waited for on the way.
constexpr std::uint32_t kManyPuts = 5 * ServingNic::kBlocks;

TEST_F(DeviceCalls, puts_of_one_thread_arrive_once_and_in_order) {
  run(put_by_thread, job(kManyPuts));
  expect_outcomes(1, Status::kOk);
  expect_messages(1, kManyPuts);
  EXPECT_EQ(nic().state().messages, kManyPuts);
}

TEST_F(DeviceCalls, launch_in_a_graph_runs_whenever_the_graph_does) {
  run(replay_put_by_thread, job(1));
  expect_outcomes(1, Status::kOk);
  EXPECT_EQ(nic().mistakes(), 0u);
  EXPECT_EQ(nic().requests().size(), kReplays);
}

TEST_F(DeviceCalls, puts_of_a_warp_arrive_once_and_a_doorbell_brings_whole_calls) {
  constexpr std::uint32_t kCalls = 10;
  run(put_by_warp, job(kCalls, 32));
  expect_outcomes(32, Status::kOk);
  expect_messages(32, kCalls);
  for (const std::size_t requests : nic().seen()) EXPECT_EQ(requests % 32, 0u);
}

TEST_F(DeviceCalls, signals_follow_their_puts) {
  constexpr std::uint32_t kPuts = 20;
  run(put_and_signal, job(kPuts));
  expect_outcomes(1, Status::kOk);
  ASSERT_EQ(nic().requests().size(), 2u * kPuts);
  for (std::uint32_t k = 0; k < kPuts; ++k) {
    EXPECT_EQ(nic().requests()[2 * k].remote, kRemoteAddress + kBytes * k);
    EXPECT_EQ(nic().requests()[2 * k + 1].remote, kRemoteAddress + kRemoteBytes - 8);
    EXPECT_EQ(nic().requests()[2 * k + 1].local, k + 1u);
  }
}

TEST_F(DeviceCalls, shared_endpoint_of_many_blocks_loses_and_repeats_nothing) {
  constexpr std::uint32_t kBlocks = 4;
  constexpr std::uint32_t kThreads = 64;
  make_nic(Sharing::kShared);
  run(put_shared, job(3, kThreads, kBlocks));
  expect_outcomes(kBlocks * kThreads, Status::kOk);
  expect_messages(kBlocks * kThreads, 3);
}

TEST_F(DeviceCalls, signal_set_by_the_host_ends_the_wait_of_a_block) {
  run(wait_for_signal, job(7, 96),
      [this] { std::atomic_ref<std::uint64_t>(*signal()).store(7, std::memory_order_release); });
  expect_outcomes(96, Status::kOk);
}

TEST_F(DeviceCalls, abort_by_the_host_ends_the_wait_of_a_block) {
  run(wait_for_signal, job(1, 64),
      [this] { std::atomic_ref<std::uint32_t>(nic().abort()).store(1, std::memory_order_release); });
  expect_outcomes(64, Status::kAborted);
}

TEST_F(DeviceCalls, nobody_signals_the_wait_times_out) {
  nic().timeout_ns = 20'000'000;
  run(wait_for_signal, job(1, 32), [] {});
  expect_outcomes(32, Status::kTimeout);
}

TEST_F(DeviceCalls, error_of_the_nic_ends_puts_with_its_status) {
  nic().fails_at = 5;
  run(put_by_thread, job(kManyPuts));
  expect_outcomes(1, Status::kPeerUnreachable);
  EXPECT_EQ(nic().state().fault.wqe_counter, 5u);
}

TEST_F(DeviceCalls, handle_of_another_layout_is_refused_by_name) {
  Job stale = job(1);
  ++stale.handle.layout_version;
  run(open_and_close, stale);
  expect_outcomes(1, Status::kVersionMismatch);
}

}  // namespace device_test
}  // namespace gdx::gpu_tests
