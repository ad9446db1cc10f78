#include "host/bootstrap/local_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"

namespace gdx::bootstrap {
namespace {

constexpr int kBacklog = 1024;
constexpr int kRetryMs = 5;

struct LocalAddress {
  sockaddr_un address{};
  socklen_t length = 0;
};

// A name that begins with a zero byte is abstract; one that begins with a slash is a path.
Result<LocalAddress> local_address(const std::string& name) {
  LocalAddress local;
  local.address.sun_family = AF_UNIX;
  if (name.empty() || name.size() >= sizeof local.address.sun_path) {
    return fail(Status::kInvalidArgument, fmt::format("no local socket can be named '{}': use 1 to {} bytes",
                                                      name, sizeof local.address.sun_path - 1));
  }
  const bool is_path = name.front() == '/';
  std::memcpy(local.address.sun_path + (is_path ? 0 : 1), name.data(), name.size());
  local.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return local;
}

Result<Descriptor> make_local_socket(int type) {
  Descriptor socket = Descriptor::keep(::socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket) return socket;
  return fail(Status::kSystem, fmt::format("cannot make a local socket: {}", std::strerror(errno)));
}

bool wait_for(const Descriptor& socket, short events, std::uint64_t deadline_ns) {
  pollfd ready{socket.value(), events, 0};
  return wait_until(std::span(&ready, 1), deadline_ns);
}

bool must_wait(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

constexpr std::size_t kControlBytes = CMSG_SPACE(kMaxLocalMessageDescriptors * sizeof(int));

// Takes over every descriptor that came.
std::vector<Descriptor> take_descriptors(msghdr& message) {
  std::vector<Descriptor> taken;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(part) + i * sizeof(int), sizeof descriptor);
      taken.push_back(Descriptor::keep(descriptor));
    }
  }
  return taken;
}

}  // namespace

Result<Descriptor> listen_local(const std::string& name, int type) {
  // Address without a name, for which the system chooses one.
  LocalAddress local{{AF_UNIX, {}}, sizeof(sa_family_t)};
  if (!name.empty()) local = GDX_TRY(local_address(name));
  auto socket = make_local_socket(type);
  if (!socket) return socket;
  const auto* const address = reinterpret_cast<const sockaddr*>(&local.address);
  if (::bind(socket->value(), address, local.length) == 0 && ::listen(socket->value(), kBacklog) == 0) {
    return socket;
  }
  const int error = errno;
  return fail(error == EADDRINUSE ? Status::kBusy : Status::kSystem,
              fmt::format("cannot listen at the local socket '{}': {}", name, std::strerror(error)));
}

Result<Descriptor> connect_local(const std::string& name, std::uint64_t deadline_ns, int type) {
  const auto local = GDX_TRY(local_address(name));
  auto socket = make_local_socket(type);
  if (!socket) return socket;
  const auto* const address = reinterpret_cast<const sockaddr*>(&local.address);
  int error = 0;
  for (;;) {
    if (::connect(socket->value(), address, local.length) == 0) return socket;
    error = errno;
    if (!must_wait(error) || monotonic_ns() >= deadline_ns) break;
    ::poll(nullptr, 0, kRetryMs);  // no event tells of room
  }
  const Status status = error == ECONNREFUSED || error == ENOENT ? Status::kNotFound
                        : error == EACCES                        ? Status::kUnsupported
                        : must_wait(error)                       ? Status::kBusy
                                                                 : Status::kSystem;
  if (status == Status::kUnsupported)
    return fail(status,
                fmt::format("the local socket '{}' admits no such user: {}", name, std::strerror(error)));
  return fail(status, fmt::format("nobody answers at the local socket '{}': {}", name, std::strerror(error)));
}

Result<Descriptor> accept_local(const Descriptor& listener, std::uint64_t deadline_ns) {
  for (;;) {
    // Waits first: Linux looks for a free descriptor before it looks for a connection.
    if (!wait_for(listener, POLLIN, deadline_ns)) return fail(Status::kTimeout, "nobody connected in time");
    Descriptor socket =
        Descriptor::keep(::accept4(listener.value(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) return socket;
    const int error = errno;
    if (must_wait(error) || error == EINTR || error == ECONNABORTED) continue;
    return fail(Status::kSystem, fmt::format("cannot accept a local connection: {}", std::strerror(error)));
  }
}

Result<ucred> peer_of(const Descriptor& socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket.value(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0) return credentials;
  return fail(Status::kSystem, fmt::format("cannot tell who connected: {}", std::strerror(errno)));
}

Result<void> send_local(const Descriptor& socket, std::span<const std::byte> bytes,
                        std::span<const int> descriptors, std::uint64_t deadline_ns) {
  if (bytes.empty() || bytes.size() > kMaxLocalMessageBytes ||
      descriptors.size() > kMaxLocalMessageDescriptors) {
    return fail(Status::kInvalidLength,
                fmt::format("{} bytes and {} descriptors are no message", bytes.size(), descriptors.size()));
  }
  alignas(cmsghdr) std::array<std::byte, kControlBytes> control{};
  iovec content{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  for (;;) {
    if (::sendmsg(socket.value(), &message, MSG_NOSIGNAL) >= 0) return {};
    const int error = errno;
    if (error == EINTR) continue;
    if (!must_wait(error)) {
      return fail(Status::kPeerGone, fmt::format("the other end takes nothing: {}", std::strerror(error)));
    }
    if (!wait_for(socket, POLLOUT, deadline_ns)) return fail(Status::kTimeout, "the other end reads nothing");
  }
}

Result<LocalMessage> receive_local(const Descriptor& socket, std::uint64_t deadline_ns) {
  LocalMessage received;
  received.bytes.resize(kMaxLocalMessageBytes);
  alignas(cmsghdr) std::array<std::byte, kControlBytes> control{};
  for (;;) {
    iovec content{received.bytes.data(), received.bytes.size()};
    msghdr message{};
    message.msg_iov = &content;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(socket.value(), &message, MSG_CMSG_CLOEXEC);
    const int error = errno;
    // A close with unread bytes resets this end once; what was sent before is still there.
    if (got < 0 && (error == EINTR || error == ECONNRESET)) continue;
    if (got < 0 && must_wait(error)) {
      if (wait_for(socket, POLLIN, deadline_ns)) continue;
      return fail(Status::kTimeout, "the other end sent nothing in time");
    }
    if (got <= 0) return fail(Status::kPeerGone, "the other end has closed");
    received.descriptors = take_descriptors(message);
    if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
      return fail(Status::kInvalidArgument,
                  "the other end sent more than fits, or more open files than this process may have "
                  "(ulimit -n)");
    }
    received.bytes.resize(static_cast<std::size_t>(got));
    return received;
  }
}

}  // namespace gdx::bootstrap
