// gdxd's socket and what it tells: rights, users, statistics, kicks.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <list>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "host/bootstrap/local_socket.h"
#include "host/bootstrap/socket.h"
#include "host/ipc/daemon.h"
#include "host/memory/memory.h"
#include "host/memory/shared_file.h"
#include "host/programs/daemon/server.h"
#include "host/queue/queue_memory.h"
#include "tests/fuzz/daemon_attacker.h"

namespace gdx::daemon {
namespace daemon_server_test {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr std::size_t kPage = 4096;
constexpr std::uint64_t kLongNs = 120'000'000'000;  // never reached unless a test fails

template <typename T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

// Bytes that a client can fill in the file of its context.
std::size_t context_bytes(const Hca& hca) {
  return std::filesystem::file_size(fmt::format("/proc/self/fd/{}", hca.context()->cmd_fd));
}

// Changes the user or the group of this thread alone, as the kernel does and the C library does not.
void be(long call, std::uint32_t id) {
  if (::syscall(call, -1, id, -1) != 0) throw std::runtime_error("cannot change the user");
}

class DaemonServer : public ::testing::Test {
 protected:
  DaemonServer()
      : path_(std::filesystem::temp_directory_path() / ("gdxd-server-" + std::to_string(getpid()))) {}
  ~DaemonServer() override { stop(); }

  void listen(const Limits& limits = {}, const IdFiles& ids = {}, const std::set<uid_t>& monitors = {}) {
    server_ = must(
        Server::listen({.path = path_, .mode = 0666, .limits = limits, .ids = ids, .monitors = monitors}));
  }
  void start(const Limits& limits = {}, const IdFiles& ids = {}, const std::set<uid_t>& monitors = {}) {
    listen(limits, ids, monitors);
    run();
  }
  void run() {
    thread_ = std::thread([this] { EXPECT_TRUE(server_->run()); });
  }
  void stop() {
    if (!server_) return;
    server_->stop();
    if (thread_.joinable()) thread_.join();
    server_.reset();
  }
  [[nodiscard]] std::shared_ptr<ipc::Daemon> connect() const { return must(ipc::Daemon::connect(path_)); }
  [[nodiscard]] std::shared_ptr<ipc::Daemon> opened() const {
    auto client = connect();
    must(client->call<ipc::HcaAnswer>(ipc::OpenHca{{}, -1, 0}));
    return client;
  }
  // Connects as another user. Returns the reason of a refusal; empty without one.
  std::string connect_as(uid_t user, std::shared_ptr<ipc::Daemon>& client) const {
    be(SYS_setresuid, user);
    auto connected = ipc::Daemon::connect(path_);
    be(SYS_setresuid, 0);
    if (!connected) return connected.error().message;
    client = std::move(*connected);
    const auto hca = client->call<ipc::HcaAnswer>(ipc::OpenHca{{}, -1, 0});
    return hca ? "" : hca.error().message;
  }
  [[nodiscard]] json told(uid_t viewer) const { return json::parse(server_->statistics(viewer)); }
  [[nodiscard]] std::vector<uid_t> users(uid_t viewer) const {
    std::vector<uid_t> all;
    const json statistics = told(viewer);
    for (const json& user : statistics["users"]) all.push_back(user["uid"]);
    return all;
  }
  // Sessions end on threads of their own.
  template <typename Holds>
  static bool until(Holds holds) {
    const std::uint64_t end_ns = monotonic_ns() + kLongNs;
    while (!holds() && monotonic_ns() < end_ns) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return holds();
  }

  std::string path_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

TEST_F(DaemonServer, socket_has_the_rights_of_the_options_and_the_lock_its_owners) {
  const bool root = geteuid() == 0;
  const struct {
    std::uint32_t mode;
    std::int64_t group;
    gid_t wanted;
  } cases[] = {{0640, -1, 4321}, {0606, 0, 0}, {0660, 5432, 5432}};
  for (const auto& [mode, group, wanted] : cases) {
    if (!root && group >= 0) continue;
    if (root) be(SYS_setresgid, 4321);
    const auto server = Server::listen({.path = path_, .mode = mode, .group = group});
    if (root) be(SYS_setresgid, 0);
    ASSERT_TRUE(server) << server.error().message;
    struct stat facts {};
    ASSERT_EQ(stat(path_.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, mode);
    EXPECT_EQ(facts.st_gid, root ? wanted : getegid());
    ASSERT_EQ(stat((path_ + ".lock").c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0600u);
  }
  std::filesystem::remove(path_ + ".lock");
  std::filesystem::create_symlink("/dev/null", path_ + ".lock");
  EXPECT_THAT(Server::listen({.path = path_}).error().message, HasSubstr(path_ + ".lock: Too many levels"));
  std::filesystem::remove(path_ + ".lock");
}

TEST_F(DaemonServer, requests_ahead_of_a_users_rate_are_all_answered) {
  constexpr std::uint32_t kAtOnce = 20;
  Limits limits;
  limits.group.max_requests_per_s = kAtOnce;
  start(limits);
  const Descriptor client = must(bootstrap::connect_local(path_));
  const std::uint64_t deadline_ns = monotonic_ns() + kLongNs;
  const std::byte nonsense{};
  for (std::uint32_t i = 0; i < kAtOnce + 4; ++i)
    ASSERT_TRUE(bootstrap::send_local(client, {&nonsense, 1}, {}, deadline_ns));
  for (std::uint32_t i = 0; i < kAtOnce + 4; ++i)
    ASSERT_TRUE(bootstrap::receive_local(client, deadline_ns)) << i;
}

// Requests of each are in its socket when gdxd closes it.
TEST_F(DaemonServer, each_of_many_refused_connections_is_told_why) {
  Limits limits;
  limits.max_clients = 1;
  start(limits);
  const auto client = opened();
  std::vector<Descriptor> many;
  const std::uint64_t deadline_ns = monotonic_ns() + kLongNs;
  for (std::ptrdiff_t i = 0; i < kOperatorPlaces + 20; ++i) {
    many.push_back(must(bootstrap::connect_local(path_)));
    (void)bootstrap::send_local(many.back(), ipc::encode(ipc::Kind::kHello, ipc::Hello{1, 1, 0, "raw"}), {},
                                deadline_ns);
  }
  for (std::size_t i = 0; i < many.size(); ++i) {
    const auto received = must(bootstrap::receive_local(many[i], deadline_ns));
    const auto answer = must(ipc::parse_message(received.bytes));
    EXPECT_EQ(answer.status == Status::kOk, i < kOperatorPlaces) << i;
    if (answer.status == Status::kOk) continue;
    EXPECT_THAT(ipc::decode_refusal(answer).message, HasSubstr("gdxd serves 1 clients already"));
  }
}

// A descriptor in a queue that nobody reads lives as long as the queue.
TEST_F(DaemonServer, connection_that_is_sent_into_the_notice_socket_ends_with_its_process) {
  start();
  const std::uint64_t deadline_ns = monotonic_ns() + kLongNs;
  {
    const Descriptor client = must(bootstrap::connect_local(path_));
    const auto hello = ipc::encode(ipc::Kind::kHello, ipc::Hello{1, 1, 0, "raw"});
    ASSERT_TRUE(bootstrap::send_local(client, hello, {}, deadline_ns));
    const auto answer = must(bootstrap::receive_local(client, deadline_ns));
    const int own = client.value();
    const std::byte any{};
    EXPECT_FALSE(bootstrap::send_local(answer.descriptors.at(0), {&any, 1}, {&own, 1}, deadline_ns));
  }
  EXPECT_TRUE(until([&] { return users(0).empty(); }));
}

// The end of a TCP connection whose last close waits for ten minutes, unless the other end closes before.
class LingeringSocket {
 public:
  LingeringSocket() : listener_(must(bootstrap::listen_on("127.0.0.1"))) {
    socket_ = must(bootstrap::connect_to(bootstrap::own_text(listener_), monotonic_ns() + kLongNs));
    const linger long_wait{1, 600};
    EXPECT_EQ(setsockopt(socket_.value(), SOL_SOCKET, SO_LINGER, &long_wait, sizeof long_wait), 0);
    const std::vector<std::byte> more_than_fits(16 << 20);
    EXPECT_GT(::send(socket_.value(), more_than_fits.data(), more_than_fits.size(), MSG_NOSIGNAL), 0);
  }
  // Closes this process's end without waiting.
  void leave_to(const Descriptor& connection) {
    const std::byte any{};
    const int file = socket_.value();
    EXPECT_TRUE(bootstrap::send_local(connection, {&any, 1}, {&file, 1}, monotonic_ns() + kLongNs));
    socket_.close();
  }

 private:
  Descriptor listener_;
  Descriptor socket_;
};

// Some connections get a place and others are refused. Each holds a socket unread that waits when it is
// closed.
TEST_F(DaemonServer, files_whose_close_waits_delay_nobody) {
  Limits limits;
  limits.max_clients = 1;
  listen(limits);
  std::list<LingeringSocket> sockets;
  for (std::ptrdiff_t i = 0; i < kOperatorPlaces + 3; ++i) {
    const Descriptor client = must(bootstrap::connect_local(path_));
    const std::byte nonsense{};
    ASSERT_TRUE(bootstrap::send_local(client, {&nonsense, 1}, {}, monotonic_ns() + kLongNs));
    sockets.emplace_back().leave_to(client);
  }
  run();
  bool served = false;
  EXPECT_TRUE(until([&] {
    if (served) return true;
    const auto client = ipc::Daemon::connect(path_);
    EXPECT_TRUE(client || client.error().status != Status::kDaemonGone) << client.error().message;
    served = client && (*client)->call<ipc::HcaAnswer>(ipc::OpenHca{{}, -1, 0});
    return served;
  })) << "they keep their places";
}

// Linux counts a file as its sender's until it has been read.
TEST_F(DaemonServer, client_that_reads_no_answers_has_one_file_of_gdxd_and_keeps_its_place) {
  start();
  const Descriptor client = must(bootstrap::connect_local(path_));
  const std::uint64_t deadline_ns = monotonic_ns() + kLongNs;
  const auto hello = ipc::encode(ipc::Kind::kHello, ipc::Hello{1, 1, 0, "deaf"});
  ASSERT_TRUE(bootstrap::send_local(client, hello, {}, deadline_ns));
  const auto statistics = ipc::encode(ipc::Kind::kReadStatistics, ipc::ReadStatistics{});
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(bootstrap::send_local(client, statistics, {}, deadline_ns));
  EXPECT_TRUE(until([&] { return told(0).dump().find("deaf") != std::string::npos; }));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(told(0)["clients"].size(), 1u);  // gdxd has time for more answers
  EXPECT_TRUE(server_->kick(0, getpid()));
  EXPECT_TRUE(until([&] { return told(0)["clients"].empty(); }));
  EXPECT_EQ(told(0)["users"].at(0)["clients"], 1);
  std::size_t files = 0;
  while (const auto answer = bootstrap::receive_local(client, deadline_ns))
    files += answer->descriptors.size();
  EXPECT_EQ(files, 1u);
  EXPECT_TRUE(until([&] { return users(0).empty(); }));
}

// Of each figure as many as of no other.
TEST_F(DaemonServer, statistics_have_every_figure_of_every_client) {
  start();
  EXPECT_EQ(told(0)["users"], json::array());
  const auto first = opened();
  const auto second = opened();
  const SharedFile memory = must(make_shared_file(8 * kPage));
  const auto add = [&](const std::shared_ptr<ipc::Daemon>& client, int regions, std::uint64_t bytes) {
    const int file = memory.file.value();
    for (int i = 0; i < regions; ++i)
      must(client->call<ipc::RegisterAnswer>(
          ipc::RegisterMemory{0, bytes, 0x10000, static_cast<std::uint32_t>(Access::kAll), 0},
          std::span(&file, 1)));
  };
  add(first, 5, 8 * kPage);
  add(second, 1, 300);
  const QueueMemory queues = must(QueueMemory::allocate_in_file(16, 0, 0));
  const int file = queues.file();
  const auto request = plain_endpoint(queues.host_memory().size());
  const auto made = must(first->call<ipc::EndpointAnswer>(request, std::span(&file, 1)));
  queues.control()->state.completed = 6;
  queues.control()->state.staging.stalls = 7;
  queues.control()->state.fault.syndrome = 9;
  must(second->call<ipc::PoolAnswer>(ipc::OpenPool{1 << 20, 1, 65536, 1, 100}));

  const auto observer = connect();  // last, because gdxd drops who opens no HCA
  const json all = told(0);
  EXPECT_EQ(all["draining"], false);
  EXPECT_EQ(all["gdxd_version"], ipc::text_of(first->limits().daemon_version));
  ASSERT_EQ(all["users"].size(), 1u);
  const json& user = all["users"][0];
  EXPECT_EQ(user["uid"], geteuid());
  EXPECT_EQ(user["clients"], 3);
  EXPECT_EQ(user["endpoints"], 1);
  EXPECT_EQ(user["regions"], 6);
  const Hca own = must(Hca::open({.in_this_process = true}));
  EXPECT_EQ(user["registered_bytes"],
            40 * kPage + 300 + request.queue_bytes + (1 << 20) + context_bytes(own));
  EXPECT_EQ(user["pools"], json::parse(fmt::format(R"([{{"hca": "{}", "memory": "host", "bytes": 1048576,
      "slots": 16, "leased_slots": 0, "bad_returns": 0}}])",
                                                   own.name())));
  ASSERT_EQ(user["hcas"].size(), 1u);
  EXPECT_EQ(user["hcas"][0]["name"], own.name());
  EXPECT_EQ(user["hcas"][0]["address"], own.address_text());
  for (const char* const counter :
       {"out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "out_of_buffer",
        "np_cnp_sent", "rp_cnp_handled", "softhca_packets_sent", "softhca_packets_received",
        "softhca_retransmitted_packets", "softhca_staging_violations"})
    EXPECT_EQ(user["hcas"][0]["counters"][counter], must(own.counter(counter))) << counter;

  const std::string common = fmt::format(R"("pid": {}, "uid": {}, "program": "{}")", getpid(), geteuid(),
                                         program_invocation_short_name);
  EXPECT_EQ(all["clients"],
            json::parse(fmt::format(
                R"([{{{0}, "hca": "{1}", "regions": 5, "registered_bytes": {2}, "endpoints": [{{"qpn": {3},
                "peer": "", "send_queue_blocks": 16, "posted_blocks": 65536, "completed_blocks": 6, "stalls": 7,
                "syndrome": 9}}]}},
                {{{0}, "hca": "{1}", "regions": 1, "registered_bytes": 300, "endpoints": []}},
                {{{0}, "hca": "", "regions": 0, "registered_bytes": 0, "endpoints": []}}])",
                common, own.name(), 40 * kPage, made.answer.qpn)));
}

// Counters of an HCA tell a forger of packets how near a guess of a neighbour's numbers came.
TEST_F(DaemonServer, counters_are_a_users_until_another_has_the_hca_and_always_roots_and_a_monitors) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED: needs root, who can be other users";
  constexpr uid_t kMonitor = 1003;
  start({}, {}, {kMonitor});
  std::shared_ptr<ipc::Daemon> attacker;
  std::shared_ptr<ipc::Daemon> victim;
  ipc::ReadCounter wanted{};
  ipc::set_text(wanted.name, "duplicate_request");
  const auto readable = [&] { return attacker->call<ipc::CounterAnswer>(wanted).has_value(); };
  const auto counters = [&](uid_t viewer) {
    std::size_t shown = 0;
    const json statistics = told(viewer);
    for (const json& user : statistics["users"]) shown += user["hcas"][0]["counters"].empty() ? 0 : 1;
    return shown;
  };
  ASSERT_EQ(connect_as(1001, attacker), "");
  EXPECT_TRUE(readable());
  EXPECT_EQ(counters(1001), 1u);
  ASSERT_EQ(connect_as(1002, victim), "");
  EXPECT_FALSE(readable());
  EXPECT_EQ(counters(1001), 0u);
  EXPECT_EQ(counters(1002), 0u);
  EXPECT_EQ(counters(0), 2u);
  EXPECT_EQ(counters(kMonitor), 2u);
  victim.reset();
  EXPECT_TRUE(until(readable));
}

TEST_F(DaemonServer, users_are_those_with_programs_and_operators_count_for_none) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED: needs root, who can be other users";
  Limits limits;
  limits.max_groups = 2;
  start(limits);
  std::shared_ptr<ipc::Daemon> programs[4];
  EXPECT_EQ(connect_as(1001, programs[0]), "");
  EXPECT_EQ(connect_as(1002, programs[1]), "");
  EXPECT_EQ(connect_as(1001, programs[2]), "") << "a user who is served";
  const std::string full = "gdxd serves 2 users already: end some of their programs";
  EXPECT_THAT(connect_as(1003, programs[3]), HasSubstr(full));
  std::shared_ptr<ipc::Daemon> root;
  EXPECT_EQ(connect_as(0, root), full) << "it gets in, and may open nothing";
  EXPECT_EQ(users(0), (std::vector<uid_t>{0, 1001, 1002}));
  EXPECT_EQ(users(1001), (std::vector<uid_t>{1001}));
  EXPECT_EQ(told(1001)["clients"].size(), 2u);
  EXPECT_EQ(told(0)["clients"].size(), 4u);
  programs[1].reset();
  EXPECT_TRUE(until([&] { return users(0) == std::vector<uid_t>{0, 1001}; }));
  EXPECT_EQ(connect_as(1003, programs[3]), "") << "root has no program";
  EXPECT_THAT(connect_as(1002, programs[1]), HasSubstr(full));

  // Each user ends its own programs, and root all.
  const std::string none = "process {} is no client of gdxd that you may kick";
  EXPECT_EQ(server_->kick(1004, getpid()).error().message, fmt::format(fmt::runtime(none), getpid()));
  EXPECT_EQ(server_->kick(0, 0).error().message, fmt::format(fmt::runtime(none), 0));
  EXPECT_EQ(server_->kick(0, 1).error().message, fmt::format(fmt::runtime(none), 1));
  EXPECT_TRUE(server_->kick(1003, getpid()));
  EXPECT_TRUE(until([&] { return users(0) == std::vector<uid_t>{0, 1001}; }));
  EXPECT_EQ(server_->drain(1001).error().message, "only root and gdxd's own user may drain it");
  EXPECT_FALSE(server_->draining());
  EXPECT_TRUE(server_->kick(0, getpid()));
  EXPECT_TRUE(until([&] { return users(0).empty(); }));
}

TEST_F(DaemonServer, ids_of_one_range_are_one_user) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED: needs root, who can be other users";
  const IdFiles ids{path_ + ".subuid", "/etc/passwd"};
  std::ofstream(ids.ranges) << "1001:5000:100\n";
  Limits limits;
  limits.max_groups = 2;
  limits.group.max_clients = 3;
  start(limits, ids);
  std::shared_ptr<ipc::Daemon> programs[4];
  EXPECT_EQ(connect_as(5001, programs[0]), "");
  EXPECT_EQ(connect_as(5002, programs[1]), "");
  EXPECT_EQ(connect_as(1001, programs[2]), "");
  EXPECT_THAT(connect_as(5003, programs[3]), HasSubstr("no more than 3 clients"));
  EXPECT_EQ(connect_as(1002, programs[3]), "");
  EXPECT_EQ(users(0), (std::vector<uid_t>{1001, 1002, 5001, 5002}));
  std::filesystem::remove(ids.ranges);
}

}  // namespace daemon_server_test
}  // namespace gdx::daemon
