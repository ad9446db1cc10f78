// Payload at the peer after puts of each mode, from each kind of endpoint: every byte, and none beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "perf/machine.h"
#include "tests/gpu/device_kernels.h"
#include "tests/gpu/executing_nic.h"

namespace gdx::gpu_tests {
namespace payload_test {

constexpr std::size_t kLocalBytes = ExecutingNic::kRemoteBytes;
constexpr std::byte kUntouched{0xa5};

class Payload : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = machine::unavailable();
    if (!reason.empty()) GTEST_SKIP() << reason;
    nic_memory_ = machine::allocate(machine::Place::kHost, sizeof(ExecutingNic));
    outcomes_ = machine::allocate(machine::Place::kHost, kThreads * sizeof(Status));
    ASSERT_TRUE(nic_memory_ && outcomes_);
    nic_ = new (nic_memory_.get()) ExecutingNic;
  }
  void TearDown() override {
    if (nic_ != nullptr) nic_->~ExecutingNic();
  }

  // Runs a kernel of one block on payload in `place`, beside a thread that is the NIC.
  template <typename Kernel>
  void run(Kernel kernel, machine::Place place, std::uint32_t threads) {
    local_ = machine::allocate(place, kLocalBytes);
    ASSERT_TRUE(local_);
    const Job job{nic_->handle(),
                  {ExecutingNic::kRemoteAddress, ExecutingNic::kRemoteBytes, ExecutingNic::kRkey, 0},
                  {local_.get(), kLocalBytes, 0x88, 0},
                  nullptr,
                  0,
                  1,
                  threads,
                  reinterpret_cast<Status*>(outcomes_.get())};
    std::atomic<bool> over{false};
    std::thread server([&] {
      while (!over) {
        nic_->step();
        std::this_thread::yield();
      }
    });
    const Status launched = kernel(job);
    over = true;
    server.join();
    EXPECT_EQ(launched, Status::kOk) << status_name(launched);
    for (std::uint32_t t = 0; t < threads; ++t) {
      EXPECT_EQ(job.outcome[t], Status::kOk) << "thread " << t << ": " << status_name(job.outcome[t]);
    }
    EXPECT_EQ(nic_->mistakes(), 0u);
  }

  static constexpr std::uint32_t kThreads = 96;
  ExecutingNic* nic_ = nullptr;
  machine::Memory local_;

 private:
  machine::Memory nic_memory_;
  machine::Memory outcomes_;
};

class Pieces : public Payload, public ::testing::WithParamInterface<std::tuple<Mode, Scope>> {
 protected:
  // Checks the peer's memory after all pieces, and the gathers from each pool.
  void expect_pieces(Mode mode) {
    std::vector<std::byte> expected(ExecutingNic::kRemoteBytes, kUntouched);
    std::uint32_t slots = 0;
    for (std::uint32_t k = 0; k < kPieces; ++k) {
      for (std::uint32_t i = 0; i < piece_bytes(k); ++i)
        expected[piece_of(k).to + i] = std::byte{piece_byte(k, i)};
      slots += (piece_bytes(k) - 1) / ExecutingNic::kSlotBytes + 1;
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(nic_->remote()[i], expected[i]) << "byte " << i;
    }
    switch (mode) {
      case Mode::kPull:
      case Mode::kInline: EXPECT_EQ(nic_->pushed() + nic_->bounced(), 0u); break;
      case Mode::kPush: EXPECT_EQ(nic_->pushed(), slots); break;
      case Mode::kBounce: EXPECT_EQ(nic_->bounced(), slots); break;
      case Mode::kAuto: EXPECT_TRUE(nic_->pushed() > 0 && nic_->bounced() > 0); break;
    }
  }
};

TEST_P(Pieces, arrive_whole_and_touch_nothing_beside_them) {
  const Mode mode = std::get<Mode>(GetParam());
  const Scope scope = std::get<Scope>(GetParam());
  const std::uint32_t threads = scope == Scope::kThread ? 1 : scope == Scope::kWarp ? 32 : kThreads;
  // The NIC reads what is pulled, and it is a thread of this process.
  const bool pulls = mode == Mode::kPull || mode == Mode::kAuto;
  std::fill_n(nic_->remote(), ExecutingNic::kRemoteBytes, kUntouched);
  run([&](const Job& job) { return put_pieces(job, mode, scope); },
      pulls ? machine::Place::kHost : machine::Place::kGpu, threads);
  expect_pieces(mode);
}

class BulkPieces : public Pieces {};

TEST_P(BulkPieces, arrive_whole_and_touch_nothing_beside_them) {
  const Mode mode = std::get<Mode>(GetParam());
  std::fill_n(nic_->remote(), ExecutingNic::kRemoteBytes, kUntouched);
  run([&](const Job& job) { return put_pieces_in_bulk(job, mode); }, machine::Place::kGpu, kThreads);
  expect_pieces(mode);
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<Mode, Scope>>& info) {
  static const char* const kModes[] = {"auto", "pull", "push", "inline", "bounce"};
  static const char* const kScopes[] = {"thread", "warp", "block"};
  return std::string(kModes[static_cast<int>(std::get<Mode>(info.param))]) + "_by_a_" +
         kScopes[static_cast<int>(std::get<Scope>(info.param))];
}
INSTANTIATE_TEST_SUITE_P(All, Pieces,
                         ::testing::Combine(::testing::Values(Mode::kAuto, Mode::kPull, Mode::kPush,
                                                              Mode::kInline, Mode::kBounce),
                                            ::testing::Values(Scope::kThread, Scope::kWarp, Scope::kBlock)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(InBulk, BulkPieces,
                         ::testing::Combine(::testing::Values(Mode::kPush, Mode::kBounce),
                                            ::testing::Values(Scope::kBlock)),
                         name_of);

TEST_F(Payload, gets_and_atomics_bring_what_was_there) {
  auto* const remote = reinterpret_cast<std::uint64_t*>(nic_->remote());
  remote[0] = 40;
  remote[1] = 7;
  run(get_and_atomics, machine::Place::kHost, 1);
  EXPECT_EQ(remote[0], 45u);
  EXPECT_EQ(remote[1], 9u);
  const auto* const local = reinterpret_cast<const std::uint64_t*>(local_.get());
  EXPECT_EQ(std::vector(local, local + 4), (std::vector<std::uint64_t>{40, 7, 45, 9}));
}

}  // namespace payload_test
}  // namespace gdx::gpu_tests
