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
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | flags, 0, ends.data()) != 0) return refuse(errno);
  const auto [fd, own_fd] = ends;
  // What only this library reads and writes goes with no other program.
  if (fcntl(own_fd, F_SETFD, FD_CLOEXEC) != 0 || !track_file(fd, {FileKind::kNetlink})) {
    real_close(fd);
    real_close(own_fd);
    return refuse(EMFILE);
  }
  const std::lock_guard lock(mutex_);
  Socket& socket = sockets_[fd];
  if (socket.own_fd >= 0) real_close(socket.own_fd);  // its descriptor was closed behind our back
  socket = {own_fd, static_cast<std::uint32_t>(getpid()), {}};
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
    if (::send(socket.own_fd, reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
    socket.waiting.pop_front();
  }
}

void NetlinkSockets::forget(int fd) {
  const std::lock_guard lock(mutex_);
  const auto found = sockets_.find(fd);
  if (found == sockets_.end()) return;
  real_close(found->second.own_fd);
  sockets_.erase(found);
}

}  // namespace gdx::softhca::uverbs
