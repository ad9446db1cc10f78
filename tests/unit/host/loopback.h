// Loopback sockets for bootstrap tests: a port for rank 0, and peers that say what they like.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <future>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "host/bootstrap/frame.h"
#include "host/bootstrap/socket.h"
#include "host/bootstrap/world.h"

namespace gdx::test {

inline constexpr std::uint64_t kLongNs = 120'000'000'000;  // never reached unless a test fails
inline constexpr std::uint64_t kShortNs = 100'000'000;     // for waits that must run out

// A port of which nobody else is given any while rank 0 may listen there, as the launcher reserves it, and
// the secret of the ranks that meet there.
struct LoopbackRoot {
  explicit LoopbackRoot(bootstrap::Secret::Ptr shared = bootstrap::Secret::make().value())
      : secret(std::move(shared)), socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int one = 1;
    EXPECT_EQ(::setsockopt(socket.value(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(socket.value(), generic, length), 0);
    EXPECT_EQ(::getsockname(socket.value(), generic, &length), 0);
    root = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }

  void listen() const { EXPECT_EQ(::listen(socket.value(), 64), 0); }
  [[nodiscard]] WorldOptions options(std::uint32_t rank, std::uint32_t size,
                                     std::uint64_t timeout_ns = kLongNs) const {
    return {.rank = rank,
            .size = size,
            .root = root,
            .timeout_ns = timeout_ns,
            .secret = secret,
            .secret_readers = "this test's"};
  }

  bootstrap::Secret::Ptr secret;
  Descriptor socket;
  std::string root;
};

// A peer under the test's control. Reads are bounded, so that a failing test ends.
class RawPeer {
 public:
  // Once somebody listens there.
  static RawPeer connect(const LoopbackRoot& root) {
    auto connected = bootstrap::connect_to(root.root, monotonic_ns() + kLongNs);
    EXPECT_TRUE(connected);
    return RawPeer(connected ? std::move(*connected) : Descriptor());
  }
  // With small segments, so that the connection holds little of what nobody reads. Somebody listens there.
  static RawPeer connect_narrow(const LoopbackRoot& root) {
    Descriptor made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int bytes = 1000;
    EXPECT_EQ(::setsockopt(made.value(), IPPROTO_TCP, TCP_MAXSEG, &bytes, sizeof bytes), 0);
    EXPECT_EQ(::setsockopt(made.value(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
    sockaddr_in address{};
    socklen_t length = sizeof address;
    EXPECT_EQ(::getsockname(root.socket.value(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    EXPECT_EQ(::connect(made.value(), reinterpret_cast<sockaddr*>(&address), length), 0);
    return RawPeer(std::move(made));
  }
  static RawPeer accept(const LoopbackRoot& root) {
    root.listen();
    return RawPeer(Descriptor(::accept(root.socket.value(), nullptr, nullptr)));
  }

  void send(std::span<const std::byte> bytes) const {
    EXPECT_EQ(::send(socket_.value(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void send(const std::string& text) const { send(std::as_bytes(std::span(text))); }

  // The next `bytes` bytes, fewer when the other side closed before.
  [[nodiscard]] std::vector<std::byte> receive(std::size_t bytes) const {
    std::vector<std::byte> got(bytes);
    const ssize_t count = ::recv(socket_.value(), got.data(), bytes, MSG_WAITALL);
    got.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
    return got;
  }
  // Returns whether the other side closed, orderly or by reset.
  [[nodiscard]] bool sees_close() const {
    std::byte byte{};
    const ssize_t count = ::recv(socket_.value(), &byte, 1, 0);
    return count == 0 || (count < 0 && errno != EAGAIN);
  }
  // Until all that was sent waits at the other side, which reads it whenever it looks.
  void wait_until_sent() const {
    for (int bytes = -1; bytes != 0; std::this_thread::yield())
      ASSERT_EQ(::ioctl(socket_.value(), SIOCOUTQ, &bytes), 0);
  }
  void close() { socket_.close(); }
  // Ends the connection: sent bytes still arrive, and the other side can send no more.
  void reset() {
    const linger at_once{1, 0};
    EXPECT_EQ(setsockopt(socket_.value(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
    close();
  }
  // Its own end, as the other side names it.
  [[nodiscard]] std::string own_text() const {
    sockaddr_in own{};
    socklen_t length = sizeof own;
    EXPECT_EQ(::getsockname(socket_.value(), reinterpret_cast<sockaddr*>(&own), &length), 0);
    return "127.0.0.1:" + std::to_string(ntohs(own.sin_port));
  }

 private:
  explicit RawPeer(Descriptor socket) : socket_(std::move(socket)) {
    const timeval bound{120, 0};
    setsockopt(socket_.value(), SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof bound);
    fcntl(socket_.value(), F_SETFL, 0);
  }
  Descriptor socket_;
};

inline std::future<Result<World>> join_in_background(const WorldOptions& options) {
  return std::async(std::launch::async, [options] { return World::join(options); });
}

// Runs `body(rank)` for every rank on a thread of its own.
template <typename Body>
void run_ranks(std::uint32_t size, Body body) {
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < size; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (auto& thread : threads) thread.join();
}

}  // namespace gdx::test
