#include "host/poster/verbs_port.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "base/log.h"
#include "host/poster/verbs_connection.h"
#include "host/poster/verbs_device.h"

namespace gdx {
namespace verbs {
namespace {

// Polls of which one looks for events of connections, while none is being made: a look is a system call.
constexpr std::uint32_t kPollsPerLook = 128;
constexpr int kEventsAtOnce = 64;  // so that strangers' requests hold nothing up
constexpr int kResolveMs = 2000;
constexpr int kBacklog = 1024;
// Requests of ranks that this one does not know yet. Only who knows its number can leave one.
constexpr std::size_t kMostEarly = 4096;

std::uint64_t random_number() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

// An event of librdmacm, copied, because an id must not end before its events are given back.
struct CmEvent {
  rdma_cm_event_type type;
  int status;
  rdma_cm_id* id;
  std::uint8_t reads_there;  // that the rank may have in flight
  std::uint8_t reads_here;
  std::array<std::byte, sizeof(Request)> data;
};

CmEvent copy_of(const rdma_cm_event& event) {
  CmEvent copy{.type = event.event,
               .status = event.status,
               .id = event.id,
               .reads_there = event.param.conn.responder_resources,
               .reads_here = event.param.conn.initiator_depth,
               .data = {}};
  if (event.param.conn.private_data != nullptr) {
    const std::size_t bytes = std::min<std::size_t>(event.param.conn.private_data_len, copy.data.size());
    std::memcpy(copy.data.data(), event.param.conn.private_data, bytes);
  }
  return copy;
}

template <typename T>
T read_as(std::span<const std::byte> bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof value));
  return value;
}

// Ranks whose numbers are compared: the one with the lesser connects, the other accepts.
class VerbsPort final : public Port {
 public:
  VerbsPort(Device device, const VerbsOptions& options) : options_(options), device_(std::move(device)) {}

  Result<void> open();

  const PortTraits& traits() const override { return device_.traits; }
  const std::vector<std::byte>& address() const override { return address_; }
  Result<void> connect(std::uint32_t rank, std::span<const std::byte> address) override;
  Result<PortRegion> register_memory(std::byte* address, std::uint64_t bytes, bool remote) override;
  void forget_memory(const PortRegion& region) override {
    std::erase_if(regions_, [&](const Region& one) { return one.get() == region.object; });
  }
  Result<Posting> write(std::uint32_t rank, PortSource from, PortTarget to, std::uint64_t bytes,
                        std::uint32_t flags, std::uint32_t immediate, PortContext* context) override;
  Result<Posting> read(std::uint32_t rank, PortSource to, PortTarget from, std::uint64_t bytes,
                       PortContext* context) override;
  Result<Posting> send(std::uint32_t rank, PortSource message, PortContext* context) override;
  Result<void> poll(std::vector<PortEvent>& events) override;

 private:
  struct Peer {
    bool known = false;
    std::uint64_t number = 0;
    Id dialled;  // until its route is resolved
    std::unique_ptr<Connection> connection;
    Error failure{Status::kOk, {}};  // without a connection
  };
  // A request of a rank that connect() has not named yet.
  struct Early {
    Id id;
    CmEvent event;
  };
  [[nodiscard]] bool is_self(const Peer& peer) const { return peer.number == own_.number; }
  [[nodiscard]] bool is_pending(const Peer& peer) const;
  Result<void> dial(Peer& peer, const Address& address);
  Result<void> take_events();
  Result<void> take(const CmEvent& event);
  void take_request(const CmEvent& event);
  void accept(Peer& peer, Id id, const CmEvent& event);
  Result<void> call(Peer& peer);
  void refuse(Id id, const char* why);
  [[nodiscard]] Peer* peer_of(const rdma_cm_id* id);
  static void fail_peer(Peer& peer, Error error);
  void done_at_once(PortContext* context) { own_events_.emplace_back().context = context; }

  VerbsOptions options_;
  Device device_;
  Address own_{};
  std::vector<std::byte> address_;
  std::vector<Region> regions_;
  std::vector<Early> early_;
  std::vector<Peer> peers_;
  std::vector<PortEvent> own_events_;  // of operations to this rank itself
  std::uint32_t polls_ = 0;
};

Result<void> VerbsPort::open() {
  if (library().listen(device_.listener.get(), kBacklog) != 0)
    return tl::unexpected(error_of("rdma_listen", errno));
  const int descriptor = device_.channel->fd;
  if (fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK) != 0)
    return tl::unexpected(error_of("fcntl of the events' descriptor", errno));
  own_.version = kVersion;
  own_.transport = static_cast<std::uint32_t>(device_.listener->verbs->device->transport_type);
  own_.number = random_number();
  own_.socket = device_.socket();
  address_.resize(sizeof own_);
  std::memcpy(address_.data(), &own_, sizeof own_);
  return {};
}

bool VerbsPort::is_pending(const Peer& peer) const {
  if (!peer.known || is_self(peer) || peer.failure.status != Status::kOk) return false;
  return !peer.connection ||
         (!peer.connection->is_open() && peer.connection->failure().status == Status::kOk);
}

Result<void> VerbsPort::connect(std::uint32_t rank, std::span<const std::byte> bytes) {
  const auto address = read_as<Address>(bytes);
  if (bytes.size() != sizeof address || address.version != kVersion) {
    return fail(Status::kVersionMismatch,
                fmt::format("rank {} has addresses of version {} for ibverbs, this rank {}: run the same gdx",
                            rank, address.version, kVersion));
  }
  if (address.transport != own_.transport) {
    return fail(Status::kUnsupported,
                fmt::format("rank {} and this rank have devices of different transports (this one: {}): name "
                            "one that reaches it by ibverbs:DEVICE",
                            rank, device_.traits.version));
  }
  if (peers_.size() <= rank) peers_.resize(rank + 1);
  Peer& peer = peers_[rank];
  peer.known = true;
  peer.number = address.number;
  if (is_self(peer)) return {};
  if (own_.number < address.number) return dial(peer, address);
  const auto early = std::ranges::find_if(
      early_, [&](const Early& one) { return read_as<Request>(one.event.data).from == peer.number; });
  if (early == early_.end()) return {};
  Early taken = std::move(*early);
  early_.erase(early);
  accept(peer, std::move(taken.id), taken.event);
  return {};
}

Result<void> VerbsPort::dial(Peer& peer, const Address& address) {
  rdma_cm_id* id = nullptr;
  if (library().create_id(device_.channel.get(), &id, nullptr, RDMA_PS_TCP) != 0)
    return tl::unexpected(error_of("rdma_create_id", errno));
  peer.dialled.reset(id);
  auto from = device_.socket_with_any_port();
  auto to = address.socket;
  if (library().resolve_addr(id, reinterpret_cast<sockaddr*>(from.data()),
                             reinterpret_cast<sockaddr*>(to.data()), kResolveMs) != 0)
    return tl::unexpected(error_of("rdma_resolve_addr", errno));
  return {};
}

// Sends the request of a connection whose route is known.
Result<void> VerbsPort::call(Peer& peer) {
  peer.connection = GDX_TRY(
      Connection::open(std::move(peer.dialled), device_.domain.get(), device_.bounds, options_.ack_timeout));
  const Request request{
      .version = kVersion, .messages = device_.bounds.messages, .to = peer.number, .from = own_.number};
  rdma_conn_param parameters{};
  parameters.private_data = &request;
  parameters.private_data_len = sizeof request;
  parameters.responder_resources = device_.bounds.reads;
  parameters.initiator_depth = device_.bounds.reads;
  parameters.retry_count = options_.retry_count;
  // A message always finds a receive, so that one that does not is a fault to be told.
  parameters.rnr_retry_count = 0;
  return peer.connection->connect(parameters);
}

void VerbsPort::refuse(Id id, const char* why) {
  log::warn_of_others("poster: a connection was refused (provider ibverbs): {}", why);
  (void)library().reject(id.get(), nullptr, 0);
}

void VerbsPort::take_request(const CmEvent& event) {
  Id id(event.id);
  const auto request = read_as<Request>(event.data);
  if (request.version != kVersion || request.to != own_.number)
    return refuse(std::move(id), "it came without this rank's number, so from no rank of its team");
  const auto peer =
      std::ranges::find_if(peers_, [&](const Peer& one) { return one.known && one.number == request.from; });
  if (peer == peers_.end()) {
    if (early_.size() >= kMostEarly) return refuse(std::move(id), "too many came of unknown ranks");
    early_.push_back({std::move(id), event});
    return;
  }
  if (peer->connection || is_self(*peer) || own_.number < request.from)
    return refuse(std::move(id), "its rank has one, or has to wait for this rank's");
  accept(*peer, std::move(id), event);
}

void VerbsPort::accept(Peer& peer, Id id, const CmEvent& event) {
  const Reply reply{.version = kVersion, .messages = device_.bounds.messages};
  rdma_conn_param parameters{};
  parameters.private_data = &reply;
  parameters.private_data_len = sizeof reply;
  parameters.responder_resources = std::min(event.reads_there, device_.bounds.reads);
  parameters.initiator_depth = std::min(event.reads_here, device_.bounds.reads);
  parameters.rnr_retry_count = 0;
  auto made = Connection::open(std::move(id), device_.domain.get(), device_.bounds, options_.ack_timeout);
  if (!made) return fail_peer(peer, std::move(made).error());
  peer.connection = std::move(*made);
  peer.connection->set_credits(read_as<Request>(event.data).messages);
  if (const auto accepted = peer.connection->accept(parameters); !accepted) fail_peer(peer, accepted.error());
}

VerbsPort::Peer* VerbsPort::peer_of(const rdma_cm_id* id) {
  const auto found = std::ranges::find_if(peers_, [&](const Peer& peer) {
    return peer.dialled.get() == id || (peer.connection && peer.connection->id() == id);
  });
  return found == peers_.end() ? nullptr : &*found;
}

void VerbsPort::fail_peer(Peer& peer, Error error) {
  if (peer.connection) return peer.connection->fail_with(std::move(error));
  if (peer.failure.status == Status::kOk) peer.failure = std::move(error);
}

Result<void> VerbsPort::take_events() {
  for (int left = kEventsAtOnce; left != 0; --left) {
    rdma_cm_event* event = nullptr;
    if (library().get_cm_event(device_.channel.get(), &event) != 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {};
      return tl::unexpected(error_of("rdma_get_cm_event", errno));
    }
    const CmEvent copy = copy_of(*event);
    library().ack_cm_event(event);
    GDX_TRY(take(copy));
  }
  return {};
}

Result<void> VerbsPort::take(const CmEvent& event) {
  if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
    take_request(event);
    return {};
  }
  if (event.type == RDMA_CM_EVENT_DEVICE_REMOVAL)
    return fail(Status::kHcaFailed, fmt::format("device {} was removed (provider ibverbs)", device_.name()));
  std::erase_if(early_, [&](const Early& one) { return one.id.get() == event.id; });
  Peer* const peer = peer_of(event.id);
  if (peer == nullptr) return {};
  switch (event.type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (event.id->verbs != device_.listener->verbs) {
        fail_peer(*peer, {Status::kPeerUnreachable,
                          fmt::format("the way to it does not begin at device {}", device_.name())});
      } else if (library().resolve_route(event.id, kResolveMs) != 0) {
        fail_peer(*peer, error_of("rdma_resolve_route", errno));
      }
      break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      if (const auto called = call(*peer); !called) fail_peer(*peer, called.error());
      break;
    case RDMA_CM_EVENT_ESTABLISHED:
      if (own_.number > peer->number) break;  // the other side's first frame opens it
      peer->connection->set_credits(read_as<Reply>(event.data).messages);
      peer->connection->open_as_caller();
      break;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_REJECTED:
    case RDMA_CM_EVENT_DISCONNECTED:
      fail_peer(*peer,
                {Status::kPeerUnreachable, event.type == RDMA_CM_EVENT_DISCONNECTED
                                               ? "the rank has ended the connection (provider ibverbs)"
                                               : fmt::format("no connection to it: {}, {} (provider ibverbs)",
                                                             library().event_str(event.type), event.status)});
      break;
    default: break;
  }
  return {};
}

// An iWARP READ writes where it lands, with a key that permits it to the rank.
Result<PortRegion> VerbsPort::register_memory(std::byte* address, std::uint64_t bytes, bool remote) {
  int access = IBV_ACCESS_LOCAL_WRITE;
  if (remote) access |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  if (device_.is_iwarp()) access |= IBV_ACCESS_REMOTE_WRITE;
  Region region(ibv_reg_mr(device_.domain.get(), address, bytes, access));
  if (!region) {
    const int error = errno;
    return tl::unexpected(error_of(fmt::format("ibv_reg_mr of {} B{}", bytes,
                                               error == ENOMEM ? " (ulimit -l bounds locked memory)" : ""),
                                   error));
  }
  PortRegion made{region.get(), region.get(), reinterpret_cast<std::uint64_t>(address), region->rkey};
  regions_.push_back(std::move(region));
  return made;
}

Result<Posting> VerbsPort::write(std::uint32_t rank, PortSource from, PortTarget to, std::uint64_t bytes,
                                 std::uint32_t /*flags*/, std::uint32_t /*immediate*/, PortContext* context) {
  const Peer& peer = peers_[rank];
  if (peer.failure.status != Status::kOk) return tl::unexpected(peer.failure);
  if (is_self(peer)) {
    std::memmove(reinterpret_cast<void*>(to.address), from.address, bytes);
    done_at_once(context);
    return Posting::kPosted;
  }
  if (!peer.connection) return Posting::kAgain;
  return peer.connection->transfer(IBV_WR_RDMA_WRITE, from, to, bytes, context);
}

Result<Posting> VerbsPort::read(std::uint32_t rank, PortSource to, PortTarget from, std::uint64_t bytes,
                                PortContext* context) {
  const Peer& peer = peers_[rank];
  if (peer.failure.status != Status::kOk) return tl::unexpected(peer.failure);
  if (is_self(peer)) {
    std::memmove(to.address, reinterpret_cast<const void*>(from.address), bytes);
    done_at_once(context);
    return Posting::kPosted;
  }
  if (!peer.connection) return Posting::kAgain;
  return peer.connection->transfer(IBV_WR_RDMA_READ, to, from, bytes, context);
}

Result<Posting> VerbsPort::send(std::uint32_t rank, PortSource message, PortContext* context) {
  const Peer& peer = peers_[rank];
  if (peer.failure.status != Status::kOk) return tl::unexpected(peer.failure);
  if (is_self(peer)) {
    PortEvent& event = own_events_.emplace_back();
    event.kind = PortEvent::Kind::kMessage;
    std::memcpy(event.message.data(), message.address, kPortMessageBytes);
    done_at_once(context);
    return Posting::kPosted;
  }
  if (!peer.connection) return Posting::kAgain;
  return peer.connection->send(message.address, context);
}

// Tells what queue pairs have completed before the news of their connections' ends.
Result<void> VerbsPort::poll(std::vector<PortEvent>& events) {
  events.insert(events.end(), own_events_.begin(), own_events_.end());
  own_events_.clear();
  bool pending = false;
  for (const Peer& peer : peers_) {
    if (peer.connection) GDX_TRY(peer.connection->poll(events));
    pending = pending || is_pending(peer);
  }
  if (!pending && ++polls_ % kPollsPerLook != 0) return {};
  return take_events();
}

}  // namespace
}  // namespace verbs

std::optional<VerbsOptions> verbs_options_of(std::string_view provider) {
  if (!provider.starts_with(kVerbsPort)) return std::nullopt;
  provider.remove_prefix(kVerbsPort.size());
  if (!provider.empty() && !provider.starts_with(':')) return std::nullopt;
  return VerbsOptions{.device = std::string(provider.substr(std::min<std::size_t>(1, provider.size())))};
}

Result<std::unique_ptr<Port>> open_verbs_port(const VerbsOptions& options) {
  auto device = GDX_TRY(verbs::open_device(options));
  auto port = std::make_unique<verbs::VerbsPort>(std::move(device), options);
  GDX_TRY(port->open());
  return port;
}

}  // namespace gdx
