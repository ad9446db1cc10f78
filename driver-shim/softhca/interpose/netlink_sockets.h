// The program's netlink sockets of the family NETLINK_RDMA: each is one end of a pair, so that waiting and
// receiving are the kernel's. A socket ends with its last descriptor, which the other end shows.
#pragma once

#include <linux/netlink.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>

#include "base/descriptor.h"
#include "base/file_identity.h"
#include "base/fork_mutex.h"
#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca::uverbs {

// Threads: all methods lock. They may throw std::bad_alloc.
class NetlinkSockets {
 public:
  // Returns the one object. It is never destroyed, because libraries may still use sockets after the last
  // destructor has run.
  static NetlinkSockets& instance();

  // Opens a socket as socket(2) does with these flags of its type. Errors: those of socketpair(2); EMFILE for
  // a descriptor with a number too high to be tracked.
  ErrnoOr<int> open(int flags);
  // Binds a socket; port 0 requests any. Errors: EINVAL, EOPNOTSUPP for groups, because nothing is ever
  // announced.
  Errno bind(int fd, const sockaddr* address, socklen_t length_bytes);
  // To the kernel, which each is from its beginning. Errors: EINVAL, EPERM for any other port or group.
  static Errno connect(const sockaddr* address, socklen_t length_bytes);
  // Returns the port of a socket, 0 for a socket of another kind.
  std::uint32_t port(int fd);
  // Answers a datagram of requests.
  Errno send(int fd, std::span<const std::byte> datagram);
  // Moves queued replies to the socket's receive side. Errors: ENOBUFS, once, after replies were dropped
  // because earlier ones were not received.
  Errno flush(int fd);
  // Drops those that no descriptor of the program refers to.
  void drop_closed();

 private:
  struct Socket {
    Descriptor own;
    std::uint32_t port = 0;
    std::deque<std::string> waiting;
    std::size_t waiting_bytes = 0;  // bytes of replies that are no part of a dump
    bool overflowed = false;
  };
  Socket* find(int fd);
  static void flush_locked(Socket& socket);

  ForkMutex mutex_;
  std::map<FileIdentity, Socket> sockets_;  // by the file that the program has
};

}  // namespace gdx::softhca::uverbs
