#include "driver-shim/softhca/uverbs/netlink_sockets.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "driver-shim/softhca/uverbs/cancellation.h"
#include "driver-shim/softhca/uverbs/device.h"
#include "driver-shim/softhca/uverbs/rdma_netlink.h"
#include "driver-shim/softhca/uverbs/real.h"
#include "driver-shim/softhca/uverbs/tracked_files.h"

namespace gdx::softhca::uverbs {

NetlinkSockets& NetlinkSockets::instance() {
  static NetlinkSockets* const sockets = new NetlinkSockets;
  return *sockets;
}

Answer<int> NetlinkSockets::open(int flags) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0, ends.data()) != 0) return refuse(errno);
  Descriptor own = Descriptor::keep(ends[1]);
  const int fd = spare_standard_descriptors(ends[0], (flags & SOCK_CLOEXEC) != 0);
  if (fd < 0) return refuse(EMFILE);
  const bool inherited = (flags & SOCK_CLOEXEC) == 0 && fcntl(fd, F_SETFD, 0) == 0;
  if ((!inherited && (flags & SOCK_CLOEXEC) == 0) || !own || !track_file(fd, {FileKind::kNetlink})) {
    real_close(fd);
    return refuse(EMFILE);
  }
  const std::lock_guard lock(mutex_);
  // An older entry is of a descriptor that a system call closed.
  sockets_[fd] = {std::move(own), static_cast<std::uint32_t>(getpid()), {}};
  return fd;
}

Errno NetlinkSockets::bind(int fd, const sockaddr* address, socklen_t length_bytes) {
  sockaddr_nl wanted{};
  if (address == nullptr || length_bytes < sizeof wanted) return EINVAL;
  std::memcpy(&wanted, address, sizeof wanted);
  if (wanted.nl_family != AF_NETLINK) return EINVAL;
  if (wanted.nl_groups != 0) return EOPNOTSUPP;
  const std::lock_guard lock(mutex_);
  const auto found = sockets_.find(fd);
  if (found == sockets_.end()) return EBADF;
  if (wanted.nl_pid != 0) found->second.port = wanted.nl_pid;
  return 0;
}

std::uint32_t NetlinkSockets::port(int fd) {
  const std::lock_guard lock(mutex_);
  const auto found = sockets_.find(fd);
  return found == sockets_.end() ? 0 : found->second.port;
}

Errno NetlinkSockets::send(int fd, std::span<const std::byte> datagram) {
  const CancellationOff uncancelled;
  const NetlinkAsker asker{port(fd), static_cast<std::uint32_t>(getpid())};
  std::vector<std::string> replies =
      answer_netlink(datagram, asker, [] { return Device::instance().inventory(); });
  const std::lock_guard lock(mutex_);
  const auto found = sockets_.find(fd);
  if (found == sockets_.end()) return EBADF;
  for (std::string& reply : replies) found->second.waiting.push_back(std::move(reply));
  flush_locked(found->second);
  return 0;
}

void NetlinkSockets::flush(int fd) {
  const CancellationOff uncancelled;
  const std::lock_guard lock(mutex_);
  if (const auto found = sockets_.find(fd); found != sockets_.end()) flush_locked(found->second);
}

void NetlinkSockets::flush_locked(Socket& socket) {
  while (!socket.waiting.empty()) {
    const std::string& reply = socket.waiting.front();
    if (::send(socket.own.value(), reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
    socket.waiting.pop_front();
  }
}

void NetlinkSockets::forget(int fd) {
  const std::lock_guard lock(mutex_);
  sockets_.erase(fd);
}

}  // namespace gdx::softhca::uverbs
