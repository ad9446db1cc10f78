// The commands by which ids are made, bound, resolved and listened on, and events are read.
#include <infiniband/verbs.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "driver-shim/softhca/devx/refusals.h"
#include "driver-shim/softhca/rdma_cm/rdma_cm.h"
#include "driver-shim/softhca/uverbs/cancellation.h"
#include "driver-shim/softhca/uverbs/user_memory.h"

namespace gdx::softhca::uverbs {
namespace {

constexpr std::uint32_t kMaxBacklog = 1024;
constexpr std::uint32_t kCommands = RDMA_USER_CM_CMD_JOIN_MCAST + 1;
constexpr std::uint16_t kFirstEphemeralPort = 32768;
constexpr std::uint16_t kEphemeralPorts = 28232;
constexpr std::uint8_t kMaxAckTimeout = 31;
// Size of the record in kernels before ECE, which lack its last two members.
constexpr std::size_t kShortestEventBytes = offsetof(rdma_ucm_event_resp, reserved);

// Returns whether both ends of a path have the LIDs that it needs.
bool has_lids(const gdx::cm::Path& path) {
  return !path.subnet_local ||
         (gdx::cm::is_unicast_lid(path.local_lid) && gdx::cm::is_unicast_lid(path.remote_lid));
}

}  // namespace

RdmaCm::Handler RdmaCm::handler_of(std::uint32_t command) {
  switch (command) {
    case RDMA_USER_CM_CMD_CREATE_ID: return &RdmaCm::create_id;
    case RDMA_USER_CM_CMD_DESTROY_ID: return &RdmaCm::destroy_id;
    case RDMA_USER_CM_CMD_BIND_IP: return &RdmaCm::bind_ip;
    case RDMA_USER_CM_CMD_RESOLVE_IP: return &RdmaCm::resolve_ip;
    case RDMA_USER_CM_CMD_RESOLVE_ROUTE: return &RdmaCm::resolve_route;
    case RDMA_USER_CM_CMD_QUERY_ROUTE: return &RdmaCm::query_route;
    case RDMA_USER_CM_CMD_CONNECT: return &RdmaCm::connect;
    case RDMA_USER_CM_CMD_LISTEN: return &RdmaCm::listen;
    case RDMA_USER_CM_CMD_ACCEPT: return &RdmaCm::accept;
    case RDMA_USER_CM_CMD_REJECT: return &RdmaCm::reject;
    case RDMA_USER_CM_CMD_DISCONNECT: return &RdmaCm::disconnect;
    case RDMA_USER_CM_CMD_INIT_QP_ATTR: return &RdmaCm::init_qp_attributes;
    case RDMA_USER_CM_CMD_GET_EVENT: return &RdmaCm::get_event;
    case RDMA_USER_CM_CMD_SET_OPTION: return &RdmaCm::set_option;
    case RDMA_USER_CM_CMD_NOTIFY: return &RdmaCm::notify;
    case RDMA_USER_CM_CMD_JOIN_IP_MCAST:
    case RDMA_USER_CM_CMD_JOIN_MCAST: return &RdmaCm::join_multicast;
    case RDMA_USER_CM_CMD_MIGRATE_ID: return &RdmaCm::migrate_id;
    case RDMA_USER_CM_CMD_QUERY: return &RdmaCm::query;
    case RDMA_USER_CM_CMD_BIND: return &RdmaCm::bind_address;
    case RDMA_USER_CM_CMD_RESOLVE_ADDR: return &RdmaCm::resolve_address;
    default: return nullptr;
  }
}

void RdmaCm::name_refused(const std::string& what) {
  const CancellationOff uncancelled;
  name_refusal(what);
}

Errno RdmaCm::command(int fd, std::uint64_t address, std::size_t length_bytes) {
  rdma_ucm_cmd_hdr header{};
  if (length_bytes < sizeof header) return EINVAL;
  if (const Errno error = copy_from_user(&header, address, sizeof header)) return error;
  if (header.cmd >= kCommands || header.in + sizeof header > length_bytes) return EINVAL;
  const Handler handler = handler_of(header.cmd);
  if (handler == nullptr) {
    name_refused(fmt::format("rdma_cm command {}", header.cmd));
    return ENOSYS;
  }
  std::array<std::byte, sizeof(CmCall::input)> input{};
  const std::size_t input_bytes = std::min<std::size_t>(header.in, input.size());
  if (const Errno error = copy_from_user(input.data(), address + sizeof header, input_bytes)) return error;
  // Keeps the file alive: as in the kernel, a wait continues on a file that is closed meanwhile. No event
  // comes there.
  std::shared_ptr<CmFile> file;
  for (bool closed = false; !closed;) {
    {
      const CancellationOff uncancelled;
      const std::lock_guard lock(mutex_);
      const auto found = files_.find(fd);
      if (!file && found == files_.end()) return EBADF;
      closed = file && (found == files_.end() || file != found->second);
      if (closed) break;
      file = found->second;
      CmCall call{.file = *file, .input = input, .input_bytes = input_bytes, .output_bytes = header.out};
      const Errno error = (this->*handler)(call);
      for (const auto& port : ports_) port->note_deadline();
      if (header.cmd != RDMA_USER_CM_CMD_GET_EVENT || error != EAGAIN) return error;
    }
    const Errno error = wait_for_event(fd);
    closed = error == EBADF || error == ENOTSOCK;  // its number may be another file's by now
    if (error != 0 && !closed) return error;
  }
  ::pause();
  return EINTR;
}

Errno RdmaCm::create_id(CmCall& call) {
  const auto asked = call.read<rdma_ucm_create_id>();
  const rdma_ucm_create_id_resp none{};
  if (call.output_bytes < sizeof none) return ENOSPC;
  std::uint8_t qp_type = 0;
  switch (asked.ps) {
    case RDMA_PS_TCP: qp_type = IBV_QPT_RC; break;
    case RDMA_PS_UDP:
    case RDMA_PS_IPOIB: qp_type = IBV_QPT_UD; break;
    case RDMA_PS_IB: qp_type = asked.qp_type; break;
    default: return EINVAL;
  }
  CmId& id = add_id(call.file);
  id.user_handle = asked.uid;
  id.port_space = asked.ps;
  id.qp_type = qp_type;
  const rdma_ucm_create_id_resp answer{.id = id.number};
  const Errno error = copy_to_user(asked.response, &answer, sizeof answer);
  if (error != 0) remove_id(id);
  return error;
}

Errno RdmaCm::destroy_id(CmCall& call) {
  const auto asked = call.read<rdma_ucm_destroy_id>();
  rdma_ucm_destroy_id_resp answer{};
  if (call.output_bytes < sizeof answer) return ENOSPC;
  const ErrnoOr<CmId*> id = find_id(call.file, asked.id);
  if (!id) return id.error();
  answer.events_reported = (*id)->events_reported;
  remove_id(**id);
  return copy_to_user(asked.response, &answer, sizeof answer);
}

ErrnoOr<CmPort*> RdmaCm::port_at(const wire::Address& address) {
  const auto found =
      std::ranges::find_if(ports_, [&address](const auto& port) { return port->hca().address() == address; });
  if (found != ports_.end()) return found->get();
  return refuse(is_host_address(address) ? ENODEV : EADDRNOTAVAIL);
}

bool RdmaCm::port_number_taken(const CmId& id, const CmPort* port, std::uint16_t number) const {
  return std::ranges::any_of(ids_, [&](const auto& it) {
    const CmId& other = *it.second;
    const bool bound = &other != &id && other.state != CmId::State::kIdle && other.connection == 0;
    const bool overlaps = other.port == nullptr || port == nullptr || other.port == port;
    const bool apart =
        id.has_one_family() && other.has_one_family() && id.source.family != other.source.family;
    const bool shared = id.reuse_address && other.reuse_address;
    return bound && other.port_space == id.port_space && other.source.port == number && overlaps && !apart &&
           !shared;
  });
}

// A loopback address that is no HCA's stands for every HCA, as in the kernel.
Errno RdmaCm::bind(CmId& id, const CmAddress& address) {
  if (id.state != CmId::State::kIdle) return EINVAL;
  CmPort* port = nullptr;
  if (!address.is_any()) {
    // Refuses without a log line, because librdmacm tries a subnet's GID by itself.
    if (address.family == AF_IB) return ENODEV;
    const ErrnoOr<CmPort*> found = port_at(address.address);
    if (!found && !address.is_loopback()) return found.error();
    port = found ? *found : nullptr;
  }
  std::uint16_t number = address.port;
  id.source.family = address.family;
  if (number != 0 && !may_bind_port(number)) return EACCES;
  if (number != 0 && port_number_taken(id, port, number)) return EADDRINUSE;
  const std::uint32_t first = random_() % kEphemeralPorts;
  for (std::uint32_t i = 0; number == 0 && i < kEphemeralPorts; ++i) {
    const auto candidate = static_cast<std::uint16_t>(kFirstEphemeralPort + (first + i) % kEphemeralPorts);
    if (!port_number_taken(id, port, candidate)) number = candidate;
  }
  if (number == 0) return EADDRNOTAVAIL;
  id.source = address;
  id.source.port = number;
  id.port = port;
  id.state = CmId::State::kBound;
  return 0;
}

Errno RdmaCm::bind_ip(CmCall& call) {
  const auto asked = call.read<rdma_ucm_bind_ip>();
  const ErrnoOr<CmId*> id = find_id(call.file, asked.id);
  if (!id) return id.error();
  const ErrnoOr<CmAddress> address = read_address(&asked.addr, sizeof asked.addr);
  return address ? bind(**id, *address) : address.error();
}

Errno RdmaCm::bind_address(CmCall& call) {
  const auto asked = call.read<rdma_ucm_bind>();
  if (asked.reserved != 0 || asked.addr_size > sizeof asked.addr) return EINVAL;
  const ErrnoOr<CmId*> id = find_id(call.file, asked.id);
  if (!id) return id.error();
  const ErrnoOr<CmAddress> address = read_address(&asked.addr, asked.addr_size);
  return address ? bind(**id, *address) : address.error();
}

Errno RdmaCm::resolve_ip(CmCall& call) {
  const auto asked = call.read<rdma_ucm_resolve_ip>();
  const ErrnoOr<CmId*> id = find_id(call.file, asked.id);
  if (!id) return id.error();
  const ErrnoOr<CmAddress> destination = read_address(&asked.dst_addr, sizeof asked.dst_addr);
  if (!destination) return destination.error();
  const ErrnoOr<CmAddress> source = read_address(&asked.src_addr, sizeof asked.src_addr);
  return resolve(**id, source ? *source : CmAddress{}, *destination);
}

Errno RdmaCm::resolve_address(CmCall& call) {
  const auto asked = call.read<rdma_ucm_resolve_addr>();
  if (asked.reserved != 0 || asked.src_size > sizeof asked.src_addr ||
      asked.dst_size > sizeof asked.dst_addr) {
    return EINVAL;
  }
  const ErrnoOr<CmId*> id = find_id(call.file, asked.id);
  if (!id) return id.error();
  const ErrnoOr<CmAddress> destination = read_address(&asked.dst_addr, asked.dst_size);
  if (!destination) return destination.error();
  CmAddress source;
  if (asked.src_size != 0) {
    const ErrnoOr<CmAddress> read = read_address(&asked.src_addr, asked.src_size);
    if (!read) return read.error();
    source = *read;
  }
  return resolve(**id, source, *destination);
}

CmPort* RdmaCm::port_towards(const CmId& id, const wire::Address& destination) {
  if (id.port != nullptr) return id.port;
  CmPort* chosen = nullptr;
  for (const auto& port : ports_) {
    if (port->hca().address() == destination) return port.get();
    const bool reaches = port->hca().address().is_ipv4() == destination.is_ipv4();
    if (chosen == nullptr && reaches) chosen = port.get();
  }
  return chosen;
}

// Resolves by the host's routes alone, because every software HCA is reached by its IP address.
Errno RdmaCm::resolve(CmId& id, const CmAddress& source, const CmAddress& destination) {
  if (id.state == CmId::State::kIdle) {
    const CmAddress from = source.family != 0 ? source : any_address(destination.family);
    if (const Errno error = bind(id, from)) return error;
  }
  if (id.state != CmId::State::kBound || id.source.family != destination.family) return EINVAL;
  if (destination.family == AF_IB) {
    name_refused("rdma_cm addresses of family AF_IB");
    return ENODEV;
  }
  CmAddress to = destination;
  CmPort* const port = port_towards(id, to.address);
  if (to.is_any() && port != nullptr) to.address = port->hca().address();
  if (const Errno error = route_error(to.address)) return error;
  if (port == nullptr || port->hca().address().is_ipv4() != to.address.is_ipv4()) {
    queue_event(id, ProgramEvent::kAddressError, -ENODEV, nullptr);
    return 0;
  }
  if (!has_lids(port->path_to(to.address, id.tos))) {
    queue_event(id, ProgramEvent::kAddressError, -EHOSTUNREACH, nullptr);
    return 0;
  }
  id.port = port;
  id.source.address = port->hca().address();
  id.destination = to;
  id.state = CmId::State::kAddressResolved;
  queue_event(id, ProgramEvent::kAddressResolved, 0, nullptr);
  return 0;
}

Errno RdmaCm::resolve_route(CmCall& call) {
  const auto asked = call.read<rdma_ucm_resolve_route>();
  const ErrnoOr<CmId*> id = find_id(call.file, asked.id);
  if (!id) return id.error();
  if ((*id)->state != CmId::State::kAddressResolved) return EINVAL;
  (*id)->state = CmId::State::kRouteResolved;
  // Half of the ACK timeout, if the program has chosen one, as Linux derives it on RoCE.
  if (const std::uint8_t timeout = (*id)->ack_timeout.value_or(0); timeout != 0)
    (*id)->packet_life_time = static_cast<std::uint8_t>(timeout - 1);
  queue_event(**id, ProgramEvent::kRouteResolved, 0, nullptr);
  return 0;
}

Errno RdmaCm::listen(CmCall& call) {
  const auto asked = call.read<rdma_ucm_listen>();
  const ErrnoOr<CmId*> found = find_id(call.file, asked.id);
  if (!found) return found.error();
  CmId& id = **found;
  if (id.state == CmId::State::kIdle) {
    if (const Errno error = bind(id, any_address(AF_INET))) return error;
  }
  if (id.state != CmId::State::kBound) return EINVAL;
  if (id.source.family == AF_IB) {
    name_refused("rdma_cm addresses of family AF_IB");
    return EOPNOTSUPP;
  }
  // A listener shares its address with nobody, whatever ids were bound there before.
  if (std::exchange(id.reuse_address, false) && port_number_taken(id, id.port, id.source.port)) {
    id.reuse_address = true;
    return EADDRINUSE;
  }
  const std::uint32_t backlog =
      asked.backlog > 0 && asked.backlog < kMaxBacklog ? asked.backlog : kMaxBacklog;
  std::vector<CmPort*> listening;
  for (const auto& port : ports_) {
    if (id.port != nullptr && id.port != port.get()) continue;
    const bool same_family = port->hca().address().is_ipv4() == (id.source.family == AF_INET);
    if (id.has_one_family() && !same_family) continue;
    if (!port->agent().listen(id.service_id(id.source.port), id.number, backlog)) {
      for (CmPort* const done : listening) done->agent().stop_listening(id.service_id(id.source.port));
      return EADDRINUSE;
    }
    listening.push_back(port.get());
  }
  id.state = CmId::State::kListening;
  for (const CmPort* const port : listening) {
    log::info("{}: rdma_cm listens at {} port {}", port->hca().config().name, port->hca().address().text(),
              id.source.port);
  }
  return 0;
}

Errno RdmaCm::get_event(CmCall& call) {
  const auto asked = call.read<rdma_ucm_get_event>();
  if (call.output_bytes < kShortestEventBytes) return ENOSPC;
  std::deque<CmEvent>& events = call.file.events();
  if (events.empty()) return EAGAIN;
  CmEvent& event = events.front();
  CmId* made = nullptr;
  if (event.port != nullptr) {
    const CmId& listener = *ids_.at(event.id);
    made = &add_id(call.file);
    made->port_space = listener.port_space;
    made->qp_type = listener.qp_type;
    made->tos = listener.tos;
    made->state = CmId::State::kConnecting;
    made->source = event.source;
    made->destination = event.destination;
    made->port = event.port;
    made->connection = event.connection;
    event.record.id = made->number;
  }
  const std::size_t length_bytes = std::min(call.output_bytes, sizeof event.record);
  if (const Errno error = copy_to_user(asked.response, &event.record, length_bytes)) {
    if (made != nullptr) ids_.erase(made->number);
    return error;
  }
  if (made != nullptr) event.port->agent().note_read(event.connection);
  ++ids_.at(event.id)->events_reported;
  events.pop_front();
  call.file.signal();
  return 0;
}

Errno RdmaCm::set_option(CmCall& call) {
  const auto asked = call.read<rdma_ucm_set_option>();
  const ErrnoOr<CmId*> found = find_id(call.file, asked.id);
  if (!found) return found.error();
  CmId& id = **found;
  if (asked.level != RDMA_OPTION_ID) {
    name_refused(fmt::format("rdma_cm option of level {}", asked.level));
    return ENOSYS;
  }
  std::uint8_t byte = 0;
  std::int32_t number = 0;
  const bool small = asked.optname == RDMA_OPTION_ID_TOS || asked.optname == RDMA_OPTION_ID_ACK_TIMEOUT;
  if (asked.optlen != (small ? sizeof byte : sizeof number)) return EINVAL;
  const Errno error = small ? copy_from_user(&byte, asked.optval, sizeof byte)
                            : copy_from_user(&number, asked.optval, sizeof number);
  if (error != 0) return error;
  switch (asked.optname) {
    case RDMA_OPTION_ID_TOS: id.tos = byte; return 0;
    case RDMA_OPTION_ID_REUSEADDR:
      if (id.state != CmId::State::kIdle && (number == 0 || id.state == CmId::State::kListening))
        return EINVAL;
      id.reuse_address = number != 0;
      return 0;
    case RDMA_OPTION_ID_AFONLY:
      if (id.state != CmId::State::kIdle && id.state != CmId::State::kBound) return EINVAL;
      id.one_family = number != 0;
      return 0;
    case RDMA_OPTION_ID_ACK_TIMEOUT:
      if (byte > kMaxAckTimeout || id.qp_type != IBV_QPT_RC) return EINVAL;
      id.ack_timeout = byte;
      return 0;
    default: return ENOSYS;
  }
}

Errno RdmaCm::migrate_id(CmCall& call) {
  const auto asked = call.read<rdma_ucm_migrate_id>();
  const auto from = files_.find(static_cast<int>(asked.fd));
  if (from == files_.end()) return EINVAL;
  const ErrnoOr<CmId*> id = find_id(*from->second, asked.id);
  if (!id) return id.error();
  const rdma_ucm_migrate_resp answer{.events_reported = (*id)->events_reported};
  if (const Errno error = copy_to_user(asked.response, &answer, sizeof answer)) return error;
  if (from->second.get() == &call.file) return 0;
  std::deque<CmEvent>& events = from->second->events();
  const auto moved = std::stable_partition(events.begin(), events.end(),
                                           [&](const CmEvent& event) { return event.id != asked.id; });
  call.file.events().insert(call.file.events().end(), std::make_move_iterator(moved),
                            std::make_move_iterator(events.end()));
  events.erase(moved, events.end());
  (*id)->file = &call.file;
  from->second->signal();
  call.file.signal();
  return 0;
}

Errno RdmaCm::join_multicast(CmCall& /*call*/) {
  name_refused("rdma_cm multicast");
  return EOPNOTSUPP;
}

}  // namespace gdx::softhca::uverbs
