#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdlib>
#include <string>

#include "host/bootstrap/socket.h"
#include "host/bootstrap/world.h"

namespace gdx {
namespace {

class WorldOptionsEnvironment : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }

  static void clear() {
    for (const char* name : {kRankVariable, kWorldSizeVariable, kRootVariable, kBootstrapTimeoutVariable}) {
      unsetenv(name);
    }
  }
  static void set(const char* name, const char* value) { setenv(name, value, 1); }
};

TEST_F(WorldOptionsEnvironment, nothing_set_is_a_world_of_one) {
  const auto options = WorldOptions::from_environment();
  ASSERT_TRUE(options);
  EXPECT_EQ(options->size, 1u);
  EXPECT_EQ(options->rank, 0u);
}

TEST_F(WorldOptionsEnvironment, all_set_is_read) {
  set(kRankVariable, "2");
  set(kWorldSizeVariable, "4");
  set(kRootVariable, "127.0.0.1:18515");
  set(kBootstrapTimeoutVariable, "7");
  const auto options = WorldOptions::from_environment();
  ASSERT_TRUE(options);
  EXPECT_EQ(options->size, 4u);
  EXPECT_EQ(options->rank, 2u);
  EXPECT_EQ(options->root, "127.0.0.1:18515");
  EXPECT_EQ(options->timeout_ns, 7'000'000'000u);
}

TEST_F(WorldOptionsEnvironment, missing_variable_is_named) {
  set(kRankVariable, "1");
  EXPECT_THAT(WorldOptions::from_environment().error().message, ::testing::HasSubstr(kWorldSizeVariable));
  set(kWorldSizeVariable, "2");
  EXPECT_THAT(WorldOptions::from_environment().error().message, ::testing::HasSubstr(kRootVariable));
}

TEST_F(WorldOptionsEnvironment, impossible_values_are_refused_with_the_bound) {
  set(kRootVariable, "127.0.0.1:18515");
  set(kRankVariable, "0");
  for (const char* size : {"0", "1025", "-1", "two", "", "2x", "99999999999999999999"}) {
    set(kWorldSizeVariable, size);
    const auto options = WorldOptions::from_environment();
    ASSERT_FALSE(options) << size;
    EXPECT_EQ(options.error().status, Status::kInvalidArgument);
    EXPECT_THAT(options.error().message, ::testing::HasSubstr("1024"));
  }
}

// The bound on data that nobody acknowledges is in milliseconds, the others are in seconds.
TEST(KeepAlive, idle_and_sending_channels_end_alike_about_a_minute_after_a_loss) {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  bootstrap::keep_alive(socket);
  const auto option = [&](int level, int name) {
    int value = -1;
    socklen_t length = sizeof value;
    EXPECT_EQ(::getsockopt(socket.value(), level, name, &value, &length), 0);
    return value;
  };
  EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
  const int idle_s = option(IPPROTO_TCP, TCP_KEEPIDLE) +
                     option(IPPROTO_TCP, TCP_KEEPINTVL) * option(IPPROTO_TCP, TCP_KEEPCNT);
  EXPECT_GE(idle_s, 45);
  EXPECT_LE(idle_s, 90);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_USER_TIMEOUT), idle_s * 1000);
}

TEST(HostPort, well_formed_addresses_are_taken_apart) {
  EXPECT_EQ(bootstrap::parse_host_port("127.0.0.1:80")->host, "127.0.0.1");
  EXPECT_EQ(bootstrap::parse_host_port("node-3:18515")->port, "18515");
  EXPECT_EQ(bootstrap::parse_host_port("[::1]:18515")->host, "::1");
}

TEST(HostPort, malformed_addresses_are_refused) {
  for (const char* text :
       {"", "host", ":80", "host:", "host:0", "host:65536", "host:x", "::1:80", "[::1]", "[]:80"}) {
    EXPECT_FALSE(bootstrap::parse_host_port(text)) << text;
  }
}

}  // namespace
}  // namespace gdx
