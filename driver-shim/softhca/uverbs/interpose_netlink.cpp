// The socket functions through which programs ask the kernel about RDMA devices by netlink. Every other
// socket goes straight on to libc.
#include <fcntl.h>
#include <linux/netlink.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "driver-shim/softhca/uverbs/netlink_sockets.h"
#include "driver-shim/softhca/uverbs/real.h"
#include "driver-shim/softhca/uverbs/tracked_files.h"
#include "driver-shim/softhca/uverbs/user_memory.h"

#define GDX_EXPORT extern "C" __attribute__((visibility("default")))

namespace gdx::softhca::uverbs {
namespace {

constexpr std::size_t kMaxDatagramBytes = 64 << 10;

bool is_ours(int fd) { return tracked_file(fd).kind == FileKind::kNetlink; }
NetlinkSockets& sockets() { return NetlinkSockets::instance(); }

int done(Errno error) {
  if (error == 0) return 0;
  errno = error;
  return -1;
}

// Replies come from port 0, the kernel's.
void name(void* at, socklen_t room_bytes, socklen_t& length_bytes, std::uint32_t port) {
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_pid = port;
  std::memcpy(at, &address, std::min<std::size_t>(room_bytes, sizeof address));
  length_bytes = sizeof address;
}

ssize_t send_pieces(int fd, const iovec* pieces, std::size_t count) {
  std::vector<std::byte> datagram;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = datagram.size();
    if (pieces[i].iov_len > kMaxDatagramBytes - at) return done(EMSGSIZE);
    datagram.resize(at + pieces[i].iov_len);
    const auto from = reinterpret_cast<std::uintptr_t>(pieces[i].iov_base);
    if (const Errno error = copy_from_user(datagram.data() + at, from, pieces[i].iov_len)) return done(error);
  }
  if (const Errno error = sockets().send(fd, datagram)) return done(error);
  return static_cast<ssize_t>(datagram.size());
}

}  // namespace
}  // namespace gdx::softhca::uverbs

using namespace gdx::softhca::uverbs;  // NOLINT: what follows are libc's names, outside any namespace

GDX_EXPORT int socket(int domain, int type, int protocol) {
  static constinit RealFunction<int(int, int, int)> real("socket");
  if (domain != AF_NETLINK || protocol != NETLINK_RDMA) return real(domain, type, protocol);
  const gdx::softhca::Answer<int> fd = sockets().open(type & (SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd) return *fd;
  errno = fd.error();
  return -1;
}

GDX_EXPORT int bind(int fd, const sockaddr* address, socklen_t length) {
  static constinit RealFunction<int(int, const sockaddr*, socklen_t)> real("bind");
  return is_ours(fd) ? done(sockets().bind(fd, address, length)) : real(fd, address, length);
}

GDX_EXPORT int getsockname(int fd, sockaddr* address, socklen_t* length) {
  static constinit RealFunction<int(int, sockaddr*, socklen_t*)> real("getsockname");
  if (!is_ours(fd)) return real(fd, address, length);
  name(address, *length, *length, sockets().port(fd));
  return 0;
}

GDX_EXPORT ssize_t sendto(int fd, const void* bytes, size_t length, int flags, const sockaddr* to,
                          socklen_t to_length) {
  static constinit RealFunction<ssize_t(int, const void*, size_t, int, const sockaddr*, socklen_t)> real(
      "sendto");
  if (!is_ours(fd)) return real(fd, bytes, length, flags, to, to_length);
  const iovec piece{const_cast<void*>(bytes), length};
  return send_pieces(fd, &piece, 1);
}

GDX_EXPORT ssize_t send(int fd, const void* bytes, size_t length, int flags) {
  static constinit RealFunction<ssize_t(int, const void*, size_t, int)> real("send");
  if (!is_ours(fd)) return real(fd, bytes, length, flags);
  const iovec piece{const_cast<void*>(bytes), length};
  return send_pieces(fd, &piece, 1);
}

GDX_EXPORT ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static constinit RealFunction<ssize_t(int, const msghdr*, int)> real("sendmsg");
  if (!is_ours(fd)) return real(fd, message, flags);
  return send_pieces(fd, message->msg_iov, message->msg_iovlen);
}

GDX_EXPORT ssize_t recv(int fd, void* bytes, size_t length, int flags) {
  static constinit RealFunction<ssize_t(int, void*, size_t, int)> real("recv");
  if (is_ours(fd)) sockets().flush(fd);
  return real(fd, bytes, length, flags);
}

GDX_EXPORT ssize_t recvfrom(int fd, void* bytes, size_t length, int flags, sockaddr* from,
                            socklen_t* from_length) {
  static constinit RealFunction<ssize_t(int, void*, size_t, int, sockaddr*, socklen_t*)> real("recvfrom");
  if (!is_ours(fd)) return real(fd, bytes, length, flags, from, from_length);
  sockets().flush(fd);
  const ssize_t received = real(fd, bytes, length, flags, nullptr, nullptr);
  if (received >= 0 && from != nullptr && from_length != nullptr) name(from, *from_length, *from_length, 0);
  return received;
}

GDX_EXPORT ssize_t recvmsg(int fd, msghdr* message, int flags) {
  static constinit RealFunction<ssize_t(int, msghdr*, int)> real("recvmsg");
  if (!is_ours(fd)) return real(fd, message, flags);
  sockets().flush(fd);
  void* const at = message->msg_name;
  const socklen_t room = message->msg_namelen;
  const ssize_t received = real(fd, message, flags);
  if (received >= 0 && at != nullptr) name(at, room, message->msg_namelen, 0);
  return received;
}
