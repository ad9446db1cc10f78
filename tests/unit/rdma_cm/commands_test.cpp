// Commands of the node one at a time: what each refuses, and what its addresses and files change.
#include "driver-shim/softhca/uverbs/real.h"
#include "tests/unit/rdma_cm/cm_commands.h"

namespace gdx::softhca::uverbs {

RealFunction<int(int)> real_close{"close"};  // of the hooks, which are not linked here

namespace commands_test {

TEST_F(CmCommands, id_that_is_not_there_or_of_another_file_is_refused) {
  const int other = program_.open();
  const std::uint32_t id = program_.create();
  for_each_command(id + 1, program_.fd, [&](std::uint32_t number, const auto& body) {
    EXPECT_EQ(program_.command(number, body, 1024), ENOENT) << "command " << number;
  });
  for_each_command(id, other, [&](std::uint32_t number, const auto& body) {
    EXPECT_EQ(program_.command_at(other, number, body, 1024), EINVAL) << "command " << number;
  });
  EXPECT_EQ(program_.command(RDMA_USER_CM_CMD_MIGRATE_ID, rdma_ucm_migrate_id{0, id, 9999}, 4), EINVAL);
  program_.node.close_file(other);
  close(other);
  EXPECT_EQ(program_.command_at(other, RDMA_USER_CM_CMD_LISTEN, rdma_ucm_listen{id, 1}), EBADF);
}

TEST_F(CmCommands, command_in_a_state_that_forbids_it_is_refused) {
  const std::uint32_t id = program_.create();
  const auto refuses = [&](std::uint32_t number, const auto& body) {
    EXPECT_EQ(program_.command(number, body, 1024), EINVAL) << "command " << number;
  };
  rdma_ucm_connect connect{};
  connect.conn_param.valid = 1;
  connect.id = id;
  rdma_ucm_accept accept{};
  accept.id = id;
  const auto refuse_all = [&] {
    refuses(RDMA_USER_CM_CMD_CONNECT, connect);
    refuses(RDMA_USER_CM_CMD_ACCEPT, accept);
    EXPECT_EQ(program_.reject(id, 28, 0), EINVAL);
    refuses(RDMA_USER_CM_CMD_DISCONNECT, rdma_ucm_disconnect{id});
    refuses(RDMA_USER_CM_CMD_NOTIFY, rdma_ucm_notify{id, IBV_EVENT_COMM_EST});
  };
  refuse_all();
  refuses(RDMA_USER_CM_CMD_RESOLVE_ROUTE, rdma_ucm_resolve_route{id, 1});
  refuses(RDMA_USER_CM_CMD_INIT_QP_ATTR, rdma_ucm_init_qp_attr{.response = 0, .id = id, .qp_state = 1});
  ASSERT_EQ(program_.resolve(id, second_address), 0);
  refuse_all();
  EXPECT_EQ(program_.resolve(id, second_address), EINVAL);
  EXPECT_EQ(program_.bind(id, first_address), EINVAL);
  EXPECT_EQ(program_.listen(id), EINVAL);
  ASSERT_EQ(program_.resolve_route(id), 0);
  EXPECT_EQ(program_.resolve_route(id), EINVAL);
}

// `least`: the shortest room, of which an answer fills all and nothing behind.
TEST_F(CmCommands, answer_without_room_is_refused_and_one_that_cannot_be_written_leaves_nothing) {
  const std::uint32_t id = program_.routed(second_address);
  program_.listen_at(first_address);
  struct Asked {
    std::uint32_t number;
    std::uint32_t option;
    std::size_t least;
    std::size_t whole;
  };
  constexpr std::size_t kAddresses = offsetof(rdma_ucm_query_addr_resp, ibdev_index);
  constexpr std::size_t kRoute = offsetof(rdma_ucm_query_route_resp, ibdev_index);
  const auto ask = [&](const Asked& asked, std::uint64_t response, std::size_t room) {
    const rdma_ucm_query query{.response = response, .id = id, .option = asked.option};
    rdma_ucm_create_id create{};
    create.response = response;
    create.ps = RDMA_PS_TCP;
    return asked.number == RDMA_USER_CM_CMD_CREATE_ID ? program_.command(asked.number, create, room)
                                                      : program_.command(asked.number, query, room);
  };
  for (const Asked& asked :
       {Asked{RDMA_USER_CM_CMD_CREATE_ID, 0, 4, 4},
        Asked{RDMA_USER_CM_CMD_QUERY, RDMA_USER_CM_QUERY_ADDR, kAddresses, sizeof(rdma_ucm_query_addr_resp)},
        Asked{RDMA_USER_CM_CMD_QUERY, RDMA_USER_CM_QUERY_GID, kAddresses, sizeof(rdma_ucm_query_addr_resp)},
        Asked{RDMA_USER_CM_CMD_QUERY, RDMA_USER_CM_QUERY_PATH, 8, 80},
        Asked{RDMA_USER_CM_CMD_QUERY_ROUTE, 0, kRoute, sizeof(rdma_ucm_query_route_resp)},
        Asked{RDMA_USER_CM_CMD_INIT_QP_ATTR, IBV_QPS_INIT, sizeof(ib_uverbs_qp_attr),
              sizeof(ib_uverbs_qp_attr)},
        Asked{RDMA_USER_CM_CMD_GET_EVENT, 0, offsetof(rdma_ucm_event_resp, reserved),
              sizeof(rdma_ucm_event_resp)}}) {
    for (const std::size_t room : {asked.least, asked.whole}) {
      SCOPED_TRACE(testing::Message() << "command " << asked.number << " room " << room);
      if (asked.number == RDMA_USER_CM_CMD_GET_EVENT)
        deliver(*program_.hcas[0], request_for(7471, ++requests_));
      EXPECT_EQ(ask(asked, kNowhere, asked.least - 1), ENOSPC);
      EXPECT_EQ(ask(asked, kNowhere, room), EFAULT);
      std::vector<std::uint8_t> answer(asked.whole + 8, 0xa5);
      EXPECT_EQ(ask(asked, reinterpret_cast<std::uintptr_t>(answer.data()), room), 0);
      EXPECT_TRUE(std::all_of(answer.begin() + static_cast<std::ptrdiff_t>(room), answer.end(),
                              [](std::uint8_t byte) { return byte == 0xa5; }));
      EXPECT_NE(std::vector(answer.begin(), answer.begin() + static_cast<std::ptrdiff_t>(room)),
                std::vector<std::uint8_t>(room, 0xa5));
    }
  }
  EXPECT_EQ(program_.command(RDMA_USER_CM_CMD_QUERY, rdma_ucm_query{0, id, 3}, 1024), ENOSYS);
  EXPECT_EQ(program_.command(RDMA_USER_CM_CMD_DESTROY_ID, rdma_ucm_destroy_id{0, id, 0}, 3), ENOSPC);
  // Two ids of the first command, the listener, and two of requests: none of what failed.
  EXPECT_EQ(program_.create(), 6u);
}

TEST_F(CmCommands, malformed_header_and_absent_commands_are_refused) {
  const auto write = [&](std::uint32_t number, std::uint16_t in, std::size_t length_bytes) {
    const rdma_ucm_cmd_hdr header{number, in, 0};
    return program_.node.command(program_.fd, reinterpret_cast<std::uintptr_t>(&header), length_bytes);
  };
  EXPECT_EQ(write(RDMA_USER_CM_CMD_GET_EVENT, 0, 7), EINVAL);
  EXPECT_EQ(write(RDMA_USER_CM_CMD_GET_EVENT, 1, 8), EINVAL);
  EXPECT_EQ(write(RDMA_USER_CM_CMD_JOIN_MCAST + 1, 0, 8), EINVAL);
  for (const std::uint32_t number : {RDMA_USER_CM_CMD_JOIN_IP_MCAST, RDMA_USER_CM_CMD_JOIN_MCAST})
    EXPECT_EQ(write(number, 0, 8), EOPNOTSUPP);
  for (const std::uint32_t number : {RDMA_USER_CM_CMD_GET_OPTION, RDMA_USER_CM_CMD_LEAVE_MCAST})
    EXPECT_EQ(write(number, 0, 8), ENOSYS);
  EXPECT_EQ(program_.node.command(program_.fd, kNowhere, 8), EFAULT);
}

TEST_F(CmCommands, port_space_chooses_the_queue_pairs_type) {
  struct Case {
    std::uint16_t space;
    std::uint8_t given;
    bool datagrams;
  };
  for (const auto& [space, given, datagrams] :
       {Case{RDMA_PS_TCP, IBV_QPT_UD, false}, Case{RDMA_PS_UDP, IBV_QPT_RC, true},
        Case{RDMA_PS_IPOIB, IBV_QPT_RC, true}, Case{RDMA_PS_IB, IBV_QPT_RC, false},
        Case{RDMA_PS_IB, IBV_QPT_UD, true}}) {
    const std::uint32_t id = program_.create(space, given);
    ASSERT_EQ(program_.bind(id, first_address), 0);
    const rdma_ucm_init_qp_attr body{.response = 0, .id = id, .qp_state = IBV_QPS_INIT};
    const auto attributes = program_.ask<ib_uverbs_qp_attr>(RDMA_USER_CM_CMD_INIT_QP_ATTR, body);
    EXPECT_EQ((attributes.qp_attr_mask & IBV_QP_QKEY) != 0, datagrams) << space;
    EXPECT_EQ((attributes.qp_attr_mask & IBV_QP_ACCESS_FLAGS) == 0, datagrams) << space;
    program_.destroy(id);
  }
  rdma_ucm_create_id unknown{};
  unknown.ps = RDMA_PS_TCP + 1;
  EXPECT_EQ(program_.command(RDMA_USER_CM_CMD_CREATE_ID, unknown, 4), EINVAL);
}

TEST_F(CmCommands, bound_address_is_an_hcas_or_every_ones_and_a_port_of_none_is_chosen) {
  const auto bound = [&](const CmAddress& address, bool known) {
    const std::uint32_t id = program_.create();
    EXPECT_EQ(program_.bind(id, address), 0);
    rdma_ucm_query body{};
    body.id = id;
    const auto answer = program_.ask<rdma_ucm_query_addr_resp>(RDMA_USER_CM_CMD_QUERY, body);
    EXPECT_EQ(answer.port_num, known ? 1 : 0) << address.address.text();
    EXPECT_EQ(answer.node_guid != 0, known);
    EXPECT_EQ(answer.dst_size, 0);
    const CmAddress source = *read_address(&answer.src_addr, answer.src_size);
    EXPECT_EQ(source.address, address.address);
    EXPECT_TRUE(address.port == source.port || address.port == 0);
    EXPECT_EQ(program_.bind(id, address), EINVAL);
    return source.port;
  };
  EXPECT_EQ(bound(first_address, true), 7471);
  EXPECT_EQ(bound(address_of("127.0.0.9", 7472), false), 7472);
  EXPECT_EQ(bound(address_of("::1", 7473), true), 7473);
  std::vector<std::uint16_t> chosen;
  for (int i = 0; i < 20; ++i) {
    chosen.push_back(bound(address_of("0.0.0.0", 0), false));
    EXPECT_GE(chosen.back(), 32768);
    EXPECT_LT(chosen.back(), 61000);
  }
  std::ranges::sort(chosen);
  EXPECT_EQ(std::ranges::adjacent_find(chosen), chosen.end());
  EXPECT_EQ(program_.bind(program_.create(), address_of("192.0.2.1", 0)), EADDRNOTAVAIL);
  EXPECT_EQ(program_.bind(program_.create(), address_of("2001:db8::1", 0)), EADDRNOTAVAIL);
}

TEST_F(CmCommands, long_forms_of_bind_and_resolve_judge_sizes_and_families) {
  const std::uint32_t id = program_.create();
  rdma_ucm_bind bind{};
  bind.id = id;
  const auto bind_error = [&](std::uint16_t size, std::uint16_t reserved) {
    bind.addr_size = size;
    bind.reserved = reserved;
    return program_.command(RDMA_USER_CM_CMD_BIND, bind);
  };
  CmAddress ib = address_of("fe80::1", 1);
  ib.family = AF_IB;
  const auto ib_bytes = static_cast<std::uint16_t>(write_address(ib, bind.addr));
  EXPECT_EQ(bind_error(ib_bytes, 0), ENODEV);
  const auto size = static_cast<std::uint16_t>(write_address(any_address, bind.addr));
  EXPECT_EQ(bind_error(size, 1), EINVAL);
  EXPECT_EQ(bind_error(sizeof bind.addr + 1, 0), EINVAL);
  EXPECT_EQ(bind_error(static_cast<std::uint16_t>(size - 1), 0), EINVAL);
  EXPECT_EQ(bind_error(sizeof bind.addr, 0), 0);

  rdma_ucm_resolve_addr resolve{};
  write_address(any_address, resolve.src_addr);
  const auto resolve_error = [&](const CmAddress& to, std::size_t source_bytes, std::uint32_t reserved,
                                 std::size_t more) {
    resolve.id = program_.create();
    resolve.dst_size = static_cast<std::uint16_t>(write_address(to, resolve.dst_addr) + more);
    resolve.src_size = static_cast<std::uint16_t>(source_bytes);
    resolve.reserved = reserved;
    const Errno error = program_.command(RDMA_USER_CM_CMD_RESOLVE_ADDR, resolve);
    program_.destroy(resolve.id);
    return error;
  };
  EXPECT_EQ(resolve_error(second_address, 0, 1, 0), EINVAL);
  EXPECT_EQ(resolve_error(second_address, sizeof resolve.src_addr + 1, 0, 0), EINVAL);
  EXPECT_EQ(resolve_error(second_address, 0, 0, sizeof resolve.dst_addr), EINVAL);
  EXPECT_EQ(resolve_error(second_address, size - 1u, 0, 0), EINVAL);
  EXPECT_EQ(resolve_error(second_address, size, 0, 0), EADDRINUSE) << "the source is bound above";
  EXPECT_EQ(resolve_error(second_address, 0, 0, 0), 0);
  EXPECT_EQ(resolve_error(ib, 0, 0, 0), ENODEV);
  EXPECT_EQ(program_.resolve(id, address_of("::1", 1)), EINVAL) << "bound to the other family";
  EXPECT_EQ(program_.resolve(id, address_of("255.255.255.255", 1)), EACCES);
}

TEST_F(CmCommands, resolved_destination_chooses_the_hca_and_the_source) {
  struct Case {
    const char* source;
    const char* destination;
    const char* local;
    const char* remote;
  };
  for (const auto& [source, destination, local, remote] :
       {Case{"0.0.0.0", "127.0.0.4", "127.0.0.4", "127.0.0.4"},
        Case{"0.0.0.0", "127.0.0.9", "127.0.0.3", "127.0.0.9"},
        Case{"127.0.0.4", "127.0.0.9", "127.0.0.4", "127.0.0.9"},
        Case{"127.0.0.4", "0.0.0.0", "127.0.0.4", "127.0.0.4"},
        Case{"0.0.0.0", "0.0.0.0", "127.0.0.3", "127.0.0.3"}, Case{"::", "::1", "::1", "::1"}}) {
    if (route_error(*wire::Address::parse(remote)) != 0) continue;  // without IPv6
    const std::uint32_t id = program_.create();
    ASSERT_EQ(program_.resolve(id, address_of(destination, 7471), address_of(source, 0)), 0);
    const rdma_ucm_event_resp event = program_.event();
    EXPECT_EQ(event.event, number_of(ProgramEvent::kAddressResolved));
    EXPECT_EQ(event.id, id);
    rdma_ucm_query body{};
    body.id = id;
    const auto answer = program_.ask<rdma_ucm_query_addr_resp>(RDMA_USER_CM_CMD_QUERY, body);
    EXPECT_EQ(read_address(&answer.src_addr, answer.src_size)->address.text(), local) << destination;
    EXPECT_EQ(read_address(&answer.dst_addr, answer.dst_size)->address.text(), remote) << destination;
    EXPECT_EQ(program_.ask<rdma_ucm_query_route_resp>(RDMA_USER_CM_CMD_QUERY_ROUTE, body).num_paths, 0u);
    EXPECT_EQ(program_.destroy(id), 1u);
  }
}

TEST_F(CmCommands, destination_that_no_port_reaches_is_told_by_an_event) {
  std::vector<PortHca*> alone;
  HcaConfig config;
  config.infiniband = true;
  Program by_lid(alone, {"127.0.0.3"}, 1, config);
  const auto outcome = [&](const char* text) {
    const std::uint32_t id = by_lid.create();
    EXPECT_EQ(by_lid.resolve(id, address_of(text, 1)), 0);
    const rdma_ucm_event_resp event = by_lid.event();
    EXPECT_EQ(event.event == number_of(ProgramEvent::kAddressResolved), event.status == 0);
    EXPECT_TRUE(event.event <= number_of(ProgramEvent::kAddressError));
    return -static_cast<std::int32_t>(event.status);
  };
  EXPECT_EQ(outcome("127.0.0.9"), 0);
  EXPECT_EQ(outcome("127.1.0.9"), EHOSTUNREACH) << "it has no LID";
  EXPECT_EQ(outcome("127.0.192.0"), EHOSTUNREACH) << "a group's LID";
  if (route_error(*wire::Address::parse("::1")) == 0) {
    EXPECT_EQ(outcome("::1"), ENODEV);
  }
}

TEST_F(CmCommands, datagrams_beyond_the_inbox_are_dropped) {
  ManagementAgent& agent = program_.hcas[0]->agent();
  Message message;
  message.type = MessageType::kDrep;
  const gdx::cm::Mad mad = gdx::cm::encode(message);
  EXPECT_EQ(agent.next_deadline_ns(), cm::kNever);
  for (int i = 0; i < 4100; ++i) agent.on_datagram(peer_, mad);
  EXPECT_EQ(agent.next_deadline_ns(), 0u);
  EXPECT_EQ(agent.step(1), 4096);
  EXPECT_EQ(agent.step(1), 0);
  EXPECT_EQ(agent.next_deadline_ns(), cm::kNever);
}

TEST_F(CmCommands, unread_request_moves_with_its_listener_and_becomes_an_id_of_the_other_file) {
  const int other = program_.open();
  const std::uint32_t listener = program_.listen_at(first_address);
  EXPECT_TRUE(listens(*program_.hcas[0]));
  deliver(*program_.hcas[0], request_for(7471, ++requests_));
  const std::uint32_t stays = program_.create();
  ASSERT_EQ(program_.resolve(stays, second_address), 0);
  rdma_ucm_migrate_resp migrated{};
  const rdma_ucm_migrate_id body{reinterpret_cast<std::uintptr_t>(&migrated), listener,
                                 static_cast<std::uint32_t>(program_.fd)};
  EXPECT_EQ(program_.command_at(other, RDMA_USER_CM_CMD_MIGRATE_ID,
                                rdma_ucm_migrate_id{kNowhere, listener, body.fd}, 4),
            EFAULT);
  ASSERT_EQ(program_.command_at(other, RDMA_USER_CM_CMD_MIGRATE_ID, body, sizeof migrated), 0);
  EXPECT_EQ(migrated.events_reported, 1u);
  EXPECT_EQ(program_.event().id, stays);
  program_.event(EAGAIN);
  rdma_ucm_event_resp event{};
  const rdma_ucm_get_event get{reinterpret_cast<std::uintptr_t>(&event)};
  ASSERT_EQ(program_.command_at(other, RDMA_USER_CM_CMD_GET_EVENT, get, sizeof event), 0);
  EXPECT_EQ(event.event, number_of(ProgramEvent::kConnectRequest));
  EXPECT_EQ(program_.command_at(other, RDMA_USER_CM_CMD_GET_EVENT, get, sizeof event), EAGAIN);
  EXPECT_EQ(program_.reject(event.id, 28, 0), EINVAL) << "of the other file";
  rdma_ucm_reject reject{};
  reject.id = event.id;
  EXPECT_EQ(program_.command_at(other, RDMA_USER_CM_CMD_REJECT, reject), 0);
  program_.node.close_file(other);
  EXPECT_FALSE(listens(*program_.hcas[0])) << "the listener went with its file";
  close(other);
}

TEST_F(CmCommands, end_of_the_program_says_goodbye_until_it_is_confirmed) {
  PortHca& hca = *program_.hcas[0];
  Message from_peer = connected(hca);
  EXPECT_EQ(program_.node.try_say_goodbye(monotonic_ns()), 1u);
  EXPECT_EQ(hca.sent.back().type, MessageType::kDreq);
  from_peer.type = MessageType::kDrep;
  deliver(hca, from_peer);
  EXPECT_EQ(program_.node.try_say_goodbye(monotonic_ns()), 0u);
  EXPECT_FALSE(listens(hca));
  deliver_all(network_, kLongNs);
}

TEST_F(CmCommands, closed_file_says_goodbye_again_until_it_is_confirmed) {
  PortHca& hca = *program_.hcas[0];
  Message from_peer = connected(hca);
  hca.sent.clear();
  program_.node.close_file(program_.fd);
  deliver_all(network_, kLongNs);
  ASSERT_EQ(hca.sent.size(), 2u);
  for (const Message& sent : hca.sent) EXPECT_EQ(sent.type, MessageType::kDreq);
  from_peer.type = MessageType::kDrep;
  deliver(hca, from_peer);
  deliver_all(network_, 2 * kLongNs);
  EXPECT_EQ(hca.sent.size(), 2u);
}

TEST_F(CmCommands, file_has_the_flags_that_it_is_opened_with) {
  for (const int flags : {0, O_CLOEXEC, O_NONBLOCK, O_CLOEXEC | O_NONBLOCK}) {
    EXPECT_TRUE(program_.node.in_use());
    const ErrnoOr<int> file = program_.node.open_file(O_RDWR | flags);
    ASSERT_TRUE(file);
    EXPECT_EQ((fcntl(*file, F_GETFD) & FD_CLOEXEC) != 0, (flags & O_CLOEXEC) != 0);
    EXPECT_EQ(fcntl(*file, F_GETFL) & O_NONBLOCK, flags & O_NONBLOCK);
    program_.node.close_file(*file);
    close(*file);
  }
  program_.node.close_file(program_.fd);
  EXPECT_FALSE(program_.node.in_use());
}

}  // namespace commands_test
}  // namespace gdx::softhca::uverbs
