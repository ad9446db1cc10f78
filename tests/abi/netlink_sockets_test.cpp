// Sockets of RDMA netlink through each call of libc: addresses, flags, short buffers, bounds, as the kernel
// has them.
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "tests/abi/rdma_netlink.h"
#include "tests/open_files.h"

namespace gdx::abi_tests {
namespace netlink_sockets_test {

TEST_F(RdmaNetlink, socket_has_a_port_and_joins_no_groups) {
  sockaddr_nl own{};
  socklen_t length = sizeof own;
  ASSERT_EQ(getsockname(netlink_.fd(), reinterpret_cast<sockaddr*>(&own), &length), 0);
  EXPECT_EQ(length, sizeof own);
  EXPECT_EQ(own.nl_family, AF_NETLINK);
  EXPECT_NE(own.nl_pid, 0u);
  own.nl_pid = 4711;
  ASSERT_EQ(bind(netlink_.fd(), reinterpret_cast<sockaddr*>(&own), sizeof own), 0);
  ASSERT_TRUE(netlink_.ask(RDMA_NLDEV_CMD_SYS_GET, NLM_F_ACK));
  EXPECT_EQ(Netlink::header_of(netlink_.receive()).nlmsg_pid, 4711u);
  EXPECT_EQ(Netlink::error_of(netlink_.receive()), 0) << "the acknowledgement";
  EXPECT_EQ(bind(netlink_.fd(), nullptr, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::connect(netlink_.fd(), nullptr, 0), -1);
  EXPECT_EQ(errno, EINVAL);
}

// As the kernel judges them, but for groups, which nothing is ever sent to.
TEST_F(RdmaNetlink, addresses_are_bound_and_connected_to_as_in_the_kernel) {
  constexpr std::uint16_t kFamily = AF_NETLINK;
  struct Case {
    sockaddr_nl address;
    socklen_t bytes;
    int bind;
    int connect;
  };
  for (const Case& c :
       {Case{{kFamily, 0, 0, 0}, 12, 0, 0}, Case{{kFamily, 0, 0, 0}, 11, EINVAL, EINVAL},
        Case{{kFamily, 0, 0, 0}, 16, 0, 0}, Case{{kFamily, 0, 5, 0}, 12, 0, EPERM},
        Case{{kFamily, 0, 0, 1}, 12, EOPNOTSUPP, EPERM}, Case{{AF_INET, 0, 0, 0}, 12, EINVAL, EINVAL},
        Case{{AF_UNSPEC, 0, 5, 1}, 12, EINVAL, 0}, Case{{AF_UNSPEC, 0, 0, 0}, 2, EINVAL, 0},
        Case{{AF_UNSPEC, 0, 0, 0}, 1, EINVAL, EINVAL}}) {
    SCOPED_TRACE(testing::Message() << c.address.nl_family << ' ' << c.address.nl_pid << ' ' << c.bytes);
    const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA);
    std::array<sockaddr_nl, 2> padded{c.address, sockaddr_nl{}};
    auto* const address = reinterpret_cast<sockaddr*>(padded.data());
    errno = 0;
    EXPECT_EQ(bind(fd, address, c.bytes), c.bind == 0 ? 0 : -1);
    EXPECT_EQ(errno, c.bind);
    errno = 0;
    EXPECT_EQ(::connect(fd, address, c.bytes), c.connect == 0 ? 0 : -1);
    EXPECT_EQ(errno, c.connect);
    sockaddr_nl own{};
    socklen_t length = sizeof own;
    EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length), 0);
    const auto chosen = static_cast<std::uint32_t>(getpid());
    EXPECT_EQ(own.nl_pid, c.bind == 0 && c.address.nl_pid != 0 ? c.address.nl_pid : chosen);
    // Of an address cut short its whole length is told.
    own = {0xffff, 0xffff, 0xffffffff, 0xffffffff};
    length = 3;
    EXPECT_EQ(getpeername(fd, reinterpret_cast<sockaddr*>(&own), &length), 0);
    EXPECT_EQ(length, sizeof own);
    EXPECT_EQ(own.nl_family, AF_NETLINK);
    EXPECT_EQ(own.nl_pad, 0xff00) << "one byte of it";
    EXPECT_EQ(own.nl_pid, 0xffffffff);
    close(fd);
  }
}

// The family of a descriptor is known as exactly as its flags.
TEST_F(RdmaNetlink, sockets_and_duplicates_have_their_flags_and_leave_nothing_behind) {
  const std::size_t before = test::open_files();
  for (const int type : {SOCK_RAW, SOCK_DGRAM}) {
    for (const int flags : {0, int{SOCK_CLOEXEC}, int{SOCK_NONBLOCK}, SOCK_CLOEXEC | SOCK_NONBLOCK}) {
      const int fd = socket(AF_NETLINK, type | flags, NETLINK_RDMA);
      ASSERT_GE(fd, 0);
      EXPECT_EQ(fcntl(fd, F_GETFD), (flags & SOCK_CLOEXEC) != 0 ? FD_CLOEXEC : 0);
      EXPECT_EQ(fcntl(fd, F_GETFL) & O_NONBLOCK, flags & SOCK_NONBLOCK);
      EXPECT_EQ(fcntl(fd, F_SETFD, FD_CLOEXEC), 0);
      EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
      for (const int copy : {fcntl(fd, F_DUPFD, 100), fcntl(fd, F_DUPFD_CLOEXEC, 100)}) {
        EXPECT_GE(copy, 100);
        sockaddr_nl own{};
        socklen_t length = sizeof own;
        EXPECT_EQ(getsockname(copy, reinterpret_cast<sockaddr*>(&own), &length), 0);
        EXPECT_EQ(own.nl_pid, static_cast<std::uint32_t>(getpid()));
        EXPECT_EQ(close(copy), 0);
      }
      EXPECT_EQ(test::open_files(), before + 2) << "its other end lives as long as it";
      EXPECT_EQ(close(fd), 0);
      EXPECT_EQ(test::open_files(), before);
    }
  }
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO}) {  // as the results of the calls above
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    getsockname(standard, reinterpret_cast<sockaddr*>(&own), &length);
    EXPECT_NE(own.ss_family, AF_NETLINK);
  }
}

TEST_F(RdmaNetlink, socket_without_descriptors_is_emfile_and_leaves_none) {
  std::vector<int> filled = {dup(STDERR_FILENO)};
  while (filled.back() < 64) filled.push_back(dup(STDERR_FILENO));
  const int next = filled.back();
  close(next);
  filled.pop_back();
  const std::size_t before = test::open_files();
  for (const rlim_t left : {0, 1, 2, 3}) {
    int fd = -1;
    int error = 0;
    {
      const test::OpenFileLimit few(static_cast<rlim_t>(next) + left);
      errno = 0;
      fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA);
      error = errno;
    }
    EXPECT_EQ(fd >= 0, left >= 2) << left;
    if (fd < 0) {
      EXPECT_EQ(error, EMFILE);
    } else {
      EXPECT_EQ(close(fd), 0);
    }
    EXPECT_EQ(test::open_files(), before);
  }
  for (const int number : filled) close(number);
}

// A request by each way to send, its answer by each way to receive, on duplicates of each kind.
TEST_F(RdmaNetlink, every_way_to_send_and_receive_works_on_every_duplicate) {
  NetlinkMessage message(Netlink::type_of(RDMA_NLDEV_CMD_SYS_GET), NLM_F_REQUEST, Netlink::kSequence, 0);
  const std::string request = message.finish();
  const sockaddr_nl kernel{.nl_family = AF_NETLINK, .nl_pad = 0, .nl_pid = 0, .nl_groups = 0};
  EXPECT_EQ(::connect(netlink_.fd(), reinterpret_cast<const sockaddr*>(&kernel), sizeof kernel), 0) << errno;
  sockaddr_nl peer{};
  socklen_t peer_bytes = sizeof peer;
  EXPECT_EQ(getpeername(netlink_.fd(), reinterpret_cast<sockaddr*>(&peer), &peer_bytes), 0);
  EXPECT_TRUE(peer_bytes == sizeof peer && peer.nl_family == AF_NETLINK && peer.nl_pid == 0);

  std::array<char, 8192> room{};
  iovec out{const_cast<char*>(request.data()), request.size()};
  iovec in{room.data(), room.size()};
  const auto senders = {+[](int fd, iovec* piece) { return write(fd, piece->iov_base, piece->iov_len); },
                        +[](int fd, iovec* piece) { return writev(fd, piece, 1); },
                        +[](int fd, iovec* piece) { return send(fd, piece->iov_base, piece->iov_len, 0); },
                        +[](int fd, iovec* piece) {
                          mmsghdr one{};
                          one.msg_hdr.msg_iov = piece;
                          one.msg_hdr.msg_iovlen = 1;
                          return sendmmsg(fd, &one, 1, 0) == 1 ? ssize_t{one.msg_len} : -1;
                        }};
  const auto receivers = {+[](int fd, iovec* piece) { return read(fd, piece->iov_base, piece->iov_len); },
                          +[](int fd, iovec* piece) { return readv(fd, piece, 1); },
                          +[](int fd, iovec* piece) {
                            mmsghdr one{};
                            one.msg_hdr.msg_iov = piece;
                            one.msg_hdr.msg_iovlen = 1;
                            return recvmmsg(fd, &one, 1, 0, nullptr) == 1 ? ssize_t{one.msg_len} : -1;
                          }};
  const std::array duplicates{netlink_.fd(), dup(netlink_.fd()), dup2(netlink_.fd(), 200),
                              dup3(netlink_.fd(), 201, O_CLOEXEC), fcntl(netlink_.fd(), F_DUPFD_CLOEXEC, 0)};
  for (const int fd : duplicates) {
    for (const auto sender : senders) {
      for (const auto receiver : receivers) {
        ASSERT_EQ(sender(fd, &out), static_cast<ssize_t>(request.size())) << errno;
        EXPECT_GT(receiver(netlink_.fd(), &in), static_cast<ssize_t>(sizeof(nlmsghdr))) << errno;
      }
    }
  }
  for (const int fd : duplicates) {
    if (fd != netlink_.fd()) close(fd);
  }
  EXPECT_EQ(netlink_.dump(RDMA_NLDEV_CMD_RES_MR_GET, RDMA_NLDEV_ATTR_RES_MR).size(), 1u);
}

// A call that receives into `piece`. `from` has room for its length, and is told a length.
struct Receiver {
  const char* name;
  bool takes_flags;
  bool tells_address;
  ssize_t (*call)(int fd, iovec piece, int flags, sockaddr_nl* from, socklen_t* length);
};
ssize_t receive_message(int fd, iovec piece, int flags, sockaddr_nl* from, socklen_t* length, bool one) {
  mmsghdr message{};
  message.msg_hdr.msg_iov = &piece;
  message.msg_hdr.msg_iovlen = 1;
  message.msg_hdr.msg_name = from;
  message.msg_hdr.msg_namelen = *length;
  const ssize_t received =
      one ? recvmsg(fd, &message.msg_hdr, flags) : recvmmsg(fd, &message, 1, flags | MSG_WAITFORONE, nullptr);
  *length = message.msg_hdr.msg_namelen;
  if (received >= 0) {
    EXPECT_EQ(message.msg_hdr.msg_flags & MSG_TRUNC, MSG_TRUNC);
  }
  return one || received < 0 ? received : ssize_t{message.msg_len};
}
constexpr Receiver kReceivers[] = {
    {"recv", true, false,
     [](int fd, iovec to, int flags, sockaddr_nl*, socklen_t*) {
       return recv(fd, to.iov_base, to.iov_len, flags);
     }},
    {"recvfrom", true, true,
     [](int fd, iovec to, int flags, sockaddr_nl* from, socklen_t* length) {
       return recvfrom(fd, to.iov_base, to.iov_len, flags, reinterpret_cast<sockaddr*>(from), length);
     }},
    {"recvmsg", true, true,
     [](int fd, iovec to, int flags, sockaddr_nl* from, socklen_t* length) {
       return receive_message(fd, to, flags, from, length, true);
     }},
    {"recvmmsg", true, true,
     [](int fd, iovec to, int flags, sockaddr_nl* from, socklen_t* length) {
       return receive_message(fd, to, flags, from, length, false);
     }},
    {"read", false, false,
     [](int fd, iovec to, int, sockaddr_nl*, socklen_t*) { return read(fd, to.iov_base, to.iov_len); }},
};

// As the kernel answers each: 32 bytes are there, for which there is room of 10, and of its address for 3.
TEST_F(RdmaNetlink, replies_are_looked_at_and_cut_short_by_every_way_to_receive) {
  constexpr ssize_t kReplyBytes = 32;
  ASSERT_EQ(fcntl(netlink_.fd(), F_SETFL, O_NONBLOCK), 0);
  for (const Receiver& receiver : kReceivers) {
    SCOPED_TRACE(receiver.name);
    std::array<char, 12> room{};
    sockaddr_nl from{};
    socklen_t length = 0;
    const auto receive = [&](int flags, sockaddr_nl* to) {
      room.fill('.');
      from = {0xffff, 0xffff, 0xffffffff, 0xffffffff};
      length = 3;
      errno = 0;
      return receiver.call(netlink_.fd(), {room.data(), 10}, flags, to, &length);
    };
    EXPECT_EQ(receive(0, &from), -1);
    EXPECT_EQ(errno, EAGAIN);
    EXPECT_EQ(from.nl_family, 0xffff);
    ASSERT_TRUE(netlink_.ask(RDMA_NLDEV_CMD_SYS_GET, 0));
    if (receiver.takes_flags) {
      EXPECT_EQ(receive(MSG_PEEK | MSG_TRUNC, nullptr), kReplyBytes);
      EXPECT_EQ(receive(MSG_PEEK, nullptr), 10);
    }
    EXPECT_EQ(receive(0, &from), 10);
    EXPECT_EQ(room[0], kReplyBytes);
    EXPECT_NE(room[8], '.') << "the sequence";
    EXPECT_EQ(room[10], '.');
    EXPECT_EQ(from.nl_family, receiver.tells_address ? AF_NETLINK : 0xffff);
    EXPECT_EQ(from.nl_pad, receiver.tells_address ? 0xff00 : 0xffff);
    EXPECT_EQ(length, receiver.tells_address ? sizeof from : 3);
    EXPECT_EQ(receive(0, &from), -1) << "the rest is gone";
  }
  EXPECT_EQ(recvmmsg(netlink_.fd(), nullptr, 0, 0, nullptr), 0);
}

TEST_F(RdmaNetlink, datagrams_are_sent_whole_up_to_the_largest_and_those_behind_a_bad_one_are_not) {
  constexpr std::size_t kMost = 64 << 10;
  NetlinkMessage message(Netlink::type_of(RDMA_NLDEV_CMD_SYS_GET), NLM_F_REQUEST, Netlink::kSequence, 0);
  std::string request = message.finish();
  std::array<iovec, 3> pieces{iovec{request.data(), 5}, iovec{nullptr, 0},
                              iovec{request.data() + 5, request.size() - 5}};
  EXPECT_EQ(writev(netlink_.fd(), pieces.data(), 3), static_cast<ssize_t>(request.size()));
  EXPECT_EQ(Netlink::header_of(netlink_.receive()).nlmsg_seq, Netlink::kSequence);
  EXPECT_EQ(writev(netlink_.fd(), pieces.data(), 0), 0);
  const volatile int negative = -1;  // volatile, because the compiler refuses a constant
  EXPECT_EQ(writev(netlink_.fd(), pieces.data(), negative), -1);
  EXPECT_EQ(errno, EINVAL);

  std::string longest(kMost, '\0');
  EXPECT_EQ(write(netlink_.fd(), longest.data(), kMost), static_cast<ssize_t>(kMost));
  pieces[0] = {longest.data(), kMost};
  pieces[1] = {longest.data(), 1};
  EXPECT_EQ(writev(netlink_.fd(), pieces.data(), 2), -1);
  EXPECT_EQ(errno, EMSGSIZE);

  iovec good{request.data(), request.size()};
  iovec bad{reinterpret_cast<void*>(0x10), 64};
  std::array<mmsghdr, 3> messages{};
  const auto send_all = [&](std::initializer_list<iovec*> each) {
    for (std::size_t i = 0; i < messages.size(); ++i) {
      messages[i] = {};
      messages[i].msg_hdr.msg_iov = each.begin()[i];
      messages[i].msg_hdr.msg_iovlen = 1;
    }
    return sendmmsg(netlink_.fd(), messages.data(), messages.size(), 0);
  };
  EXPECT_EQ(send_all({&good, &good, &good}), 3);
  EXPECT_EQ(send_all({&good, &good, &bad}), 2);
  EXPECT_EQ(messages[1].msg_len, request.size());
  EXPECT_EQ(messages[2].msg_len, 0u);
  EXPECT_EQ(send_all({&bad, &good, &good}), -1);
  EXPECT_EQ(errno, EFAULT);
  for (int reply = 0; reply < 5; ++reply) netlink_.receive();
  ASSERT_EQ(fcntl(netlink_.fd(), F_SETFL, O_NONBLOCK), 0);
  char rest = 0;
  EXPECT_EQ(recv(netlink_.fd(), &rest, 1, 0), -1);
}

// Returns the number of messages that a local socket takes while nobody reads.
int room_of_a_socket(std::size_t message_bytes) {
  std::array<int, 2> ends{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
  const std::string message(message_bytes, '.');
  int taken = 0;
  while (send(ends[0], message.data(), message.size(), MSG_NOSIGNAL) > 0) ++taken;
  for (const int end : ends) close(end);
  return taken;
}

// A slow reader gets one report that replies were dropped, as from the kernel. Each counts with 256 bytes
// more.
TEST_F(RdmaNetlink, replies_that_nobody_receives_are_bounded) {
  constexpr int kReplyBytes = 32;
  constexpr int kWaiting = (208 << 10) / (kReplyBytes + 256);
  for (int i = 0; i < 20'000; ++i) ASSERT_TRUE(netlink_.ask(RDMA_NLDEV_CMD_SYS_GET, 0));
  ASSERT_EQ(fcntl(netlink_.fd(), F_SETFL, O_NONBLOCK), 0);
  std::array<char, 8192> reply{};
  int received = 0;
  int told = 0;
  for (;;) {
    const ssize_t length = recv(netlink_.fd(), reply.data(), reply.size(), 0);
    if (length < 0 && errno == EAGAIN) break;
    ASSERT_TRUE(length > 0 || errno == ENOBUFS) << errno;
    ++(length < 0 ? told : received);
  }
  EXPECT_EQ(told, 1);
  EXPECT_EQ(received, room_of_a_socket(kReplyBytes) + kWaiting);
}

TEST_F(RdmaNetlink, replies_that_are_received_take_no_room_from_later_ones) {
  for (int i = 0; i < 10'000 && !HasFailure(); ++i) {
    ASSERT_TRUE(netlink_.ask(RDMA_NLDEV_CMD_SYS_GET, 0));
    EXPECT_EQ(Netlink::header_of(netlink_.receive()).nlmsg_type, Netlink::type_of(RDMA_NLDEV_CMD_SYS_GET))
        << i;
  }
}

}  // namespace netlink_sockets_test
}  // namespace gdx::abi_tests
