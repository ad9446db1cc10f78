#include "perf/raw_udp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <vector>

#include "base/clock.h"
#include "perf/two_processes.h"

namespace gdx::perf {
namespace {

constexpr int kSocketBufferBytes = 16 << 20;  // as the software HCA's
constexpr std::size_t kReceives = 16;
constexpr std::size_t kReceiveBytes = 65536;
constexpr int kPatienceMs = 200;  // of a receiver, after the last datagram
constexpr double kNsPerSecond = 1e9;

struct Received {
  std::uint64_t bytes = 0;
  std::uint64_t first_ns = 0;
  std::uint64_t last_ns = 0;
};

int open_socket() {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  require(fd >= 0, "open a UDP socket");
  const int bytes = kSocketBufferBytes;
  for (const auto& [forced, plain] : {std::pair{SO_RCVBUFFORCE, SO_RCVBUF}, {SO_SNDBUFFORCE, SO_SNDBUF}}) {
    if (::setsockopt(fd, SOL_SOCKET, forced, &bytes, sizeof bytes) != 0) {
      ::setsockopt(fd, SOL_SOCKET, plain, &bytes, sizeof bytes);
    }
  }
  return fd;
}

void receive(const Peer& peer) {
  const int fd = open_socket();
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof name;
  const int on = 1;
  require(::bind(fd, reinterpret_cast<sockaddr*>(&name), length) == 0, "bind a UDP socket");
  require(::setsockopt(fd, SOL_UDP, UDP_GRO, &on, sizeof on) == 0, "turn on UDP_GRO");
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length);
  peer.tell(name);

  std::vector<char> buffer(kReceives * kReceiveBytes);
  std::array<iovec, kReceives> vectors;
  std::array<mmsghdr, kReceives> messages{};
  for (std::size_t i = 0; i < kReceives; ++i) {
    vectors[i] = {buffer.data() + i * kReceiveBytes, kReceiveBytes};
    messages[i].msg_hdr.msg_iov = &vectors[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  Received received;
  pollfd readable{fd, POLLIN, 0};
  while (!peer.heard() || ::poll(&readable, 1, kPatienceMs) > 0) {
    if (::poll(&readable, 1, kPatienceMs) <= 0) continue;
    const int n = ::recvmmsg(fd, messages.data(), kReceives, MSG_DONTWAIT, nullptr);
    received.last_ns = monotonic_ns();
    if (received.first_ns == 0) received.first_ns = received.last_ns;
    for (int i = 0; i < n; ++i) received.bytes += messages[static_cast<std::size_t>(i)].msg_len;
  }
  peer.tell(received);
}

std::uint64_t send_for(int fd, const RawUdpOptions& options, const sockaddr_in& to) {
  const int segment_bytes = static_cast<int>(options.segment_bytes);
  require(::setsockopt(fd, SOL_UDP, UDP_SEGMENT, &segment_bytes, sizeof segment_bytes) == 0,
          "turn on UDP_SEGMENT");
  std::vector<char> payload(std::size_t{options.segment_bytes} * options.segments * options.sends);
  sockaddr_in name = to;
  std::vector<iovec> vectors(options.sends);
  std::vector<mmsghdr> messages(options.sends);
  for (std::size_t i = 0; i < options.sends; ++i) {
    const std::size_t bytes = payload.size() / options.sends;
    vectors[i] = {payload.data() + i * bytes, bytes};
    messages[i].msg_hdr = {};
    messages[i].msg_hdr.msg_name = &name;
    messages[i].msg_hdr.msg_namelen = sizeof name;
    messages[i].msg_hdr.msg_iov = &vectors[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  std::uint64_t sent_bytes = 0;
  const auto duration_ns = static_cast<std::uint64_t>(options.seconds * kNsPerSecond);
  for (const std::uint64_t start_ns = monotonic_ns(); monotonic_ns() - start_ns < duration_ns;) {
    const int n = ::sendmmsg(fd, messages.data(), options.sends, 0);
    require(n > 0, "send datagrams");
    sent_bytes += static_cast<std::uint64_t>(n) * payload.size() / options.sends;
  }
  return sent_bytes;
}

}  // namespace

RawUdpRate measure_raw_udp(const RawUdpOptions& options) {
  RawUdpRate rate;
  in_two_processes(
      [&](const Peer& peer) {
        const auto to = peer.hear<sockaddr_in>();
        const std::uint64_t sent_bytes = send_for(open_socket(), options, to);
        peer.tell('.');
        const auto received = peer.hear<Received>();
        require(received.last_ns > received.first_ns, "receive any datagram");
        const double seconds = static_cast<double>(received.last_ns - received.first_ns) / kNsPerSecond;
        rate.bytes_per_s = static_cast<double>(received.bytes) / seconds;
        rate.lost_share = 1 - static_cast<double>(received.bytes) / static_cast<double>(sent_bytes);
      },
      receive);
  return rate;
}

}  // namespace gdx::perf
