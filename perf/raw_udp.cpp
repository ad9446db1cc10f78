#include "perf/raw_udp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <ctime>
#include <utility>
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

class Receiver {
 public:
  Receiver() : fd_(open_socket()), buffer_(kReceives * kReceiveBytes) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int on = 1;
    require(::bind(fd_, reinterpret_cast<sockaddr*>(&name), sizeof name) == 0, "bind a UDP socket");
    require(::setsockopt(fd_, SOL_UDP, UDP_GRO, &on, sizeof on) == 0, "turn on UDP_GRO");
    for (std::size_t i = 0; i < kReceives; ++i) {
      vectors_[i] = {buffer_.data() + i * kReceiveBytes, kReceiveBytes};
      messages_[i].msg_hdr.msg_iov = &vectors_[i];
      messages_[i].msg_hdr.msg_iovlen = 1;
    }
  }

  [[nodiscard]] sockaddr_in name() const {
    sockaddr_in name{};
    socklen_t length = sizeof name;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&name), &length);
    return name;
  }
  [[nodiscard]] bool readable(int patience_ms) const {
    pollfd wanted{fd_, POLLIN, 0};
    return ::poll(&wanted, 1, patience_ms) > 0;
  }
  // Bytes taken out of the socket, 0 when it is empty.
  std::uint64_t receive() {
    const int n = ::recvmmsg(fd_, messages_.data(), kReceives, MSG_DONTWAIT, nullptr);
    std::uint64_t bytes = 0;
    for (int i = 0; i < n; ++i) bytes += messages_[static_cast<std::size_t>(i)].msg_len;
    return bytes;
  }

 private:
  int fd_;
  std::vector<char> buffer_;
  std::array<iovec, kReceives> vectors_{};
  std::array<mmsghdr, kReceives> messages_{};
};

class Sender {
 public:
  Sender(const RawUdpOptions& options, const sockaddr_in& to)
      : fd_(open_socket()),
        send_bytes_(std::size_t{options.segment_bytes} * options.segments),
        payload_(send_bytes_ * options.sends),
        to_(to),
        vectors_(options.sends),
        messages_(options.sends) {
    const int segment_bytes = static_cast<int>(options.segment_bytes);
    require(::setsockopt(fd_, SOL_UDP, UDP_SEGMENT, &segment_bytes, sizeof segment_bytes) == 0,
            "turn on UDP_SEGMENT");
    for (std::size_t i = 0; i < options.sends; ++i) {
      vectors_[i] = {payload_.data() + i * send_bytes_, send_bytes_};
      messages_[i].msg_hdr.msg_name = &to_;
      messages_[i].msg_hdr.msg_namelen = sizeof to_;
      messages_[i].msg_hdr.msg_iov = &vectors_[i];
      messages_[i].msg_hdr.msg_iovlen = 1;
    }
  }
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  // Bytes given to the socket.
  std::uint64_t send() {
    const int n = ::sendmmsg(fd_, messages_.data(), static_cast<unsigned>(messages_.size()), 0);
    require(n > 0, "send datagrams");
    return static_cast<std::uint64_t>(n) * send_bytes_;
  }

 private:
  int fd_;
  std::size_t send_bytes_;
  std::vector<char> payload_;
  sockaddr_in to_;
  std::vector<iovec> vectors_;
  std::vector<mmsghdr> messages_;
};

std::uint64_t duration_ns(const RawUdpOptions& options) {
  return static_cast<std::uint64_t>(options.seconds * kNsPerSecond);
}

void receive(const Peer& peer) {
  Receiver receiver;
  peer.send(receiver.name());
  Received received;
  while (!peer.has_message() || receiver.readable(kPatienceMs)) {
    if (!receiver.readable(kPatienceMs)) continue;
    received.bytes += receiver.receive();
    received.last_ns = monotonic_ns();
    if (received.first_ns == 0) received.first_ns = received.last_ns;
  }
  peer.send(received);
}

std::uint64_t send_for(Sender& sender, std::uint64_t limit_ns) {
  std::uint64_t bytes = 0;
  for (const std::uint64_t start_ns = monotonic_ns(); monotonic_ns() - start_ns < limit_ns;) {
    bytes += sender.send();
  }
  return bytes;
}

}  // namespace

RawUdpRate measure_raw_udp(const RawUdpOptions& options) {
  RawUdpRate rate;
  in_two_processes(
      [&](const Peer& peer) {
        Sender sender(options, peer.receive<sockaddr_in>());
        const std::uint64_t sent_bytes = send_for(sender, duration_ns(options));
        peer.send('.');
        const auto received = peer.receive<Received>();
        require(received.last_ns > received.first_ns, "receive any datagram");
        const double seconds = static_cast<double>(received.last_ns - received.first_ns) / kNsPerSecond;
        rate.bytes_per_s = static_cast<double>(received.bytes) / seconds;
        rate.lost_share = 1 - static_cast<double>(received.bytes) / static_cast<double>(sent_bytes);
      },
      receive);
  return rate;
}

double raw_udp_cost(const RawUdpOptions& options) {
  Receiver receiver;
  Sender sender(options, receiver.name());
  const auto cpu_ns = [] {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * kNsPerSecond + static_cast<double>(now.tv_nsec);
  };
  std::uint64_t bytes = 0;
  const double before_ns = cpu_ns();
  for (const std::uint64_t start_ns = monotonic_ns(); monotonic_ns() - start_ns < duration_ns(options);) {
    sender.send();
    while (const std::uint64_t taken = receiver.receive()) bytes += taken;
  }
  return (cpu_ns() - before_ns) / static_cast<double>(bytes);
}

}  // namespace gdx::perf
