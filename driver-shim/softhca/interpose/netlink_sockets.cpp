#include "driver-shim/softhca/interpose/netlink_sockets.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "driver-shim/softhca/interpose/device.h"
#include "driver-shim/softhca/interpose/tracked_files.h"
#include "driver-shim/softhca/uverbs/cancellation.h"
#include "driver-shim/softhca/uverbs/rdma_netlink.h"
#include "driver-shim/softhca/uverbs/real.h"

namespace gdx::softhca::uverbs {
namespace {

constexpr std::size_t kMaxWaitingBytes = 208 << 10;  // as net.core.rmem_default
constexpr std::size_t kReplyOverheadBytes = 256;     // least overhead that the kernel charges besides

bool is_of_dump(const std::string& reply) {
  nlmsghdr header{};
  std::memcpy(&header, reply.data(), std::min(sizeof header, reply.size()));
  return (header.nlmsg_flags & NLM_F_MULTI) != 0;
}

// Towards kMaxWaitingBytes. A dump may be of any length, and there is one at a time.
std::size_t counted_bytes(const std::string& reply) {
  return is_of_dump(reply) ? 0 : reply.size() + kReplyOverheadBytes;
}

}  // namespace

NetlinkSockets& NetlinkSockets::instance() {
  static NetlinkSockets* const sockets = new NetlinkSockets;
  return *sockets;
}

NetlinkSockets::Socket* NetlinkSockets::find(int fd) {
  const auto found = sockets_.find(identity_of(fd));
  return found == sockets_.end() ? nullptr : &found->second;
}

ErrnoOr<int> NetlinkSockets::open(int flags) {
  drop_closed();
  const bool close_on_exec = (flags & SOCK_CLOEXEC) != 0;
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0, ends.data()) != 0) return refuse(errno);
  Descriptor own = Descriptor::keep(ends[1]);
  const int fd = spare_standard_descriptors(ends[0], close_on_exec);
  if (fd < 0) return refuse(EMFILE);
  try {
    const std::lock_guard lock(mutex_);
    const bool kept = own && fcntl(fd, F_SETFD, close_on_exec ? FD_CLOEXEC : 0) == 0;
    if (kept && track_file(fd, {FileKind::kNetlink})) {
      Socket& socket = sockets_[identity_of(fd)];
      socket.own = std::move(own);
      socket.port = static_cast<std::uint32_t>(getpid());
      return fd;
    }
  } catch (const std::bad_alloc&) {
    track_file(fd, {});
    real_close(fd);
    throw;
  }
  real_close(fd);
  return refuse(EMFILE);
}

Errno NetlinkSockets::bind(int fd, const sockaddr* address, socklen_t length_bytes) {
  sockaddr_nl wanted{};
  if (address == nullptr || length_bytes < sizeof wanted) return EINVAL;
  std::memcpy(&wanted, address, sizeof wanted);
  if (wanted.nl_family != AF_NETLINK) return EINVAL;
  if (wanted.nl_groups != 0) return EOPNOTSUPP;
  const std::lock_guard lock(mutex_);
  Socket* const socket = find(fd);
  if (socket == nullptr) return EBADF;
  if (wanted.nl_pid != 0) socket->port = wanted.nl_pid;
  return 0;
}

Errno NetlinkSockets::connect(const sockaddr* address, socklen_t length_bytes) {
  sockaddr_nl wanted{};
  if (address == nullptr || length_bytes < sizeof address->sa_family) return EINVAL;
  std::memcpy(&wanted, address, std::min<std::size_t>(length_bytes, sizeof wanted));
  if (wanted.nl_family == AF_UNSPEC) return 0;
  if (wanted.nl_family != AF_NETLINK || length_bytes < sizeof wanted) return EINVAL;
  return wanted.nl_pid != 0 || wanted.nl_groups != 0 ? EPERM : 0;
}

std::uint32_t NetlinkSockets::port(int fd) {
  const std::lock_guard lock(mutex_);
  const Socket* const socket = find(fd);
  return socket == nullptr ? 0 : socket->port;
}

// Replies that wait are bounded as by a socket's buffer.
Errno NetlinkSockets::send(int fd, std::span<const std::byte> datagram) {
  const CancellationOff uncancelled;
  NetlinkAsker asker;
  {
    const std::lock_guard lock(mutex_);
    Socket* const socket = find(fd);
    if (socket == nullptr) return EBADF;
    asker.port = socket->port;
    flush_locked(*socket);
    asker.dumping = std::ranges::any_of(socket->waiting, is_of_dump);
  }
  std::vector<std::string> replies = answer_netlink(datagram, asker, [](bool all_processes) {
    std::vector<HcaInventory> hcas = Device::instance().inventory();
    if (all_processes) append_neighbours(hcas);
    return hcas;
  });
  const std::lock_guard lock(mutex_);
  Socket* const socket = find(fd);
  if (socket == nullptr) return EBADF;
  for (std::string& reply : replies) {
    const std::size_t counted = counted_bytes(reply);
    if (socket->waiting_bytes + counted > kMaxWaitingBytes) {
      socket->overflowed = true;
      continue;
    }
    socket->waiting.push_back(std::move(reply));
    socket->waiting_bytes += counted;
  }
  flush_locked(*socket);
  return 0;
}

Errno NetlinkSockets::flush(int fd) {
  const CancellationOff uncancelled;
  const std::lock_guard lock(mutex_);
  Socket* const socket = find(fd);
  if (socket == nullptr) return 0;
  flush_locked(*socket);
  return std::exchange(socket->overflowed, false) ? ENOBUFS : 0;
}

void NetlinkSockets::flush_locked(Socket& socket) {
  if (!socket.own.refers()) return;  // closed by a system call; the number may be the program's by now
  while (!socket.waiting.empty()) {
    const std::string& reply = socket.waiting.front();
    if (::send(socket.own.value(), reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
    socket.waiting_bytes -= counted_bytes(reply);
    socket.waiting.pop_front();
  }
}

void NetlinkSockets::drop_closed() {
  const std::lock_guard lock(mutex_);
  std::erase_if(sockets_, [](const auto& entry) {
    if (!entry.second.own.refers()) return true;
    pollfd other{.fd = entry.second.own.value(), .events = 0, .revents = 0};
    return poll(&other, 1, 0) == 1 && (other.revents & POLLHUP) != 0;
  });
}

}  // namespace gdx::softhca::uverbs
