#include "tests/sim/daemon/stage.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

namespace gdx::sim {
namespace {

constexpr std::uint64_t kStartNs = 1'000'000'000'000;
constexpr std::uint64_t kForeverNs = ~std::uint64_t{0};
constexpr std::uint64_t kNsPerMs = 1'000'000;
constexpr std::uint64_t kLongestStepNs = 200'000;
constexpr std::uint64_t kMostSteps = 100'000;
constexpr std::size_t kStackBytes = 512 * 1024;
constexpr int kSmallBufferBytes = 1;  // Linux takes the least that it has

Stage* stage = nullptr;
thread_local Actor* actor_here = nullptr;

template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int real_poll(pollfd* files, nfds_t count, int timeout_ms) {
  static auto* const call = real<int(pollfd*, nfds_t, int)>("poll");
  return call(files, count, timeout_ms);
}
int real_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*begin)(void*), void* argument) {
  static auto* const call =
      real<int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
  return call(thread, attributes, begin, argument);
}
int real_join(pthread_t thread, void** result) {
  static auto* const call = real<int(pthread_t, void**)>("pthread_join");
  return call(thread, result);
}

int real_option(int file, int level, int name, void* value, socklen_t* length) {
  static auto* const call = real<int(int, int, int, void*, socklen_t*)>("getsockopt");
  return call(file, level, name, value, length);
}

// A connection's thread first receives from its socket. Others, it uses on its way to the HCA.
bool is_own(Actor& actor, int file) {
  if (actor.role == Role::kConnection && actor.socket < 0) actor.socket = file;
  return actor.role != Role::kConnection || actor.socket == file;
}

std::span<const std::byte> bytes_of(const msghdr& message) {
  return {static_cast<const std::byte*>(message.msg_iov->iov_base), message.msg_iov->iov_len};
}

}  // namespace

Stage::Stage(std::uint64_t seed, Observer& observer) : random_(seed), observer_(observer), now_ns_(kStartNs) {
  stage = this;
}

Stage::~Stage() { stage = nullptr; }

Actor* Stage::self() { return actor_here; }
Stage* Stage::current() { return stage; }

void Stage::set_line(std::shared_ptr<Line> line) { actor_here->line = std::move(line); }

Actor& Stage::add(Role role, std::function<void()> body, std::shared_ptr<Line> line) {
  Actor& actor = actors_.emplace_back();
  actor.role = role;
  actor.line = std::move(line);
  actor.fiber = std::make_unique<Fiber>(kStackBytes, [&actor, body = std::move(body)] {
    body();
    if (actor.role == Role::kConnection) stage->observer_.connection_ends(*actor.line);
  });
  return actor;
}

void Stage::start(Role role, std::function<void()> body) { add(role, std::move(body), nullptr); }

void Stage::step(Actor& actor) {
  actor_here = &actor;
  actor.fiber->resume();
  actor_here = nullptr;
}

void Stage::wait(Actor& actor, Actor::Waits waits) {
  actor.waits = waits;
  actor.fiber->wait();
  actor.waits = Actor::Waits::kNot;
}

void Stage::create(pthread_t* thread, void* (*begin)(void*), void* argument) {
  const bool of_daemon = actor_here->role == Role::kDaemon;
  const Actor& actor = add(
      of_daemon ? Role::kConnection : Role::kWatcher, [begin, argument] { begin(argument); },
      of_daemon ? observer_.connection_begins() : nullptr);
  *thread = reinterpret_cast<pthread_t>(&actor);
}

const Actor* Stage::find(pthread_t thread) const {
  for (const Actor& actor : actors_) {
    if (reinterpret_cast<pthread_t>(&actor) == thread) return &actor;
  }
  return nullptr;
}

void Stage::sleep(std::uint64_t duration_ns) {
  ::poll(nullptr, 0, static_cast<int>((duration_ns + kNsPerMs - 1) / kNsPerMs));
}

bool Stage::is_ready(Actor& actor) const {
  switch (actor.waits) {
    case Actor::Waits::kNot: return true;
    case Actor::Waits::kJoins: return actor.joined->fiber->is_done();
    case Actor::Waits::kPolls: break;
  }
  return now_ns_ >= actor.deadline_ns ||
         (!actor.files.empty() && real_poll(actor.files.data(), actor.files.size(), 0) != 0);
}

Actor* Stage::next() {
  std::vector<Actor*> ready;
  for (Actor& actor : actors_) {
    if (!actor.fiber->is_done() && is_ready(actor)) ready.push_back(&actor);
  }
  return ready.empty() ? nullptr : ready[random_.between(0, ready.size() - 1)];
}

bool Stage::skip_to_next_deadline() {
  std::uint64_t next_ns = kForeverNs;
  for (const Actor& actor : actors_) {
    if (!actor.fiber->is_done() && actor.waits == Actor::Waits::kPolls)
      next_ns = std::min(next_ns, actor.deadline_ns);
  }
  now_ns_ = std::max(now_ns_, next_ns == kForeverNs ? now_ns_ : next_ns);
  return next_ns != kForeverNs;
}

std::string Stage::run(const std::function<void()>& after_step) {
  const auto lives = [](const Actor& actor) { return !actor.fiber->is_done(); };
  while (std::ranges::any_of(actors_, lives)) {
    if (++steps_ > kMostSteps) return "there is no end";
    Actor* const actor = next();
    if (actor == nullptr) {
      if (!skip_to_next_deadline()) return "all threads wait for ever";
      continue;
    }
    now_ns_ += random_.between(0, kLongestStepNs);
    step(*actor);
    after_step();
  }
  return {};
}

}  // namespace gdx::sim

// In place of the C library's.
#define GDX_STAND_IN extern "C" __attribute__((visibility("default")))
using gdx::sim::Actor;
using gdx::sim::Role;
using gdx::sim::Stage;

GDX_STAND_IN int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static auto* const call = gdx::sim::real<int(clockid_t, timespec*)>("clock_gettime");
  if (clock != CLOCK_MONOTONIC || Stage::self() == nullptr) return call(clock, time);
  constexpr std::uint64_t kNsPerS = 1'000'000'000;
  const std::uint64_t now_ns = Stage::current()->now_ns();
  *time = {static_cast<time_t>(now_ns / kNsPerS), static_cast<long>(now_ns % kNsPerS)};
  return 0;
}

GDX_STAND_IN int poll(pollfd* files, nfds_t count, int timeout_ms) {
  Actor* const actor = Stage::self();
  const bool is_waited =
      actor != nullptr && timeout_ms != 0 && (count == 0 || gdx::sim::is_own(*actor, files->fd));
  if (!is_waited) return gdx::sim::real_poll(files, count, timeout_ms);
  Stage& stage = *Stage::current();
  if (actor->role == Role::kDaemon) stage.observer().accept_ends();
  actor->files = {files, count};
  actor->deadline_ns = timeout_ms < 0
                           ? gdx::sim::kForeverNs
                           : stage.now_ns() + static_cast<std::uint64_t>(timeout_ms) * gdx::sim::kNsPerMs;
  Stage::wait(*actor, Actor::Waits::kPolls);
  return gdx::sim::real_poll(files, count, 0);
}

// NOLINTNEXTLINE(readability-identifier-naming): libc names it
GDX_STAND_IN int __poll_chk(pollfd* files, nfds_t count, int timeout_ms, std::size_t) {
  return poll(files, count, timeout_ms);
}

// Threads of a fiber are fibers, but for those of a connection.
GDX_STAND_IN int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*begin)(void*),
                                void* argument) noexcept {
  const Actor* const actor = Stage::self();
  if (actor == nullptr || actor->role == Role::kConnection)
    return gdx::sim::real_create(thread, attributes, begin, argument);
  Stage::current()->create(thread, begin, argument);
  return 0;
}

GDX_STAND_IN int pthread_join(pthread_t thread, void** result) {
  Actor* const actor = Stage::self();
  const Actor* const joined = actor == nullptr ? nullptr : Stage::current()->find(thread);
  if (joined == nullptr) return gdx::sim::real_join(thread, result);
  actor->joined = joined;
  if (!joined->fiber->is_done()) Stage::wait(*actor, Actor::Waits::kJoins);
  if (joined->role == Role::kConnection) Stage::current()->observer().joined(*joined->line);
  return 0;
}

GDX_STAND_IN int accept4(int listener, sockaddr* address, socklen_t* length, int flags) {
  static auto* const call = gdx::sim::real<int(int, sockaddr*, socklen_t*, int)>("accept4");
  const int file = call(listener, address, length, flags);
  if (file >= 0 && Stage::self() != nullptr)
    setsockopt(file, SOL_SOCKET, SO_SNDBUF, &gdx::sim::kSmallBufferBytes, sizeof gdx::sim::kSmallBufferBytes);
  return file;
}

GDX_STAND_IN int shutdown(int file, int how) noexcept {
  static auto* const call = gdx::sim::real<int(int, int)>("shutdown");
  Actor* const actor = Stage::self();
  if (actor != nullptr && actor->role == Role::kConnection && gdx::sim::is_own(*actor, file))
    Stage::current()->observer().shuts_down(*actor->line);
  return call(file, how);
}

GDX_STAND_IN int getsockopt(int file, int level, int name, void* value, socklen_t* length) noexcept {
  const Actor* const actor = Stage::self();
  if (actor == nullptr || actor->role != Role::kDaemon || level != SOL_SOCKET || name != SO_PEERCRED)
    return gdx::sim::real_option(file, level, name, value, length);
  const ucred peer = Stage::current()->observer().accepted();
  std::memcpy(value, &peer, sizeof peer);
  return 0;
}

GDX_STAND_IN ssize_t recvmsg(int file, msghdr* message, int flags) {
  static auto* const call = gdx::sim::real<ssize_t(int, msghdr*, int)>("recvmsg");
  Actor* const actor = Stage::self();
  const bool of_connection =
      actor != nullptr && actor->role == Role::kConnection && gdx::sim::is_own(*actor, file);
  if (of_connection) Stage::wait(*actor, Actor::Waits::kNot);
  const ssize_t got = call(file, message, flags);
  if (of_connection && got > 0) Stage::current()->observer().received(*actor->line);
  return got;
}

GDX_STAND_IN ssize_t sendmsg(int file, const msghdr* message, int flags) {
  static auto* const call = gdx::sim::real<ssize_t(int, const msghdr*, int)>("sendmsg");
  Actor* const actor = Stage::self();
  if (actor != nullptr && actor->role == Role::kDaemon)
    Stage::current()->observer().refuses(gdx::sim::bytes_of(*message));
  const bool is_seen = actor != nullptr && (actor->role == Role::kConnection || actor->role == Role::kClient);
  if (!is_seen || !gdx::sim::is_own(*actor, file)) return call(file, message, flags);
  gdx::sim::Observer& observer = Stage::current()->observer();
  const bool answers = actor->role == Role::kConnection;
  const auto bytes = gdx::sim::bytes_of(*message);
  if (answers) observer.answers(*actor->line, bytes);
  Stage::wait(*actor, Actor::Waits::kNot);
  const ssize_t sent = call(file, message, flags);
  if (sent >= 0 && answers) observer.answer_left(*actor->line);
  if (sent >= 0 && !answers) observer.sent(*actor->line, bytes);
  return sent;
}
