// One program with HCAs of both families, for tests of single commands.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>

#include "tests/unit/rdma_cm/programs.h"

namespace gdx::softhca::uverbs::commands_test {

using gdx::cm::Message;
using gdx::cm::MessageType;

inline const CmAddress first_address = address_of("127.0.0.3", 7471);
inline const CmAddress second_address = address_of("127.0.0.4", 7471);
inline const CmAddress any_address = address_of("0.0.0.0", 7471);
inline constexpr std::uint64_t kNowhere = 8;  // an address that no program has
inline constexpr std::uint64_t kLongNs = 100'000'000'000;

inline std::uint32_t number_of(ProgramEvent event) { return static_cast<std::uint32_t>(event); }

class CmCommands : public testing::Test {
 protected:
  // A request for a port from a peer that the test is.
  static Message request_for(std::uint16_t port, std::uint32_t id) {
    Message made;
    made.service_id = gdx::cm::ip_service_id(RDMA_PS_TCP, port);
    made.local_id = id;
    made.endpoint.qpn = id;
    made.path_mtu = 1;
    return made;
  }
  void deliver(PortHca& to, const Message& message) {
    to.agent().on_datagram(peer_, gdx::cm::encode(message));
    deliver_all(network_);
  }
  // Returns whether a request at this HCA becomes an event of the program.
  bool listens(PortHca& at, std::uint16_t port = 7471) {
    at.sent.clear();
    deliver(at, request_for(port, ++requests_));
    return at.sent.empty() &&
           program_.event().event == static_cast<std::uint32_t>(ProgramEvent::kConnectRequest);
  }
  // Connects the peer to a listener of the program. Returns the peer's last message.
  Message connected(PortHca& hca) {
    program_.listen_at(first_address);
    deliver(hca, request_for(7471, 5));
    const std::uint32_t id = program_.event().id;
    rdma_ucm_conn_param accepted{};
    accepted.valid = 1;
    EXPECT_EQ(program_.accept(id, accepted, 1), 0);
    EXPECT_FALSE(hca.sent.empty());
    if (hca.sent.empty()) return {};
    Message ready;
    ready.type = MessageType::kRtu;
    ready.local_id = 5;
    ready.remote_id = hca.sent.back().local_id;
    EXPECT_NE(hca.agent().next_deadline_ns(), cm::kNever);
    deliver(hca, ready);
    EXPECT_EQ(hca.agent().next_deadline_ns(), cm::kNever);
    return ready;
  }
  // Calls with each command that names an id, with room for any answer.
  template <typename Call>
  static void for_each_command(std::uint32_t id, int fd, Call call) {
    const auto with = [&](std::uint32_t number, auto body) {
      body.id = id;
      call(number, body);
    };
    with(RDMA_USER_CM_CMD_DESTROY_ID, rdma_ucm_destroy_id{});
    with(RDMA_USER_CM_CMD_BIND_IP, rdma_ucm_bind_ip{});
    with(RDMA_USER_CM_CMD_BIND, rdma_ucm_bind{});
    with(RDMA_USER_CM_CMD_RESOLVE_IP, rdma_ucm_resolve_ip{});
    with(RDMA_USER_CM_CMD_RESOLVE_ADDR, rdma_ucm_resolve_addr{});
    with(RDMA_USER_CM_CMD_RESOLVE_ROUTE, rdma_ucm_resolve_route{});
    with(RDMA_USER_CM_CMD_QUERY_ROUTE, rdma_ucm_query{});
    with(RDMA_USER_CM_CMD_QUERY, rdma_ucm_query{});
    with(RDMA_USER_CM_CMD_CONNECT, rdma_ucm_connect{});
    with(RDMA_USER_CM_CMD_LISTEN, rdma_ucm_listen{});
    with(RDMA_USER_CM_CMD_ACCEPT, rdma_ucm_accept{});
    with(RDMA_USER_CM_CMD_REJECT, rdma_ucm_reject{});
    with(RDMA_USER_CM_CMD_DISCONNECT, rdma_ucm_disconnect{});
    with(RDMA_USER_CM_CMD_INIT_QP_ATTR, rdma_ucm_init_qp_attr{});
    with(RDMA_USER_CM_CMD_SET_OPTION, rdma_ucm_set_option{});
    with(RDMA_USER_CM_CMD_NOTIFY, rdma_ucm_notify{});
    with(RDMA_USER_CM_CMD_MIGRATE_ID,
         rdma_ucm_migrate_id{.response = 0, .id = 0, .fd = static_cast<std::uint32_t>(fd)});
  }

  std::vector<PortHca*> network_;
  Program program_{network_, {"127.0.0.3", "127.0.0.4", "::1"}, 1, {}};
  const wire::Address peer_ = wire::Address::ipv4(0x7f000063);
  std::uint32_t requests_ = 0;
};

}  // namespace gdx::softhca::uverbs::commands_test
