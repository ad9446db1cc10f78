#include "driver-shim/softhca/wire/meeting.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>

#include "proto/roce/headers.h"

namespace gdx::softhca::wire {
namespace {

constexpr int kBacklog = 64;
// Prefix with the version of the ring's layout: HCAs of different versions do not meet and use UDP.
constexpr std::string_view kNamePrefix = "gdx-softhca-ring-1/";
constexpr std::array<char, 8> kGreeting{'g', 'd', 'x', 'r', 'i', 'n', 'g', '1'};

struct Greeting {
  std::array<char, 8> magic;
  std::array<std::uint8_t, 16> source_gid;
};

socklen_t name_of(const Address& address, sockaddr_un& out) {
  out = {};
  out.sun_family = AF_UNIX;
  const std::string name = fmt::format("{}{}", kNamePrefix, address.text());
  std::memcpy(out.sun_path + 1, name.data(), name.size());  // a leading zero byte: abstract
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Result<Descriptor> open_unix_socket() {
  Descriptor socket = Descriptor::keep(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.value() >= 0) return socket;
  return fail(Status::kSystem,
              fmt::format("no socket for peers of this host: {}; check the limit on open files (ulimit -n)",
                          std::strerror(errno)));
}

// The local address as /proc/net/udp prints it: each 32 bits as a number of this machine.
std::string proc_address(const Address& address) {
  const bool v4 = address.is_ipv4();
  std::string text;
  for (std::size_t at = v4 ? 12 : 0; at < address.gid.size(); at += 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, address.gid.data() + at, sizeof word);
    text += fmt::format("{:08X}", word);
  }
  return text + fmt::format(":{:04X}", roce::kUdpPort);
}

// Returns the user that holds UDP port 4791 of `address` in this network namespace.
std::optional<uid_t> holder_of(const Address& address) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen(address.is_ipv4() ? "/proc/self/net/udp" : "/proc/self/net/udp6", "re"), std::fclose);
  if (!file) return std::nullopt;
  const std::string wanted = proc_address(address);
  std::array<char, 512> line;
  while (std::fgets(line.data(), line.size(), file.get()) != nullptr) {
    std::array<char, 64> local;
    unsigned uid = 0;
    // sl local_address rem_address st tx:rx tr:tm retrnsmt uid
    if (std::sscanf(line.data(), " %*d: %63s %*s %*s %*s %*s %*s %u", local.data(), &uid) == 2 &&
        wanted == local.data()) {
      return uid;
    }
  }
  return std::nullopt;
}

Result<void> check_holder(int fd, const Address& address) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return fail(Status::kSystem, fmt::format("SO_PEERCRED: {}", std::strerror(errno)));
  }
  const std::optional<uid_t> holder = holder_of(address);
  if (!holder)
    return fail(Status::kNotFound, "nobody holds UDP port 4791 of " + address.text() + " any more");
  if (*holder == peer.uid) return {};
  return fail(
      Status::kRemoteAccess,
      fmt::format("process {} of user {} speaks for {}, whose UDP port 4791 it does not hold; refused",
                  peer.pid, peer.uid, address.text()));
}

struct alignas(cmsghdr) DescriptorControl {
  std::byte bytes[CMSG_SPACE(sizeof(int))];
};

bool send_greeting(int fd, Greeting greeting, int memory_fd) {
  iovec vector{&greeting, sizeof greeting};
  DescriptorControl control{};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof memory_fd);
  std::memcpy(CMSG_DATA(header), &memory_fd, sizeof memory_fd);
  return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(sizeof greeting);
}

}  // namespace

Result<Descriptor> listen_for_calls(const Address& local) {
  Result<Descriptor> socket = open_unix_socket();
  if (!socket) return socket;
  sockaddr_un name;
  const socklen_t length = name_of(local, name);
  if (::bind(socket->value(), reinterpret_cast<const sockaddr*>(&name), length) != 0) {
    const bool taken = errno == EADDRINUSE;
    return fail(taken ? Status::kBusy : Status::kSystem,
                fmt::format("cannot listen for HCAs of this host at {}: {}", local.text(),
                            taken ? "another process has the name" : std::strerror(errno)));
  }
  if (::listen(socket->value(), kBacklog) != 0) {
    return fail(Status::kSystem,
                fmt::format("cannot listen for HCAs of this host: {}", std::strerror(errno)));
  }
  return socket;
}

Result<Descriptor> reach_peer(const Address& peer) {
  Result<Descriptor> socket = open_unix_socket();
  if (!socket) return socket;
  sockaddr_un name;
  const socklen_t length = name_of(peer, name);
  if (::connect(socket->value(), reinterpret_cast<const sockaddr*>(&name), length) != 0) {
    return fail(errno == ECONNREFUSED ? Status::kNotFound : Status::kSystem,
                fmt::format("no HCA of this host at {}: {}", peer.text(), std::strerror(errno)));
  }
  if (const Result<void> held = check_holder(socket->value(), peer); !held) {
    return tl::unexpected<Error>(held.error());
  }
  return socket;
}

Result<void> send_call(const Descriptor& socket, const Address& local, int memory_fd) {
  if (send_greeting(socket.value(), {kGreeting, local.gid}, memory_fd)) return {};
  return fail(Status::kSystem, fmt::format("an HCA of this host hung up: {}", std::strerror(errno)));
}

Descriptor accept_call(int listener_fd) {
  return Descriptor::keep(::accept4(listener_fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

Result<std::optional<Call>> receive_call(int fd) {
  Greeting greeting{};
  iovec vector{&greeting, sizeof greeting};
  DescriptorControl control{};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  const ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return std::optional<Call>{};
  const cmsghdr* const header = n < 0 ? nullptr : CMSG_FIRSTHDR(&message);
  Call call;
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    // Alignment leaves room for a second one: whatever came is ours to close.
    std::array<int, sizeof(DescriptorControl) / sizeof(int)> fds{};
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    std::memcpy(fds.data(), CMSG_DATA(header), count * sizeof(int));
    for (std::size_t i = 0; i < count; ++i) {
      Descriptor received(fds[i]);
      if (count == 1) call.memory = std::move(received);
    }
  }
  if (n != static_cast<ssize_t>(sizeof greeting) || greeting.magic != kGreeting || call.memory.value() < 0) {
    return fail(Status::kInvalidArgument, "a caller on this host sent no call of an HCA; refused");
  }
  call.source.gid = greeting.source_gid;
  if (const Result<void> held = check_holder(fd, call.source); !held) {
    return tl::unexpected<Error>(held.error());
  }
  return std::optional<Call>(std::move(call));
}

}  // namespace gdx::softhca::wire
