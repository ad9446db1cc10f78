// Sessions of gdxd without a socket: what each state permits, every figure and answer, every limit.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "host/memory/memory.h"
#include "host/memory/shared_file.h"
#include "host/programs/daemon/session.h"
#include "host/queue/queue_memory.h"
#include "proto/mlx5/doorbell.h"
#include "tests/fuzz/daemon_attacker.h"

namespace gdx::daemon {
namespace daemon_session_test {

using ::testing::HasSubstr;

constexpr std::size_t kPage = 4096;

template <typename T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

// A client whose requests cross no socket.
class LocalClient {
 public:
  explicit LocalClient(std::shared_ptr<Group> group)
      : group_(std::move(group)), session_(group_, must(group_->clients.take(1))) {}
  explicit LocalClient(const Limits& limits = {}) : LocalClient(std::make_shared<Group>(1, limits)) {}

  // Returns the reason of a refusal; empty without one.
  template <typename Request>
  std::string call(const Request& request, const std::vector<int>& files = {}) {
    return send(Request::kKind, ipc::encode(Request::kKind, request), files);
  }
  std::string send(ipc::Kind kind, std::vector<std::byte> bytes, const std::vector<int>& files = {}) {
    bootstrap::LocalMessage message{std::move(bytes), {}};
    for (const int file : files) message.descriptors.emplace_back(fcntl(file, F_DUPFD_CLOEXEC, 0));
    answer_ = session_.answer(std::move(message));
    const auto parsed = must(ipc::parse_message(answer_.bytes));
    EXPECT_EQ(parsed.kind, kind);
    return parsed.status == Status::kOk ? "" : ipc::decode_refusal(parsed).message;
  }
  template <typename Body>
  [[nodiscard]] Body answer() const {
    return must(ipc::parse_body<Body>(must(ipc::parse_message(answer_.bytes))));
  }
  [[nodiscard]] int file() const { return answer_.file; }
  LocalClient& opened(const char* program = "it") {
    ipc::Hello hello{1, 1, 0, {}};
    ipc::set_text(hello.program, program);
    EXPECT_EQ(call(hello), "");
    EXPECT_EQ(call(ipc::OpenHca{{}, -1, 0}), "");
    return *this;
  }
  std::string register_bytes(const SharedFile& file, std::uint64_t bytes, std::uint64_t offset = 0) {
    return call(ipc::RegisterMemory{offset, bytes, 0x10000 + offset % kPage,
                                    static_cast<std::uint32_t>(Access::kAll), 0},
                {file.file.value()});
  }

  [[nodiscard]] Session& session() { return session_; }
  [[nodiscard]] Group& group() { return *group_; }

 private:
  std::shared_ptr<Group> group_;
  Session session_;
  Answer answer_;
};

// Of the requests without a body here, those that a state permits are malformed or not found.
TEST(DaemonSession, each_state_permits_its_requests_alone) {
  const auto permitted = [](LocalClient& client) {
    std::vector<int> kinds;
    for (std::uint16_t kind = 2; kind <= ipc::kLastKind; ++kind) {
      const auto which = static_cast<ipc::Kind>(kind);
      if (which == ipc::Kind::kWake) continue;
      const std::string reason = client.send(which, ipc::encode_message(which, Status::kOk, {}));
      const std::string refused =
          fmt::format("gdxd cannot answer a request of kind {} now: say hello, then open one HCA", kind);
      EXPECT_NE(reason, "");
      if (reason != refused) kinds.push_back(kind);
    }
    return kinds;
  };
  LocalClient client;
  EXPECT_EQ(permitted(client), (std::vector<int>{}));
  EXPECT_EQ(client.call(ipc::Hello{1, 1, 0, "it"}), "");
  EXPECT_FALSE(client.session().is_open());
  EXPECT_EQ(permitted(client), (std::vector<int>{2, 14, 15, 16, 19}));
  EXPECT_EQ(client.call(ipc::OpenHca{{}, -1, 0}), "");
  EXPECT_TRUE(client.session().is_open());
  EXPECT_EQ(permitted(client), (std::vector<int>{3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 19}));
  EXPECT_THAT(client.call(ipc::Hello{1, 1, 0, "it"}), HasSubstr("a request of kind 1 now"));
}

TEST(DaemonSession, hello_takes_the_versions_that_hold_this_one) {
  Limits limits;
  limits.group.max_endpoints = 77;
  limits.group.max_registered_bytes = 8888;
  const struct {
    std::uint16_t oldest, newest;
    bool good;
  } cases[] = {{0, 0, false}, {0, 1, true}, {1, 1, true}, {1, 9, true}, {0, 9, true}, {2, 9, false}};
  for (const auto& [oldest, newest, good] : cases) {
    LocalClient client(limits);
    const ipc::Hello hello{oldest, newest, 0, "a\x1b[2J"};
    EXPECT_EQ(client.call(hello) == "", good) << oldest << " " << newest;
    EXPECT_EQ(client.session().figures().program, good ? "a?[2J" : "");
    if (!good) continue;
    const auto answer = client.answer<ipc::HelloAnswer>();
    EXPECT_EQ(answer.version, 1);
    EXPECT_EQ(answer.max_endpoints, 77u);
    EXPECT_EQ(answer.max_registered_bytes, 8888u);
    EXPECT_NE(ipc::text_of(answer.daemon_version), "");
    EXPECT_NE(fcntl(client.file(), F_GETFL) & O_NONBLOCK, 0) << "of notices";
  }
}

TEST(DaemonSession, opened_hca_is_described_as_it_is) {
  const Hca own = must(Hca::open({.in_this_process = true}));
  LocalClient client;
  client.opened();
  const auto answer = client.answer<ipc::HcaAnswer>();
  EXPECT_EQ(ipc::text_of(answer.name), own.name());
  EXPECT_EQ(ipc::text_of(answer.firmware), own.firmware());
  EXPECT_EQ(std::memcmp(answer.gid, own.gid().raw, sizeof answer.gid), 0);
  EXPECT_EQ(answer.device_memory_bytes, own.device_memory_bytes());
  EXPECT_EQ(answer.path_mtu_bytes, own.path_mtu_bytes());
  EXPECT_EQ(answer.gid_index, own.gid_index());
  EXPECT_EQ(answer.is_software, 1);
  EXPECT_EQ(answer.lid, own.lid());
  const auto reason = [](std::int32_t gid_index) {
    LocalClient other;
    EXPECT_EQ(other.call(ipc::Hello{1, 1, 0, "it"}), "");
    return other.call(ipc::OpenHca{{}, gid_index, 0});
  };
  EXPECT_EQ(reason(own.gid_index()), "");
  EXPECT_EQ(reason(256), "no GID has index 256: use 0 to 255");
  EXPECT_THAT(reason(255), HasSubstr("GID index 255"));
}

TEST(DaemonSession, pages_that_a_contexts_file_can_take_are_of_the_quota) {
  std::uint64_t bytes = 0;
  {
    LocalClient client;
    bytes = client.opened().group().registered_bytes.used();
  }
  Limits limits;
  limits.group.max_registered_bytes = bytes - 1;
  LocalClient client(limits);
  EXPECT_EQ(client.call(ipc::Hello{1, 1, 0, "it"}), "");
  EXPECT_THAT(client.call(ipc::OpenHca{{}, -1, 0}), HasSubstr("registered bytes, and 0 are in use"));
  EXPECT_EQ(client.group().registered_bytes.used(), 0u);
}

// Words that differ from those of the other kind of endpoint, of the other pool, and of the endpoint before.
TEST(DaemonSession, figures_are_of_each_endpoints_own_words) {
  LocalClient client;
  EXPECT_EQ(client.session().figures().hca, "");
  client.opened("prog");
  const QueueMemory queues[] = {must(QueueMemory::allocate_in_file(16, 0, 0)),
                                must(QueueMemory::allocate_in_file(64, 0, 0))};
  ipc::EndpointAnswer made[2];
  for (const bool shared : {false, true}) {
    auto request = plain_endpoint(queues[shared].host_memory().size());
    request.sharing = shared ? 1 : 0;
    request.send_queue_blocks = !shared ? 16 : 64;
    ASSERT_EQ(client.call(request, {queues[shared].file()}), "");
    made[shared] = client.answer<ipc::EndpointAnswer>();
    ControlPage& control = *queues[shared].control();
    control.state.completed = !shared ? 0x1fff8 : 700;
    control.state.shared.completed = !shared ? 800 : 5;
    control.queue_pair_record[mlx5::kSendRecord] = !shared ? 3 : 9;
    control.queue_pair_record[1 - mlx5::kSendRecord] = 40;
    control.state.staging.stalls = shared ? 4 : 3;
    control.state.bounce.stalls = 40;
    control.state.fault.syndrome = !shared ? 0x15 : 0;
  }
  EXPECT_NE(made[0].endpoint, made[1].endpoint);
  const Hca own = must(Hca::open({.in_this_process = true}));
  EndpointAddress peer{
      kEndpointAddressVersion, DataOrder::kAny, 0, made[0].qpn, made[0].psn, 1024, own.lid(), {}};
  std::copy(std::begin(own.gid().raw), std::end(own.gid().raw), std::begin(peer.gid));
  ipc::ConnectEndpoint connect{made[1].endpoint, {}};
  std::memcpy(connect.peer, &peer, sizeof peer);
  EXPECT_EQ(client.call(connect), "");
  EXPECT_EQ(client.call(connect), "the endpoint is connected already: make another");
  const SharedFile file = must(make_shared_file(4 * kPage));
  EXPECT_EQ(client.register_bytes(file, kPage), "");
  EXPECT_EQ(client.register_bytes(file, 3 * kPage - 100, kPage + 100), "");
  const SessionFigures figures = client.session().figures();
  EXPECT_EQ(figures.program, "prog");
  EXPECT_EQ(figures.hca, own.name());
  EXPECT_EQ(figures.regions, 2u);
  EXPECT_EQ(figures.registered_bytes, 4 * kPage - 100);
  ASSERT_EQ(figures.endpoints.size(), 2u);
  const std::string towards = fmt::format("QP {:#x} at {}", made[0].qpn, own.address_text());
  const EndpointFigures wanted[] = {{made[0].qpn, "", 16, 0x20003, 0x1fff8, 43, 0x15},
                                    {made[1].qpn, towards, 64, 9, 5, 44, 0}};
  for (std::size_t i = 0; i < 2; ++i) {
    const EndpointFigures& one = figures.endpoints[i];
    EXPECT_EQ(one.qpn, wanted[i].qpn);
    EXPECT_EQ(one.peer, wanted[i].peer);
    EXPECT_EQ(one.send_queue_blocks, wanted[i].send_queue_blocks);
    EXPECT_EQ(one.posted_blocks, wanted[i].posted_blocks);
    EXPECT_EQ(one.completed_blocks, wanted[i].completed_blocks);
    EXPECT_EQ(one.stalls, wanted[i].stalls);
    EXPECT_EQ(one.syndrome, wanted[i].syndrome);
  }
  const struct {
    std::uint32_t qpn, most, count, left_out;
  } choices[] = {{0, 9, 2, 0}, {0, 1, 1, 1}, {0, 0, 0, 2}, {made[1].qpn, 1, 1, 0}};
  for (const auto& [qpn, most, count, left_out] : choices) {
    const SessionFlights flights = client.session().flights(qpn, most);
    EXPECT_EQ(flights.program + " " + flights.hca, "prog " + own.name());
    EXPECT_EQ(flights.endpoints.size(), count);
    EXPECT_EQ(flights.left_out, left_out);
    if (qpn == 0) continue;
    EXPECT_EQ(flights.endpoints[0].qpn, qpn);
    EXPECT_EQ(flights.endpoints[0].peer, towards);
  }
  EXPECT_EQ(client.call(ipc::DestroyEndpoint{made[0].endpoint}), "");
  EXPECT_EQ(client.session().figures().endpoints.at(0).qpn, made[1].qpn);
}

}  // namespace daemon_session_test
}  // namespace gdx::daemon
