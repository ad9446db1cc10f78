#include "driver-shim/softhca/rdma_cm/rdma_cm.h"

#include <infiniband/verbs.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "driver-shim/softhca/uverbs/user_memory.h"
#include "driver-shim/softhca/wire/addressing.h"
#include "proto/mad/cm_codec.h"

namespace gdx::softhca::uverbs {
namespace {

constexpr std::size_t kMaxInbox = 4096;  // datagrams; a sender sends again what is dropped
// Indices of GIDs: a port of InfiniBand has its subnet's prefix and its GUID, one of RoCE its IP address.
constexpr std::uint8_t kSubnetGidIndex = 0;
constexpr std::uint8_t kAddressGidIndex = 1;
constexpr unsigned kPrecedenceShift = 5;  // place of the precedence in a type of service

// enum ib_mtu
std::uint8_t mtu_code(std::uint32_t mtu_bytes) {
  return static_cast<std::uint8_t>(std::countr_zero(mtu_bytes) - 7);
}

cm::AgentConfig agent_config(const Hca& hca, const Random& random) {
  cm::AgentConfig config;
  config.address = hca.address();
  config.ca_guid = wire::guid_of(hca.address());
  config.infiniband = hca.config().infiniband;
  config.lid = wire::lid_of(hca.address());
  config.gid = wire::gid_of(hca.address(), kSubnetGidIndex);
  config.max_path_mtu = mtu_code(hca.config().mtu_bytes);
  config.random = random;
  return config;
}

// Returns the offset of the program's own private data in that of a request.
std::size_t user_data_offset(const CmId& id, const cm::Message& cause) {
  const bool request = cause.type == cm::MessageType::kReq || cause.type == cm::MessageType::kSidrReq;
  return request && id.source.family != AF_IB ? gdx::cm::kIpHeaderBytes : 0;
}

void fill_connection(rdma_ucm_conn_param& to, const CmId& id, const cm::Message& cause) {
  const std::size_t offset = user_data_offset(id, cause);
  to.private_data_len = static_cast<std::uint8_t>(cause.private_data.size() - offset);
  std::memcpy(to.private_data, cause.private_data.data() + offset, to.private_data_len);
  to.qp_num = cause.endpoint.qpn;
  // Swaps the depths, because the peer's limit as initiator is this side's as responder.
  to.responder_resources = cause.endpoint.initiator_depth;
  to.initiator_depth = cause.endpoint.responder_resources;
  to.flow_control = cause.endpoint.flow_control ? 1 : 0;
  to.retry_count = cause.retry_count;
  to.rnr_retry_count = cause.endpoint.rnr_retry_count;
  to.srq = cause.endpoint.srq ? 1 : 0;
}

void fill_datagram(rdma_ucm_ud_param& to, const CmId& id, const cm::Message& cause) {
  const std::size_t offset = user_data_offset(id, cause);
  to.private_data_len = static_cast<std::uint8_t>(cause.private_data.size() - offset);
  std::memcpy(to.private_data, cause.private_data.data() + offset, to.private_data_len);
  to.qp_num = cause.endpoint.qpn;
  to.qkey = cause.qkey;
}

ProgramEvent program_event(cm::EventType type, bool datagram) {
  switch (type) {
    case cm::EventType::kRequest: return ProgramEvent::kConnectRequest;
    case cm::EventType::kResponse:
      return datagram ? ProgramEvent::kEstablished : ProgramEvent::kConnectResponse;
    case cm::EventType::kEstablished: return ProgramEvent::kEstablished;
    case cm::EventType::kRejected: return ProgramEvent::kRejected;
    case cm::EventType::kUnreachable: return ProgramEvent::kUnreachable;
    case cm::EventType::kDisconnected: return ProgramEvent::kDisconnected;
    case cm::EventType::kTimeWaitOver: return ProgramEvent::kTimeWaitExit;
  }
  return ProgramEvent::kUnreachable;
}

}  // namespace

CmPort::CmPort(RdmaCm& owner, Hca& hca, const Random& random)
    : owner_(owner), hca_(hca), agent_(agent_config(hca, random), *this) {
  hca_.set_management_agent(this);
}

CmPort::~CmPort() { hca_.set_management_agent(nullptr); }

gdx::cm::Path CmPort::path_to(const wire::Address& remote, std::uint8_t type_of_service) const {
  const wire::Address& local = hca_.address();
  const bool infiniband = hca_.config().infiniband;
  gdx::cm::Path path;
  path.local_gid = wire::gid_of(local, infiniband ? kSubnetGidIndex : kAddressGidIndex);
  path.remote_gid = wire::gid_of(remote, infiniband ? kSubnetGidIndex : kAddressGidIndex);
  path.ack_timeout = kAckTimeout;
  if (!infiniband) {
    path.traffic_class = type_of_service;
    return path;
  }
  path.local_lid = wire::lid_of(local);
  path.remote_lid = wire::lid_of(remote);
  path.service_level = static_cast<std::uint8_t>(type_of_service >> kPrecedenceShift);
  path.subnet_local = !hca_.config().grh_required;
  if (path.subnet_local) path.hop_limit = 0;
  return path;
}

void CmPort::write_path(ib_uverbs_ah_attr& to, const gdx::cm::Path& path) const {
  const bool infiniband = hca_.config().infiniband;
  to.port_num = 1;
  to.dlid = infiniband ? path.remote_lid : 0;
  to.sl = path.service_level;
  to.is_global = path.subnet_local ? 0 : 1;
  if (path.subnet_local) return;
  std::ranges::copy(path.remote_gid, to.grh.dgid);
  to.grh.sgid_index = infiniband ? kSubnetGidIndex : kAddressGidIndex;
  to.grh.flow_label = path.flow_label;
  to.grh.hop_limit = path.hop_limit;
  to.grh.traffic_class = path.traffic_class;
}

void CmPort::on_datagram(const wire::Address& source, std::span<const std::byte> datagram) {
  const std::lock_guard lock(inbox_mutex_);
  if (inbox_.size() == kMaxInbox) return;
  inbox_.push_back({source, {datagram.begin(), datagram.end()}});
  arrived_.store(true);
}

std::uint64_t CmPort::next_deadline_ns() const { return arrived_.load() ? 0 : agent_deadline_ns_.load(); }

int CmPort::step(std::uint64_t now_ns) {
  if (next_deadline_ns() > now_ns) return 0;
  const std::unique_lock lock(owner_.mutex_, std::try_to_lock);
  if (!lock) return 0;
  std::vector<Datagram> arrivals;
  {
    const std::lock_guard inbox_lock(inbox_mutex_);
    arrivals.swap(inbox_);
    arrived_.store(false);
  }
  for (const Datagram& arrival : arrivals) agent_.on_datagram(now_ns, arrival.source, arrival.bytes);
  agent_.on_timer(now_ns);
  note_deadline();
  return static_cast<int>(arrivals.size());
}

void CmPort::send(const wire::Address& destination, const cm::Message& message) {
  hca_.send_management(destination, gdx::cm::encode(message));
}

void CmPort::raise(const cm::Event& event) { owner_.on_event(*this, event); }

bool CmId::is_datagram() const { return qp_type == IBV_QPT_UD; }

std::uint64_t CmId::service_id(std::uint16_t at_port) const {
  return gdx::cm::ip_service_id(port_space, at_port);
}

RdmaCm::RdmaCm(const std::vector<Hca*>& hcas, Random random) : random_(std::move(random)) {
  for (Hca* const hca : hcas) ports_.push_back(std::make_unique<CmPort>(*this, *hca, random_));
}

RdmaCm::~RdmaCm() = default;

ErrnoOr<int> RdmaCm::open_file(int flags) {
  ErrnoOr<std::shared_ptr<CmFile>> file = CmFile::open(flags);
  if (!file) return refuse(file.error());
  const std::lock_guard lock(mutex_);
  const int fd = (*file)->user_fd();
  forget_file(fd);  // one that was closed unseen
  files_.emplace(fd, std::move(*file));
  open_files_.store(files_.size());
  return fd;
}

void RdmaCm::close_file(int fd) {
  const std::lock_guard lock(mutex_);
  forget_file(fd);
}

void RdmaCm::forget_file(int fd) {
  const auto file = files_.find(fd);
  if (file == files_.end()) return;
  std::vector<CmId*> orphans;
  for (const auto& [number, id] : ids_) {
    if (id->file == file->second.get()) orphans.push_back(id.get());
  }
  for (CmId* const orphan : orphans) remove_id(*orphan);
  files_.erase(file);
  open_files_.store(files_.size());
}

std::optional<std::size_t> RdmaCm::try_say_goodbye(std::uint64_t now_ns) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return std::nullopt;
  std::size_t unconfirmed = 0;
  for (const auto& port : ports_) unconfirmed += port->agent().release_all(now_ns);
  return unconfirmed;
}

CmId& RdmaCm::add_id(CmFile& file) {
  std::uint32_t number = 0;
  while (ids_.contains(number)) ++number;
  CmId& id = *ids_.emplace(number, std::make_unique<CmId>()).first->second;
  id.number = number;
  id.file = &file;
  return id;
}

void RdmaCm::remove_id(CmId& id) {
  const std::uint64_t now_ns = monotonic_ns();
  if (id.state == CmId::State::kListening) {
    for (const auto& port : ports_) {
      if (id.port == nullptr || id.port == port.get()) {
        port->agent().stop_listening(id.service_id(id.source.port));
      }
    }
  }
  std::deque<CmEvent>& events = id.file->events();
  for (const CmEvent& event : events) {
    if (event.id == id.number && event.port != nullptr) event.port->agent().release(now_ns, event.connection);
  }
  std::erase_if(events, [&id](const CmEvent& event) { return event.id == id.number; });
  id.file->signal();
  if (id.connection != 0) id.port->agent().release(now_ns, id.connection);
  for (const auto& port : ports_) port->note_deadline();
  ids_.erase(id.number);
}

ErrnoOr<CmId*> RdmaCm::find_id(const CmFile& file, std::uint32_t number) {
  const auto found = ids_.find(number);
  if (found == ids_.end()) return refuse(ENOENT);
  if (found->second->file != &file) return refuse(EINVAL);
  return found->second.get();
}

CmId* RdmaCm::find_by_connection(const CmPort& port, std::uint32_t connection) {
  const auto found = std::ranges::find_if(
      ids_, [&](const auto& it) { return it.second->port == &port && it.second->connection == connection; });
  return found == ids_.end() ? nullptr : found->second.get();
}

void RdmaCm::on_event(CmPort& port, const cm::Event& event) {
  if (event.type == cm::EventType::kRequest) return on_request(port, event);
  CmId* const id = find_by_connection(port, event.id);
  if (id == nullptr || id->user_handle == 0) return;
  const int status = event.status == cm::kNoAnswer ? -ETIMEDOUT : event.status;
  const bool caused = !event.message.private_data.empty();
  queue_event(*id, program_event(event.type, id->is_datagram()), status, caused ? &event.message : nullptr);
}

// The id of a new connection is made when the program reads the event.
void RdmaCm::on_request(CmPort& port, const cm::Event& event) {
  const auto found = ids_.find(static_cast<std::uint32_t>(event.listener));
  if (found == ids_.end()) return;
  CmId& listener = *found->second;
  gdx::cm::IpHeader header;
  std::memcpy(&header, event.message.private_data.data(), sizeof header);
  const cm::Connection& connection = *port.agent().find(event.id);
  CmEvent queued;
  queued.id = listener.number;
  queued.port = &port;
  queued.connection = event.id;
  queued.source.family = port.hca().address().is_ipv4() ? AF_INET : AF_INET6;
  queued.source.address = port.hca().address();
  queued.source.port = listener.source.port;
  queued.destination.family = queued.source.family;
  queued.destination.address = connection.remote();
  queued.destination.port = header.source_port;
  queued.record.uid = listener.user_handle;
  queued.record.event = static_cast<std::uint32_t>(ProgramEvent::kConnectRequest);
  if (listener.is_datagram()) {
    fill_datagram(queued.record.param.ud, listener, event.message);
    port.write_path(queued.record.param.ud.ah_attr, port.path_to(connection.remote(), listener.tos));
  } else {
    fill_connection(queued.record.param.conn, listener, event.message);
  }
  listener.file->events().push_back(std::move(queued));
  listener.file->signal();
}

void RdmaCm::queue_event(CmId& id, ProgramEvent event, int status, const cm::Message* cause) {
  CmEvent queued;
  queued.id = id.number;
  queued.record.uid = id.user_handle;
  queued.record.id = id.number;
  queued.record.event = static_cast<std::uint32_t>(event);
  queued.record.status = static_cast<std::uint32_t>(status);
  if (cause != nullptr && id.is_datagram()) {
    fill_datagram(queued.record.param.ud, id, *cause);
    id.port->write_path(queued.record.param.ud.ah_attr, path_of(id));
  } else if (cause != nullptr) {
    fill_connection(queued.record.param.conn, id, *cause);
  }
  id.file->events().push_back(std::move(queued));
  id.file->signal();
}

}  // namespace gdx::softhca::uverbs
