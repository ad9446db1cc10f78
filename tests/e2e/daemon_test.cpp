// gdxd and its clients in one process: what the protocol refuses, what a client may have, and how both end.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/holes.h"
#include "device/endpoint.h"
#include "host/bootstrap/local_socket.h"
#include "host/gdx.h"
#include "host/ipc/daemon.h"
#include "host/memory/shared_file.h"
#include "host/programs/daemon/server.h"
#include "tests/e2e/comes_true.h"
#include "tests/e2e/connected.h"
#include "tests/e2e/must.h"
#include "tests/e2e/stderr_file.h"
#include "tests/e2e/vain_wait.h"
#include "tests/fuzz/daemon_attacker.h"

namespace gdx::daemon {
namespace daemon_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint64_t kLongNs = 200'000'000'000;
constexpr std::size_t kPage = 4096;

// A gdxd on a thread, at a path that GDX_DAEMON names.
class RunningServer {
 public:
  explicit RunningServer(const Limits& limits = {}) {
    path_ = (std::filesystem::temp_directory_path() / ("gdxd-test-" + std::to_string(getpid()))).string();
    start(limits);
    setenv(ipc::kDaemonVariable, ("unix:" + path_).c_str(), 1);
  }
  ~RunningServer() {
    stop();
    unsetenv(ipc::kDaemonVariable);
  }
  void start(const Limits& limits = {}) {
    server_ = must(Server::listen({.path = path_, .limits = limits}));
    thread_ = std::thread([this] { EXPECT_TRUE(server_->run()); });
  }
  void stop() {
    if (!server_) return;
    server_->stop();
    thread_.join();
    server_.reset();
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] Server& server() const { return *server_; }

 private:
  std::string path_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

// A client that sends what it likes.
class RawClient {
 public:
  explicit RawClient(const std::string& path) : socket_(must(bootstrap::connect_local(path))) {}

  // Returns the status of the answer.
  Status send(const std::vector<std::byte>& bytes, const std::vector<int>& files = {}) {
    must(bootstrap::send_local(socket_, bytes, files, monotonic_ns() + kLongNs));
    received_ = must(bootstrap::receive_local(socket_, monotonic_ns() + kLongNs));
    const auto parsed = must(ipc::parse_message(received_.bytes));
    reason_ = parsed.status == Status::kOk ? "" : ipc::decode_refusal(parsed).message;
    return parsed.status;
  }
  template <typename Request>
  Status call(const Request& request, const std::vector<int>& files = {}) {
    return send(ipc::encode(Request::kKind, request), files);
  }
  void send_without_answer(const std::vector<std::byte>& bytes) const {
    must(bootstrap::send_local(socket_, bytes, {}, monotonic_ns() + kLongNs));
  }
  template <typename Answer>
  [[nodiscard]] Answer answer() const {
    return must(ipc::parse_body<Answer>(must(ipc::parse_message(received_.bytes))));
  }
  // Takes the file that came with the last answer.
  Descriptor take_file() { return std::move(received_.descriptors.at(0)); }
  void greet_and_open() {
    ASSERT_EQ(call(ipc::Hello{1, 1, 0, "raw"}), Status::kOk) << reason_;
    ASSERT_EQ(call(ipc::OpenHca{{}, -1, 0}), Status::kOk) << reason_;
  }
  [[nodiscard]] const std::string& reason() const { return reason_; }

 private:
  Descriptor socket_;
  bootstrap::LocalMessage received_;
  std::string reason_;
};

std::vector<std::byte> header_of(ipc::Header header, std::size_t body_bytes = 0) {
  std::vector<std::byte> bytes(sizeof header + body_bytes);
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

// A file that stands for a dmabuf on the software HCA, whose buffer begins at the file's position.
Descriptor stand_in_dmabuf(off_t position, bool sealed) {
  Descriptor file(memfd_create("dmabuf", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(posix_fallocate(file.value(), 0, 4 * kPage), 0);
  if (sealed) {
    EXPECT_EQ(fcntl(file.value(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  }
  EXPECT_EQ(lseek(file.value(), position, SEEK_SET), position);
  return file;
}

ipc::RegisterMemory region_of(std::uint64_t bytes) {
  return {0, bytes, 0x10000, static_cast<std::uint32_t>(Access::kAll), 0};
}

TEST(DaemonProtocol, what_is_no_message_is_refused_and_the_next_one_answered) {
  const RunningServer server;
  RawClient client(server.path());
  const auto hello = static_cast<std::uint16_t>(ipc::Kind::kHello);
  EXPECT_EQ(client.send(std::vector<std::byte>(1)), Status::kInvalidArgument);
  EXPECT_EQ(client.send(std::vector<std::byte>(ipc::kMaxMessageBytes + 1)), Status::kInvalidArgument);
  EXPECT_EQ(client.send(std::vector<std::byte>(bootstrap::kMaxLocalMessageBytes)), Status::kInvalidArgument);
  EXPECT_EQ(client.send(header_of({0x12345678, ipc::kVersion, hello, 0, 0})), Status::kInvalidArgument);
  EXPECT_EQ(client.send(header_of({ipc::kMagic, 99, hello, 0, 0})), Status::kVersionMismatch);
  EXPECT_EQ(client.send(header_of({ipc::kMagic, ipc::kVersion, 0, 0, 0})), Status::kInvalidArgument);
  EXPECT_EQ(client.send(header_of({ipc::kMagic, ipc::kVersion, 1000, 0, 0})), Status::kInvalidArgument);
  EXPECT_EQ(client.send(header_of({ipc::kMagic, ipc::kVersion, hello, 0, 0}, 1)), Status::kInvalidArgument);
  EXPECT_EQ(client.call(ipc::Hello{2, 7, 0, "newer"}), Status::kVersionMismatch);
  EXPECT_THAT(client.reason(), HasSubstr("this program has 2 to 7"));
  client.greet_and_open();
}

TEST(DaemonProtocol, requests_out_of_turn_are_refused) {
  const RunningServer server;
  RawClient client(server.path());
  EXPECT_EQ(client.call(ipc::OpenHca{{}, -1, 0}), Status::kInvalidArgument);
  EXPECT_EQ(client.call(ipc::DestroyEndpoint{1}), Status::kInvalidArgument);
  client.greet_and_open();
  EXPECT_EQ(client.call(ipc::Hello{1, 1, 0, "again"}), Status::kInvalidArgument);
  EXPECT_EQ(client.call(ipc::OpenHca{{}, -1, 0}), Status::kInvalidArgument);
  EXPECT_EQ(client.call(ipc::Notice{}), Status::kInvalidArgument);
  EXPECT_EQ(client.call(ipc::DestroyEndpoint{1}), Status::kNotFound);
  EXPECT_EQ(client.call(ipc::DeregisterMemory{1}), Status::kNotFound);
  EXPECT_EQ(client.call(ipc::ClosePool{1}), Status::kNotFound);
  EXPECT_EQ(client.call(ipc::ReadPool{1}), Status::kNotFound);
  EXPECT_EQ(client.call(ipc::ReadFlight{1, 0, 0}), Status::kNotFound);
  EXPECT_EQ(client.call(ipc::ReadFlight{0, 0, 0}), Status::kOk) << client.reason();
}

TEST(DaemonProtocol, a_wake_up_has_no_answer) {
  const RunningServer server;
  RawClient client(server.path());
  const auto wake = ipc::encode(ipc::Kind::kWake, ipc::Wake{});
  client.send_without_answer(wake);
  client.greet_and_open();
  client.send_without_answer(wake);
  client.send_without_answer(wake);
  const auto kind = static_cast<std::uint16_t>(ipc::Kind::kWake);
  client.send_without_answer(header_of({ipc::kMagic, ipc::kVersion, kind, 0, 0}, 1));
  EXPECT_EQ(client.call(ipc::DestroyEndpoint{1}), Status::kNotFound) << "the answer is this request's";
}

// Memory of each kind that would let a client end gdxd, or reach beyond what it has sent.
TEST(DaemonMemory, files_that_do_not_hold_are_refused) {
  const RunningServer server;
  RawClient client(server.path());
  client.greet_and_open();
  const SharedFile good = must(make_shared_file(4 * kPage));
  const Descriptor unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.value(), 4 * kPage), 0);
  const Descriptor read_only(
      ::open(("/proc/self/fd/" + std::to_string(good.file.value())).c_str(), O_RDONLY | O_CLOEXEC));
  const Descriptor sparse(memfd_create("sparse", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(sparse.value(), 4 * kPage), 0);
  ASSERT_EQ(fcntl(sparse.value(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  const Descriptor huge(memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  const Descriptor folder(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_EQ(client.call(region_of(4 * kPage)), Status::kInvalidArgument);  // no file
  EXPECT_EQ(client.call(region_of(4 * kPage), {unsealed.value()}), Status::kInvalidArgument);
  EXPECT_THAT(client.reason(), HasSubstr("sealed against shrinking"));
  EXPECT_EQ(client.call(region_of(4 * kPage), {folder.value()}), Status::kInvalidArgument);
  EXPECT_EQ(client.call(region_of(4 * kPage), {sparse.value()}), Status::kInvalidArgument);
  EXPECT_THAT(client.reason(), HasSubstr("posix_fallocate"));
  if (huge) {
    EXPECT_EQ(fcntl(huge.value(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
    EXPECT_EQ(client.call(region_of(4 * kPage), {huge.value()}), Status::kInvalidArgument);
    EXPECT_THAT(client.reason(), HasSubstr("MFD_HUGETLB"));
  }
  EXPECT_NE(client.call(region_of(4 * kPage), {read_only.value()}), Status::kOk);
  const int file = good.file.value();
  EXPECT_EQ(client.call(region_of(4 * kPage), {file, file}), Status::kInvalidArgument);
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{5 * kPage}, ~std::uint64_t{0}}) {
    EXPECT_NE(client.call(region_of(bytes), {file}), Status::kOk) << bytes;
  }
  for (const std::uint64_t offset : {std::uint64_t{1}, std::uint64_t{kPage}, ~std::uint64_t{kPage - 1}}) {
    auto request = region_of(4 * kPage);
    request.file_offset = offset;
    EXPECT_EQ(client.call(request, {file}), Status::kInvalidArgument) << offset;
  }
  for (const std::uint64_t iova : {std::uint64_t{1}, ~std::uint64_t{kPage - 1}}) {
    auto request = region_of(4 * kPage);
    request.iova = iova;
    EXPECT_EQ(client.call(request, {file}), Status::kInvalidArgument) << iova;
  }
  auto rights = region_of(4 * kPage);
  rights.access = static_cast<std::uint32_t>(Access::kRemoteWrite);
  EXPECT_EQ(client.call(rights, {file}), Status::kInvalidArgument);
  rights.access = 1u << 31;
  EXPECT_EQ(client.call(rights, {file}), Status::kInvalidArgument);
  EXPECT_EQ(client.call(region_of(4 * kPage), {file}), Status::kOk) << client.reason();
}

TEST(DaemonMemory, dmabufs_that_do_not_hold_are_refused) {
  const RunningServer server;
  RawClient client(server.path());
  client.greet_and_open();
  auto request = region_of(4 * kPage);
  request.source = static_cast<std::uint32_t>(ipc::Source::kDmabuf);
  const Descriptor good = stand_in_dmabuf(0, true);
  EXPECT_EQ(client.call(request, {stand_in_dmabuf(0, false).value()}), Status::kInvalidArgument);
  EXPECT_EQ(client.call(request, {stand_in_dmabuf(off_t{1} << 40, true).value()}), Status::kInvalidArgument);
  EXPECT_EQ(client.call(request, {stand_in_dmabuf(kPage, true).value()}), Status::kInvalidArgument);
  auto beyond = request;
  beyond.file_offset = ~std::uint64_t{kPage - 1};
  EXPECT_EQ(client.call(beyond, {good.value()}), Status::kInvalidArgument);
  EXPECT_EQ(client.call(request, {good.value()}), Status::kOk) << client.reason();
}

// A window into memory that gdxd has the file of needs none of its own; other memory has none.
TEST(DaemonMemory, parts_of_allocated_memory_can_be_registered) {
  const RunningServer server;
  const Hca hca = must(Hca::open());
  const Memory whole = must(allocate_memory(hca, 4 * kPage));
  const Memory part = must(register_memory(hca, whole.data() + kPage + 8, kPage));
  EXPECT_EQ(part.remote().address, reinterpret_cast<std::uintptr_t>(whole.data() + kPage + 8));
  EXPECT_NE(part.rkey(), whole.rkey());
  EXPECT_EQ(register_memory(hca, whole.data() + kPage, 4 * kPage).error().status, Status::kUnsupported);
  std::uint64_t on_stack = 0;
  EXPECT_THAT(register_memory(hca, &on_stack, sizeof on_stack).error().message,
              HasSubstr("use allocate_memory"));
}

// The file of doorbells and device memory is of the client's group alone. A client can neither shrink it, nor
// have it registered, nor move gdxd's place in it.
TEST(DaemonMemory, the_hcas_own_file_holds_against_its_clients) {
  const RunningServer server;
  RawClient client(server.path());
  client.greet_and_open();
  ASSERT_EQ(client.call(ipc::OpenPool{0, 0, kDefaultSlotBytes, 1, 100}), Status::kOk) << client.reason();
  const Descriptor file = client.take_file();
  const auto pool = client.answer<ipc::PoolAnswer>();
  EXPECT_NE(ftruncate(file.value(), 0), 0);
  EXPECT_EQ(client.call(region_of(kPage), {file.value()}), Status::kInvalidArgument);
  EXPECT_EQ(lseek(file.value(), 9999, SEEK_SET), 9999);
  struct flock whole {};
  whole.l_type = F_UNLCK;
  EXPECT_EQ(fcntl(file.value(), F_OFD_SETLK, &whole), 0);
  EXPECT_EQ(client.call(ipc::ClosePool{pool.pool}), Status::kOk) << client.reason();
  EXPECT_EQ(client.call(ipc::OpenPool{0, 0, kDefaultSlotBytes, 1, 100}), Status::kOk) << client.reason();
}

std::uint64_t pages_of(int file) {
  struct stat facts {};
  EXPECT_EQ(fstat(file, &facts), 0);
  return present_bytes(facts) / kPage;
}

// Pages that a client takes out of a file, and gdxd would add again as its own.
TEST(DaemonMemory, a_hole_in_a_clients_file_stays_one) {
  const RunningServer server;
  const Hca hca = must(Hca::open());
  Connected written(hca);
  Connected read(hca);
  Memory memory = must(allocate_memory(hca, 16 * kPage));
  ASSERT_EQ(written.put(memory.remote(), std::byte{1}), Status::kOk);
  EXPECT_EQ(memory.data()[kPage - 1], std::byte{1});
  ASSERT_EQ(fallocate(memory.file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 16 * kPage), 0);
  EXPECT_EQ(written.put(memory.remote(), std::byte{2}), Status::kRemoteAccess);
  EXPECT_EQ(pages_of(memory.file()), 0U);
  EXPECT_EQ(memory.data()[kPage - 1], std::byte{0});  // the client's own access adds a page, of its own
  ASSERT_EQ(read.put(memory.remote(), std::byte{3}), Status::kOk);
  EXPECT_EQ(memory.data()[0], std::byte{3});
}

TEST(DaemonEndpoints, impossible_ones_are_refused) {
  const RunningServer server;
  RawClient client(server.path());
  RawClient other(server.path());
  client.greet_and_open();
  other.greet_and_open();
  const QueueMemory queues = must(QueueMemory::allocate_in_file(16, 0, 0));
  const auto good = plain_endpoint(queues.host_memory().size());
  const auto refused = [&](auto change) {
    auto request = good;
    change(request);
    return client.call(request, {queues.file()});
  };
  EXPECT_EQ(refused([](auto& it) { it.send_queue_blocks = 17; }), Status::kInvalidArgument);
  EXPECT_EQ(refused([](auto& it) { it.send_queue_blocks = 128; }), Status::kInvalidArgument);
  EXPECT_EQ(refused([](auto& it) { it.sharing = 9; }), Status::kInvalidArgument);
  EXPECT_EQ(refused([](auto& it) { it.doorbell = 9; }), Status::kInvalidArgument);
  EXPECT_EQ(refused([](auto& it) { it.ack_timeout = 99; }), Status::kInvalidArgument);
  EXPECT_EQ(refused([](auto& it) { it.slot_count = 1; }), Status::kNotFound);
  EXPECT_EQ(refused([](auto& it) { it.queue_bytes += kPage; }), Status::kInvalidArgument);
  ASSERT_EQ(other.call(ipc::OpenPool{0, 0, 4096, 1, 100}), Status::kOk) << other.reason();
  const auto pool = other.answer<ipc::PoolAnswer>().pool;
  EXPECT_EQ(refused([&](auto& it) {
              it.slot_count = 1;
              it.pool = pool;
            }),
            Status::kNotFound)
      << "another client's pool";
  ASSERT_EQ(client.call(good, {queues.file()}), Status::kOk) << client.reason();
  const auto number = client.answer<ipc::EndpointAnswer>().endpoint;
  EXPECT_EQ(other.call(ipc::QueryEndpoint{number}), Status::kNotFound);
  EXPECT_EQ(other.call(ipc::DestroyEndpoint{number}), Status::kNotFound);
  ipc::ConnectEndpoint nowhere{number, {}};
  EXPECT_NE(client.call(nowhere), Status::kOk);
  EXPECT_EQ(client.call(ipc::DestroyEndpoint{number}), Status::kOk);
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(DaemonFlights, are_of_a_users_own_endpoints_and_say_how_many_are_left_out) {
  constexpr std::uint32_t kShown = 64;
  const RunningServer server;
  RawClient client(server.path());
  client.greet_and_open();
  const QueueMemory queues = must(QueueMemory::allocate_in_file(16, 0, 0));
  const auto request = plain_endpoint(queues.host_memory().size());
  const auto flights = [&](uid_t viewer, std::uint32_t qpn = 0) {
    return server.server().flights(viewer, 0, qpn);
  };
  for (std::uint32_t i = 0; i < kShown; ++i)
    ASSERT_EQ(client.call(request, {queues.file()}), Status::kOk) << client.reason();
  const std::uint32_t qpn = client.answer<ipc::EndpointAnswer>().qpn;
  EXPECT_EQ(count_of(flights(geteuid()), "\"flight\": \"flight engine "), kShown);
  EXPECT_THAT(flights(geteuid()), HasSubstr("\"left_out\": 0,"));
  ASSERT_EQ(client.call(request, {queues.file()}), Status::kOk) << client.reason();
  EXPECT_EQ(count_of(flights(geteuid()), "\"flight\": \"flight engine "), kShown);
  EXPECT_THAT(flights(geteuid()), HasSubstr("\"left_out\": 1,"));
  EXPECT_THAT(flights(geteuid(), qpn), AllOf(HasSubstr("\"hca\": \"gdx0\""), HasSubstr("\"left_out\": 0,"),
                                             HasSubstr("\"qpn\": " + std::to_string(qpn))));
  RawClient second(server.path());
  second.greet_and_open();
  ASSERT_EQ(second.call(request, {queues.file()}), Status::kOk) << second.reason();
  EXPECT_EQ(count_of(flights(geteuid()), "\"flight\": \"flight engine "), kShown)
      << "of all clients together";
  EXPECT_THAT(flights(geteuid()), HasSubstr("\"left_out\": 2,"));
  for (const uid_t other : {geteuid() + 1, uid_t{65534}})
    EXPECT_THAT(flights(other), AllOf(HasSubstr("\"flights\": []"), HasSubstr("\"left_out\": 0,"))) << other;
}

// Bytes that a client can fill in the file of its context.
std::size_t context_bytes() {
  const Hca own = must(Hca::open({.in_this_process = true}));
  return std::filesystem::file_size("/proc/self/fd/" + std::to_string(own.context()->cmd_fd));
}

TEST(DaemonQuotas, each_is_named_and_comes_back) {
  Limits limits;
  limits.group.max_clients = 2;
  limits.group.max_endpoints = 1;
  limits.group.max_regions = 1;
  limits.group.max_registered_bytes = 64 * kPage + context_bytes();
  limits.group.max_pools = 1;
  const RunningServer server(limits);
  {
    const Hca hca = must(Hca::open());
    const auto refused_hca = [] {
      const Hca second = must(Hca::open());
      return Hca::open();
    }();
    ASSERT_FALSE(refused_hca);
    EXPECT_THAT(refused_hca.error().message, HasSubstr("2 clients"));
    {
      const Memory memory = must(allocate_memory(hca, kPage));
      const auto refused = allocate_memory(hca, kPage);
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().status, Status::kNoMemory);
      EXPECT_THAT(refused.error().message, HasSubstr("1 registered regions"));
    }
    EXPECT_THAT(allocate_memory(hca, 65 * kPage).error().message, HasSubstr("registered bytes"));
    EXPECT_TRUE(allocate_memory(hca, kPage));
    const StagingPool pool = must(StagingPool::create(hca));
    EXPECT_THAT(StagingPool::create(hca, StagingOptions::in_host_memory()).error().message,
                HasSubstr("staging pools"));
    {
      const Endpoint endpoint = must(Endpoint::create(hca, {}, {}));
      EXPECT_THAT(Endpoint::create(hca, {}, {}).error().message, HasSubstr("1 endpoints"));
    }
    EXPECT_TRUE(Endpoint::create(hca, {}, {}));
  }
}

// Operators see who has the places. This process has the user of gdxd.
TEST(DaemonQuotas, operators_get_in_where_clients_do_not) {
  Limits limits;
  limits.max_clients = 1;
  const RunningServer server(limits);
  const Hca hca = must(Hca::open());
  std::vector<std::shared_ptr<ipc::Daemon>> operators;
  for (std::ptrdiff_t i = 0; i < kOperatorPlaces; ++i) {
    operators.push_back(must(ipc::Daemon::connect(server.path())));
    const auto told = must(operators.back()->call<ipc::StatisticsAnswer>(ipc::ReadStatistics{}));
    EXPECT_THAT(must(ipc::read_text(told)), HasSubstr("\"hca\": \"" + hca.name() + "\""));
  }
  const auto opened = operators.back()->call<ipc::HcaAnswer>(ipc::OpenHca{});
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().message, HasSubstr("gdxd serves 1 clients already"));
  EXPECT_THAT(ipc::Daemon::connect(server.path()).error().message, HasSubstr("clients already"));
}

// A second kind of rules would otherwise take another user's part.
TEST(DaemonQuotas, a_user_has_one_part_of_the_nics_memory) {
  Limits limits;
  limits.pools_per_hca = 2;
  const RunningServer server(limits);
  const Hca hca = must(Hca::open());
  const StagingPool pool = must(StagingPool::create(hca));
  EXPECT_TRUE(StagingPool::create(hca)) << "equal rules share a pool";
  using Change = void (*)(StagingOptions&);
  const Change changes[] = {
      [](StagingOptions& o) { o.minimum_slots = 2; },
      [](StagingOptions& o) { o.threshold_percent = 50; },
      [](StagingOptions& o) { o.slot_bytes *= 2; },
      [](StagingOptions& o) { o.pool_bytes = 16 * o.slot_bytes; },
  };
  for (const Change& change : changes) {
    StagingOptions other;
    change(other);
    const auto refused = StagingPool::create(hca, other);
    ASSERT_FALSE(refused) << "rule " << &change - changes;
    EXPECT_EQ(refused.error().status, Status::kNoMemory);
    EXPECT_THAT(refused.error().message, HasSubstr("1 staging pools in the memory of gdx0"));
  }
}

TEST(DaemonStatistics, show_a_user_what_is_theirs_and_root_all) {
  const RunningServer server;
  const Hca hca = must(Hca::open());
  const StagingPool pool = must(StagingPool::create(hca));
  const auto shown = [&](uid_t viewer) { return server.server().statistics(viewer); };
  const std::string user = "\"uid\": " + std::to_string(geteuid());
  for (const uid_t viewer : {geteuid(), uid_t{0}}) EXPECT_EQ(count_of(shown(viewer), user), 2u) << viewer;
  for (const uid_t other : {geteuid() + 1, uid_t{65534}})
    EXPECT_THAT(shown(other), AllOf(HasSubstr("\"clients\": []"), HasSubstr("\"users\": []"))) << other;
}

// A client that ends leaves nothing: not a slot, not a key, not a descriptor.
TEST(DaemonDeath, of_a_client_gives_everything_back) {
  const RunningServer server;
  const Hca survivor = must(Hca::open());
  StagingPool pool = must(StagingPool::create(survivor));
  const auto files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  };
  std::ptrdiff_t before = 0;
  RemoteMemory to{};
  for (int round = 0; round < 8; ++round) {
    {
      RawClient client(server.path());
      client.greet_and_open();
      ASSERT_EQ(client.call(ipc::OpenPool{0, 0, kDefaultSlotBytes, 1, 100}), Status::kOk) << client.reason();
      const auto opened = client.answer<ipc::PoolAnswer>();
      const QueueMemory queues = must(QueueMemory::allocate_in_file(16, pool.slot_count(), 0));
      auto request = plain_endpoint(queues.host_memory().size());
      request.slot_count = 4;
      request.pool = opened.pool;
      ASSERT_EQ(client.call(request, {queues.file()}), Status::kOk) << client.reason();
      EXPECT_GE(pool.leased_slots(), 1u);
      const SharedFile payload = must(make_shared_file(kPage));
      ASSERT_EQ(client.call(region_of(kPage), {payload.file.value()}), Status::kOk) << client.reason();
      to = {0x10000, kPage, Be32(client.answer<ipc::RegisterAnswer>().rkey), 0};
      EXPECT_EQ(Connected(survivor).put(to, std::byte{7}), Status::kOk) << "a key of the group";
      EXPECT_EQ(payload.pages.get()[0], std::byte{7});
    }
    EXPECT_TRUE(comes_true([&] { return pool.leased_slots() == 0; }));
    EXPECT_TRUE(
        comes_true([&] { return Connected(survivor).put(to, std::byte{8}) == Status::kRemoteAccess; }));
    EXPECT_TRUE(comes_true([&] { return round == 0 || files() <= before; })) << files() << " " << before;
    if (round == 0) before = files() + 2;  // a session may still be closing
  }
}

TEST(DaemonDeath, of_gdxd_aborts_kernels_and_names_itself_and_a_new_one_serves) {
  RunningServer server;
  Hca hca = must(Hca::open());
  Memory memory = must(allocate_memory(hca, kPage));
  Endpoint a = must(Endpoint::create(hca, {}, {.timeout_ns = kMaxWaitNs}));
  Endpoint b = must(Endpoint::create(hca, {}, {.timeout_ns = kMaxWaitNs}));
  must(a.connect(b.address()));
  must(b.connect(a.address()));
  Status ended = Status::kPending;
  std::atomic<bool> waits{false};
  std::thread kernel([&] { ended = wait_in_vain(a, memory, waits); });
  while (!waits.load()) std::this_thread::yield();
  server.stop();
  kernel.join();
  EXPECT_EQ(ended, Status::kAborted);
  const auto gone = allocate_memory(hca, kPage);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().status, Status::kDaemonGone);
  EXPECT_THAT(gone.error().message, AllOf(HasSubstr(server.path()), HasSubstr("start it again")));
  EXPECT_EQ(a.query_queue_pair().error().status, Status::kDaemonGone);
  bool told = false;
  hca.daemon()->forget(hca.daemon()->on_loss([&] { told = true; }));
  EXPECT_TRUE(told) << "who asks too late is told at once";
  server.start();
  const Hca again = must(Hca::open());
  EXPECT_TRUE(allocate_memory(again, kPage));
}

TEST(DaemonPlace, of_a_socket_is_taken_once_and_freed) {
  RunningServer server;
  EXPECT_EQ(Server::listen({.path = server.path()}).error().status, Status::kBusy);
  struct stat facts {};
  ASSERT_EQ(stat(server.path().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  server.stop();
  EXPECT_NE(stat(server.path().c_str(), &facts), 0);
  // A daemon that was killed leaves its socket behind.
  { const Descriptor stale = must(bootstrap::listen_local(server.path())); }
  ASSERT_EQ(stat(server.path().c_str(), &facts), 0);
  server.start();
  EXPECT_TRUE(Hca::open());
}

TEST(DaemonPlace, of_a_socket_that_was_removed_and_replaced_is_left_to_the_newer) {
  RunningServer older;
  const std::string path = older.path();
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".lock");
  const auto newer = must(Server::listen({.path = path}));
  older.stop();
  EXPECT_TRUE(bootstrap::connect_local(path)) << "the newer gdxd cannot be reached";
}

// Without a name for gdxd, one that refuses this program does not keep it from its own HCA.
TEST(DaemonPlace, of_nobody_who_serves_is_passed_over) {
  const auto folder = std::filesystem::temp_directory_path() / ("gdxd-run-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder / "gdx");
  Limits limits;
  limits.group.max_clients = 0;
  const std::string path = (folder / ipc::kSocketName).string();
  const auto server = must(Server::listen({.path = path, .limits = limits}));
  std::thread thread([&] { EXPECT_TRUE(server->run()); });
  setenv("XDG_RUNTIME_DIR", folder.c_str(), 1);
  const StderrFile log;
  const auto hca = Hca::open();
  EXPECT_THAT(log.text(),
              HasSubstr("warning: this process opens its HCA by itself: gdxd gives a user no more"));
  EXPECT_TRUE(hca && !hca->daemon());
  setenv(ipc::kDaemonVariable, ("unix:" + path).c_str(), 1);
  EXPECT_THAT(Hca::open().error().message, HasSubstr("0 clients"));
  unsetenv(ipc::kDaemonVariable);
  unsetenv("XDG_RUNTIME_DIR");
  server->stop();
  thread.join();
  std::filesystem::remove_all(folder);
}

TEST(DaemonPlace, bad_values_of_the_variable_are_refused) {
  for (const char* const value : {"", "yes", "unix:", "unix:relative", "tcp:1"}) {
    setenv(ipc::kDaemonVariable, value, 1);
    const auto refused = Hca::open();
    ASSERT_FALSE(refused) << value;
    EXPECT_EQ(refused.error().status, Status::kInvalidArgument);
    EXPECT_THAT(refused.error().message, HasSubstr("use auto, off or unix:PATH"));
  }
  setenv(ipc::kDaemonVariable, "unix:/nowhere/gdxd", 1);
  EXPECT_EQ(Hca::open().error().status, Status::kNotFound);
  unsetenv(ipc::kDaemonVariable);
}

}  // namespace daemon_test
}  // namespace gdx::daemon
