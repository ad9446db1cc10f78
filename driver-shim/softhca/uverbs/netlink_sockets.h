// The program's netlink sockets of the family NETLINK_RDMA: each is one end of a pair, so that waiting and
// receiving are the kernel's.
#pragma once

#include <linux/netlink.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <string>

#include "base/descriptor.h"
#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca::uverbs {

// Threads: all methods lock.
class NetlinkSockets {
 public:
  // Never destroyed, as Device.
  static NetlinkSockets& instance();

  // As socket(2) with these flags of its type. Errors: as socketpair(2); EMFILE for a descriptor above what
  // is tracked.
  Answer<int> open(int flags);
  // A port that is 0 asks for any. Errors: EINVAL, EOPNOTSUPP for groups: nothing is ever announced.
  Errno bind(int fd, const sockaddr* address, socklen_t length_bytes);
  // The port of a socket, 0 for one that is none of these.
  std::uint32_t port(int fd);
  // Answers a datagram of requests.
  Errno send(int fd, std::span<const std::byte> datagram);
  // Moves replies that have not found room to where they are received.
  void flush(int fd);
  void forget(int fd);

 private:
  struct Socket {
    Descriptor own;
    std::uint32_t port = 0;
    std::deque<std::string> waiting;
  };
  static void flush_locked(Socket& socket);

  std::mutex mutex_;
  std::map<int, Socket> sockets_;  // by the program's descriptor
};

}  // namespace gdx::softhca::uverbs
