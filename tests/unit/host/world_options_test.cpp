#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdlib>
#include <string>
#include <tuple>
#include <utility>

#include "host/bootstrap/socket.h"
#include "host/bootstrap/world.h"

namespace gdx {
namespace world_options_test {

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

// Any of the three calls for the other two, but a world of one for no root.
TEST_F(WorldOptionsEnvironment, missing_variable_is_named) {
  const auto missing = [](const char* name) {
    return std::string(name) + " is not set: GDX_RANK, GDX_WORLD_SIZE and GDX_ROOT go together";
  };
  set(kRootVariable, "127.0.0.1:18515");
  EXPECT_EQ(WorldOptions::from_environment().error().message, missing(kWorldSizeVariable));
  clear();
  set(kRankVariable, "1");
  EXPECT_EQ(WorldOptions::from_environment().error().message, missing(kWorldSizeVariable));
  clear();
  set(kWorldSizeVariable, "2");
  EXPECT_EQ(WorldOptions::from_environment().error().message, missing(kRankVariable));
  set(kRankVariable, "1");
  EXPECT_EQ(WorldOptions::from_environment().error().message, missing(kRootVariable));
  set(kWorldSizeVariable, "1");
  EXPECT_EQ(WorldOptions::from_environment()->size, 1u);
}

TEST_F(WorldOptionsEnvironment, last_values_are_taken_and_those_behind_them_refused) {
  set(kRootVariable, "127.0.0.1:18515");
  set(kWorldSizeVariable, "16384");
  set(kRankVariable, "16383");
  set(kBootstrapTimeoutVariable, "86400");
  const auto options = WorldOptions::from_environment();
  ASSERT_TRUE(options) << options.error().message;
  EXPECT_EQ(options->size, 16384u);
  EXPECT_EQ(options->rank, 16383u);
  EXPECT_EQ(options->timeout_ns, 86'400'000'000'000u);
  for (const auto& [name, beyond] : {std::pair{kRankVariable, "16384"},
                                     {kBootstrapTimeoutVariable, "86401"},
                                     {kBootstrapTimeoutVariable, "0"}}) {
    set(name, beyond);
    EXPECT_THAT(WorldOptions::from_environment().error().message, ::testing::StartsWith(name));
  }
}

TEST_F(WorldOptionsEnvironment, impossible_values_are_refused_with_the_bound) {
  set(kRootVariable, "127.0.0.1:18515");
  set(kRankVariable, "0");
  for (const char* size : {"0", "16385", "-1", "two", "", "2x", "99999999999999999999"}) {
    set(kWorldSizeVariable, size);
    const auto options = WorldOptions::from_environment();
    ASSERT_FALSE(options) << size;
    EXPECT_EQ(options.error().status, Status::kInvalidArgument);
    EXPECT_THAT(options.error().message, ::testing::HasSubstr("16384"));
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
  const std::tuple<const char*, const char*, const char*> cases[] = {{"127.0.0.1:80", "127.0.0.1", "80"},
                                                                     {"node-3:1", "node-3", "1"},
                                                                     {"[::1]:65535", "::1", "65535"},
                                                                     {"[a]:2", "a", "2"}};
  for (const auto& [text, host, port] : cases) {
    const auto parsed = bootstrap::parse_host_port(text);
    ASSERT_TRUE(parsed) << text;
    EXPECT_EQ(parsed->host, host);
    EXPECT_EQ(parsed->port, port);
  }
}

// Both ends of a connection, of either family: they send small frames at once and close on exec.
TEST(Socket, ends_of_a_connection_are_named_and_set_up) {
  for (const std::string host : {"127.0.0.1", "::1"}) {
    const auto listener = bootstrap::listen_on(host);
    if (!listener && host == "::1") continue;  // a machine without IPv6
    ASSERT_TRUE(listener) << listener.error().message;
    EXPECT_EQ(bootstrap::accept_one(*listener)->value(), -1) << "nobody waits";
    const std::string place = bootstrap::own_text(*listener);
    EXPECT_THAT(place, ::testing::StartsWith(host == "::1" ? "[::1]:" : "127.0.0.1:"));
    const auto here = bootstrap::begin_connect(place);
    ASSERT_TRUE(here) << here.error().message;
    pollfd ready{here->value(), POLLOUT, 0};
    ASSERT_TRUE(bootstrap::wait_until({&ready, 1}, ~std::uint64_t{0}));
    ASSERT_TRUE(bootstrap::finish_connect(*here));
    const auto there = bootstrap::accept_one(*listener);
    ASSERT_TRUE(there && *there);
    EXPECT_EQ(bootstrap::peer_text(*here), place);
    EXPECT_EQ(bootstrap::peer_text(*there), bootstrap::own_text(*here));
    for (const Descriptor* end : {&*here, &*there}) {
      int at_once = 0;
      socklen_t length = sizeof at_once;
      EXPECT_EQ(::getsockopt(end->value(), IPPROTO_TCP, TCP_NODELAY, &at_once, &length), 0);
      EXPECT_EQ(at_once, 1);
      EXPECT_EQ(fcntl(end->value(), F_GETFD), FD_CLOEXEC);
      EXPECT_NE(fcntl(end->value(), F_GETFL) & O_NONBLOCK, 0);
      EXPECT_TRUE(bootstrap::is_loopback(*end));
    }
  }
  EXPECT_EQ(bootstrap::peer_text(Descriptor()), "a closed connection");
  EXPECT_EQ(bootstrap::own_text(Descriptor()), "a closed socket");
  EXPECT_FALSE(bootstrap::is_loopback(Descriptor()));
  EXPECT_EQ(bootstrap::begin_connect("localhost:80").error().message,
            "'localhost' is no numeric address: use one of an interface, such as 10.0.0.1");
  const auto elsewhere = bootstrap::listen_on("192.0.2.1");
  ASSERT_FALSE(elsewhere);
  EXPECT_EQ(elsewhere.error().status, Status::kInvalidArgument);
  EXPECT_EQ(elsewhere.error().message,
            "cannot listen at 192.0.2.1: Cannot assign requested address; use the address of an interface of "
            "this machine");
}

TEST(HostPort, malformed_addresses_are_refused) {
  for (const char* text :
       {"", "host", ":80", "host:", "host:0", "host:65536", "host:x", "::1:80", "[::1]", "[]:80"}) {
    EXPECT_EQ(bootstrap::parse_host_port(text).error().message,
              std::string("root address '") + text +
                  "': use HOST:PORT or [IPV6]:PORT, for instance 127.0.0.1:18515");
  }
}

}  // namespace world_options_test
}  // namespace gdx
