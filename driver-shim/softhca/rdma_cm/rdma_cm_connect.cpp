// Commands that advance a connection. A command that the state forbids answers EINVAL, as in the kernel.
#include <infiniband/verbs.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "driver-shim/softhca/rdma_cm/rdma_cm.h"
#include "driver-shim/softhca/wire/addressing.h"

namespace gdx::softhca::uverbs {
namespace {

using gdx::cm::IpHeader;
using gdx::cm::RejectReason;

constexpr unsigned kIpVersionShift = 4;

cm::PrivateData private_data_of(const rdma_ucm_conn_param& parameters) {
  const auto bytes = std::as_bytes(std::span(parameters.private_data, parameters.private_data_len));
  return {bytes.begin(), bytes.end()};
}

gdx::cm::Gid header_address(const wire::Address& address) {
  gdx::cm::Gid field = address.gid;
  if (address.is_ipv4()) std::fill(field.begin(), field.begin() + 12, std::uint8_t{0});
  return field;
}

// Builds the header of the IP service, then the program's data.
cm::PrivateData request_data(const CmId& id, const rdma_ucm_conn_param& parameters) {
  IpHeader header{};
  const unsigned version = id.source.address.is_ipv4() ? 4 : 6;
  header.ip_version = static_cast<std::uint8_t>(version << kIpVersionShift);
  header.source_port = id.source.port;
  header.source = header_address(id.source.address);
  header.destination = header_address(id.destination.address);
  const auto bytes = std::as_bytes(std::span(&header, 1));
  cm::PrivateData data(bytes.begin(), bytes.end());
  const cm::PrivateData own = private_data_of(parameters);
  data.insert(data.end(), own.begin(), own.end());
  return data;
}

gdx::cm::Endpoint endpoint_of(const rdma_ucm_conn_param& parameters, const Hca& hca) {
  gdx::cm::Endpoint end;
  end.qpn = parameters.qp_num;
  end.ca_guid = wire::guid_of(hca.address());
  end.responder_resources = parameters.responder_resources;
  end.initiator_depth = parameters.initiator_depth;
  end.flow_control = parameters.flow_control != 0;
  end.rnr_retry_count = std::min<std::uint8_t>(parameters.rnr_retry_count, 7);
  end.srq = parameters.srq != 0;
  return end;
}

}  // namespace

cm::Connection* RdmaCm::connection_of(const CmId& id) {
  return id.connection == 0 ? nullptr : id.port->agent().find(id.connection);
}

Errno RdmaCm::connect(CmCall& call) {
  const auto asked = call.read<rdma_ucm_connect>();
  const ErrnoOr<CmId*> found = find_id(call.file, asked.id);
  if (!found) return found.error();
  CmId& id = **found;
  if (asked.conn_param.valid == 0 || id.state != CmId::State::kRouteResolved) return EINVAL;
  const Errno error =
      id.is_datagram() ? start_resolution(id, asked.conn_param) : start_connection(id, asked.conn_param);
  if (error == 0) id.state = CmId::State::kConnecting;
  return error;
}

Errno RdmaCm::start_connection(CmId& id, const rdma_ucm_conn_param& parameters) {
  cm::Message request;
  request.private_data = request_data(id, parameters);
  if (request.private_data.size() > gdx::cm::private_data_bytes(cm::MessageType::kReq)) return EINVAL;
  const Hca& hca = id.port->hca();
  request.service_id = id.service_id(id.destination.port);
  request.endpoint = endpoint_of(parameters, hca);
  request.transport = id.qp_type == IBV_QPT_UC ? gdx::cm::Transport::kUc : gdx::cm::Transport::kRc;
  request.retry_count = std::min<std::uint8_t>(parameters.retry_count, 7);
  request.path_mtu = id.port->agent().config().max_path_mtu;
  request.path = path_of(id);
  cm::Connection& connection = id.port->agent().make(id.destination.address);
  id.connection = connection.id();
  connection.connect(monotonic_ns(), std::move(request));
  return 0;
}

Errno RdmaCm::start_resolution(CmId& id, const rdma_ucm_conn_param& parameters) {
  cm::Message request;
  request.private_data = request_data(id, parameters);
  if (request.private_data.size() > gdx::cm::private_data_bytes(cm::MessageType::kSidrReq)) return EINVAL;
  request.service_id = id.service_id(id.destination.port);
  cm::Connection& connection = id.port->agent().make(id.destination.address);
  id.connection = connection.id();
  connection.resolve(monotonic_ns(), std::move(request));
  return 0;
}

// Without parameters it is the active side's confirmation that its queue pair is set up: RTU. Of a passive
// side it makes no sense, and the kernel then refuses the peer too.
Errno RdmaCm::accept(CmCall& call) {
  const auto asked = call.read<rdma_ucm_accept>();
  const ErrnoOr<CmId*> found = find_id(call.file, asked.id);
  if (!found) return found.error();
  CmId& id = **found;
  cm::Connection* const connection = connection_of(id);
  if (connection == nullptr) return EINVAL;
  if (asked.conn_param.valid == 0) {
    if (!connection->passive() && connection->establish()) return 0;
    connection->reject(monotonic_ns(), RejectReason::kConsumerDefined, {});
    return EINVAL;
  }
  cm::PrivateData data = private_data_of(asked.conn_param);
  bool done = false;
  if (id.is_datagram()) {
    if (data.size() > gdx::cm::private_data_bytes(cm::MessageType::kSidrRep)) return EINVAL;
    cm::Message answer;
    answer.endpoint.qpn = asked.conn_param.qp_num;
    answer.qkey = asked.conn_param.qkey != 0 ? asked.conn_param.qkey : kDatagramQkey;
    answer.private_data = std::move(data);
    done = connection->reply(answer);
  } else {
    if (data.size() > gdx::cm::private_data_bytes(cm::MessageType::kRep)) return EINVAL;
    done = connection->accept(monotonic_ns(), endpoint_of(asked.conn_param, id.port->hca()), std::move(data));
  }
  if (!done) return EINVAL;
  id.user_handle = asked.uid;
  return 0;
}

Errno RdmaCm::reject(CmCall& call) {
  const auto asked = call.read<rdma_ucm_reject>();
  const ErrnoOr<CmId*> id = find_id(call.file, asked.id);
  if (!id) return id.error();
  const auto reason =
      asked.reason == 0 ? RejectReason::kConsumerDefined : static_cast<RejectReason>(asked.reason);
  if (reason != RejectReason::kConsumerDefined && reason != RejectReason::kVendorOptionNotSupported) {
    return EINVAL;
  }
  const std::size_t room =
      gdx::cm::private_data_bytes((*id)->is_datagram() ? cm::MessageType::kSidrRep : cm::MessageType::kRej);
  if (asked.private_data_len > room) return EINVAL;
  cm::Connection* const connection = connection_of(**id);
  if (connection == nullptr) return EINVAL;
  const auto bytes = std::as_bytes(std::span(asked.private_data, asked.private_data_len));
  return connection->reject(monotonic_ns(), reason, {bytes.begin(), bytes.end()}) ? 0 : EINVAL;
}

// Permits repeated or late calls, because both ends may disconnect at once.
Errno RdmaCm::disconnect(CmCall& call) {
  const auto asked = call.read<rdma_ucm_disconnect>();
  const ErrnoOr<CmId*> id = find_id(call.file, asked.id);
  if (!id) return id.error();
  cm::Connection* const connection = connection_of(**id);
  if (connection == nullptr) return EINVAL;
  connection->disconnect(monotonic_ns());
  return 0;
}

Errno RdmaCm::notify(CmCall& call) {
  const auto asked = call.read<rdma_ucm_notify>();
  const ErrnoOr<CmId*> id = find_id(call.file, asked.id);
  if (!id) return id.error();
  cm::Connection* const connection = connection_of(**id);
  if (connection == nullptr || asked.event != IBV_EVENT_COMM_EST) return EINVAL;
  if (connection->state() == cm::State::kEstablished) return EISCONN;
  return connection->passive() && connection->establish() ? 0 : EINVAL;
}

}  // namespace gdx::softhca::uverbs
