#include "driver-shim/softhca/wire/links.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

#include "base/clock.h"

namespace gdx::softhca::wire {
namespace {

// Bytes reserved for acknowledgements, which are not held back, because they let the peer's window and so
// both rings advance.
constexpr std::size_t kReservedBytes = kRingDataBytes / 8;

}  // namespace

std::size_t OutgoingLink::room() {
  const std::size_t free = ring_.free_bytes();
  if (free >= kReservedBytes + kMaxRecordBytes) return (free - kReservedBytes) / kMaxRecordBytes;
  const std::uint64_t now_ns = monotonic_ns();
  if (ring_.consumed() != full_at_) {
    full_at_ = ring_.consumed();
    full_since_ns_ = now_ns;
  }
  return now_ns - full_since_ns_ < kStalledNs ? 0 : std::numeric_limits<std::size_t>::max();
}

void OutgoingLink::publish() {
  if (ring_.unpublished_bytes() == 0 || !ring_.publish()) return;
  // Ignores the result: a full socket already holds wake-up bytes, and a broken one has no peer to wake.
  constexpr char kWake = 1;
  static_cast<void>(::send(socket_.value(), &kWake, sizeof kWake, MSG_DONTWAIT | MSG_NOSIGNAL));
}

bool drain_wakeups(int fd) {
  constexpr int kMostAtOnce = 64;  // a peer may send faster than we read
  for (int i = 0; i < kMostAtOnce; ++i) {
    std::array<char, 16> ignored;
    const ssize_t n = ::recv(fd, ignored.data(), ignored.size(), MSG_DONTWAIT);
    if (n == 0) return false;
    if (n < 0) return errno == EAGAIN || errno == EINTR;
  }
  return true;
}

Result<std::unique_ptr<OutgoingLink>> open_link(const Address& local, const Address& peer) {
  // Connects first, because most addresses have no listener.
  Result<Descriptor> socket = reach_peer(peer);
  if (!socket) return tl::unexpected<Error>(socket.error());
  Result<SharedMemory::Made> made = SharedMemory::create();
  if (!made) return tl::unexpected<Error>(made.error());
  if (const Result<void> sent = send_call(*socket, local, made->file.value()); !sent) {
    return tl::unexpected<Error>(sent.error());
  }
  return std::make_unique<OutgoingLink>(std::move(*socket), std::move(made->memory));
}

Result<LinkPair> open_loop(const Address& local) {
  Result<SharedMemory::Made> made = SharedMemory::create();
  if (!made) return tl::unexpected<Error>(made.error());
  Result<SharedMemory> again = SharedMemory::adopt(made->file.value());
  if (!again) return tl::unexpected<Error>(again.error());
  std::array<int, 2> ends;
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
    return fail(Status::kSystem, std::string("no socket pair: ") + std::strerror(errno));
  }
  Descriptor near = Descriptor::keep(ends[0]);
  Descriptor far = Descriptor::keep(ends[1]);
  if (!near || !far) return fail(Status::kSystem, std::string("no socket pair: ") + std::strerror(errno));
  return LinkPair{std::make_unique<OutgoingLink>(std::move(near), std::move(made->memory)),
                  std::make_unique<IncomingLink>(local, std::move(far), std::move(*again))};
}

}  // namespace gdx::softhca::wire
