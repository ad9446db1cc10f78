#include "driver-shim/softhca/uverbs/event_channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "driver-shim/softhca/uverbs/real.h"

namespace gdx::softhca::uverbs {

// Of the hooks, which are not linked here.
constinit RealFunction<int(const char*, int, ...)> real_open("open");
constinit RealFunction<int(int)> real_close("close");

namespace event_channel_test {

// A program may give the next object the handle of one that has ended: an address of its heap, used again.
TEST(EventChannel, next_object_of_a_handle_has_none_of_the_last_ones_events) {
  constexpr std::uint64_t kHandle = 0x7f00;
  const auto channel = EventChannel::open();
  ASSERT_TRUE(channel);
  const int fd = (*channel)->user_fd();
  std::array<std::byte, 64> event{};
  (*channel)->push_completion(kHandle);
  ASSERT_GT(recv(fd, event.data(), event.size(), MSG_DONTWAIT), 0);
  (*channel)->push_completion(kHandle);  // not read
  EXPECT_EQ((*channel)->forget(kHandle), 1u);
  EXPECT_LT(recv(fd, event.data(), event.size(), MSG_DONTWAIT), 0);
  EXPECT_EQ((*channel)->forget(kHandle), 0u);
  close(fd);
}

TEST(EventChannel, end_of_an_object_takes_no_event_of_another) {
  constexpr std::uint64_t kEnds = 0x7f00;
  constexpr std::uint64_t kStays = 0x7f40;
  const auto channel = EventChannel::open();
  ASSERT_TRUE(channel);
  const int fd = (*channel)->user_fd();
  for (const std::uint64_t handle : {kStays, kEnds, kStays}) (*channel)->push_completion(handle);
  EXPECT_EQ((*channel)->forget(kEnds), 0u);
  for (int i = 0; i < 2; ++i) {
    std::uint64_t told = 0;
    ASSERT_EQ(recv(fd, &told, sizeof told, MSG_DONTWAIT), static_cast<ssize_t>(sizeof told)) << i;
    EXPECT_EQ(told, kStays);
  }
  EXPECT_EQ((*channel)->forget(kStays), 2u);
  close(fd);
}

}  // namespace event_channel_test
}  // namespace gdx::softhca::uverbs
