// Socket functions by which programs query the kernel about RDMA devices by netlink. Every other socket goes
// straight to libc.
#include <fcntl.h>
#include <linux/netlink.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <vector>

#include "driver-shim/softhca/interpose/device.h"
#include "driver-shim/softhca/interpose/netlink_sockets.h"
#include "driver-shim/softhca/interpose/no_memory.h"
#include "driver-shim/softhca/interpose/tracked_files.h"
#include "driver-shim/softhca/uverbs/real.h"
#include "driver-shim/softhca/uverbs/user_memory.h"

#define GDX_EXPORT extern "C" __attribute__((visibility("default")))

namespace gdx::softhca::uverbs {
namespace {

constexpr std::size_t kMaxDatagramBytes = 64 << 10;

NetlinkSockets& sockets() { return NetlinkSockets::instance(); }

bool is_ours(int fd) { return tracked_file(fd).kind == FileKind::kNetlink; }

int done(Errno error) {
  if (error == 0) return 0;
  errno = error;
  return -1;
}

// Process that owns this memory. A child of vfork is another process, and its descriptors are not its
// parent's.
std::atomic<pid_t> owner_pid{0};

void note_owner() { owner_pid.store(getpid()); }

// Tracks `copy`, which duplicating `fd` has made, and returns it.
int duplicate(int fd, int copy) {
  if (copy >= 0 && is_ours(fd) && owner_pid.load() == getpid()) track_file(copy, {FileKind::kNetlink});
  return copy;
}

// Fills in the address of a reply's sender: port 0, which is the kernel's.
void name(void* at, socklen_t room_bytes, socklen_t& length_bytes, std::uint32_t port) {
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_pid = port;
  std::memcpy(at, &address, std::min<std::size_t>(room_bytes, sizeof address));
  length_bytes = sizeof address;
}

ssize_t send_pieces(int fd, const iovec* pieces, std::size_t count) {
  return or_no_memory(
      ssize_t{-1},
      [&]() -> ssize_t {
        std::vector<std::byte> datagram;
        for (std::size_t i = 0; i < count; ++i) {
          const std::size_t at = datagram.size();
          if (pieces[i].iov_len > kMaxDatagramBytes - at) return done(EMSGSIZE);
          datagram.resize(at + pieces[i].iov_len);
          const auto from = reinterpret_cast<std::uintptr_t>(pieces[i].iov_base);
          if (const Errno error = copy_from_user(datagram.data() + at, from, pieces[i].iov_len))
            return done(error);
        }
        if (const Errno error = sockets().send(fd, datagram)) return done(error);
        return static_cast<ssize_t>(datagram.size());
      },
      ENOBUFS);
}

ssize_t send_bytes(int fd, const void* bytes, std::size_t length_bytes) {
  const iovec piece{const_cast<void*>(bytes), length_bytes};
  return send_pieces(fd, &piece, 1);
}

// Receives by `real` from a socket of ours or any other, once replies are where it finds them.
template <typename Real>
auto receive(int fd, Real real) -> decltype(real()) {
  if (is_ours(fd)) {
    if (const Errno error = sockets().flush(fd)) return done(error);
  }
  return real();
}

template <typename Real>
ssize_t receive_from(int fd, sockaddr* from, socklen_t* from_length, Real real) {
  if (!is_ours(fd)) return real(from, from_length);
  const ssize_t received = receive(fd, [&] { return real(nullptr, nullptr); });
  if (received >= 0 && from != nullptr && from_length != nullptr) name(from, *from_length, *from_length, 0);
  return received;
}

}  // namespace
}  // namespace gdx::softhca::uverbs

using namespace gdx::softhca::uverbs;  // NOLINT: what follows are libc's names, outside any namespace

#define GDX_REAL(type, name, ...) static GDX_REAL_FUNCTION RealFunction<type(__VA_ARGS__)> real(#name)

GDX_EXPORT int socket(int domain, int type, int protocol) {
  GDX_REAL(int, socket, int, int, int);
  if (domain != AF_NETLINK || protocol != NETLINK_RDMA) return real(domain, type, protocol);
  static const int watches_forks = (note_owner(), pthread_atfork(nullptr, nullptr, note_owner));
  static_cast<void>(watches_forks);
  return or_no_memory(-1, [&] {
    const gdx::softhca::ErrnoOr<int> fd = sockets().open(type & (SOCK_CLOEXEC | SOCK_NONBLOCK));
    return fd ? *fd : done(fd.error());
  });
}

GDX_EXPORT int dup(int fd) noexcept {
  GDX_REAL(int, dup, int);
  return duplicate(fd, real(fd));
}

GDX_EXPORT int dup2(int fd, int number) noexcept {
  GDX_REAL(int, dup2, int, int);
  return duplicate(fd, real(fd, number));
}

GDX_EXPORT int dup3(int fd, int number, int flags) noexcept {
  GDX_REAL(int, dup3, int, int, int);
  return duplicate(fd, real(fd, number, flags));
}

#define GDX_FCNTL(name)                                                       \
  GDX_EXPORT int name(int fd, int command, ...) {                             \
    GDX_REAL(int, name, int, int, ...);                                       \
    va_list arguments;                                                        \
    va_start(arguments, command);                                             \
    void* const argument = va_arg(arguments, void*);                          \
    va_end(arguments);                                                        \
    const int result = real(fd, command, argument);                           \
    const bool duplicates = command == F_DUPFD || command == F_DUPFD_CLOEXEC; \
    return duplicates ? duplicate(fd, result) : result;                       \
  }
GDX_FCNTL(fcntl)
GDX_FCNTL(fcntl64)

GDX_EXPORT int bind(int fd, const sockaddr* address, socklen_t length) {
  GDX_REAL(int, bind, int, const sockaddr*, socklen_t);
  return is_ours(fd) ? done(sockets().bind(fd, address, length)) : real(fd, address, length);
}

GDX_EXPORT int connect(int fd, const sockaddr* address, socklen_t length) {
  GDX_REAL(int, connect, int, const sockaddr*, socklen_t);
  return is_ours(fd) ? done(NetlinkSockets::connect(address, length)) : real(fd, address, length);
}

GDX_EXPORT int getsockname(int fd, sockaddr* address, socklen_t* length) {
  GDX_REAL(int, getsockname, int, sockaddr*, socklen_t*);
  if (!is_ours(fd)) return real(fd, address, length);
  name(address, *length, *length, sockets().port(fd));
  return 0;
}

GDX_EXPORT int getpeername(int fd, sockaddr* address, socklen_t* length) {
  GDX_REAL(int, getpeername, int, sockaddr*, socklen_t*);
  if (!is_ours(fd)) return real(fd, address, length);
  name(address, *length, *length, 0);
  return 0;
}

GDX_EXPORT ssize_t sendto(int fd, const void* bytes, size_t length, int flags, const sockaddr* to,
                          socklen_t to_length) {
  GDX_REAL(ssize_t, sendto, int, const void*, size_t, int, const sockaddr*, socklen_t);
  return is_ours(fd) ? send_bytes(fd, bytes, length) : real(fd, bytes, length, flags, to, to_length);
}

GDX_EXPORT ssize_t send(int fd, const void* bytes, size_t length, int flags) {
  GDX_REAL(ssize_t, send, int, const void*, size_t, int);
  return is_ours(fd) ? send_bytes(fd, bytes, length) : real(fd, bytes, length, flags);
}

GDX_EXPORT ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  GDX_REAL(ssize_t, sendmsg, int, const msghdr*, int);
  return is_ours(fd) ? send_pieces(fd, message->msg_iov, message->msg_iovlen) : real(fd, message, flags);
}

GDX_EXPORT int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  GDX_REAL(int, sendmmsg, int, mmsghdr*, unsigned, int);
  if (!is_ours(fd)) return real(fd, messages, count, flags);
  for (unsigned i = 0; i < count; ++i) {
    const ssize_t sent = sendmsg(fd, &messages[i].msg_hdr, flags);
    if (sent < 0) return i == 0 ? -1 : static_cast<int>(i);
    messages[i].msg_len = static_cast<unsigned>(sent);
  }
  return static_cast<int>(count);
}

// A command of the connection manager or of netlink; what else a program writes is none of this library's
// business.
GDX_EXPORT ssize_t write(int fd, const void* buffer, size_t length) {
  GDX_REAL(ssize_t, write, int, const void*, size_t);
  if (tracked_file(fd).kind == FileKind::kConnections) {
    const gdx::softhca::Errno error = or_no_memory(ENOMEM, [&] {
      return Device::instance().write_connections(fd, reinterpret_cast<std::uintptr_t>(buffer), length);
    });
    return error == 0 ? static_cast<ssize_t>(length) : done(error);
  }
  return is_ours(fd) ? send_bytes(fd, buffer, length) : real(fd, buffer, length);
}

GDX_EXPORT ssize_t writev(int fd, const iovec* pieces, int count) {
  GDX_REAL(ssize_t, writev, int, const iovec*, int);
  if (!is_ours(fd)) return real(fd, pieces, count);
  return count < 0 ? done(EINVAL) : send_pieces(fd, pieces, static_cast<std::size_t>(count));
}

GDX_EXPORT ssize_t recv(int fd, void* bytes, size_t length, int flags) {
  GDX_REAL(ssize_t, recv, int, void*, size_t, int);
  return receive(fd, [&] { return real(fd, bytes, length, flags); });
}

GDX_EXPORT ssize_t __recv_chk(int fd, void* bytes, size_t length, size_t room, int flags) {
  GDX_REAL(ssize_t, __recv_chk, int, void*, size_t, size_t, int);
  return receive(fd, [&] { return real(fd, bytes, length, room, flags); });
}

GDX_EXPORT ssize_t read(int fd, void* bytes, size_t length) {
  GDX_REAL(ssize_t, read, int, void*, size_t);
  return receive(fd, [&] { return real(fd, bytes, length); });
}

GDX_EXPORT ssize_t __read_chk(int fd, void* bytes, size_t length, size_t room) {
  GDX_REAL(ssize_t, __read_chk, int, void*, size_t, size_t);
  return receive(fd, [&] { return real(fd, bytes, length, room); });
}

GDX_EXPORT ssize_t readv(int fd, const iovec* pieces, int count) {
  GDX_REAL(ssize_t, readv, int, const iovec*, int);
  return receive(fd, [&] { return real(fd, pieces, count); });
}

GDX_EXPORT ssize_t recvfrom(int fd, void* bytes, size_t length, int flags, sockaddr* from,
                            socklen_t* from_length) {
  GDX_REAL(ssize_t, recvfrom, int, void*, size_t, int, sockaddr*, socklen_t*);
  return receive_from(fd, from, from_length, [&](sockaddr* to, socklen_t* to_length) {
    return real(fd, bytes, length, flags, to, to_length);
  });
}

GDX_EXPORT ssize_t __recvfrom_chk(int fd, void* bytes, size_t length, size_t room, int flags, sockaddr* from,
                                  socklen_t* from_length) {
  GDX_REAL(ssize_t, __recvfrom_chk, int, void*, size_t, size_t, int, sockaddr*, socklen_t*);
  return receive_from(fd, from, from_length, [&](sockaddr* to, socklen_t* to_length) {
    return real(fd, bytes, length, room, flags, to, to_length);
  });
}

GDX_EXPORT ssize_t recvmsg(int fd, msghdr* message, int flags) {
  GDX_REAL(ssize_t, recvmsg, int, msghdr*, int);
  if (!is_ours(fd)) return real(fd, message, flags);
  void* const at = message->msg_name;
  const socklen_t room = message->msg_namelen;
  const ssize_t received = receive(fd, [&] { return real(fd, message, flags); });
  if (received >= 0 && at != nullptr) name(at, room, message->msg_namelen, 0);
  return received;
}

// One message is as many as the caller may count on.
GDX_EXPORT int recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  GDX_REAL(int, recvmmsg, int, mmsghdr*, unsigned, int, timespec*);
  if (!is_ours(fd) || count == 0) return real(fd, messages, count, flags, timeout);
  const ssize_t received = recvmsg(fd, &messages[0].msg_hdr, flags & ~MSG_WAITFORONE);
  if (received < 0) return -1;
  messages[0].msg_len = static_cast<unsigned>(received);
  return 1;
}
