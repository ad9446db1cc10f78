// Pushes by bulk stores: what they put into a slot is there when the NIC is told of it, and not before the
// wait.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "device/endpoint.h"
#include "tests/gpu/executing_nic.h"

namespace gdx::device {
namespace bulk_test {

using gpu_tests::ExecutingNic;
constexpr std::uint32_t kThreads = 40;

std::vector<std::byte> pattern(std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(i * 13 + i / 256 + 1);
  return out;
}

TEST(BulkStores, before_the_wait_nobody_sees_a_byte) {
  const std::vector<std::byte> source = pattern(3 * exec::kBulkStageBytes + 5);
  alignas(16) std::byte to[4 * exec::kBulkStageBytes]{};
  const std::vector<std::byte> untouched(to, to + sizeof to);
  const auto kernel = [&] {
    exec::BulkStores stores;
    stores.store(to, source.data(), source.size());
    if (threadIdx.x == 0) {
      EXPECT_TRUE(std::equal(untouched.begin(), untouched.end(), to));
      stores.wait();
      EXPECT_TRUE(std::equal(source.begin(), source.end(), to));
    }
  };
  ASSERT_EQ(exec::run_grid({.block = {kThreads}}, kernel), Status::kOk);
  EXPECT_TRUE(std::all_of(to + source.size(), to + sizeof to, [](std::byte b) { return b == std::byte{0}; }));
}

// The NIC takes what it is told of whenever the kernel waits: for credits, with half of a message stored.
ExecutingNic* serving = nullptr;
int serve() {
  serving->step();
  return 0;
}

constexpr RemoteMemory kRemote{ExecutingNic::kRemoteAddress, ExecutingNic::kRemoteBytes, ExecutingNic::kRkey,
                               0};

LocalMemory all_of(std::vector<std::byte>& source) { return {source.data(), source.size(), Be32{}, 0}; }

// `post` is what a block does with its endpoint before it flushes.
template <typename Post>
void in_block(ExecutingNic& nic, Post post) {
  serving = &nic;
  const EndpointHandle handle = nic.handle();
  const auto kernel = [&] {
    Endpoint<Scope::kBlock> endpoint(handle);
    post(endpoint);
    EXPECT_EQ(gdx_flush(endpoint), Status::kOk);
  };
  ASSERT_EQ(exec::run_grid({.block = {kThreads}, .progress = serve}, kernel), Status::kOk);
}

class BulkPush : public ::testing::TestWithParam<std::tuple<Mode, std::size_t>> {};

TEST_P(BulkPush, whole_message_arrives_whenever_the_nic_looks) {
  const auto [mode, bytes] = GetParam();
  ExecutingNic nic;
  std::vector<std::byte> source = pattern(bytes);
  const LocalMemory from = all_of(source);
  in_block(nic, [&, mode = mode, bytes = bytes](auto& endpoint) {
    const Status status = mode == Mode::kPush
                              ? gdx_put<Mode::kPush, Copy::kBulk>(endpoint, kRemote, from, bytes)
                              : gdx_put<Mode::kBounce, Copy::kBulk>(endpoint, kRemote, from, bytes);
    EXPECT_EQ(status, Status::kOk) << status_name(status);
  });
  EXPECT_EQ(nic.mistakes(), 0u);
  EXPECT_TRUE(std::equal(source.begin(), source.end(), nic.remote()));
  EXPECT_EQ(nic.remote()[bytes], std::byte{0});
  const std::uint32_t slots = static_cast<std::uint32_t>((bytes - 1) / ExecutingNic::kSlotBytes + 1);
  EXPECT_EQ(mode == Mode::kPush ? nic.pushed() : nic.bounced(), slots);
}
INSTANTIATE_TEST_SUITE_P(All, BulkPush,
                         ::testing::Combine(::testing::Values(Mode::kPush, Mode::kBounce),
                                            ::testing::Values(1, 16, 511, 512, 8 * ExecutingNic::kSlotBytes,
                                                              50'001)));

// A put that rings later, at no more than GPU scope, must have waited for its stores too.
TEST(BulkPush, deferred_put_has_waited_for_its_stores_when_another_call_rings) {
  ExecutingNic nic;
  std::vector<std::byte> source = pattern(700);
  in_block(nic, [&](auto& endpoint) {
    EXPECT_EQ((gdx_put<Mode::kPush, Copy::kBulk>(endpoint, kRemote, all_of(source), 700, Doorbell::kDefer)),
              Status::kOk);
  });
  EXPECT_TRUE(std::equal(source.begin(), source.end(), nic.remote()));
}

// Seven slots of eight are with the NIC: the second put's first chunk takes the last credit, and it must ring
// for that chunk alone to get another.
TEST(BulkPush, chunk_that_is_rung_for_the_sake_of_credits_has_waited_for_its_stores) {
  constexpr std::uint64_t kFirst = 7 * ExecutingNic::kSlotBytes;
  constexpr std::uint64_t kSecond = 2 * ExecutingNic::kSlotBytes;
  ExecutingNic nic;
  std::vector<std::byte> source = pattern(kFirst + kSecond);
  const LocalMemory from = all_of(source);
  in_block(nic, [&](auto& endpoint) {
    EXPECT_EQ((gdx_put<Mode::kPush, Copy::kBulk>(endpoint, kRemote, from, kFirst)), Status::kOk);
    EXPECT_EQ((gdx_put<Mode::kPush, Copy::kBulk>(endpoint, kRemote + kFirst, from + kFirst, kSecond)),
              Status::kOk);
  });
  EXPECT_TRUE(std::equal(source.begin(), source.end(), nic.remote()));
}

TEST(BulkPush, signal_follows_what_was_stored_in_bulk) {
  ExecutingNic nic;
  std::vector<std::byte> source = pattern(5000);
  in_block(nic, [&](auto& endpoint) {
    EXPECT_EQ((gdx_put_signal<Mode::kPush, Copy::kBulk>(endpoint, kRemote, all_of(source), 5000,
                                                        kRemote + 8192, 7)),
              Status::kOk);
  });
  EXPECT_TRUE(std::equal(source.begin(), source.end(), nic.remote()));
  EXPECT_EQ(nic.remote()[8192], std::byte{7});
}

}  // namespace bulk_test
}  // namespace gdx::device
