#include "host/bootstrap/socket_user.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>

#include "host/bootstrap/local_socket.h"

namespace gdx::bootstrap {
namespace {

// One end of a connection; IPv4 addresses as IPv6 has them (::ffff:0:0/96), because sockets of both families
// may be connected to each other.
struct End {
  in6_addr address{};
  std::uint16_t port = 0;
  friend bool operator==(const End& a, const End& b) {
    return a.port == b.port && std::memcmp(&a.address, &b.address, sizeof a.address) == 0;
  }
};

in6_addr mapped(std::uint32_t network_order) {
  in6_addr address{};
  address.s6_addr[10] = address.s6_addr[11] = 0xff;
  std::memcpy(&address.s6_addr[12], &network_order, sizeof network_order);
  return address;
}

using Name = sockaddr_storage;

End end_of(const Name& name) {
  if (name.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(name);
    return {v6.sin6_addr, ntohs(v6.sin6_port)};
  }
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(name);
  return {mapped(v4.sin_addr.s_addr), ntohs(v4.sin_port)};
}

// Returns whether the address is one of this host's: a socket can be bound to no other.
bool is_own(Name name) {
  const bool v6 = name.ss_family == AF_INET6;
  const Descriptor socket = Descriptor::keep(::socket(name.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  (v6 ? reinterpret_cast<sockaddr_in6&>(name).sin6_port : reinterpret_cast<sockaddr_in&>(name).sin_port) = 0;
  return bind(socket.value(), reinterpret_cast<const sockaddr*>(&name),
              v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in)) == 0;
}

// Reads "0100007F:1F90": the address in words of the host's byte order, the port as a number.
std::optional<End> parse_end(const char* text) {
  std::array<std::uint32_t, 4> words{};
  unsigned port = 0;
  if (std::sscanf(text, "%8x%8x%8x%8x:%4x", &words[0], &words[1], &words[2], &words[3], &port) == 5) {
    End end{{}, static_cast<std::uint16_t>(port)};
    std::memcpy(&end.address, words.data(), sizeof end.address);
    return end;
  }
  if (std::sscanf(text, "%8x:%4x", &words[0], &port) == 2)
    return End{mapped(words[0]), static_cast<std::uint16_t>(port)};
  return std::nullopt;
}

std::optional<Holder> read_holder(const End& local, const End& remote) {
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::array<char, 48> from{};
      std::array<char, 48> to{};
      uid_t user = 0;
      unsigned long inode = 0;  // 0: no process holds the socket, and `user` means nothing
      if (std::sscanf(line.c_str(), "%*d: %47s %47s %*x %*x:%*x %*x:%*x %*x %u %*d %lu", from.data(),
                      to.data(), &user, &inode) != 4)
        continue;
      if (parse_end(from.data()) == local && parse_end(to.data()) == remote)
        return inode != 0 ? Holder{Holder::kUser, user} : Holder{Holder::kNobody};
    }
  }
  return std::nullopt;
}

}  // namespace

Holder holder_of_peer(const Descriptor& socket) {
  Name own{};
  Name peer{};
  socklen_t length = sizeof own;
  if (getsockname(socket.value(), reinterpret_cast<sockaddr*>(&own), &length) != 0 ||
      getpeername(socket.value(), reinterpret_cast<sockaddr*>(&peer), &(length = sizeof peer)) != 0)
    return {Holder::kNobody};
  if (own.ss_family == AF_UNIX) {
    const auto credentials = peer_of(socket);
    return credentials ? Holder{Holder::kUser, credentials->uid} : Holder{Holder::kNobody};
  }
  if (!is_own(peer)) return {Holder::kOtherHost};
  // The table may lose a line while others come and go.
  for (int reads = 0; reads < 3; ++reads) {
    if (const auto holder = read_holder(end_of(peer), end_of(own))) return *holder;
  }
  return {Holder::kNobody};
}

std::string why_stranger(const Descriptor& socket, uid_t user) {
  const Holder holder = holder_of_peer(socket);
  if (holder.kind == Holder::kNobody) return "closed its connection";
  if (holder.kind == Holder::kUser && holder.user != user)
    return fmt::format("is user {}'s, and this is user {}'s", holder.user, user);
  return {};
}

}  // namespace gdx::bootstrap
