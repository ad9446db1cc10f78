#include "host/programs/daemon/service.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/log.h"
#include "base/parse_number.h"

namespace gdx::daemon {
namespace {

constexpr int kFirstPassed = 3;

int option_of(int socket, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  return ::getsockopt(socket, SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
}

std::string path_of(int socket) {
  sockaddr_un address{};
  socklen_t length = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return {address.sun_path, strnlen(address.sun_path, sizeof address.sun_path)};
}

}  // namespace

Result<std::optional<PassedListener>> take_passed_listener() {
  const char* const process = std::getenv("LISTEN_PID");
  const char* const count = std::getenv("LISTEN_FDS");
  const bool for_this = process != nullptr && count != nullptr &&
                        parse_unsigned(process) == static_cast<std::uint64_t>(::getpid());
  const std::string passed = for_this ? count : "0";
  for (const char* const name : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}) ::unsetenv(name);
  if (passed == "0") return std::nullopt;
  if (passed != "1")
    return fail(Status::kInvalidArgument,
                fmt::format("LISTEN_FDS is '{}': pass gdxd one listening socket", passed));
  if (option_of(kFirstPassed, SO_DOMAIN) != AF_UNIX || option_of(kFirstPassed, SO_TYPE) != SOCK_SEQPACKET ||
      option_of(kFirstPassed, SO_ACCEPTCONN) != 1) {
    return fail(Status::kInvalidArgument,
                "descriptor 3 is no listening UNIX socket of packets: use ListenSequentialPacket");
  }
  const std::string path = path_of(kFirstPassed);
  // Makes the socket non-blocking, so that accept() does not wait for a client that has gone.
  if (::fcntl(kFirstPassed, F_SETFD, FD_CLOEXEC) != 0 || ::fcntl(kFirstPassed, F_SETFL, O_NONBLOCK) != 0)
    return fail(Status::kSystem, fmt::format("cannot take the passed socket: {}", std::strerror(errno)));
  return PassedListener{Descriptor::keep(kFirstPassed), path};
}

void tell_manager(std::string_view state) {
  const char* const name = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name == nullptr || name[0] == '\0' || std::strlen(name) >= sizeof address.sun_path) return;
  const std::size_t length = std::strlen(name);
  std::memcpy(address.sun_path, name, length);
  if (name[0] == '@') address.sun_path[0] = '\0';  // abstract
  const Descriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  const auto sent = ::sendto(socket.value(), state.data(), state.size(), MSG_NOSIGNAL,
                             reinterpret_cast<const sockaddr*>(&address), bytes);
  if (sent < 0) log::warn("gdxd cannot tell {} to {}: {}", state, name, std::strerror(errno));
}

}  // namespace gdx::daemon
