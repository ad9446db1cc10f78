#include "tests/sim/exchange/network.h"

#include <dlfcn.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "proto/bootstrap/messages.h"

namespace gdx::sim {
namespace {

constexpr int kFirstFile = 1 << 20;  // above those of the system
constexpr std::size_t kBacklog = 1024;
constexpr std::size_t kStackBytes = 256 * 1024;
constexpr std::uint64_t kCallNs = 500;
constexpr std::uint64_t kMostWakingNs = 2'000'000;
constexpr std::uint64_t kNsPerMs = 1'000'000;

Network* network_here = nullptr;

int failed(int error) {
  errno = error;
  return -1;
}

// Every frame begins a send.
bool begins_frame(std::span<const std::byte> bytes) {
  constexpr Be32 kMagic{bootstrap::kMagic};
  return bytes.size() >= sizeof kMagic && std::memcmp(bytes.data(), &kMagic, sizeof kMagic) == 0;
}

}  // namespace

Network::Network(std::uint64_t seed, std::uint32_t ranks)
    : random_(seed), room_(std::size_t{1024} << random_.between(0, 4)), ranks_(ranks) {}

Network::~Network() = default;

Network* Network::running() { return network_here; }

bool Network::has(int file) const {
  return file >= kFirstFile && static_cast<std::size_t>(file - kFirstFile) < sockets_.size();
}

Network::Socket& Network::at(int file) { return sockets_[static_cast<std::size_t>(file - kFirstFile)]; }

void Network::plan(std::uint32_t rank, std::uint64_t time_ns) {
  events_.emplace(time_ns, order_++, rank, ranks_[rank].turn);
}

void Network::start(std::uint32_t rank, std::uint64_t after_ns, std::function<void()> body) {
  ranks_[rank].fiber = std::make_unique<Fiber>(kStackBytes, std::move(body));
  plan(rank, now_ns_ + after_ns);
}

void Network::lose(std::uint32_t rank, Loss loss, std::uint64_t after_calls) {
  ranks_[rank].loss = loss;
  ranks_[rank].calls_left = after_calls;
}

void Network::resume(std::uint32_t rank) {
  rank_here_ = rank;
  ++ranks_[rank].turn;
  ranks_[rank].waits = ranks_[rank].woken = false;
  network_here = this;
  ranks_[rank].fiber->resume();
  network_here = nullptr;
}

void Network::run() {
  for (; !events_.empty(); events_.pop()) {
    const auto [time_ns, order, rank, turn] = events_.top();
    if (!ranks_[rank].waits || ranks_[rank].turn != turn) continue;
    now_ns_ = std::max(now_ns_, time_ns);
    resume(rank);
  }
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].lost && !has_ended(rank)) resume(rank);
  }
}

// Begins a call of the running rank; false where that is lost.
bool Network::act() {
  now_ns_ += kCallNs;
  Rank& rank = here();
  if (rank.loss != Loss::kNone && !rank.lost && rank.calls_left-- == 0) strike();
  return !rank.lost;
}

void Network::strike() {
  here().lost = true;
  if (here().loss == Loss::kSilence) here().fiber->wait();
  cut();
}

void Network::cut() {
  for (const int file : std::vector(here().files)) close(file);
}

std::uint64_t Network::clock_ns() { return now_ns_ + here().skipped_ns; }

int Network::make_socket() {
  sockets_.push_back({.owner = rank_here_, .inbox = {}});
  const int file = kFirstFile + static_cast<int>(sockets_.size()) - 1;
  here().files.push_back(file);
  return file;
}

void Network::listen(int file) {
  at(file).listens = true;
  listener_ = file;
}

int Network::connect(int file) {
  if (!act() || listener_ < 0 || at(listener_).closed) return failed(ECONNREFUSED);
  if (callers_.size() > kBacklog) return failed(EAGAIN);
  const int other = make_socket();
  here().files.pop_back();
  at(other).owner = at(listener_).owner;
  ranks_[at(other).owner].files.push_back(other);
  at(file).peer = other;
  at(other).peer = file;
  callers_.push_back(other);
  wake(at(listener_), POLLIN);
  pause(random_.between(0, kMostWakingNs));
  return 0;
}

int Network::accept() {
  if (!act() || callers_.empty()) return failed(EAGAIN);
  const int file = callers_.front();
  callers_.pop_front();
  return file;
}

ssize_t Network::send(int file, std::span<const std::byte> bytes) {
  const bool is_last = here().loss != Loss::kNone && here().calls_left == 0;
  if (here().lost || at(file).peer < 0 || at(at(file).peer).closed) return failed(EPIPE);
  Socket& peer = at(at(file).peer);
  if (is_last) bytes = bytes.first(random_.between(0, bytes.size()));
  const auto taken =
      bytes.first(std::min(bytes.size(), room_ - std::min(room_, peer.inbox.size() - peer.taken)));
  peer.inbox.insert(peer.inbox.end(), taken.begin(), taken.end());
  for (Traffic* const traffic :
       {at(file).owner == 0 ? &sent_ : nullptr, peer.owner == 0 ? &received_ : nullptr}) {
    if (traffic == nullptr) continue;
    traffic->bytes += taken.size();
    traffic->frames += begins_frame(taken) ? 1 : 0;
  }
  if (!taken.empty()) wake(peer, POLLIN);
  if (!act()) return failed(EPIPE);
  return taken.empty() ? failed(EAGAIN) : static_cast<ssize_t>(taken.size());
}

ssize_t Network::receive(int file, std::span<std::byte> bytes, bool stays) {
  if (!act()) return 0;
  Socket& socket = at(file);
  const std::size_t count = std::min(bytes.size(), socket.inbox.size() - socket.taken);
  if (count == 0) return at(socket.peer).ended ? 0 : failed(EAGAIN);
  std::memcpy(bytes.data(), socket.inbox.data() + socket.taken, count);
  if (stays) return static_cast<ssize_t>(count);
  socket.taken += count;
  if (socket.taken == socket.inbox.size()) {
    socket.inbox = {};
    socket.taken = 0;
  }
  wake(at(socket.peer), POLLOUT);
  return static_cast<ssize_t>(count);
}

void Network::end(int file) {
  at(file).ended = true;
  if (at(file).peer >= 0) wake(at(at(file).peer), POLLIN | POLLOUT);
}

void Network::close(int file) {
  std::erase(here().files, file);
  Socket& socket = at(file);
  if (std::exchange(socket.closed, true)) return;
  end(file);
  socket.inbox = {};
  socket.taken = 0;
  if (!socket.listens) return;
  for (const int caller : std::exchange(callers_, {})) close(caller);
}

short Network::state_of(const Socket& socket) {
  if (socket.listens) return callers_.empty() ? 0 : POLLIN;
  if (socket.peer < 0) return 0;
  const Socket& peer = at(socket.peer);
  const bool in = socket.taken < socket.inbox.size() || peer.ended;
  const bool out = peer.closed || peer.inbox.size() - peer.taken < room_;
  return static_cast<short>((in ? POLLIN : 0) | (out ? POLLOUT : 0));
}

int Network::look(std::span<pollfd> files) {
  int ready = 0;
  for (pollfd& file : files) {
    file.revents = static_cast<short>(state_of(at(file.fd)) & file.events);
    ready += file.revents != 0 ? 1 : 0;
  }
  return ready;
}

void Network::wake(const Socket& socket, short events) {
  Rank& owner = ranks_[socket.owner];
  if ((socket.polled & events) == 0 || std::exchange(owner.woken, true)) return;
  plan(socket.owner, now_ns_ + random_.between(0, kMostWakingNs));
}

// Lets the running rank stand still.
void Network::pause(std::uint64_t duration_ns) {
  here().waits = true;
  plan(rank_here_, now_ns_ + duration_ns);
  here().fiber->wait();
}

int Network::poll(std::span<pollfd> files, int timeout_ms) {
  const std::uint64_t timeout_ns = static_cast<std::uint64_t>(std::max(timeout_ms, 0)) * kNsPerMs;
  if (!act()) {
    here().skipped_ns += timeout_ns;
    return 0;
  }
  const int ready = look(files);
  if (ready != 0 || timeout_ms == 0) return ready;
  for (const pollfd& file : files) at(file.fd).polled = file.events;
  pause(timeout_ns);
  for (const pollfd& file : files) at(file.fd).polled = 0;
  return look(files);
}

int Network::process_at_peer(int file) { return kFirstProcess + static_cast<int>(at(at(file).peer).owner); }

}  // namespace gdx::sim

// In place of the C library's, for files of the network and while a rank runs.
#define GDX_STAND_IN extern "C" __attribute__((visibility("default")))
using gdx::sim::Network;

namespace {

template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

Network* network_of(int file) {
  Network* const network = Network::running();
  return network != nullptr && network->has(file) ? network : nullptr;
}

int name(sockaddr* address, socklen_t* length) {
  *length = std::min<socklen_t>(*length, sizeof(sa_family_t));
  address->sa_family = AF_UNIX;
  return 0;
}

}  // namespace

GDX_STAND_IN int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static auto* const call = real<int(clockid_t, timespec*)>("clock_gettime");
  if (clock != CLOCK_MONOTONIC || Network::running() == nullptr) return call(clock, time);
  constexpr std::uint64_t kNsPerS = 1'000'000'000;
  const std::uint64_t now_ns = Network::running()->clock_ns();
  *time = {static_cast<time_t>(now_ns / kNsPerS), static_cast<long>(now_ns % kNsPerS)};
  return 0;
}

GDX_STAND_IN int poll(pollfd* files, nfds_t count, int timeout_ms) {
  static auto* const call = real<int(pollfd*, nfds_t, int)>("poll");
  Network* const network = count == 0 ? Network::running() : network_of(files->fd);
  return network != nullptr ? network->poll({files, count}, timeout_ms) : call(files, count, timeout_ms);
}

// NOLINTNEXTLINE(readability-identifier-naming): libc names it
GDX_STAND_IN int __poll_chk(pollfd* files, nfds_t count, int timeout_ms, std::size_t) {
  return poll(files, count, timeout_ms);
}

GDX_STAND_IN int socket(int domain, int type, int protocol) noexcept {
  static auto* const call = real<int(int, int, int)>("socket");
  Network* const network = Network::running();
  return network != nullptr ? network->make_socket() : call(domain, type, protocol);
}

GDX_STAND_IN int bind(int file, const sockaddr* address, socklen_t length) noexcept {
  static auto* const call = real<int(int, const sockaddr*, socklen_t)>("bind");
  return network_of(file) != nullptr ? 0 : call(file, address, length);
}

GDX_STAND_IN int listen(int file, int backlog) noexcept {
  static auto* const call = real<int(int, int)>("listen");
  Network* const network = network_of(file);
  if (network == nullptr) return call(file, backlog);
  network->listen(file);
  return 0;
}

GDX_STAND_IN int connect(int file, const sockaddr* address, socklen_t length) {
  static auto* const call = real<int(int, const sockaddr*, socklen_t)>("connect");
  Network* const network = network_of(file);
  return network != nullptr ? network->connect(file) : call(file, address, length);
}

GDX_STAND_IN int accept4(int listener, sockaddr* address, socklen_t* length, int flags) {
  static auto* const call = real<int(int, sockaddr*, socklen_t*, int)>("accept4");
  Network* const network = network_of(listener);
  return network != nullptr ? network->accept() : call(listener, address, length, flags);
}

GDX_STAND_IN ssize_t send(int file, const void* bytes, std::size_t length, int flags) {
  static auto* const call = real<ssize_t(int, const void*, std::size_t, int)>("send");
  Network* const network = network_of(file);
  if (network == nullptr) return call(file, bytes, length, flags);
  return network->send(file, {static_cast<const std::byte*>(bytes), length});
}

GDX_STAND_IN ssize_t recv(int file, void* bytes, std::size_t length, int flags) {
  static auto* const call = real<ssize_t(int, void*, std::size_t, int)>("recv");
  Network* const network = network_of(file);
  if (network == nullptr) return call(file, bytes, length, flags);
  return network->receive(file, {static_cast<std::byte*>(bytes), length}, (flags & MSG_PEEK) != 0);
}

// NOLINTNEXTLINE(readability-identifier-naming): libc names it
GDX_STAND_IN ssize_t __recv_chk(int file, void* bytes, std::size_t length, std::size_t, int flags) {
  return recv(file, bytes, length, flags);
}

GDX_STAND_IN int shutdown(int file, int how) noexcept {
  static auto* const call = real<int(int, int)>("shutdown");
  Network* const network = network_of(file);
  if (network == nullptr) return call(file, how);
  network->end(file);
  return 0;
}

GDX_STAND_IN int close(int file) {
  static auto* const call = real<int(int)>("close");
  Network* const network = network_of(file);
  if (network == nullptr) return call(file);
  network->close(file);
  return 0;
}

GDX_STAND_IN int getsockopt(int file, int level, int option, void* value, socklen_t* length) noexcept {
  static auto* const call = real<int(int, int, int, void*, socklen_t*)>("getsockopt");
  Network* const network = network_of(file);
  if (network == nullptr) return call(file, level, option, value, length);
  const ucred peer{network->process_at_peer(file), geteuid(), getegid()};
  std::memcpy(value, &peer, sizeof peer);
  return 0;
}

GDX_STAND_IN int getsockname(int file, sockaddr* address, socklen_t* length) noexcept {
  static auto* const call = real<int(int, sockaddr*, socklen_t*)>("getsockname");
  return network_of(file) != nullptr ? name(address, length) : call(file, address, length);
}

GDX_STAND_IN int getpeername(int file, sockaddr* address, socklen_t* length) noexcept {
  static auto* const call = real<int(int, sockaddr*, socklen_t*)>("getpeername");
  return network_of(file) != nullptr ? name(address, length) : call(file, address, length);
}
