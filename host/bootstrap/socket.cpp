#include "host/bootstrap/socket.h"

#include <fmt/format.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/parse_number.h"
#include "host/bootstrap/local_socket.h"
#include "host/bootstrap/socket_user.h"

namespace gdx::bootstrap {
namespace {

constexpr int kBacklog = 1024;
constexpr std::uint64_t kRetryIntervalNs = 20'000'000;
constexpr std::uint64_t kConnectAttemptNs = 2'000'000'000;
constexpr std::uint64_t kNsPerMs = 1'000'000;
constexpr int kKeepAliveS = 15;
constexpr int kKeepAliveTries = 3;
constexpr std::string_view kLocal = "unix:";
constexpr std::size_t kMaxLocalName = 100;  // unix(7) has 108 with the zero before it

struct AddressListDelete {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, AddressListDelete>;

Result<AddressList> resolve(const std::string& root, bool passive) {
  const auto parsed = GDX_TRY(parse_host_port(root));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(parsed.host.c_str(), parsed.port.c_str(), &hints, &list); error != 0) {
    return fail(Status::kInvalidArgument,
                fmt::format("no address for the root '{}': {}", root, gai_strerror(error)));
  }
  return AddressList(list);
}

// Looks up nothing, so it never blocks. An empty host or port is refused.
Result<AddressList> resolve_numeric(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (host.empty() || getaddrinfo(host.c_str(), port.c_str(), &hints, &list) != 0) {
    return fail(Status::kInvalidArgument,
                fmt::format("'{}' is no numeric address: use one of an interface, such as 10.0.0.1", host));
  }
  return AddressList(list);
}

Descriptor make_socket(const addrinfo& address) {
  return Descriptor::keep(::socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

void send_at_once(const Descriptor& socket) {
  const int one = 1;
  setsockopt(socket.value(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

std::string local_name(const std::string& address) { return address.substr(kLocal.size()); }

// Returns "unix:NAME"; without a name "unix:".
std::string local_text(const sockaddr_storage& address, socklen_t length) {
  const auto& local = reinterpret_cast<const sockaddr_un&>(address);
  const std::size_t before = offsetof(sockaddr_un, sun_path) + 1;  // an abstract name begins behind a zero
  return std::string(kLocal) +
         (length > before ? std::string(local.sun_path + 1, length - before) : std::string());
}

std::string numeric_text(const sockaddr_storage& address, socklen_t length) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host.data(), host.size(), port.data(),
                  port.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  const bool v6 = address.ss_family == AF_INET6;
  return v6 ? fmt::format("[{}]:{}", host.data(), port.data())
            : fmt::format("{}:{}", host.data(), port.data());
}

// Detects a socket connected to itself: without a listener TCP may do that if its own port is the wanted one.
bool is_connected_to_itself(const Descriptor& socket) {
  sockaddr_storage own{};
  sockaddr_storage other{};
  socklen_t own_length = sizeof own;
  socklen_t other_length = sizeof other;
  if (getsockname(socket.value(), reinterpret_cast<sockaddr*>(&own), &own_length) != 0) return false;
  if (getpeername(socket.value(), reinterpret_cast<sockaddr*>(&other), &other_length) != 0) return false;
  return own_length == other_length && std::memcmp(&own, &other, own_length) == 0;
}

// Begins an attempt: `error` is 0, EINPROGRESS, or the reason for an empty Descriptor.
Descriptor begin_attempt(const addrinfo& address, int& error) {
  Descriptor socket = make_socket(address);
  error = errno;
  if (!socket) return {};
  error = ::connect(socket.value(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error != 0 && error != EINPROGRESS) return {};
  return socket;
}

// Ends an attempt whose socket is writable: 0, or the reason of its failure.
int end_attempt(const Descriptor& socket) {
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(socket.value(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return error;
  if (is_connected_to_itself(socket)) return ECONNREFUSED;
  send_at_once(socket);
  return 0;
}

// Makes one attempt. An empty Descriptor: no listener yet, with the reason in `error`.
Descriptor try_connect(const addrinfo& address, std::uint64_t deadline_ns, int& error) {
  Descriptor socket = begin_attempt(address, error);
  if (!socket) return {};
  pollfd ready{socket.value(), POLLOUT, 0};
  const bool waits = error == EINPROGRESS;
  error = ETIMEDOUT;
  if (waits && !wait_until(std::span(&ready, 1), deadline_ns)) return {};
  error = end_attempt(socket);
  if (error != 0) return {};
  return socket;
}

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  if (address.sa_family != AF_INET6) return false;
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == IN_LOOPBACKNET);
}

}  // namespace

bool is_local(const std::string& address) { return address.starts_with(kLocal); }

Result<void> check_root(const std::string& root) {
  if (!is_local(root)) {
    GDX_TRY(parse_host_port(root));
    return {};
  }
  const std::string name = local_name(root);
  if (!name.empty() && name.size() <= kMaxLocalName && name.find('/') == std::string::npos) return {};
  return fail(
      Status::kInvalidArgument,
      fmt::format("root address '{}': use unix:NAME with a name of 1 to {} bytes and without a slash, "
                  "because no file is made",
                  root, kMaxLocalName));
}

Result<HostPort> parse_host_port(const std::string& text) {
  const auto refuse = [&] {
    return fail(
        Status::kInvalidArgument,
        fmt::format("root address '{}': use HOST:PORT or [IPV6]:PORT, for instance 127.0.0.1:18515", text));
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return refuse();
  HostPort parsed{text.substr(0, colon), text.substr(colon + 1)};
  const bool bracketed = parsed.host.size() > 2 && parsed.host.front() == '[' && parsed.host.back() == ']';
  if (bracketed) parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
  if (!bracketed && parsed.host.find_first_of(":[]") != std::string::npos) return refuse();
  const auto port = parse_unsigned(parsed.port);
  if (!port || *port == 0 || *port > UINT16_MAX) return refuse();
  return parsed;
}

namespace {

// Binds the socket to a port that `gdx run` of this user has reserved. Linux would let it share the port with
// a listener of this user that has asked for that, too, and give each some of the connections.
bool bind_to_reserved(const Descriptor& socket, const addrinfo& address) {
  const int one = 1;
  if (::setsockopt(socket.value(), SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) != 0 ||
      ::bind(socket.value(), address.ai_addr, address.ai_addrlen) != 0)
    return false;
  int error = 0;
  const bool listened = static_cast<bool>(try_connect(address, monotonic_ns() + kConnectAttemptNs, error));
  errno = EADDRINUSE;
  return !listened;
}

}  // namespace

Result<Descriptor> listen_at(const std::string& root, bool may_be_reserved) {
  if (is_local(root)) {
    auto local = listen_local(local_name(root), SOCK_STREAM);
    if (local || local.error().status != Status::kBusy) return local;
    return fail(Status::kBusy,
                fmt::format("rank 0 cannot listen at {}: another process has the name (`ss -lxp` "
                            "names it): end its program, or start the job at another name",
                            root));
  }
  const auto addresses = GDX_TRY(resolve(root, true));
  Descriptor socket = make_socket(*addresses);
  if (!socket) {
    return fail(Status::kSystem, fmt::format("cannot make a socket: {}", std::strerror(errno)));
  }
  const int one = 1;
  setsockopt(socket.value(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  const bool bound = ::bind(socket.value(), addresses->ai_addr, addresses->ai_addrlen) == 0 ||
                     (errno == EADDRINUSE && may_be_reserved && bind_to_reserved(socket, *addresses));
  if (bound && ::listen(socket.value(), kBacklog) == 0) return socket;
  switch (errno) {
    case EADDRINUSE:
      return fail(Status::kBusy,
                  fmt::format("rank 0 cannot listen at {}: another socket has the port (`ss -tanp 'sport = "
                              "{}'` names who listens; none: `gdx run` of another user keeps it for its "
                              "ranks): end its program, or start the job at another port",
                              root, parse_host_port(root)->port));
    case EADDRNOTAVAIL:
      return fail(Status::kInvalidArgument,
                  fmt::format("rank 0 cannot listen at {}: not an address of this machine", root));
    default:
      return fail(Status::kSystem, fmt::format("rank 0 cannot listen at {}: {}", root, std::strerror(errno)));
  }
}

Result<Descriptor> listen_on(const std::string& host) {
  if (is_local(host)) return listen_local({}, SOCK_STREAM);
  const auto addresses = GDX_TRY(resolve_numeric(host, "0"));
  Descriptor socket = make_socket(*addresses);
  if (socket && ::bind(socket.value(), addresses->ai_addr, addresses->ai_addrlen) == 0 &&
      ::listen(socket.value(), kBacklog) == 0) {
    return socket;
  }
  const int error = errno;
  return fail(error == EADDRNOTAVAIL ? Status::kInvalidArgument : Status::kSystem,
              fmt::format("cannot listen at {}: {}; use the address of an interface of this machine", host,
                          std::strerror(error)));
}

Result<Descriptor> accept_one(const Descriptor& listener) {
  Descriptor socket =
      Descriptor::keep(::accept4(listener.value(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket) {
    send_at_once(socket);
    return socket;
  }
  const int error = errno;
  // Linux looks for a free descriptor before it looks for a connection.
  pollfd waiting{listener.value(), POLLIN, 0};
  if ((error == EMFILE || error == ENFILE) && ::poll(&waiting, 1, 0) == 0) return Descriptor();
  switch (error) {
    case EAGAIN:
    case EINTR:
    case ECONNABORTED: return Descriptor();
    case EMFILE:
    case ENFILE:
      return fail(Status::kNoMemory,
                  "this rank has no file descriptors left for more ranks: raise ulimit -n");
    default:
      return fail(Status::kSystem,
                  fmt::format("this rank cannot accept connections: {}", std::strerror(error)));
  }
}

// By the interface's flags: an address that is left behind on it has a route, and nothing answers there.
Result<void> check_route(const sockaddr& address) {
  const Descriptor any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq loopback{};
  std::strcpy(loopback.ifr_name, "lo");
  if (!is_loopback(address) || !any || ::ioctl(any.value(), SIOCGIFFLAGS, &loopback) != 0 ||
      (loopback.ifr_flags & IFF_UP) != 0)
    return {};
  return fail(Status::kSystem,
              "ranks cannot meet: the loopback interface is down; bring it up: ip link set lo up");
}

namespace {

Error no_answer(const std::string& root, const std::string& why) {
  return {Status::kTimeout,
          fmt::format("rank 0 did not answer at {} ({}): start it, or correct the root address", root, why)};
}

Error error_of_attempt(int error) {
  return {error == ECONNREFUSED ? Status::kNotFound : Status::kPeerGone, std::strerror(error)};
}

Result<Descriptor> connect_to_local(const std::string& root, std::uint64_t deadline_ns) {
  for (;;) {
    auto socket = connect_local(local_name(root), deadline_ns, SOCK_STREAM);
    if (socket) {
      const std::string foreign = why_stranger(*socket, geteuid());
      if (foreign.empty()) return socket;
      return fail(Status::kInvalidArgument,
                  fmt::format("rank 0 at {} {}: let GDX_ROOT be another name", root, foreign));
    }
    if (socket.error().status != Status::kNotFound && socket.error().status != Status::kBusy) return socket;
    const std::uint64_t now_ns = monotonic_ns();
    if (now_ns >= deadline_ns) return tl::unexpected(no_answer(root, socket.error().message));
    static_cast<void>(wait_until({}, std::min(deadline_ns, now_ns + kRetryIntervalNs)));
  }
}

}  // namespace

Result<Descriptor> connect_to(const std::string& root, std::uint64_t deadline_ns) {
  if (is_local(root)) return connect_to_local(root, deadline_ns);
  const auto addresses = GDX_TRY(resolve(root, false));
  GDX_TRY(check_route(*addresses->ai_addr));
  int error = 0;
  for (;;) {
    for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
      // An address that swallows packets must not use up the time of the next one.
      Descriptor socket =
          try_connect(*address, std::min(deadline_ns, monotonic_ns() + kConnectAttemptNs), error);
      if (socket) return socket;
    }
    const std::uint64_t now_ns = monotonic_ns();
    if (now_ns >= deadline_ns) return tl::unexpected(no_answer(root, std::strerror(error)));
    static_cast<void>(wait_until({}, std::min(deadline_ns, now_ns + kRetryIntervalNs)));
  }
}

Result<Descriptor> begin_connect(const std::string& address) {
  if (is_local(address)) {
    auto local = connect_local(local_name(address), 0, SOCK_STREAM);
    if (!local && local.error().status == Status::kNotFound) return local;
    const std::string why = local ? why_stranger(*local, geteuid()) : local.error().message;
    if (why.empty()) return local;
    return fail(Status::kPeerGone, local ? "the listener " + why : why);
  }
  const auto parsed = GDX_TRY(parse_host_port(address));
  const auto addresses = GDX_TRY(resolve_numeric(parsed.host, parsed.port));
  int error = 0;
  Descriptor socket = begin_attempt(*addresses, error);
  if (socket) return socket;
  return tl::unexpected(error_of_attempt(error));
}

Result<void> finish_connect(const Descriptor& socket) {
  const int error = end_attempt(socket);
  if (error == 0) return {};
  return tl::unexpected(error_of_attempt(error));
}

void keep_alive(const Descriptor& socket) {
  const int one = 1;
  setsockopt(socket.value(), SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
  setsockopt(socket.value(), IPPROTO_TCP, TCP_KEEPIDLE, &kKeepAliveS, sizeof kKeepAliveS);
  setsockopt(socket.value(), IPPROTO_TCP, TCP_KEEPINTVL, &kKeepAliveS, sizeof kKeepAliveS);
  setsockopt(socket.value(), IPPROTO_TCP, TCP_KEEPCNT, &kKeepAliveTries, sizeof kKeepAliveTries);
  const int most_ms =
      1000 * kKeepAliveS * (kKeepAliveTries + 1);  // also of what was sent and not acknowledged
  setsockopt(socket.value(), IPPROTO_TCP, TCP_USER_TIMEOUT, &most_ms, sizeof most_ms);
}

bool is_loopback(const Descriptor& socket) {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  return getsockname(socket.value(), reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
         is_loopback(reinterpret_cast<const sockaddr&>(own));
}

std::string own_text(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(socket.value(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return "a closed socket";
  }
  if (address.ss_family == AF_UNIX) return local_text(address, length);
  return numeric_text(address, length);
}

std::string peer_text(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getpeername(socket.value(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return "a closed connection";
  }
  if (address.ss_family == AF_UNIX) {
    const auto peer = peer_of(socket);
    return peer ? fmt::format("process {}", peer->pid) : "a process";
  }
  return numeric_text(address, length);
}

bool wait_until(std::span<pollfd> sockets, std::uint64_t deadline_ns) {
  for (;;) {
    const std::uint64_t now_ns = monotonic_ns();
    const std::uint64_t left_ms =
        now_ns >= deadline_ns ? 0 : (deadline_ns - now_ns + kNsPerMs - 1) / kNsPerMs;
    const int timeout_ms = static_cast<int>(std::min<std::uint64_t>(left_ms, 1'000'000));
    const int ready = ::poll(sockets.data(), sockets.size(), timeout_ms);
    if (ready > 0) return true;
    if (ready == 0 && monotonic_ns() >= deadline_ns) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

}  // namespace gdx::bootstrap
