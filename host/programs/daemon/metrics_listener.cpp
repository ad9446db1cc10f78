#include "host/programs/daemon/metrics_listener.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "host/bootstrap/socket.h"
#include "host/bootstrap/socket_user.h"

namespace gdx::daemon {
namespace {

constexpr std::size_t kMaxCallers = 64;
constexpr std::size_t kMaxRequestBytes = 16384;
constexpr std::uint64_t kPatienceNs = 5'000'000'000;
constexpr int kLookEveryMs = 200;
constexpr std::string_view kEndOfRequest = "\r\n\r\n";

bool must_wait(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

Result<std::unique_ptr<MetricsListener>> MetricsListener::listen(const MetricsAddress& address,
                                                                 std::function<std::string()> page,
                                                                 std::function<bool(uid_t)> admits) {
  const bool any_port = address.listening.ends_with(":0");
  std::string host = address.host;
  std::erase_if(host, [](char c) { return c == '[' || c == ']'; });
  auto listener = GDX_TRY(any_port ? bootstrap::listen_on(host) : bootstrap::listen_at(address.listening));
  Descriptor stop = Descriptor::keep(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop) return fail(Status::kSystem, fmt::format("no eventfd: {}", std::strerror(errno)));
  std::unique_ptr<MetricsListener> made(
      new MetricsListener(std::move(listener), std::move(stop), std::move(page), std::move(admits)));
  try {
    made->thread_ = std::thread(&MetricsListener::run, made.get());
  } catch (const std::exception& error) {
    return fail(Status::kNoMemory, fmt::format("no thread: {}", error.what()));
  }
  return made;
}

MetricsListener::~MetricsListener() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  (void)!::write(stop_.value(), &one, sizeof one);
  thread_.join();
}

std::string MetricsListener::place() const { return bootstrap::own_text(listener_); }

void MetricsListener::run() {
  for (;;) {
    std::vector<pollfd> ready{{stop_.value(), POLLIN, 0}, {listener_.value(), POLLIN, 0}};
    for (const Caller& caller : callers_) {
      const auto awaited = static_cast<short>(caller.unsent.empty() ? POLLIN : POLLOUT);
      ready.push_back({caller.socket.value(), awaited, 0});
    }
    ::poll(ready.data(), ready.size(), callers_.empty() ? -1 : kLookEveryMs);
    if (ready[0].revents != 0) return;
    try {
      std::size_t at = 2;
      std::erase_if(callers_, [&](Caller& caller) {
        return (ready[at++].revents != 0 && !serve(caller)) || monotonic_ns() >= caller.deadline_ns;
      });
      if (ready[1].revents != 0) accept_some();
    } catch (const std::exception& error) {  // no memory
      callers_.clear();
      log::warn_of_others("gdxd cannot tell its metrics: {}", error.what());
    }
  }
}

void MetricsListener::accept_some() {
  for (std::size_t i = 0; i < kMaxCallers; ++i) {
    auto socket = bootstrap::accept_one(listener_);
    if (!socket) {  // no descriptors
      log::warn_of_others("gdxd cannot tell its metrics: {}", socket.error().message);
      ::poll(nullptr, 0, kLookEveryMs);
      return;
    }
    if (!*socket) return;
    if (callers_.size() == kMaxCallers) callers_.pop_front();
    callers_.push_back({std::move(*socket), monotonic_ns() + kPatienceNs, {}, {}});
    if (!serve(callers_.back())) callers_.pop_back();
  }
}

bool MetricsListener::serve(Caller& caller) const {
  if (caller.unsent.empty()) {
    std::array<char, 4096> part;
    const ssize_t got = ::recv(caller.socket.value(), part.data(), part.size(), MSG_DONTWAIT);
    if (got <= 0) return got < 0 && must_wait(errno);
    caller.request.append(part.data(), static_cast<std::size_t>(got));
    if (caller.request.find(kEndOfRequest) == std::string::npos)
      return caller.request.size() < kMaxRequestBytes;
    caller.unsent = answer_to(caller);
  }
  const ssize_t sent =
      ::send(caller.socket.value(), caller.unsent.data(), caller.unsent.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) return must_wait(errno);
  caller.unsent.erase(0, static_cast<std::size_t>(sent));
  return !caller.unsent.empty();
}

std::string MetricsListener::answer_to(const Caller& caller) const {
  const bool is_known =
      caller.request.starts_with("GET /metrics ") || caller.request.starts_with("GET /metrics?");
  const bootstrap::Holder holder = bootstrap::holder_of_peer(caller.socket);
  const bool is_admitted = holder.kind == bootstrap::Holder::kOtherHost ||
                           (holder.kind == bootstrap::Holder::kUser && admits_(holder.user));
  const std::string page = !is_known      ? "gdxd tells its metrics at /metrics\n"
                           : !is_admitted ? "gdxd tells its metrics to root, its own user and monitor_group\n"
                                          : page_();
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n{}",
      !is_known      ? "404 Not Found"
      : !is_admitted ? "403 Forbidden"
                     : "200 OK",
      page.size(), page);
}

}  // namespace gdx::daemon
