// A socket buffer that is full: sends of this program say so as often as a test asks.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "driver-shim/softhca/wire/wire.h"
#include "tests/unit/wire/packets.h"

namespace {

int refusals_left = 0;

bool refuses() {
  if (refusals_left == 0) return false;
  --refusals_left;
  errno = EAGAIN;
  return true;
}

}  // namespace

extern "C" int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  return refuses() ? -1 : static_cast<int>(syscall(SYS_sendmmsg, fd, messages, count, flags));
}

extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  return refuses() ? -1 : syscall(SYS_sendmsg, fd, message, flags);
}

namespace gdx::softhca::wire {
namespace {

class UdpFullBuffer : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Wire>> from = open_udp({});
    Result<std::unique_ptr<Wire>> to = open_udp({});
    ASSERT_TRUE(from && to);
    a_ = std::move(*from);
    b_ = std::move(*to);
    introduce(*a_, *b_);
  }
  void TearDown() override { refusals_left = 0; }

  // Sends one packet, at first refused `refusals` times. Returns how many arrive.
  std::size_t send_one(int refusals) {
    constexpr std::size_t kPacketBytes = 64;
    const std::span<std::byte> packet = a_->begin_packet(b_->local());
    std::fill_n(packet.begin(), kPacketBytes, std::byte{0});
    a_->commit_packet(b_->local(), kPacketBytes);
    refusals_left = refusals;
    a_->flush();
    return b_->receive(7, [](const Address&, std::span<const std::byte>) {});
  }

  std::unique_ptr<Wire> a_;
  std::unique_ptr<Wire> b_;
};

TEST_F(UdpFullBuffer, buffer_that_empties_in_time_loses_nothing) {
  EXPECT_EQ(send_one(3), 1u);
  EXPECT_EQ(a_->counters().send_errors, 0u);
}

TEST_F(UdpFullBuffer, buffer_that_stays_full_loses_the_packet_and_counts_it) {
  EXPECT_EQ(send_one(1000), 0u);
  EXPECT_EQ(a_->counters().send_errors, 1u);
  EXPECT_GT(refusals_left, 900) << "the wait is bounded";
  EXPECT_EQ(send_one(0), 1u) << "the wire works on";
}

}  // namespace
}  // namespace gdx::softhca::wire
