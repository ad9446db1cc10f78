// Calls of libc on files of the devices: whole results, and the errno of what is refused, in a child too.
#include <fcntl.h>
#include <rdma/rdma_netlink.h>
#include <rdma/rdma_user_cm.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <tuple>

#include "proto/softhca.h"
#include "tests/abi/loopback.h"
#include "tests/abi/netlink.h"
#include "tests/abi/request.h"

extern "C" {
int __open_2(const char* path, int flags);  // NOLINT: the name that _FORTIFY_SOURCE gives open
int gdx_softhca_progress();
int gdx_softhca_raise(int event);
}

namespace gdx::abi_tests {
namespace interposed_calls_test {

constexpr char kNode[] = "/dev/infiniband/uverbs0";
constexpr char kConnections[] = "/dev/infiniband/rdma_cm";

int error_of(long result) { return result < 0 ? errno : 0; }
int error_of_open(int fd) {
  const int error = error_of(fd);
  if (fd >= 0) close(fd);
  return error;
}

std::string joined(std::initializer_list<std::string_view> parts) {
  std::string all;
  for (const std::string_view part : parts) all += part;
  return all;
}

using InterposedCalls = Loopback;

TEST_F(InterposedCalls, paths_of_devices_are_found_to_the_letter_by_each_call) {
  const Cq cq = make_cq();
  const Qp qp = make_qp(cq.get());
  const std::string events = "/sys/class/infiniband/gdx0/softhca_flight/";
  std::array<char, 16> number{};
  std::snprintf(number.data(), number.size(), "%x", qp->qp_num);
  const std::string qpn = number.data();
  for (const auto& [path, error] : {std::pair<std::string, int>("/sys/class/infiniband", 0),
                                    {"/sys/class/infiniband/gdx0/node_guid", 0},
                                    {"/sys/class/infiniband/gdx0/node_guid/", ENOTDIR},
                                    {"/sys/class/infiniband/gdx1", ENOENT},
                                    {"/sys/class/infiniband_verbs/uverbs0/ibdev", 0},
                                    {"/sys/class/infiniband_verbs/uverbs1", ENOENT},
                                    {"/sys/class/misc/rdma_cm/abi_version", 0},
                                    {"/sys/module/nvidia_peermem/initstate", 0},
                                    {"/dev/infiniband", 0},
                                    {kNode, 0},
                                    {kConnections, 0},
                                    {"/dev/infiniband/uverbs0/", ENOTDIR},
                                    {"/dev/infiniband/uverbs1", ENOENT},
                                    {"/dev/infiniband/uverbs00", ENOENT},
                                    {"/dev/infiniband/uverbs256", ENOENT},
                                    {"/dev/infiniband/uverbs", ENOENT},
                                    {"/dev/infiniband/uverbs0x", ENOENT},
                                    {"/dev/infiniband/rdma_cm0", ENOENT},
                                    {joined({events, "0x", qpn}), 0},
                                    {events + qpn, ENOENT},
                                    {events + "0x", ENOENT},
                                    {joined({events, "0x", qpn, "z"}), ENOENT},
                                    {joined({events, "0x100000000", qpn}), ENOENT},
                                    {"/sys/class/infiniband/gdx1/softhca_flight/0x" + qpn, ENOENT},
                                    {"/dev/null", 0},
                                    {"/dev/null/x", ENOTDIR}}) {
    const char* const name = path.c_str();
    struct stat status {};
    struct statx extended {};
    const std::array errors{error_of_open(open(name, O_RDONLY | O_CLOEXEC)),
                            error_of_open(openat(AT_FDCWD, name, O_RDONLY | O_CLOEXEC)),
                            error_of_open(__open_2(name, O_RDONLY | O_CLOEXEC)),
                            error_of(stat(name, &status)),
                            error_of(lstat(name, &status)),
                            error_of(fstatat(AT_FDCWD, name, &status, 0)),
                            error_of(statx(AT_FDCWD, name, 0, STATX_TYPE, &extended)),
                            error_of(access(name, R_OK))};
    for (std::size_t call = 0; call < errors.size(); ++call) EXPECT_EQ(errors[call], error) << path << call;
  }
}

using Node = std::tuple<unsigned, unsigned, unsigned, long>;  // mode, major, minor, size
Node node_in(const struct stat& status) {
  return {status.st_mode, major(status.st_rdev), minor(status.st_rdev), status.st_size};
}
Node node_in(const struct statx& status) {
  return {status.stx_mode, status.stx_rdev_major, status.stx_rdev_minor, static_cast<long>(status.stx_size)};
}

TEST_F(InterposedCalls, node_is_a_character_device_by_path_descriptor_and_duplicate) {
  const auto judge = [](auto call, const Node& expected, const char* what) {
    struct stat status {};
    EXPECT_EQ(call(&status), 0) << what;
    EXPECT_EQ(node_in(status), expected) << what;
  };
  for (const auto& [path, expected] : {std::pair(kNode, Node(S_IFCHR | 0666, 231, 192, 0)),
                                       std::pair(kConnections, Node(S_IFCHR | 0666, 10, 122, 0))}) {
    const char* const name = path;
    judge([name](struct stat* to) { return stat(name, to); }, expected, "stat");
    judge([name](struct stat* to) { return lstat(name, to); }, expected, "lstat");
    judge([name](struct stat* to) { return fstatat(AT_FDCWD, name, to, 0); }, expected, "fstatat");
    struct statx extended {};
    EXPECT_EQ(statx(AT_FDCWD, name, 0, STATX_BASIC_STATS, &extended), 0);
    EXPECT_EQ(node_in(extended), expected);
    const int fd = open(name, O_RDWR);
    EXPECT_EQ(fcntl(fd, F_GETFD), 0);
    const int other = open(name, O_RDWR | O_CLOEXEC);
    EXPECT_EQ(fcntl(other, F_GETFD), FD_CLOEXEC);
    // Each call meets a duplicate that no other has looked at. Those of the connection manager are sockets.
    for (const bool duplicate : {false, true}) {
      if (duplicate && name == kConnections) break;
      const auto next = [&] { return duplicate ? dup(fd) : fd; };
      std::array<int, 3> files{next(), next(), next()};
      judge([&](struct stat* to) { return fstat(files[0], to); }, expected, "fstat");
      judge([&](struct stat* to) { return fstatat(files[1], "", to, AT_EMPTY_PATH); }, expected, "fstatat");
      EXPECT_EQ(statx(files[2], "", AT_EMPTY_PATH, STATX_TYPE | STATX_MODE | STATX_SIZE, &extended), 0);
      EXPECT_EQ(node_in(extended), expected);
      for (const int file : files) {
        if (file != fd) close(file);
      }
    }
    for (const int file : {fd, other}) EXPECT_EQ(close(file), 0);
    struct stat none {};
    EXPECT_EQ(error_of(fstat(fd, &none)), EBADF);
  }
}

TEST_F(InterposedCalls, duplicates_of_any_open_are_known_until_it_ends) {
  std::array<int, 3> nodes{};
  for (int& node : nodes) node = open(kNode, O_RDWR | O_CLOEXEC);
  EXPECT_EQ(close(nodes[1]), 0);
  nodes[1] = open(kNode, O_RDWR | O_CLOEXEC);
  for (const int node : nodes) {
    const int copy = fcntl(node, F_DUPFD_CLOEXEC, 0);
    struct {
      ib_uverbs_ioctl_hdr header;
    } short_request{};
    EXPECT_EQ(error_of(ioctl(copy, RDMA_VERBS_IOCTL, &short_request)), EINVAL);
    EXPECT_EQ(error_of(ioctl(copy, FIONREAD, &short_request)), ENOTTY);
    EXPECT_EQ(error_of(ioctl(copy, RDMA_VERBS_IOCTL, nullptr)), EFAULT);
    for (const int file : {copy, node}) EXPECT_EQ(close(file), 0);
    EXPECT_EQ(error_of(ioctl(copy, RDMA_VERBS_IOCTL, &short_request)), EBADF);
  }
}

// A mode counts with O_CREAT and O_TMPFILE alone.
TEST_F(InterposedCalls, files_made_have_the_modes_that_were_asked_for) {
  std::string folder = testing::TempDir() + "gdx-modes-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string file = folder + "/file";
  const mode_t mask = umask(0);
  constexpr int kMake = O_RDWR | O_CREAT | O_CLOEXEC;
  const int unnamed = open(folder.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0641);
  if (unnamed < 0) {
    EXPECT_EQ(errno, EOPNOTSUPP) << "a file system without O_TMPFILE";
  }
  const int named = open(file.c_str(), kMake, 0641);
  unlink(file.c_str());
  for (const int fd : {unnamed, named, openat(AT_FDCWD, file.c_str(), kMake, 0641)}) {
    struct stat status {};
    EXPECT_TRUE((fd < 0 && fd == unnamed) || fstat(fd, &status) == 0);
    EXPECT_TRUE(fd < 0 || status.st_mode == (S_IFREG | 0641u)) << status.st_mode;
    close(fd);
  }
  umask(mask);
  unlink(file.c_str());
  EXPECT_EQ(rmdir(folder.c_str()), 0);
}

TEST_F(InterposedCalls, event_of_a_port_is_told_to_each_context_that_listens) {
  EXPECT_EQ(gdx_softhca_raise(IBV_EVENT_PORT_ERR), 1);
  const int none = open(kNode, O_RDWR | O_CLOEXEC);
  const Context second = open_device();
  EXPECT_EQ(gdx_softhca_raise(IBV_EVENT_PORT_ACTIVE), 2);
  close(none);
  for (ibv_context* const context : {second.get(), context_.get(), context_.get()}) {
    ibv_async_event event{};
    ASSERT_EQ(ibv_get_async_event(context, &event), 0);
    EXPECT_EQ(event.element.port_num, 1);
    ibv_ack_async_event(&event);
  }
}

// Calls of a child whose parent has the device open, each with its errno.
std::string calls_of_a_child(int node, int connections, const Netlink& netlink) {
  std::string lines;
  const auto add = [&](const char* what, int error) {
    lines += what;
    lines += ' ';
    lines += strerrorname_np(error);
    lines += '\n';
  };
  add("open node", error_of_open(open(kNode, O_RDWR | O_CLOEXEC)));
  add("open connections", error_of_open(open(kConnections, O_RDWR | O_CLOEXEC)));
  add("access", error_of(access("/sys/class/infiniband/gdx0", F_OK)));
  add("events", error_of(access("/sys/class/infiniband/gdx0/softhca_flight/0x1", F_OK)));
  ib_uverbs_ioctl_hdr request{};
  add("request", error_of(ioctl(node, RDMA_VERBS_IOCTL, &request)));
  add("another ioctl", error_of(ioctl(node, FIONREAD, &request)));
  rdma_ucm_cmd_hdr command{};
  add("command", error_of(write(connections, &command, sizeof command)));
  netlink.ask(RDMA_NLDEV_CMD_GET, 0, {{RDMA_NLDEV_ATTR_DEV_INDEX, 0}});
  std::array<char, 64> reply{};
  int error = 0;
  const bool received = recv(netlink.fd(), reply.data(), reply.size(), 0) > 20;
  if (received && reply[offsetof(nlmsghdr, nlmsg_type)] == NLMSG_ERROR)
    std::memcpy(&error, &reply[16], sizeof error);
  add("netlink", -error);
  add("raised", gdx_softhca_raise(IBV_EVENT_PORT_ERR));
  add("progress", gdx_softhca_progress());
  add("close connections", error_of(close(connections)));
  add("close node", error_of(close(node)));
  return lines;
}

// Its inherited socket of netlink tells of its own device.
TEST_F(InterposedCalls, child_of_a_fork_has_devices_of_its_own_and_its_parent_keeps_all) {
  const int connections = open(kConnections, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  const Netlink netlink;
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string lines = calls_of_a_child(context_->cmd_fd, connections, netlink);
    _exit(write(ends[1], lines.data(), lines.size()) == static_cast<ssize_t>(lines.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::array<char, 1024> lines{};
  EXPECT_GT(read(ends[0], lines.data(), lines.size() - 1), 0);
  close(ends[0]);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_STREQ(lines.data(),
               "open node 0\nopen connections 0\naccess 0\nevents ENOENT\nrequest ENODEV\n"
               "another ioctl ENOTTY\ncommand ENODEV\nnetlink 0\nraised 0\nprogress 0\n"
               "close connections 0\nclose node 0\n");
  rdma_ucm_cmd_hdr command{};
  EXPECT_EQ(error_of(write(connections, &command, 3)), EINVAL) << "a parent's command is judged";
  close(connections);
  ibv_port_attr port{};
  EXPECT_EQ(ibv_query_port(context_.get(), 1, &port), 0);
}

}  // namespace interposed_calls_test
}  // namespace gdx::abi_tests
