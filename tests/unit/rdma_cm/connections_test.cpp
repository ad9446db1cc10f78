// Connections and datagram services between two programs: each record on its way, whole.
#include <endian.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>

#include "driver-shim/softhca/wire/addressing.h"
#include "tests/unit/rdma_cm/programs.h"

namespace gdx::softhca::uverbs {
namespace connections_test {

using gdx::cm::Message;
using gdx::cm::MessageType;
using gdx::cm::Transport;

const CmAddress server_address = address_of("127.0.0.3", 7471);
constexpr std::uint8_t kTos = 0xa8;
constexpr std::uint8_t kTimeout = 19;
constexpr std::uint8_t kMtuCode = 3;  // 1024 bytes
constexpr std::uint64_t kServerHandle = 0x7777;
constexpr std::uint64_t kLongNs = 100'000'000'000;

rdma_ucm_conn_param parameters(std::uint8_t private_bytes) {
  rdma_ucm_conn_param made{};
  for (std::uint8_t i = 0; i < private_bytes; ++i) made.private_data[i] = private_bytes ^ i;
  made.private_data_len = private_bytes;
  made.valid = 1;
  return made;
}
rdma_ucm_conn_param active_parameters() {
  rdma_ucm_conn_param made = parameters(56);  // the room of a REQ
  made.qp_num = 0x112233;
  made.srq = 1;
  made.responder_resources = 5;
  made.initiator_depth = 3;
  made.flow_control = 1;
  made.retry_count = 6;
  made.rnr_retry_count = 4;
  return made;
}
rdma_ucm_conn_param passive_parameters() {
  rdma_ucm_conn_param made = parameters(196);
  made.qp_num = 0x445566;
  made.responder_resources = 7;
  made.initiator_depth = 2;
  made.retry_count = 1;
  made.rnr_retry_count = 2;
  return made;
}
// Returns what the other end is told of them: the depths the other way round.
rdma_ucm_conn_param told(rdma_ucm_conn_param given, std::uint8_t retry_count) {
  std::swap(given.responder_resources, given.initiator_depth);
  given.retry_count = retry_count;
  given.valid = 0;
  return given;
}

rdma_ucm_event_resp event_of(std::uint64_t handle, std::uint32_t id, ProgramEvent event, int status = 0) {
  rdma_ucm_event_resp made{};
  made.uid = handle;
  made.id = id;
  made.event = static_cast<std::uint32_t>(event);
  made.status = static_cast<std::uint32_t>(status);
  return made;
}
// Of a message with nothing but unset private data.
rdma_ucm_event_resp bare_event_of(std::uint64_t handle, std::uint32_t id, ProgramEvent event,
                                  std::uint8_t private_bytes) {
  rdma_ucm_event_resp made = event_of(handle, id, event);
  made.param.conn.private_data_len = private_bytes;
  return made;
}

// The path as one end sees it.
struct Way {
  wire::Address local;
  wire::Address remote;
  bool infiniband = false;
  std::uint8_t tos = kTos;

  [[nodiscard]] gdx::cm::Gid gid(const wire::Address& of) const {
    return wire::gid_of(of, infiniband ? 0 : 1);
  }
  [[nodiscard]] ib_uverbs_ah_attr handle() const {
    ib_uverbs_ah_attr made{};
    made.port_num = 1;
    if (infiniband) {
      made.dlid = wire::lid_of(remote);
      made.sl = tos >> 5;
      return made;
    }
    made.is_global = 1;
    std::ranges::copy(gid(remote), made.grh.dgid);
    made.grh.sgid_index = 1;
    made.grh.hop_limit = 64;
    made.grh.traffic_class = tos;
    return made;
  }
  [[nodiscard]] gdx::cm::Path path() const {
    gdx::cm::Path made;
    made.local_gid = gid(local);
    made.remote_gid = gid(remote);
    made.ack_timeout = kTimeout;
    if (infiniband) {
      made.local_lid = wire::lid_of(local);
      made.remote_lid = wire::lid_of(remote);
      made.service_level = tos >> 5;
      made.subnet_local = true;
      made.hop_limit = 0;
    } else {
      made.traffic_class = tos;
    }
    return made;
  }
};

class Connections : public testing::TestWithParam<bool> {
 protected:
  static HcaConfig config() {
    HcaConfig made;
    made.mtu_bytes = 1024;
    made.infiniband = GetParam();
    return made;
  }

  std::uint32_t routed(std::uint16_t space = RDMA_PS_TCP, std::uint8_t qp_type = 0) {
    const std::uint32_t id = client_.routed(server_address, space, qp_type);
    EXPECT_EQ(client_.set_option(id, RDMA_OPTION_ID_TOS, kTos, 1), 0);
    const bool waits = space == RDMA_PS_TCP || qp_type == IBV_QPT_RC;
    EXPECT_EQ(client_.set_option(id, RDMA_OPTION_ID_ACK_TIMEOUT, kTimeout, 1), waits ? 0 : EINVAL);
    return id;
  }
  // Returns the passive id of a request that has arrived and is read.
  std::uint32_t requested(std::uint32_t active) {
    EXPECT_EQ(client_.connect(active, active_parameters()), 0);
    deliver_all(network_);
    return server_.event().id;
  }
  const Message& newest(const Program& of) { return of.hcas.front()->sent.back(); }

  rdma_ucm_query_addr_resp query(Program& program, std::uint32_t id, std::uint32_t option) {
    rdma_ucm_query body{};
    body.id = id;
    body.option = option;
    return program.ask<rdma_ucm_query_addr_resp>(RDMA_USER_CM_CMD_QUERY, body);
  }
  std::uint16_t client_port(std::uint32_t id) {
    sockaddr_in address;
    const rdma_ucm_query_addr_resp answer = query(client_, id, RDMA_USER_CM_QUERY_ADDR);
    std::memcpy(&address, &answer.src_addr, sizeof address);
    return ntohs(address.sin_port);
  }
  ib_uverbs_qp_attr attributes(Program& program, std::uint32_t id, ibv_qp_state state, Errno expected = 0) {
    rdma_ucm_init_qp_attr body{};
    body.id = id;
    body.qp_state = state;
    return program.ask<ib_uverbs_qp_attr>(RDMA_USER_CM_CMD_INIT_QP_ATTR, body, expected);
  }
  void expect_addresses(Program& program, std::uint32_t id, const Way& way, std::uint16_t local_port,
                        std::uint16_t remote_port);
  void expect_queue_pair(Program& program, std::uint32_t id, const Way& way, const ib_uverbs_qp_attr& ready);

  std::vector<PortHca*> network_;
  Program client_{network_, {"127.0.0.2"}, 1, config()};
  Program server_{network_, {server_address.address.text()}, 2, config()};
  const Way out_{address_of("127.0.0.2", 0).address, server_address.address, GetParam()};
  const Way back_{server_address.address, address_of("127.0.0.2", 0).address, GetParam()};
};

// Every answer about an end with a route, byte by byte.
void Connections::expect_addresses(Program& program, std::uint32_t id, const Way& way,
                                   std::uint16_t local_port, std::uint16_t remote_port) {
  rdma_ucm_query_addr_resp addresses{};
  addresses.node_guid = htobe64(wire::guid_of(way.local));
  addresses.port_num = 1;
  addresses.pkey = 0xffff;
  addresses.ibdev_index = ~0u;
  addresses.src_size = addresses.dst_size = sizeof(sockaddr_in);
  write_address({AF_INET, way.local, local_port}, addresses.src_addr);
  write_address({AF_INET, way.remote, remote_port}, addresses.dst_addr);
  EXPECT_PRED_FORMAT2(same_bytes, query(program, id, RDMA_USER_CM_QUERY_ADDR), addresses);

  rdma_ucm_query_addr_resp gids = addresses;
  gids.src_size = gids.dst_size =
      static_cast<std::uint16_t>(write_address({AF_IB, {way.gid(way.local)}, local_port}, gids.src_addr));
  write_address({AF_IB, {way.gid(way.remote)}, remote_port}, gids.dst_addr);
  EXPECT_PRED_FORMAT2(same_bytes, query(program, id, RDMA_USER_CM_QUERY_GID), gids);

  const gdx::cm::Path path = way.path();
  rdma_ucm_query_route_resp route{};
  route.node_guid = addresses.node_guid;
  route.port_num = 1;
  route.num_paths = 1;
  route.ibdev_index = ~0u;
  std::memcpy(&route.src_addr, &addresses.src_addr, sizeof route.src_addr);
  std::memcpy(&route.dst_addr, &addresses.dst_addr, sizeof route.dst_addr);
  ib_user_path_rec& user = route.ib_route[0];
  std::ranges::copy(path.local_gid, user.sgid);
  std::ranges::copy(path.remote_gid, user.dgid);
  user.slid = htobe16(way.infiniband ? path.local_lid : 0);
  user.dlid = htobe16(way.infiniband ? path.remote_lid : 0);
  user.reversible = user.numb_path = 1;
  user.mtu = kMtuCode;
  user.pkey = 0xffff;
  user.hop_limit = path.hop_limit;
  user.traffic_class = path.traffic_class;
  user.sl = path.service_level;
  user.mtu_selector = user.rate_selector = user.packet_life_time_selector = 2;
  user.rate = 16;
  user.packet_life_time = 14;
  rdma_ucm_query body{};
  body.id = id;
  EXPECT_PRED_FORMAT2(same_bytes, program.ask<rdma_ucm_query_route_resp>(RDMA_USER_CM_CMD_QUERY_ROUTE, body),
                      route);

  struct OnePath {
    std::uint32_t count;
    std::uint32_t reserved;
    std::uint32_t flags;
    std::uint32_t flags_reserved;
    std::array<std::uint8_t, 64> record;
  } one{1, 0, IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL, 0, {}};
  std::ranges::copy(path.remote_gid, one.record.begin() + 8);
  std::ranges::copy(path.local_gid, one.record.begin() + 24);
  std::memcpy(&one.record[40], &user.dlid, sizeof user.dlid);
  std::memcpy(&one.record[42], &user.slid, sizeof user.slid);
  one.record[47] = path.hop_limit;
  one.record[48] = path.traffic_class;
  one.record[49] = 0x81;
  one.record[50] = one.record[51] = 0xff;
  one.record[53] = path.service_level;
  one.record[54] = 0x80 | kMtuCode;
  one.record[55] = 0x80 | 16;
  one.record[56] = 0x80 | 14;
  body.option = RDMA_USER_CM_QUERY_PATH;
  EXPECT_PRED_FORMAT2(same_bytes, program.ask<OnePath>(RDMA_USER_CM_CMD_QUERY, body), one);
}

// `ready`: what RTR and RTS have of the connection. Its members go to the state that sets them.
void Connections::expect_queue_pair(Program& program, std::uint32_t id, const Way& way,
                                    const ib_uverbs_qp_attr& ready) {
  ib_uverbs_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.qp_attr_mask = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  init.port_num = 1;
  init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  EXPECT_PRED_FORMAT2(same_bytes, attributes(program, id, IBV_QPS_INIT), init);
  ib_uverbs_qp_attr rtr{};
  rtr.qp_state = IBV_QPS_RTR;
  rtr.qp_attr_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  rtr.ah_attr = way.handle();
  rtr.path_mtu = kMtuCode;
  rtr.dest_qp_num = ready.dest_qp_num;
  rtr.rq_psn = ready.rq_psn;
  rtr.max_dest_rd_atomic = ready.max_dest_rd_atomic;
  EXPECT_PRED_FORMAT2(same_bytes, attributes(program, id, IBV_QPS_RTR), rtr);
  ib_uverbs_qp_attr rts{};
  rts.qp_state = IBV_QPS_RTS;
  rts.qp_attr_mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                     IBV_QP_MAX_QP_RD_ATOMIC;
  rts.sq_psn = ready.sq_psn;
  rts.timeout = kTimeout;
  rts.retry_cnt = 6;
  rts.rnr_retry = ready.rnr_retry;
  rts.max_rd_atomic = ready.max_rd_atomic;
  EXPECT_PRED_FORMAT2(same_bytes, attributes(program, id, IBV_QPS_RTS), rts);
  attributes(program, id, IBV_QPS_SQD, EINVAL);
  attributes(program, id, static_cast<ibv_qp_state>(IBV_QPS_ERR + 1), EINVAL);
}

// Copies into `expected` what is drawn by chance, and returns whether the rest is equal.
bool is_message(const Message& actual, Message expected) {
  EXPECT_NE(actual.transaction_id, 0u);
  EXPECT_NE(actual.local_id, 0u);
  expected.transaction_id = actual.transaction_id;
  expected.local_id = actual.local_id;
  expected.remote_id = actual.remote_id;
  expected.endpoint.starting_psn = actual.endpoint.starting_psn;
  return gdx::cm::encode(actual) == gdx::cm::encode(expected);
}

Message request_of(MessageType type, std::uint16_t space, const Way& way, std::uint16_t port) {
  Message made;
  made.type = type;
  made.service_id = std::uint64_t{space} << 16 | 7471;
  gdx::cm::IpHeader header{};
  header.ip_version = 0x40;
  header.source_port = port;
  std::copy_n(way.local.gid.begin() + 12, 4, header.source.begin() + 12);
  std::copy_n(way.remote.gid.begin() + 12, 4, header.destination.begin() + 12);
  made.private_data = gdx::cm::wire_bytes(header);
  return made;
}

void append_private_data(Message& to, const rdma_ucm_conn_param& given) {
  const auto own = std::as_bytes(std::span(given.private_data, given.private_data_len));
  to.private_data.insert(to.private_data.end(), own.begin(), own.end());
}

TEST_P(Connections, request_is_what_its_program_gave_and_the_other_program_is_told_the_same) {
  const std::uint32_t listener = server_.listen_at(server_address);
  for (const auto& [type, space] : {std::pair(IBV_QPT_RC, RDMA_PS_TCP), std::pair(IBV_QPT_UC, RDMA_PS_IB)}) {
    if (space == RDMA_PS_IB) {
      const std::uint32_t second = server_.create(space, type);
      ASSERT_EQ(server_.bind(second, server_address), 0);
      ASSERT_EQ(server_.listen(second), 0);
    }
    const std::uint32_t active = routed(space, type);
    ASSERT_EQ(client_.connect(active, active_parameters()), 0);
    Message request = request_of(MessageType::kReq, space, out_, client_port(active));
    append_private_data(request, active_parameters());
    request.endpoint = {.qpn = 0x112233,
                        .ca_guid = wire::guid_of(out_.local),
                        .responder_resources = 5,
                        .initiator_depth = 3,
                        .rnr_retry_count = 4,
                        .flow_control = true,
                        .srq = true};
    request.transport = type == IBV_QPT_UC ? Transport::kUc : Transport::kRc;
    request.path = out_.path();
    if (type == IBV_QPT_UC) request.path.ack_timeout = 15;
    request.retry_count = 6;
    request.path_mtu = kMtuCode;
    request.local_response_timeout = request.remote_response_timeout = 17;
    request.max_cm_retries = 15;
    EXPECT_TRUE(is_message(newest(client_), request));
    deliver_all(network_);
    const rdma_ucm_event_resp event = server_.event();
    rdma_ucm_event_resp expected =
        event_of(Program::kHandle + (space == RDMA_PS_IB ? 1 : 0), event.id, ProgramEvent::kConnectRequest);
    expected.param.conn = told(active_parameters(), 6);
    EXPECT_PRED_FORMAT2(same_bytes, event, expected);
    EXPECT_NE(event.id, listener);
    const bool reliable = type == IBV_QPT_RC;
    const auto masks = [&](ibv_qp_state state) { return attributes(server_, event.id, state).qp_attr_mask; };
    EXPECT_EQ((masks(IBV_QPS_RTR) & IBV_QP_MAX_DEST_RD_ATOMIC) != 0, reliable);
    EXPECT_EQ((masks(IBV_QPS_RTS) & IBV_QP_TIMEOUT) != 0, reliable);
    expect_addresses(client_, active, out_, client_port(active), 7471);
    expect_addresses(server_, event.id, back_, 7471, client_port(active));
  }
}

TEST_P(Connections, accepted_goes_through_every_state_of_both_ends) {
  server_.listen_at(server_address);
  const std::uint32_t active = routed();
  EXPECT_EQ(attributes(client_, active, IBV_QPS_INIT).qp_access_flags, 0u);
  attributes(client_, active, IBV_QPS_RTR, EINVAL);
  const std::uint32_t passive = requested(active);
  const Message request = newest(client_);
  for (const ibv_qp_state early : {IBV_QPS_RTR, IBV_QPS_RTS}) attributes(client_, active, early, EINVAL);
  EXPECT_EQ(attributes(client_, active, IBV_QPS_INIT).qp_access_flags, IBV_ACCESS_REMOTE_WRITE + 0u);

  ASSERT_EQ(server_.accept(passive, passive_parameters(), kServerHandle), 0);
  Message reply;
  reply.type = MessageType::kRep;
  reply.endpoint = {.qpn = 0x445566,
                    .ca_guid = wire::guid_of(back_.local),
                    .responder_resources = 7,
                    .initiator_depth = 2,
                    .rnr_retry_count = 2};
  append_private_data(reply, passive_parameters());
  EXPECT_TRUE(is_message(newest(server_), reply));
  EXPECT_EQ(newest(server_).remote_id, request.local_id);
  EXPECT_NE(newest(server_).local_id, request.local_id);
  deliver_all(network_);
  rdma_ucm_event_resp response = event_of(Program::kHandle, active, ProgramEvent::kConnectResponse);
  response.param.conn = told(passive_parameters(), 0);
  EXPECT_PRED_FORMAT2(same_bytes, client_.event(), response);

  const std::uint32_t active_psn = request.endpoint.starting_psn;
  const std::uint32_t passive_psn = newest(server_).endpoint.starting_psn;
  ib_uverbs_qp_attr ready{};
  ready.dest_qp_num = 0x445566;
  ready.rq_psn = active_psn;
  ready.max_dest_rd_atomic = 2;
  ready.sq_psn = passive_psn;
  ready.rnr_retry = 2;
  ready.max_rd_atomic = 7;
  expect_queue_pair(client_, active, out_, ready);
  ready.dest_qp_num = 0x112233;
  ready.rq_psn = passive_psn;
  ready.max_dest_rd_atomic = 3;
  ready.sq_psn = active_psn;
  ready.rnr_retry = 4;
  ready.max_rd_atomic = 5;
  expect_queue_pair(server_, passive, back_, ready);

  EXPECT_EQ(client_.accept(active, {}), 0);
  deliver_all(network_);
  EXPECT_PRED_FORMAT2(same_bytes, server_.event(),
                      bare_event_of(kServerHandle, passive, ProgramEvent::kEstablished, 224));
  EXPECT_EQ(client_.command(RDMA_USER_CM_CMD_DISCONNECT, rdma_ucm_disconnect{active}), 0);
  EXPECT_EQ(newest(client_).remote_qpn, 0x445566u);
  deliver_all(network_);
  EXPECT_PRED_FORMAT2(same_bytes, server_.event(),
                      bare_event_of(kServerHandle, passive, ProgramEvent::kDisconnected, 220));
  EXPECT_PRED_FORMAT2(same_bytes, client_.event(),
                      bare_event_of(Program::kHandle, active, ProgramEvent::kDisconnected, 224));
  deliver_all(network_, kLongNs);
  EXPECT_PRED_FORMAT2(same_bytes, server_.event(),
                      event_of(kServerHandle, passive, ProgramEvent::kTimeWaitExit));
  EXPECT_PRED_FORMAT2(same_bytes, client_.event(),
                      event_of(Program::kHandle, active, ProgramEvent::kTimeWaitExit));
  EXPECT_EQ(client_.destroy(active), 5u);
  EXPECT_EQ(server_.destroy(passive), 3u);
}

// An accept without parameters is the active side's alone: of the passive one it ends what was accepted.
TEST_P(Connections, accept_without_parameters_of_the_passive_side_rejects_after_a_reply_too) {
  server_.listen_at(server_address);
  const std::uint32_t active = routed();
  const std::uint32_t passive = requested(active);
  ASSERT_EQ(server_.accept(passive, passive_parameters(), kServerHandle), 0);
  deliver_all(network_);
  EXPECT_EQ(client_.event().event, static_cast<std::uint32_t>(ProgramEvent::kConnectResponse));
  EXPECT_EQ(server_.accept(passive, {}), EINVAL);
  server_.event(EAGAIN);
  deliver_all(network_);
  rdma_ucm_event_resp rejected = event_of(Program::kHandle, active, ProgramEvent::kRejected, 28);
  rejected.param.conn.private_data_len = 148;
  EXPECT_PRED_FORMAT2(same_bytes, client_.event(), rejected);
  EXPECT_EQ(client_.accept(active, {}), EINVAL);
}

TEST_P(Connections, peer_that_gives_up_before_the_answer_is_told_to_nobody) {
  server_.listen_at(server_address);
  const std::uint32_t active = routed();
  const std::uint32_t passive = requested(active);
  EXPECT_EQ(client_.destroy(active), 2u);
  deliver_all(network_);
  server_.event(EAGAIN);
  EXPECT_EQ(server_.accept(passive, passive_parameters(), kServerHandle), EINVAL);
}

TEST_P(Connections, established_by_an_event_of_the_queue_pair_is_told_once) {
  server_.listen_at(server_address);
  const std::uint32_t active = routed();
  const std::uint32_t passive = requested(active);
  const auto notify = [](Program& program, std::uint32_t id, std::uint32_t event) {
    return program.command(RDMA_USER_CM_CMD_NOTIFY, rdma_ucm_notify{id, event});
  };
  EXPECT_EQ(notify(server_, passive, IBV_EVENT_COMM_EST), EINVAL) << "nothing is accepted yet";
  ASSERT_EQ(server_.accept(passive, passive_parameters(), kServerHandle), 0);
  deliver_all(network_);
  EXPECT_EQ(notify(client_, active, IBV_EVENT_COMM_EST), EINVAL) << "of the active side";
  EXPECT_EQ(notify(server_, passive, IBV_EVENT_PATH_MIG), EINVAL);
  EXPECT_EQ(notify(server_, passive, IBV_EVENT_COMM_EST), 0);
  EXPECT_EQ(server_.event().event, static_cast<std::uint32_t>(ProgramEvent::kEstablished));
  EXPECT_EQ(notify(server_, passive, IBV_EVENT_COMM_EST), EISCONN);
  server_.event(EAGAIN);
}

TEST_P(Connections, reject_has_its_reason_and_the_private_data_that_fit) {
  server_.listen_at(server_address);
  constexpr std::uint8_t kRoom = 148;
  for (const auto& [given, expected] : {std::pair(0, 28), std::pair(28, 28), std::pair(35, 35)}) {
    const std::uint32_t active = routed();
    rdma_ucm_conn_param asked = active_parameters();
    asked.qp_num += static_cast<std::uint32_t>(given);
    ASSERT_EQ(client_.connect(active, asked), 0);
    deliver_all(network_);
    const std::uint32_t passive = server_.event().id;
    EXPECT_EQ(server_.reject(passive, 29, 0), EINVAL);
    EXPECT_EQ(server_.reject(passive, static_cast<std::uint8_t>(given), kRoom + 1), EINVAL);
    EXPECT_EQ(server_.reject(passive, static_cast<std::uint8_t>(given), kRoom), 0);
    deliver_all(network_);
    const rdma_ucm_event_resp event = client_.event();
    rdma_ucm_event_resp rejected = event_of(event.uid, active, ProgramEvent::kRejected, expected);
    rejected.param.conn.private_data_len = kRoom;
    std::fill_n(rejected.param.conn.private_data, kRoom, std::uint8_t{0x7e});
    EXPECT_PRED_FORMAT2(same_bytes, event, rejected);
    EXPECT_EQ(server_.reject(passive, 0, 0), EINVAL) << "it is rejected";
  }
}

TEST_P(Connections, ack_timeout_is_the_queue_pairs_even_if_none_and_twice_the_life_time_of_the_route) {
  server_.listen_at(server_address);
  for (const auto& [timeout, life_time, requested_timeout] :
       {std::array{19, 18, 19}, std::array{0, 14, 15}}) {
    const std::uint32_t active = client_.create();
    ASSERT_EQ(client_.resolve(active, server_address), 0);
    client_.expect_event(ProgramEvent::kAddressResolved);
    ASSERT_EQ(client_.set_option(active, RDMA_OPTION_ID_ACK_TIMEOUT, timeout, 1), 0);
    ASSERT_EQ(client_.resolve_route(active), 0);
    client_.expect_event(ProgramEvent::kRouteResolved);
    rdma_ucm_query body{};
    body.id = active;
    const auto route = client_.ask<rdma_ucm_query_route_resp>(RDMA_USER_CM_CMD_QUERY_ROUTE, body);
    EXPECT_EQ(route.ib_route[0].packet_life_time, life_time);
    rdma_ucm_conn_param asked = active_parameters();
    asked.qp_num += static_cast<std::uint32_t>(timeout);
    ASSERT_EQ(client_.connect(active, asked), 0);
    EXPECT_EQ(newest(client_).path.ack_timeout, requested_timeout);
    deliver_all(network_);
    const std::uint32_t passive = server_.event().id;
    ASSERT_EQ(server_.accept(passive, active_parameters()), 0);
    deliver_all(network_);
    client_.event();
    EXPECT_EQ(attributes(client_, active, IBV_QPS_RTS).timeout, timeout);
  }
}

TEST_P(Connections, unanswered_is_unreachable_by_timeout_and_takes_too_large_counts_as_the_largest) {
  const std::uint32_t active = client_.routed(server_address);
  rdma_ucm_conn_param asked = active_parameters();
  asked.retry_count = asked.rnr_retry_count = 9;
  asked.private_data_len = 57;
  EXPECT_EQ(client_.connect(active, asked), EINVAL);
  asked.private_data_len = 0;
  asked.valid = 0;
  EXPECT_EQ(client_.connect(active, asked), EINVAL);
  asked.valid = 1;
  ASSERT_EQ(client_.connect(active, asked), 0);
  EXPECT_EQ(newest(client_).path.ack_timeout, 15);
  EXPECT_EQ(newest(client_).path.traffic_class, 0);
  EXPECT_EQ(newest(client_).retry_count, 7);
  EXPECT_EQ(newest(client_).endpoint.rnr_retry_count, 7);
  EXPECT_EQ(client_.connect(active, asked), EINVAL) << "once";
  for (std::uint64_t round = 1; round <= 16; ++round) {
    client_.event(EAGAIN);
    network_.front()->agent().step(monotonic_ns() + round * kLongNs);
  }
  EXPECT_PRED_FORMAT2(same_bytes, client_.event(),
                      event_of(Program::kHandle, active, ProgramEvent::kUnreachable, -ETIMEDOUT));
}

TEST_P(Connections, datagram_service_gives_its_queue_pair_and_key_or_refuses) {
  const std::uint32_t listener = server_.listen_at(server_address, RDMA_PS_UDP);
  ASSERT_EQ(server_.set_option(listener, RDMA_OPTION_ID_TOS, kTos, 1), 0);
  struct Case {
    std::uint32_t given;
    std::uint32_t key;
  };
  for (const auto& [given, key] : {Case{0x4321, 0x4321}, Case{0, kDatagramQkey}}) {
    const std::uint32_t active = routed(RDMA_PS_UDP);
    ib_uverbs_qp_attr init{};
    init.qp_state = IBV_QPS_INIT;
    init.qp_attr_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    init.port_num = 1;
    init.qkey = kDatagramQkey;
    EXPECT_PRED_FORMAT2(same_bytes, attributes(client_, active, IBV_QPS_INIT), init);
    EXPECT_EQ(client_.connect(active, parameters(181)), EINVAL);
    ASSERT_EQ(client_.connect(active, parameters(180)), 0);
    Message request = request_of(MessageType::kSidrReq, RDMA_PS_UDP, out_, client_port(active));
    append_private_data(request, parameters(180));
    EXPECT_TRUE(is_message(newest(client_), request));
    deliver_all(network_);
    rdma_ucm_event_resp event = server_.event();
    rdma_ucm_event_resp expected = event_of(Program::kHandle, event.id, ProgramEvent::kConnectRequest);
    const auto set = [&expected](const rdma_ucm_conn_param& data, const Way& way) {
      expected.param.ud.private_data_len = data.private_data_len;
      std::ranges::copy(data.private_data, expected.param.ud.private_data);
      expected.param.ud.ah_attr = way.handle();
    };
    set(parameters(180), back_);
    EXPECT_PRED_FORMAT2(same_bytes, event, expected);

    rdma_ucm_conn_param answer = parameters(137);
    answer.qp_num = 0x445566;
    answer.qkey = given;
    EXPECT_EQ(server_.accept(event.id, answer), EINVAL);
    answer.private_data_len = 136;
    answer.private_data[136] = 0;
    EXPECT_EQ(server_.accept(event.id, answer), 0);
    EXPECT_EQ(server_.accept(event.id, answer), EINVAL);
    deliver_all(network_);
    event = client_.event();
    expected = event_of(event.uid, active, ProgramEvent::kEstablished);
    set(answer, out_);
    expected.param.ud.qp_num = 0x445566;
    expected.param.ud.qkey = key;
    EXPECT_PRED_FORMAT2(same_bytes, event, expected);
  }
  const std::uint32_t active = routed(RDMA_PS_UDP);
  ASSERT_EQ(client_.connect(active, parameters(0)), 0);
  deliver_all(network_);
  const std::uint32_t passive = server_.event().id;
  EXPECT_EQ(server_.reject(passive, 0, 137), EINVAL);
  EXPECT_EQ(server_.reject(passive, 0, 136), 0);
  deliver_all(network_);
  const rdma_ucm_event_resp refused = client_.event();
  EXPECT_EQ(refused.event, static_cast<std::uint32_t>(ProgramEvent::kUnreachable));
  EXPECT_EQ(refused.status, static_cast<std::uint32_t>(gdx::cm::SidrStatus::kRejected));
}

INSTANTIATE_TEST_SUITE_P(Layers, Connections, testing::Bool(),
                         [](const auto& layer) { return layer.param ? "infiniband" : "roce"; });

}  // namespace connections_test
}  // namespace gdx::softhca::uverbs
