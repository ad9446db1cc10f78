// Two users of gdxd, one of whom attacks the other.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "host/gdx.h"
#include "host/memory/shared_file.h"
#include "host/programs/daemon/session.h"
#include "tests/e2e/connected.h"
#include "tests/e2e/must.h"
#include "tests/fuzz/daemon_attacker.h"

namespace gdx::daemon {
namespace daemon_group_test {

constexpr std::size_t kPage = Connected::kBytes;

// A client of a group of its own, whose requests cross no socket.
class LocalClient {
 public:
  explicit LocalClient(uid_t user)
      : group_(std::make_shared<Group>(user, Limits{})), session_(group_, must(group_->clients.take(1))) {
    EXPECT_EQ(call(ipc::Hello{1, 1, 0, {}}), Status::kOk);
    EXPECT_EQ(call(ipc::OpenHca{{}, -1, 0}), Status::kOk);
  }
  // Returns the status of the answer, whose body answer() reads.
  template <typename Request>
  Status call(const Request& request, const std::vector<int>& files = {}) {
    bootstrap::LocalMessage message{ipc::encode(Request::kKind, request), {}};
    for (const int file : files) message.descriptors.emplace_back(fcntl(file, F_DUPFD_CLOEXEC, 0));
    answer_ = session_.answer(std::move(message)).bytes;
    return must(ipc::parse_message(answer_)).status;
  }
  template <typename Body>
  [[nodiscard]] Body answer() const {
    return must(ipc::parse_body<Body>(must(ipc::parse_message(answer_))));
  }

 private:
  std::shared_ptr<Group> group_;
  Session session_;
  std::vector<std::byte> answer_;
};

// The attacker knows all numbers of a victim: key, address, QPN and PSN.
TEST(DaemonGroups, one_that_knows_anothers_numbers_reaches_nothing) {
  LocalClient victim(1);
  LocalClient attacker(2);
  const QueueMemory queues = must(QueueMemory::allocate_in_file(16, 0, 0));
  const auto make = [&](LocalClient& client) {
    EXPECT_EQ(client.call(plain_endpoint(queues.host_memory().size()), {queues.file()}), Status::kOk);
    return client.answer<ipc::EndpointAnswer>();
  };
  const auto target = make(victim);
  const auto partner = make(victim);
  const auto weapon = make(attacker);
  const Hca own = must(Hca::open({.in_this_process = true}));
  const auto connect = [&](LocalClient& client, const auto& from, const auto& to, const ibv_gid& gid) {
    EndpointAddress peer{kEndpointAddressVersion, DataOrder::kAny, 0, to.qpn, to.psn, 1024, own.lid(), {}};
    std::copy(std::begin(gid.raw), std::end(gid.raw), std::begin(peer.gid));
    ipc::ConnectEndpoint request{from.endpoint, {}};
    std::memcpy(request.peer, &peer, sizeof peer);
    return client.call(request);
  };
  // Both GIDs of the port lead to it.
  for (int index = 0; index < 2; ++index) {
    ibv_gid gid{};
    ASSERT_EQ(ibv_query_gid(own.context(), own.port(), index, &gid), 0);
    EXPECT_EQ(connect(attacker, weapon, target, gid), Status::kNotFound) << index;
  }
  // Packets to a GID with a FLID go out to that LID.
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(own.context(), own.port(), &port), 0);
  ibv_gid by_flid{.raw = {0xfe, 0xc0, 0, 0, 0, 0, 0, 9, 1}};
  by_flid.raw[4] = static_cast<std::uint8_t>(port.lid >> 8);
  by_flid.raw[5] = static_cast<std::uint8_t>(port.lid);
  EXPECT_EQ(connect(attacker, weapon, target, by_flid), Status::kNotFound);
  EXPECT_EQ(connect(victim, target, partner, own.gid()), Status::kOk) << "of one group";
  EXPECT_EQ(connect(attacker, weapon, target, own.gid()), Status::kNotFound);

  const SharedFile payload = must(make_shared_file(kPage));
  std::memset(payload.pages.get(), 0x5a, kPage);
  ASSERT_EQ(victim.call(ipc::RegisterMemory{0, kPage, 0x10000, static_cast<std::uint32_t>(Access::kAll), 0},
                        {payload.file.value()}),
            Status::kOk);
  const RemoteMemory known{0x10000, kPage, Be32(victim.answer<ipc::RegisterAnswer>().rkey), 0};
  EXPECT_EQ(Connected(own).put(known, std::byte{7}), Status::kRemoteAccess) << "by another protection domain";
  EXPECT_EQ(std::count(payload.pages.get(), payload.pages.get() + kPage, std::byte{0x5a}), kPage);
}

// A number that was given back is no longer the group's.
TEST(DaemonGroups, an_ended_queue_pair_is_no_peer) {
  LocalClient client(1);
  const QueueMemory queues = must(QueueMemory::allocate_in_file(16, 0, 0));
  const auto request = plain_endpoint(queues.host_memory().size());
  ASSERT_EQ(client.call(request, {queues.file()}), Status::kOk);
  const auto ended = client.answer<ipc::EndpointAnswer>();
  ASSERT_EQ(client.call(request, {queues.file()}), Status::kOk);
  ipc::ConnectEndpoint connect{client.answer<ipc::EndpointAnswer>().endpoint, {}};
  ASSERT_EQ(client.call(ipc::DestroyEndpoint{ended.endpoint}), Status::kOk);
  const Hca own = must(Hca::open({.in_this_process = true}));
  EndpointAddress peer{
      kEndpointAddressVersion, DataOrder::kAny, 0, ended.qpn, ended.psn, 1024, own.lid(), {}};
  std::copy(std::begin(own.gid().raw), std::end(own.gid().raw), std::begin(peer.gid));
  std::memcpy(connect.peer, &peer, sizeof peer);
  EXPECT_EQ(client.call(connect), Status::kNotFound);
}

}  // namespace daemon_group_test
}  // namespace gdx::daemon
