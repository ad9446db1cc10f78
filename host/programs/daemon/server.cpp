#include "host/programs/daemon/server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "host/bootstrap/local_socket.h"
#include "host/hca/hca_events.h"
#include "host/programs/daemon/short_waits.h"

namespace gdx::daemon {
namespace {

using Json = nlohmann::ordered_json;

// Returns whether the kernel gives this number to each user whom gdxd's user namespace does not map.
bool stands_for_many(uid_t user) {
  constexpr std::uint64_t kAll = 4294967295;
  std::uint64_t inside = 0;
  std::uint64_t outside = 0;
  std::uint64_t count = kAll;  // /proc may be missing
  std::ifstream("/proc/self/uid_map") >> inside >> outside >> count;
  uid_t overflow = 65534;
  std::ifstream("/proc/sys/kernel/overflowuid") >> overflow;
  return count != kAll && user == overflow;
}

// Counters of a port that statistics show: mlx5's names, and those that the software HCA adds.
constexpr const char* kCounters[] = {"out_of_sequence",
                                     "packet_seq_err",
                                     "local_ack_timeout_err",
                                     "rnr_nak_retry_err",
                                     "out_of_buffer",
                                     "np_cnp_sent",
                                     "rp_cnp_handled",
                                     "softhca_packets_sent",
                                     "softhca_packets_received",
                                     "softhca_retransmitted_packets",
                                     "softhca_staging_violations"};

// Most endpoints whose past one answer tells.
constexpr std::size_t kMostFlights = 64;
// Time after which a client is dropped that reads no answers.
constexpr std::uint64_t kAnswerPatienceNs = 5'000'000'000;
constexpr std::uint64_t kOpenPatienceNs = 30'000'000'000;
constexpr std::uint64_t kNsPerMs = 1'000'000;
constexpr std::uint64_t kForeverNs = ~std::uint64_t{0};
// After accept() has failed for lack of descriptors or memory.
constexpr int kRefusalPauseMs = 100;
constexpr int kUnreadPauseMs = 100;  // between two looks at answers that a client has not read

// Removes a socket that a daemon has left behind when it was killed.
void remove_stale_socket(const std::string& path) {
  const auto listener = bootstrap::connect_local(path);
  struct stat facts {};
  if (listener || listener.error().status != Status::kNotFound) return;
  if (lstat(path.c_str(), &facts) == 0 && S_ISSOCK(facts.st_mode)) ::unlink(path.c_str());
}

// Locks the socket's path, because of two gdxd that start at once one must not remove the other's socket.
Result<Descriptor> lock_path(const std::string& path) {
  const std::string name = path + ".lock";
  Descriptor file = Descriptor::keep(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file)
    return fail(Status::kSystem,
                fmt::format("cannot listen at {}: {}: {}", path, name, std::strerror(errno)));
  if (::flock(file.value(), LOCK_EX | LOCK_NB) == 0) return file;
  return fail(Status::kBusy,
              fmt::format("another gdxd listens at {}: end it, or choose another --socket", path));
}

// `may_see_counters`: whether the counters of an HCA are for who asks.
Json describe_group(Group& group, const std::function<bool(const Hca&)>& may_see_counters) {
  Json described{{"uid", group.user()},
                 {"clients", group.clients.used()},
                 {"endpoints", group.endpoints.used()},
                 {"regions", group.regions.used()},
                 {"registered_bytes", group.registered_bytes.used()}};
  Json& pools = described["pools"] = Json::array();
  for (const auto& pool : group.pool_figures()) {
    pools.push_back({{"hca", pool.hca},
                     {"memory", pool.memory == StagingMemory::kNic ? "nic" : "host"},
                     {"bytes", pool.bytes},
                     {"slots", pool.slots},
                     {"leased_slots", pool.leased_slots},
                     {"bad_returns", pool.bad_returns}});
  }
  Json& hcas = described["hcas"] = Json::array();
  for (const auto& open : group.open_hcas()) {
    Json counters = Json::object();
    for (const char* const name :
         may_see_counters(open->hca) ? std::span(kCounters) : std::span<const char* const>()) {
      if (const auto value = open->hca.counter(name)) counters[name] = *value;
    }
    hcas.push_back(
        {{"name", open->hca.name()}, {"address", open->hca.address_text()}, {"counters", counters}});
  }
  return described;
}

Json describe_client(pid_t process, uid_t user, const SessionFigures& figures) {
  Json described{{"pid", process},
                 {"uid", user},
                 {"program", figures.program},
                 {"hca", figures.hca},
                 {"regions", figures.regions},
                 {"registered_bytes", figures.registered_bytes}};
  Json& endpoints = described["endpoints"] = Json::array();
  for (const EndpointFigures& endpoint : figures.endpoints) {
    endpoints.push_back({{"qpn", endpoint.qpn},
                         {"peer", endpoint.peer},
                         {"send_queue_blocks", endpoint.send_queue_blocks},
                         {"posted_blocks", endpoint.posted_blocks},
                         {"completed_blocks", endpoint.completed_blocks},
                         {"stalls", endpoint.stalls},
                         {"syndrome", endpoint.syndrome}});
  }
  return described;
}

ipc::Notice notice_of(const Hca& hca, ipc::Event event) {
  ipc::Notice notice{};
  notice.event = static_cast<std::uint32_t>(event);
  ipc::set_text(notice.reason, hca.events()->text_of(event));
  return notice;
}

// Returns whether the other end has read all that was sent, or is closed. No event tells of that. Source:
// unix(7), SIOCOUTQ.
bool is_all_read(const Descriptor& socket) {
  int unread_bytes = 0;
  return ::ioctl(socket.value(), SIOCOUTQ, &unread_bytes) != 0 || unread_bytes == 0;
}

// Waits until the client has read all answers. Returns false at the deadline, and where the connection ends.
bool wait_until_read(const Descriptor& socket, std::uint64_t deadline_ns) {
  while (!is_all_read(socket)) {
    pollfd gone{socket.value(), 0, 0};
    if (monotonic_ns() >= deadline_ns || ::poll(&gone, 1, kUnreadPauseMs) != 0) return false;
  }
  return true;
}

// Tells a client why it gets no place, before it asks.
tl::unexpected<Error> refuse(const Descriptor& socket, const Error& why) {
  (void)bootstrap::send_local(socket, ipc::encode_refusal(ipc::Kind::kHello, why), {}, 0);
  return tl::unexpected(why);
}

// Returns the refusal for lack of memory. It is made before it is needed, because there is no memory then.
const std::vector<std::byte>& no_memory_refusal() {
  static const auto refusal = ipc::encode_refusal(
      ipc::Kind::kHello,
      {Status::kNoMemory, "gdxd has no memory for a message: try again, or have its limits raised"});
  return refusal;
}

}  // namespace

Server::Server(Descriptor listener, ServerOptions options)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      stop_(Descriptor::keep(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {
  (void)no_memory_refusal();
}

Result<std::unique_ptr<Server>> Server::listen(const ServerOptions& options) {
  struct stat there {};
  if (::lstat(options.path.c_str(), &there) == 0 && !S_ISSOCK(there.st_mode))
    return fail(Status::kInvalidArgument,
                fmt::format("--socket: '{}' is no socket: name another path", options.path));
  auto lock = GDX_TRY(lock_path(options.path));
  remove_stale_socket(options.path);
  // No moment passes in which the socket has more rights than the options grant.
  const mode_t before = ::umask(0777);
  auto listener = bootstrap::listen_local(options.path);
  ::umask(before);
  if (!listener) return tl::unexpected(listener.error());
  const auto group = static_cast<gid_t>(options.group);
  if ((options.group >= 0 && ::chown(options.path.c_str(), static_cast<uid_t>(-1), group) != 0) ||
      ::chmod(options.path.c_str(), options.mode) != 0) {
    const int error = errno;
    ::unlink(options.path.c_str());
    return fail(Status::kSystem,
                fmt::format("cannot set the rights of {}: {}", options.path, std::strerror(error)));
  }
  auto server = adopt(std::move(*listener), options);
  struct stat facts {};
  if (::lstat(options.path.c_str(), &facts) == 0) server->own_file_ = facts.st_ino;
  server->lock_ = std::move(lock);
  return server;
}

std::unique_ptr<Server> Server::adopt(Descriptor listener, const ServerOptions& options) {
  return std::unique_ptr<Server>(new Server(std::move(listener), options));
}

Server::~Server() {
  {
    const std::lock_guard lock(mutex_);
    for (Client& client : clients_) {
      client.abandoned.store(true);
      ::shutdown(client.socket.value(), SHUT_RDWR);
    }
  }
  for (Client& client : clients_) client.thread.join();
  // Another gdxd may have replaced a socket that was removed under this one.
  struct stat facts {};
  const bool own = own_file_ != 0 && ::lstat(options_.path.c_str(), &facts) == 0 && facts.st_ino == own_file_;
  if (own) ::unlink(options_.path.c_str());
}

void Server::stop() {
  const std::uint64_t one = 1;
  // The write fails only if the counter is full, after very many calls; then the thread is woken anyway.
  if (::write(stop_.value(), &one, sizeof one) != sizeof one) return;
}

Result<std::shared_ptr<Group>> Server::group_of(uid_t user, bool beyond_limit) {
  if (stands_for_many(user)) {
    return fail(
        Status::kUnsupported,
        fmt::format("gdxd runs in a user namespace that names you {}, as others whom it does not know: "
                    "run gdxd in the host's",
                    user));
  }
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(groups_, [](const auto& entry) { return entry.second.expired(); });
  }
  const auto found = groups_.find(user);
  auto own = found == groups_.end() ? nullptr : found->second.lock();
  const uid_t owner_id = own ? own->owner()->user : owner_of(user, options_.ids);
  std::shared_ptr<Owner> owner;
  // Leaves out groups that have operators alone, because those do not count towards the limit.
  std::set<uid_t> served;
  for (const auto& [other, weak] : groups_) {
    const auto group = weak.lock();
    if (!group) continue;
    if (group->clients.used() > 0) served.insert(group->owner()->user);
    if (group->owner()->user == owner_id) owner = group->owner();
  }
  if (!beyond_limit && !served.contains(owner_id) && served.size() >= options_.limits.max_groups) {
    return fail(Status::kBusy,
                fmt::format("gdxd serves {} users already: end some of their programs", served.size()));
  }
  if (own) return own;
  if (!owner) owner = std::make_shared<Owner>(owner_id, options_.limits.group);
  auto group = std::make_shared<Group>(user, options_.limits, std::move(owner));
  const std::lock_guard lock(mutex_);
  groups_[user] = group;
  return group;
}

Result<std::unique_ptr<Session>> Server::client_session(uid_t user, std::uint64_t served) {
  if (served >= options_.limits.max_clients)
    return fail(Status::kBusy, fmt::format("gdxd serves {} clients already: end some", served));
  auto group = GDX_TRY(group_of(user, false));
  auto share = GDX_TRY(group->clients.take(1));
  return std::make_unique<Session>(std::move(group), std::move(share), this);
}

// An operator gets in where no client does, to see who holds the places and to kick some.
Result<std::unique_ptr<Session>> Server::new_session(uid_t user) {
  const auto served = std::ranges::count(clients_, Place::kClient, &Client::place);
  auto session = client_session(user, static_cast<std::uint64_t>(served));
  if (session || !rules(user)) return session;
  const auto operators = std::ranges::count_if(clients_, [&](const Client& client) {
    return client.place == Place::kOperator && client.user == user;
  });
  if (operators >= kOperatorPlaces) return session;
  auto group = GDX_TRY(group_of(user, true));
  auto of_operator = std::make_unique<Session>(std::move(group), Quota::Share{}, this);
  of_operator->keep_from_hcas(session.error());
  return of_operator;
}

// The session and the connection end on this thread, so that a slow end delays nobody else. The client has
// its place until then, and until it has read its answers: the files in them are gdxd's for so long.
void Server::serve(Client& client) {
  try {
    serve_session(client);
  } catch (const std::exception& error) {  // no memory for a message
    (void)bootstrap::send_local(client.socket, no_memory_refusal(), {}, 0);
    log::warn_of_others("gdxd drops process {}: {}", client.process, error.what());
  }
  client.session_open.store(false);
  client.ending.store(true);  // statistics() leaves the session alone
  std::optional<Session::Seat> seat;
  {
    const std::lock_guard lock(client.use);
    seat = client.session->leave_seat();
    client.session.reset();
  }
  ::shutdown(client.socket.value(), SHUT_RDWR);
  while (!is_all_read(client.socket) && !client.abandoned.load()) ::poll(nullptr, 0, kUnreadPauseMs);
  Descriptor socket;
  {
    const std::lock_guard lock(mutex_);
    socket = std::move(client.socket);
  }
  {
    const ShortWaits short_waits;
    socket.close();
  }
  seat.reset();
  client.ended.store(true);
}

// Returns whether the connection is still there.
bool Server::wait_for_turn(Client& client, const Result<bootstrap::LocalMessage>& message) {
  const std::uint64_t wait_ns = client.session->take_turn(message ? &*message : nullptr);
  if (wait_ns < kNsPerMs) return true;
  pollfd gone{client.socket.value(), 0, 0};
  return ::poll(&gone, 1, static_cast<int>(wait_ns / kNsPerMs)) == 0;
}

void Server::serve_session(Client& client) {
  bool has_sent_file = false;
  for (;;) {
    // Drops a client that does not open an HCA soon.
    const std::uint64_t deadline_ns =
        client.session->is_open() ? kForeverNs : client.connected_ns + kOpenPatienceNs;
    auto message = bootstrap::receive_local(client.socket, deadline_ns);
    if (monotonic_ns() >= deadline_ns) {  // even if it goes on asking
      log::warn_of_others("gdxd: process {} has opened no HCA in time, and is dropped", client.process);
      break;
    }
    if (!message && message.error().status != Status::kInvalidArgument) break;
    if (!wait_for_turn(client, message)) break;
    // Linux counts a file in an unread answer as gdxd's, and refuses more than it permits (ETOOMANYREFS). So
    // a connection has one of them.
    if (has_sent_file && !wait_until_read(client.socket, monotonic_ns() + kAnswerPatienceNs)) break;
    const Answer answer = message ? client.session->answer(std::move(*message))
                                  : Answer{ipc::encode_refusal(ipc::Kind::kHello, message.error())};
    client.session_open.store(client.session->is_open());
    if (answer.bytes.empty()) continue;
    const std::span<const int> files(&answer.file, answer.file >= 0 ? 1 : 0);
    if (!bootstrap::send_local(client.socket, answer.bytes, files, monotonic_ns() + kAnswerPatienceNs)) break;
    has_sent_file = !files.empty();
  }
}

// A connection that is refused ends here, with what the client has sent.
Result<void> Server::accept_client() {
  Descriptor accepted =
      Descriptor::keep(::accept4(listener_.value(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!accepted) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      log::warn_of_others("gdxd cannot take a client: {}; raise its limits", std::strerror(errno));
      ::poll(nullptr, 0, kRefusalPauseMs);
    }
    return {};
  }
  const ShortWaits short_waits;
  Descriptor socket = std::move(accepted);
  const auto peer = GDX_TRY(bootstrap::peer_of(socket));
  auto session = new_session(peer.uid);
  if (!session) return refuse(socket, session.error());
  const std::lock_guard lock(mutex_);
  Client& client = clients_.emplace_back();
  client.socket = std::move(socket);
  client.process = peer.pid;
  client.user = peer.uid;
  client.connected_ns = monotonic_ns();
  client.place = (*session)->may_open() ? Place::kClient : Place::kOperator;
  client.session = std::move(*session);
  try {
    client.thread = std::thread(&Server::serve, this, std::ref(client));
  } catch (const std::exception& error) {
    socket = std::move(client.socket);
    clients_.pop_back();
    return refuse(socket,
                  {Status::kNoMemory,
                   fmt::format("gdxd has no thread for a client: {}; raise its limits", error.what())});
  }
  return {};
}

void Server::join_ended() {
  const std::lock_guard lock(mutex_);
  std::erase_if(clients_, [](Client& client) {
    if (!client.ended.load()) return false;
    client.thread.join();
    return true;
  });
}

// Tells sessions of the events of their HCAs, except sessions that end.
void Server::pass_on_events() {
  const std::lock_guard lock(mutex_);
  for (const auto& [user, weak] : groups_) {
    const auto group = weak.lock();
    if (!group) continue;
    for (const auto& [hca, event] : group->take_events()) {
      const ipc::Notice notice = notice_of(hca->hca, event);
      log::warn("gdxd, to user {}: {}", user, ipc::text_of(notice.reason));
      for (Client& client : clients_) {
        const std::shared_lock use(client.use, std::try_to_lock);
        if (!use || !client.session || client.ending.load() || !client.session->tell(&*hca, notice)) continue;
        if (event == ipc::Event::kHcaFailed) ::shutdown(client.socket.value(), SHUT_RDWR);
      }
    }
  }
}

Result<void> Server::run() {
  constexpr int kJoinEveryMs = 200;
  for (;;) {
    std::array<pollfd, 2> ready{{{listener_.value(), POLLIN, 0}, {stop_.value(), POLLIN, 0}}};
    const int events = ::poll(ready.data(), ready.size(), clients_.empty() ? -1 : kJoinEveryMs);
    if (events < 0 && errno != EINTR)
      return fail(Status::kSystem, fmt::format("gdxd cannot wait for clients: {}", std::strerror(errno)));
    if (ready[1].revents != 0) return {};
    try {
      if ((ready[0].revents & POLLIN) != 0) {
        const auto accepted = accept_client();
        if (!accepted) log::warn_of_others("gdxd has refused a client: {}", accepted.error().message);
      }
      join_ended();
      pass_on_events();
    } catch (const std::bad_alloc&) {
      log::warn_of_others("gdxd has no memory for a client or a notice");
    }
    const auto is_open = [](const Client& client) { return client.session_open.load(); };
    if (draining_.load() && std::ranges::none_of(clients_, is_open)) return {};
  }
}

bool Server::rules(uid_t user) { return user == 0 || user == ::geteuid(); }

Result<void> Server::kick(uid_t who, pid_t process) {
  const std::lock_guard lock(mutex_);
  bool found = false;
  for (Client& client : clients_) {
    if (process == 0 || client.process != process || !(rules(who) || client.user == who)) continue;
    found = true;
    log::warn_of_others("gdxd: process {} is kicked", process);
    ipc::Notice notice{};
    notice.event = static_cast<std::uint32_t>(ipc::Event::kKicked);
    ipc::set_text(notice.reason, fmt::format("user {} has kicked this process", who));
    const std::shared_lock use(client.use, std::try_to_lock);
    if (use && client.session && !client.ending.load()) client.session->tell(nullptr, notice);
    ::shutdown(client.socket.value(), SHUT_RDWR);
  }
  if (found) return {};
  return fail(Status::kNotFound, fmt::format("process {} is no client of gdxd that you may kick", process));
}

Result<void> Server::drain(uid_t who) {
  if (!rules(who)) return fail(Status::kUnsupported, "only root and gdxd's own user may drain it");
  draining_.store(true);
  return {};
}

std::vector<Server::Hold> Server::hold_sessions(uid_t viewer, pid_t process) {
  std::vector<Hold> held;
  for (Client& client : clients_) {
    const bool may_see = sees_all(viewer) || client.user == viewer;
    if (!may_see || (process != 0 && client.process != process)) continue;
    // Does not wait, because a session that ends holds the lock, maybe for long.
    std::shared_lock use(client.use, std::try_to_lock);
    if (use && client.session && !client.ending.load()) held.push_back({&client, std::move(use)});
  }
  return held;
}

// Asks the groups outside mutex_, since one may wait for firmware.
bool Server::may_see_counters(uid_t viewer, const Hca& hca) {
  if (!hca.is_software() || sees_all(viewer)) return true;
  std::vector<std::shared_ptr<Group>> others;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [user, weak] : groups_) {
      if (auto group = weak.lock(); group && user != viewer) others.push_back(std::move(group));
    }
  }
  return std::ranges::none_of(others, [&](const std::shared_ptr<Group>& group) {
    return std::ranges::any_of(group->open_hcas(),
                               [&](const auto& open) { return open->hca.name() == hca.name(); });
  });
}

// Reads outside mutex_, for which all connections wait: a group or a session may wait for firmware.
std::string Server::statistics(uid_t viewer) {
  const std::lock_guard one_at_a_time(telling_);
  std::vector<std::shared_ptr<Group>> groups;
  std::vector<Hold> held;
  {
    const std::lock_guard lock(mutex_);
    groups.reserve(groups_.size());
    for (const auto& [user, weak] : groups_) {
      auto group = weak.lock();
      if (group && (sees_all(viewer) || user == viewer)) groups.push_back(std::move(group));
    }
    held = hold_sessions(viewer, 0);
  }
  Json all{{"gdxd_version", GDX_VERSION}, {"draining", draining_.load()}};
  Json& users = all["users"] = Json::array();
  for (const auto& group : groups)
    users.push_back(describe_group(*group, [&](const Hca& hca) { return may_see_counters(viewer, hca); }));
  Json& clients = all["clients"] = Json::array();
  for (auto& [client, use] : held) {
    clients.push_back(describe_client(client->process, client->user, client->session->figures()));
    use.unlock();
  }
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Reads outside mutex_, as above.
std::string Server::flights(uid_t viewer, pid_t process, std::uint32_t qpn) {
  const std::lock_guard one_at_a_time(telling_);
  std::vector<Hold> held;
  {
    const std::lock_guard lock(mutex_);
    held = hold_sessions(viewer, process);
  }
  Json all = Json::array();
  std::size_t left_out = 0;
  for (auto& [client, use] : held) {
    const SessionFlights flights = client->session->flights(qpn, kMostFlights - all.size());
    left_out += flights.left_out;
    for (const EndpointFlight& one : flights.endpoints) {
      all.push_back({{"pid", client->process},
                     {"program", flights.program},
                     {"hca", flights.hca},
                     {"qpn", one.qpn},
                     {"peer", one.peer},
                     {one.record ? "flight" : "error",
                      one.record ? encode_flight(*one.record) : one.record.error().message}});
    }
    use.unlock();
  }
  const Json answer{{"left_out", left_out}, {"flights", std::move(all)}};
  return answer.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace gdx::daemon
