// Strangers at a rank's port that say nothing: how many are kept, and what gives way to newer ones.
#include "host/bootstrap/reception.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "host/bootstrap/socket.h"
#include "host/bootstrap/socket_user.h"
#include "tests/open_files.h"

namespace gdx::bootstrap {
namespace reception_test {

constexpr std::uint64_t kLongNs = 120'000'000'000;

class Strangers : public testing::Test {
 protected:
  // Connects, and says nothing.
  [[nodiscard]] Descriptor come() const {
    auto socket = begin_connect(address_);
    EXPECT_TRUE(socket) << socket.error().message;
    pollfd ready{socket->value(), POLLOUT, 0};
    EXPECT_TRUE(wait_until({&ready, 1}, monotonic_ns() + kLongNs));
    EXPECT_TRUE(finish_connect(*socket));
    return std::move(*socket);
  }

  Descriptor listener_ = std::move(listen_on("127.0.0.1").value());
  const std::string address_ = own_text(listener_);
  Reception reception_{std::move(listener_)};
};

TEST_F(Strangers, beyond_64_take_the_place_of_the_oldest) {
  std::vector<Descriptor> silent;
  for (std::size_t i = 0; i < kMaxStrangers + 40; ++i) silent.push_back(come());
  const auto arrivals = reception_.receive();
  ASSERT_TRUE(arrivals) << arrivals.error().message;
  EXPECT_TRUE(arrivals->empty());
  EXPECT_EQ(reception_.seen(),
            fmt::format(" (dropped 40 connections, the last: {} sent no hello before 64 others came) (64 "
                        "connected and sent no hello, {} first)",
                        own_text(silent[39]), own_text(silent[40])));
}

TEST_F(Strangers, give_their_descriptors_to_those_who_come) {
  const test::OpenFileLimit few(100);
  const Descriptor silent = come();
  ASSERT_TRUE(reception_.receive());
  const Descriptor newer = come();
  std::vector<Descriptor> all;
  while (Descriptor taken{fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)}) all.push_back(std::move(taken));
  const auto arrivals = reception_.receive();
  all.clear();
  EXPECT_TRUE(arrivals) << arrivals.error().message;
  EXPECT_EQ(reception_.seen(),
            fmt::format(" (dropped a connection: {} sent no hello before the descriptors were used up) (1 "
                        "connected and sent no hello, {} first)",
                        own_text(silent), own_text(newer)));
}

// Another user's connections, as this user's are to a reception of another user.
TEST_F(Strangers, of_another_user_are_dropped_whatever_they_say) {
  Reception reception(std::move(listen_on("127.0.0.1").value()), {}, nullptr, geteuid() + 1);
  std::vector<pollfd> listener;
  reception.add_to(listener);
  const Descriptor listening(dup(listener.front().fd));
  const auto stranger = begin_connect(own_text(listening));
  ASSERT_TRUE(stranger);
  const auto hello = encode_hello(1, 2);
  ASSERT_EQ(write(stranger->value(), hello.data(), hello.size()), static_cast<ssize_t>(hello.size()));
  std::string seen;
  while (seen.empty()) {
    const auto arrivals = reception.receive();
    ASSERT_TRUE(arrivals && arrivals->empty());
    seen = reception.seen();
    if (seen.find("sent no hello") != std::string::npos) seen.clear();
  }
  EXPECT_EQ(seen, fmt::format(" (dropped a connection: {} is user {}'s, and this is user {}'s)",
                              own_text(*stranger), geteuid(), geteuid() + 1));
}

// A stranger may say hello and close, whereupon nobody can tell whose connection it was.
TEST_F(Strangers, that_have_closed_are_nobodys_and_dropped) {
  Descriptor stranger = come();
  const auto hello = encode_hello(1, 2);
  ASSERT_EQ(write(stranger.value(), hello.data(), hello.size()), static_cast<ssize_t>(hello.size()));
  stranger.close();
  const auto arrivals = reception_.receive();
  ASSERT_TRUE(arrivals && arrivals->empty());
  EXPECT_THAT(reception_.seen(), testing::EndsWith(" closed its connection)"));
}

// Sockets of both families name one another.
TEST(HolderOfPeer, both_ends_are_found_in_either_family) {
  for (const char* host : {"127.0.0.1", "::1"}) {
    const auto listener = listen_on(host);
    if (!listener) continue;  // no IPv6 here
    const auto other = begin_connect(own_text(*listener));
    ASSERT_TRUE(other);
    pollfd ready{listener->value(), POLLIN, 0};
    ASSERT_TRUE(wait_until({&ready, 1}, monotonic_ns() + kLongNs));
    const auto accepted = accept_one(*listener);
    ASSERT_TRUE(accepted && *accepted);
    for (const auto& end : {std::ref(*accepted), std::ref(*other)}) {
      const Holder holder = holder_of_peer(end);
      EXPECT_EQ(holder.kind, Holder::kUser);
      EXPECT_EQ(holder.user, geteuid());
    }
  }
}

}  // namespace reception_test
}  // namespace gdx::bootstrap
