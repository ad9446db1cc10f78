// Commands that report the address of an id, and the attributes for its queue pair.
#include <endian.h>
#include <infiniband/ib.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "driver-shim/softhca/rdma_cm/rdma_cm.h"
#include "driver-shim/softhca/uverbs/user_memory.h"
#include "driver-shim/softhca/wire/addressing.h"

namespace gdx::softhca::uverbs {
namespace {

constexpr std::uint16_t kPkey = 0xffff;
constexpr std::uint32_t kNoDeviceIndex = ~0u;  // without netlink libibverbs has no index and uses the GUID
constexpr std::uint8_t kExactly = 2;           // selector of a path record's figures
constexpr std::uint8_t kSelectorShift = 6;
constexpr unsigned kFlowLabelShift = 8;  // above the hop limit
constexpr std::uint8_t kRate100Gbps = 16;
constexpr std::uint8_t kReversible = 0x80;

// A path record as the subnet administrator sends it (IBA table 205).
struct WirePathRecord {
  Be64 service_id;
  gdx::cm::Gid dgid;
  gdx::cm::Gid sgid;
  Be16 dlid;
  Be16 slid;
  Be32 flow_label_hop_limit;
  std::uint8_t traffic_class;
  std::uint8_t reversible_paths;
  Be16 pkey;
  Be16 qos_class_sl;
  std::uint8_t mtu;
  std::uint8_t rate;
  std::uint8_t packet_life_time;
  std::uint8_t preference;
  std::array<std::uint8_t, 4> reserved;
};
static_assert(sizeof(WirePathRecord) == sizeof(ib_path_rec_data::path_rec));

struct OnePath {  // rdma_ucm_query_path_resp with one element
  std::uint32_t num_paths;
  std::uint32_t reserved;
  ib_path_rec_data path;
};
static_assert(offsetof(OnePath, path) == sizeof(rdma_ucm_query_path_resp));

bool has_path(const CmId& id) {
  return id.state == CmId::State::kRouteResolved || id.state == CmId::State::kConnecting;
}

// Returns the LID as a path record has it: 0 for RoCE, which has no LIDs.
std::uint16_t recorded_lid(std::uint16_t lid) { return lid == gdx::cm::kPermissiveLid ? 0 : lid; }

template <typename T>
Errno respond(std::uint64_t address, const T& answer, std::size_t room_bytes) {
  return copy_to_user(address, &answer, std::min(room_bytes, sizeof answer));
}

Errno query_addresses(const CmCall& call, const rdma_ucm_query& asked, const CmId& id) {
  rdma_ucm_query_addr_resp answer{};
  if (call.output_bytes < offsetof(rdma_ucm_query_addr_resp, ibdev_index)) return ENOSPC;
  answer.src_size = static_cast<std::uint16_t>(write_address(id.source, answer.src_addr));
  answer.dst_size = static_cast<std::uint16_t>(write_address(id.destination, answer.dst_addr));
  answer.ibdev_index = kNoDeviceIndex;
  if (id.port != nullptr) {
    answer.node_guid = htobe64(wire::guid_of(id.port->hca().address()));
    answer.port_num = 1;
    answer.pkey = htobe16(kPkey);
  }
  return respond(asked.response, answer, call.output_bytes);
}

Errno query_gids(const CmCall& call, const rdma_ucm_query& asked, const CmId& id, const gdx::cm::Path& path) {
  rdma_ucm_query_addr_resp answer{};
  if (call.output_bytes < offsetof(rdma_ucm_query_addr_resp, ibdev_index)) return ENOSPC;
  CmAddress source;
  source.family = AF_IB;
  source.port = id.source.port;
  if (id.port != nullptr) source.address.gid = path.local_gid;
  CmAddress destination;
  destination.family = AF_IB;
  destination.port = id.destination.port;
  if (id.destination.family != 0) destination.address.gid = path.remote_gid;
  answer.src_size = static_cast<std::uint16_t>(write_address(source, answer.src_addr));
  answer.dst_size = static_cast<std::uint16_t>(write_address(destination, answer.dst_addr));
  answer.pkey = htobe16(kPkey);
  answer.ibdev_index = kNoDeviceIndex;
  if (id.port != nullptr) {
    answer.node_guid = htobe64(wire::guid_of(id.port->hca().address()));
    answer.port_num = 1;
  }
  return respond(asked.response, answer, call.output_bytes);
}

Errno query_path(const CmCall& call, const rdma_ucm_query& asked, const CmId& id, const gdx::cm::Path& path) {
  OnePath answer{};
  if (call.output_bytes < offsetof(OnePath, path)) return ENOSPC;
  const bool known = has_path(id) && call.output_bytes >= sizeof answer;
  answer.num_paths = known ? 1 : 0;
  if (known) {
    WirePathRecord record{};
    record.dgid = path.remote_gid;
    record.sgid = path.local_gid;
    record.dlid = recorded_lid(path.remote_lid);
    record.slid = recorded_lid(path.local_lid);
    record.flow_label_hop_limit = path.flow_label << kFlowLabelShift | path.hop_limit;
    record.traffic_class = path.traffic_class;
    record.qos_class_sl = path.service_level;
    record.reversible_paths = kReversible | 1;
    record.pkey = kPkey;
    record.mtu =
        static_cast<std::uint8_t>(kExactly << kSelectorShift | id.port->agent().config().max_path_mtu);
    record.rate = kExactly << kSelectorShift | kRate100Gbps;
    record.packet_life_time = kExactly << kSelectorShift | id.packet_life_time;
    answer.path.flags = IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL;
    std::memcpy(answer.path.path_rec, &record, sizeof record);
  }
  return copy_to_user(asked.response, &answer, known ? sizeof answer : offsetof(OnePath, path));
}

// The part of a route that is known once it is resolved.
void write_route(ib_user_path_rec& to, const CmId& id, const gdx::cm::Path& path) {
  to.dlid = htobe16(recorded_lid(path.remote_lid));
  to.slid = htobe16(recorded_lid(path.local_lid));
  to.flow_label = htobe32(path.flow_label);
  to.sl = path.service_level;
  to.reversible = 1;
  to.numb_path = 1;
  to.hop_limit = path.hop_limit;
  to.traffic_class = path.traffic_class;
  to.mtu_selector = to.rate_selector = to.packet_life_time_selector = kExactly;
  to.mtu = id.port->agent().config().max_path_mtu;
  to.rate = kRate100Gbps;
  to.packet_life_time = id.packet_life_time;
}

// Fills in the attributes that are known before there is a connection; a datagram id has no others.
Errno fill_unconnected(ib_uverbs_qp_attr& to, const CmId& id, std::uint32_t state) {
  if (state != IBV_QPS_INIT && !id.is_datagram()) return EINVAL;
  to.qp_attr_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  to.port_num = 1;
  if (id.is_datagram()) {
    to.qkey = kDatagramQkey;
    to.qp_attr_mask |= IBV_QP_QKEY;
  } else {
    to.qp_attr_mask |= IBV_QP_ACCESS_FLAGS;
  }
  return 0;
}

Errno fill_connected(ib_uverbs_qp_attr& to, const CmId& id, const cm::Connection& connection,
                     const gdx::cm::Path& path, std::uint32_t state) {
  const cm::QueuePairParameters parameters = connection.parameters();
  const bool reliable = id.qp_type == IBV_QPT_RC;
  switch (state) {
    case IBV_QPS_INIT:
      to.qp_attr_mask = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
      to.port_num = 1;
      to.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
      if (parameters.responder_resources != 0) {
        to.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
      }
      return 0;
    case IBV_QPS_RTR:
      if (!connection.knows_peer()) return EINVAL;
      to.qp_attr_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
      id.port->write_path(to.ah_attr, path);
      to.path_mtu = parameters.path_mtu;
      to.dest_qp_num = parameters.remote_qpn;
      to.rq_psn = parameters.receive_psn;
      if (reliable) {
        to.qp_attr_mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        to.max_dest_rd_atomic = parameters.responder_resources;
      }
      return 0;
    case IBV_QPS_RTS:
      if (!connection.knows_peer()) return EINVAL;
      to.qp_attr_mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
      to.sq_psn = parameters.send_psn;
      if (reliable) {
        to.qp_attr_mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        to.timeout = id.ack_timeout.value_or(path.ack_timeout);
        to.retry_cnt = parameters.retry_count;
        to.rnr_retry = parameters.rnr_retry_count;
        to.max_rd_atomic = parameters.initiator_depth;
      }
      return 0;
    default: return EINVAL;
  }
}

}  // namespace

gdx::cm::Path RdmaCm::path_of(const CmId& id) {
  if (id.port == nullptr) return {};
  gdx::cm::Path path = id.port->path_to(id.destination.address, id.tos);
  const cm::Connection* const connection = connection_of(id);
  if (connection != nullptr && connection->passive() && !id.is_datagram()) {
    const gdx::cm::Path requested = connection->parameters().path;
    if (id.port->agent().config().infiniband) {
      const gdx::cm::Path of_datagrams = path;
      path = requested;
      if (path.local_lid == gdx::cm::kPermissiveLid) path.local_lid = of_datagrams.local_lid;
      if (path.remote_lid == gdx::cm::kPermissiveLid) path.remote_lid = of_datagrams.remote_lid;
    } else if (path.traffic_class == 0) {
      path.traffic_class = requested.traffic_class;
    }
    path.ack_timeout = requested.ack_timeout;
  }
  if (id.ack_timeout.value_or(0) != 0) path.ack_timeout = *id.ack_timeout;  // none is of no path
  return path;
}

Errno RdmaCm::query(CmCall& call) {
  const auto asked = call.read<rdma_ucm_query>();
  const ErrnoOr<CmId*> id = find_id(call.file, asked.id);
  if (!id) return id.error();
  switch (asked.option) {
    case RDMA_USER_CM_QUERY_ADDR: return query_addresses(call, asked, **id);
    case RDMA_USER_CM_QUERY_PATH: return query_path(call, asked, **id, path_of(**id));
    case RDMA_USER_CM_QUERY_GID: return query_gids(call, asked, **id, path_of(**id));
    default: return ENOSYS;
  }
}

Errno RdmaCm::query_route(CmCall& call) {
  const auto asked = call.read<rdma_ucm_query>();
  rdma_ucm_query_route_resp answer{};
  if (call.output_bytes < offsetof(rdma_ucm_query_route_resp, ibdev_index)) return ENOSPC;
  const ErrnoOr<CmId*> found = find_id(call.file, asked.id);
  if (!found) return found.error();
  const CmId& id = **found;
  __kernel_sockaddr_storage address;
  write_address(id.source, address);
  std::memcpy(&answer.src_addr, &address, sizeof answer.src_addr);
  write_address(id.destination, address);
  std::memcpy(&answer.dst_addr, &address, sizeof answer.dst_addr);
  answer.ibdev_index = kNoDeviceIndex;
  if (id.port != nullptr) {
    const gdx::cm::Path path = path_of(id);
    answer.node_guid = htobe64(wire::guid_of(id.port->hca().address()));
    answer.port_num = 1;
    std::ranges::copy(path.local_gid, answer.ib_route[0].sgid);
    if (id.destination.family != 0) std::ranges::copy(path.remote_gid, answer.ib_route[0].dgid);
    answer.ib_route[0].pkey = htobe16(kPkey);
    answer.num_paths = has_path(id) ? 1 : 0;
    if (has_path(id)) write_route(answer.ib_route[0], id, path);
  }
  return respond(asked.response, answer, call.output_bytes);
}

Errno RdmaCm::init_qp_attributes(CmCall& call) {
  const auto asked = call.read<rdma_ucm_init_qp_attr>();
  ib_uverbs_qp_attr answer{};
  if (call.output_bytes < sizeof answer) return ENOSPC;
  if (asked.qp_state > IBV_QPS_ERR) return EINVAL;
  const ErrnoOr<CmId*> id = find_id(call.file, asked.id);
  if (!id) return id.error();
  if ((*id)->port == nullptr) return EINVAL;
  answer.qp_state = asked.qp_state;
  const cm::Connection* const connection = connection_of(**id);
  const bool connected = connection != nullptr && !(*id)->is_datagram();
  const Errno error = connected ? fill_connected(answer, **id, *connection, path_of(**id), asked.qp_state)
                                : fill_unconnected(answer, **id, asked.qp_state);
  return error != 0 ? error : copy_to_user(asked.response, &answer, sizeof answer);
}

}  // namespace gdx::softhca::uverbs
