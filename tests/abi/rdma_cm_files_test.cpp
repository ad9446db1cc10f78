// Files of /dev/infiniband/rdma_cm, by the commands that librdmacm would write to them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_user_cm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

namespace rdma_cm_files_test {

constexpr std::uint16_t kTcp = 0x0106;  // RDMA_PS_TCP
// enum rdma_cm_event_type
constexpr std::uint32_t kAddressResolved = 0;
constexpr std::uint32_t kRouteResolved = 2;
constexpr std::uint32_t kConnectRequest = 4;
constexpr std::uint32_t kRejected = 8;

int open_connections(int flags = O_CLOEXEC) {
  return open("/dev/infiniband/rdma_cm", O_RDWR | O_NONBLOCK | flags);
}

template <typename Body>
int command(int fd, std::uint32_t number, const Body& body, std::size_t output_bytes = 0) {
  struct {
    rdma_ucm_cmd_hdr header;
    Body body;
  } record{{number, sizeof body, static_cast<std::uint16_t>(output_bytes)}, body};
  return write(fd, &record, sizeof record) == sizeof record ? 0 : errno;
}

std::uint32_t create_id(int fd) {
  rdma_ucm_create_id_resp answer{};
  const rdma_ucm_create_id body{.uid = 1,
                                .response = reinterpret_cast<std::uintptr_t>(&answer),
                                .ps = kTcp,
                                .qp_type = 0,
                                .reserved = {}};
  EXPECT_EQ(command(fd, RDMA_USER_CM_CMD_CREATE_ID, body, sizeof answer), 0);
  return answer.id;
}

sockaddr_in6 any_address(std::uint16_t port) {
  sockaddr_in ipv4{};
  ipv4.sin_family = AF_INET;
  ipv4.sin_port = htons(port);
  sockaddr_in6 field{};
  std::memcpy(&field, &ipv4, sizeof ipv4);
  return field;
}

void await_event(int fd) {
  constexpr int kLimitMs = 100'000;  // only ends a hang
  pollfd waited{.fd = fd, .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&waited, 1, kLimitMs), 1);
}

// The next event, once there is one.
rdma_ucm_event_resp next_event(int fd) {
  await_event(fd);
  rdma_ucm_event_resp event{};
  const rdma_ucm_get_event get{.response = reinterpret_cast<std::uintptr_t>(&event)};
  EXPECT_EQ(command(fd, RDMA_USER_CM_CMD_GET_EVENT, get, sizeof event), 0);
  return event;
}

int bind_port(int fd, std::uint32_t id, std::uint16_t port) {
  rdma_ucm_bind_ip body{};
  body.addr = any_address(port);
  body.id = id;
  return command(fd, RDMA_USER_CM_CMD_BIND_IP, body);
}

// A listener with room for one request.
std::uint32_t listen_at(int fd, std::uint16_t port) {
  const std::uint32_t listener = create_id(fd);
  EXPECT_EQ(bind_port(fd, listener, port), 0);
  rdma_ucm_listen listen{};
  listen.id = listener;
  listen.backlog = 1;
  EXPECT_EQ(command(fd, RDMA_USER_CM_CMD_LISTEN, listen), 0);
  return listener;
}

// Requests a connection to a port of the HCA itself.
std::uint32_t connect_to(int fd, std::uint16_t port) {
  const std::uint32_t client = create_id(fd);
  rdma_ucm_resolve_ip resolve{};
  resolve.dst_addr = any_address(port);
  resolve.id = client;
  resolve.timeout_ms = 1000;
  EXPECT_EQ(command(fd, RDMA_USER_CM_CMD_RESOLVE_IP, resolve), 0);
  EXPECT_EQ(next_event(fd).event, kAddressResolved);
  const rdma_ucm_resolve_route route{.id = client, .timeout_ms = 1000};
  EXPECT_EQ(command(fd, RDMA_USER_CM_CMD_RESOLVE_ROUTE, route), 0);
  EXPECT_EQ(next_event(fd).event, kRouteResolved);
  rdma_ucm_connect connect{};
  connect.id = client;
  connect.conn_param.valid = 1;
  EXPECT_EQ(command(fd, RDMA_USER_CM_CMD_CONNECT, connect), 0);
  return client;
}

TEST(RdmaCmFile, opened_keeps_its_flags_as_asked) {
  const int kept = open_connections(0);
  const int closed = open_connections(O_CLOEXEC);
  ASSERT_GE(kept, 0);
  ASSERT_GE(closed, 0);
  EXPECT_EQ(fcntl(kept, F_GETFD), 0);
  EXPECT_EQ(fcntl(closed, F_GETFD), FD_CLOEXEC);
  const int waits = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
  EXPECT_EQ(fcntl(waits, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(fcntl(closed, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
  rdma_ucm_event_resp event{};
  const rdma_ucm_get_event get{.response = reinterpret_cast<std::uintptr_t>(&event)};
  EXPECT_EQ(command(closed, RDMA_USER_CM_CMD_GET_EVENT, get, sizeof event), EAGAIN);
  close(waits);
  close(kept);
  close(closed);
}

TEST(RdmaCmFile, closed_unseen_gives_its_ids_up_when_the_number_is_opened_again) {
  const int before = open_connections();
  ASSERT_GE(before, 0);
  ASSERT_EQ(bind_port(before, create_id(before), 7471), 0);
  ASSERT_EQ(syscall(SYS_close, before), 0);
  const int after = open_connections();
  ASSERT_EQ(after, before);
  EXPECT_EQ(bind_port(after, create_id(after), 7471), 0);
  close(after);
}

bool has_event(int fd) {
  pollfd waited{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&waited, 1, 0) == 1;
}

TEST(RdmaCmFile, id_migrated_takes_its_events_with_it_and_those_of_its_own_file_stay) {
  for (const bool to_another : {false, true}) {
    const int from = open_connections();
    const int to = to_another ? open_connections() : from;
    ASSERT_GE(std::min(from, to), 0);
    const std::uint32_t id = create_id(from);
    rdma_ucm_resolve_ip resolve{};
    resolve.dst_addr = any_address(7471);
    resolve.id = id;
    resolve.timeout_ms = 1000;
    ASSERT_EQ(command(from, RDMA_USER_CM_CMD_RESOLVE_IP, resolve), 0);
    ASSERT_TRUE(has_event(from));
    rdma_ucm_migrate_resp migrated{};
    const rdma_ucm_migrate_id migrate{.response = reinterpret_cast<std::uintptr_t>(&migrated),
                                      .id = id,
                                      .fd = static_cast<std::uint32_t>(from)};
    ASSERT_EQ(command(to, RDMA_USER_CM_CMD_MIGRATE_ID, migrate, sizeof migrated), 0);
    EXPECT_EQ(has_event(from), from == to);
    const rdma_ucm_event_resp event = next_event(to);
    EXPECT_EQ(event.event, kAddressResolved);
    EXPECT_EQ(event.id, id);
    EXPECT_FALSE(has_event(to));
    if (to_another) close(to);
    close(from);
  }
}

// Drops and takes back the right to ports below 1024, where the process has it.
class Unprivileged {
 public:
  Unprivileged() { EXPECT_EQ(seteuid(before_ == 0 ? kNobody : before_), 0); }
  ~Unprivileged() { EXPECT_EQ(seteuid(before_), 0); }
  Unprivileged(const Unprivileged&) = delete;
  Unprivileged& operator=(const Unprivileged&) = delete;

 private:
  static constexpr uid_t kNobody = 65534;
  const uid_t before_ = geteuid();
};

TEST(RdmaCmFile, port_of_the_privileged_is_refused_to_others) {
  int first_free = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_unprivileged_port_start") >> first_free;
  if (first_free < 1024)
    GTEST_SKIP() << "no port below 1024 is privileged here: sysctl net.ipv4.ip_unprivileged_port_start=1024";
  const int fd = open_connections();
  ASSERT_GE(fd, 0);
  {
    const Unprivileged now;
    EXPECT_EQ(bind_port(fd, create_id(fd), 1023), EACCES);
    EXPECT_EQ(bind_port(fd, create_id(fd), 1024), 0);
  }
  if (geteuid() == 0) {
    EXPECT_EQ(bind_port(fd, create_id(fd), 1023), 0);
  }
  close(fd);
}

// An accept without parameters is the active side's alone. On the passive side the kernel refuses it, and the
// peer.
TEST(RdmaCmFile, accept_without_parameters_on_the_passive_side_is_invalid) {
  const int fd = open_connections();
  ASSERT_GE(fd, 0);
  listen_at(fd, 7472);
  const std::uint32_t client = connect_to(fd, 7472);
  const rdma_ucm_event_resp request = next_event(fd);
  ASSERT_EQ(request.event, kConnectRequest);

  rdma_ucm_accept accept{};
  accept.id = request.id;
  EXPECT_EQ(command(fd, RDMA_USER_CM_CMD_ACCEPT, accept), EINVAL);
  const rdma_ucm_event_resp refused = next_event(fd);
  EXPECT_EQ(refused.event, kRejected);
  EXPECT_EQ(refused.id, client);
  close(fd);
}

// Repeats, because a request left behind would fill the room of the next listener.
TEST(RdmaCmFile, request_that_nobody_has_read_is_rejected_when_its_listener_goes) {
  for (const bool with_its_file : {false, true, false}) {
    const int server = open_connections();
    const int client = open_connections();
    ASSERT_GE(server, 0);
    ASSERT_GE(client, 0);
    const std::uint32_t listener = listen_at(server, 7473);
    const std::uint32_t id = connect_to(client, 7473);
    await_event(server);
    rdma_ucm_destroy_id_resp answer{};
    const rdma_ucm_destroy_id destroy{
        .response = reinterpret_cast<std::uintptr_t>(&answer), .id = listener, .reserved = 0};
    if (with_its_file) {
      close(server);
    } else {
      EXPECT_EQ(command(server, RDMA_USER_CM_CMD_DESTROY_ID, destroy, sizeof answer), 0);
    }
    const rdma_ucm_event_resp refused = next_event(client);
    ASSERT_EQ(refused.event, kRejected);
    EXPECT_EQ(refused.id, id);
    if (!with_its_file) close(server);
    close(client);
  }
}

// As in the kernel, where the wait holds the file: programs close a channel while a thread of theirs waits
// for its events, and end.
TEST(RdmaCmFile, wait_for_an_event_outlasts_its_file) {
  static std::atomic<pid_t> waiter{0};
  static std::atomic<bool> ended{false};
  const int fd = open_connections();
  ASSERT_GE(fd, 0);
  fcntl(fd, F_SETFL, 0);  // it waits
  std::thread([fd] {
    waiter.store(gettid());
    rdma_ucm_event_resp event{};
    const rdma_ucm_get_event get{.response = reinterpret_cast<std::uintptr_t>(&event)};
    static_cast<void>(command(fd, RDMA_USER_CM_CMD_GET_EVENT, get, sizeof event));
    ended.store(true);
  }).detach();
  const auto sleeps = [] {
    std::ifstream stat("/proc/self/task/" + std::to_string(waiter.load()) + "/stat");
    std::string line;
    std::getline(stat, line);
    return waiter.load() != 0 && line.find(") S ") != std::string::npos;
  };
  while (!sleeps()) std::this_thread::yield();
  const int kept = dup(fd);
  close(fd);
  shutdown(kept, SHUT_RDWR);  // wakes it
  close(kept);
  for (int looks = 0; looks < 100 && !ended.load(); ++looks)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE(ended.load());
}

}  // namespace rdma_cm_files_test
