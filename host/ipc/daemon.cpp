#include "host/ipc/daemon.h"

#include <errno.h>  // program_invocation_short_name
#include <fmt/format.h>
#include <poll.h>
#include <pwd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/library_thread.h"
#include "base/log.h"
#include "base/parse_number.h"
#include "host/bootstrap/local_socket.h"

namespace gdx::ipc {
namespace {

constexpr std::uint64_t kAnswerTimeoutNs = 30'000'000'000;
constexpr std::uint64_t kConnectPatienceNs = 10'000'000'000;
constexpr std::uint64_t kMaxTextBytes = 64 << 20;
constexpr std::string_view kPathPrefix = "unix:";

std::vector<std::string> usual_paths() {
  std::vector<std::string> paths;
  if (const char* const own = std::getenv("XDG_RUNTIME_DIR"); own != nullptr && own[0] == '/')
    paths.push_back(fmt::format("{}/{}", own, kSocketName));
  paths.push_back(fmt::format("/run/{}", kSocketName));
  return paths;
}

// Returns the user whom this process lets listen besides root and its own.
Result<std::optional<uid_t>> consented_user() {
  const char* const text = std::getenv(kDaemonUserVariable);
  if (text == nullptr) return std::optional<uid_t>{};
  const auto number = parse_unsigned(text);
  if (number && *number < std::numeric_limits<uid_t>::max()) return static_cast<uid_t>(*number);
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 4096> strings;
  if (getpwnam_r(text, &entry, strings.data(), strings.size(), &found) == 0 && found != nullptr)
    return entry.pw_uid;
  return fail(Status::kInvalidArgument,
              fmt::format("{} is '{}': use the name or the number of a user", kDaemonUserVariable, text));
}

Result<void> check_listener(const Descriptor& socket, const std::string& path) {
  const uid_t user = GDX_TRY(bootstrap::peer_of(socket)).uid;
  if (user == 0 || user == geteuid()) return {};
  const auto consented = GDX_TRY(consented_user());
  if (consented == user) return {};
  return fail(Status::kUnsupported,
              fmt::format("gdxd at {} is of user {}, who would get this process's memory: set {}={} if that "
                          "user may, or {}=off",
                          path, user, kDaemonUserVariable, user, kDaemonVariable));
}

tl::unexpected<Error> no_connection(const std::string& path, const Error& error) {
  switch (error.status) {
    case Status::kUnsupported:
      return fail(error.status, fmt::format("gdxd: {}; ask for its --mode and --group, or set {}=off",
                                            error.message, kDaemonVariable));
    case Status::kBusy:
      return fail(error.status,
                  fmt::format("gdxd at {} has had no room for another call for {} s: try again, "
                              "or set {}=off",
                              path, kConnectPatienceNs / 1'000'000'000, kDaemonVariable));
    default:
      return fail(error.status, fmt::format("no gdxd at {}: {}; start it, or set {}=off", path, error.message,
                                            kDaemonVariable));
  }
}

}  // namespace

std::string default_socket_path() {
  const auto paths = usual_paths();
  return geteuid() == 0 ? paths.back() : paths.front();
}

Result<DaemonPlaces> daemon_places_from_environment() {
  const char* const value = std::getenv(kDaemonVariable);
  const std::string_view text = value == nullptr ? "auto" : value;
  DaemonPlaces places;
  if (text == "off") return places;
  if (text == "auto") {
    places.paths = usual_paths();
    std::erase_if(places.paths, [](const std::string& path) { return access(path.c_str(), F_OK) != 0; });
    return places;
  }
  places.required = true;
  if (text.starts_with(kPathPrefix)) places.paths.emplace_back(text.substr(kPathPrefix.size()));
  if (!places.paths.empty() && places.paths.front().starts_with('/')) return places;
  return fail(
      Status::kInvalidArgument,
      fmt::format("{} is '{}': use auto, off or unix:PATH with an absolute path", kDaemonVariable, text));
}

Result<std::shared_ptr<Daemon>> Daemon::connect(const std::string& path) {
  std::shared_ptr<Daemon> daemon(new Daemon(path));
  auto socket = bootstrap::connect_local(path, monotonic_ns() + kConnectPatienceNs);
  if (!socket) return no_connection(path, socket.error());
  GDX_TRY(check_listener(*socket, path));
  daemon->socket_ = std::move(*socket);
  GDX_TRY(daemon->greet());
  try {
    daemon->watcher_ = start_library_thread([raw = daemon.get()] { raw->watch(); });
  } catch (const std::system_error& error) {
    return fail(Status::kNoMemory, fmt::format("no thread for the connection to gdxd: {}", error.what()));
  }
  return daemon;
}

Result<void> Daemon::greet() {
  Hello hello{};
  hello.oldest_version = hello.newest_version = kVersion;
  set_text(hello.program, program_invocation_short_name);
  auto reply = GDX_TRY(call<HelloAnswer>(hello));
  if (reply.files.size() != 1) return fail(Status::kSystem, "gdxd sent no notice socket: restart it");
  limits_ = reply.answer;
  notices_ = std::move(reply.files.front());
  return {};
}

// The watcher's poll ends with this side's own shutdown of the notice socket, too.
Daemon::~Daemon() {
  closing_.store(true);
  if (watcher_.joinable() && !process_.is_here()) {
    watcher_.detach();
  } else if (watcher_.joinable()) {
    ::shutdown(notices_.value(), SHUT_RDWR);
    watcher_.join();
  }
}

tl::unexpected<Error> Daemon::gone() const {
  if (hca_failed_.load()) {
    return fail(Status::kHcaFailed,
                "the HCA is in a fatal error, and this process's objects are lost: open the HCA again once "
                "it is back");
  }
  if (kicked_.load()) {
    return fail(
        Status::kDaemonGone,
        fmt::format("gdxd at {} has kicked this process, and its objects are lost: ask who runs it, then "
                    "open the HCA again",
                    path_));
  }
  return fail(
      Status::kDaemonGone,
      fmt::format("gdxd at {} has ended, and with it this process's objects: start it again, then open "
                  "the HCA again",
                  path_));
}

Result<Daemon::Received> Daemon::exchange(Kind kind, const std::vector<std::byte>& request,
                                          std::span<const int> files) {
  if (!process_.is_here()) {
    return fail(
        Status::kInvalidArgument,
        fmt::format("process {} was forked from process {}, whose connection to gdxd this is: open the HCA "
                    "in the child",
                    getpid(), process_.id()));
  }
  const std::lock_guard lock(call_mutex_);
  if (lost_.load()) return gone();
  const std::uint64_t deadline_ns = monotonic_ns() + kAnswerTimeoutNs;
  const auto sent = bootstrap::send_local(socket_, request, files, deadline_ns);
  // gdxd may have said why it closes.
  const bool may_have_answered = sent || sent.error().status == Status::kPeerGone;
  auto received = may_have_answered ? bootstrap::receive_local(socket_, deadline_ns)
                                    : Result<bootstrap::LocalMessage>(tl::unexpected(sent.error()));
  if (!received) {
    // A late answer would be taken for the next one's. Notices come before gdxd ends a connection.
    (void)read_notices();
    lose();
    return gone();
  }
  Received result{std::move(received->bytes), {}, std::move(received->descriptors)};
  result.message = GDX_TRY(parse_message(result.bytes));
  if (result.message.status != Status::kOk) return tl::unexpected(decode_refusal(result.message));
  if (result.message.kind != kind) {
    lose();
    return fail(Status::kSystem, fmt::format("gdxd at {} answered out of turn: restart it", path_));
  }
  return result;
}

void Daemon::wake() {
  const std::unique_lock lock(call_mutex_, std::try_to_lock);
  if (!lock || lost_.load()) return;
  const std::uint64_t now_ns = monotonic_ns();
  if (now_ns - woken_ns_ < kWakeEveryNs) return;
  woken_ns_ = now_ns;
  (void)bootstrap::send_local(socket_, encode(Kind::kWake, Wake{}), {}, now_ns);
}

std::uint64_t Daemon::on_loss(std::function<void()> act) {
  const std::lock_guard lock(acts_mutex_);
  if (lost_.load()) act();
  acts_.emplace(++last_act_, std::move(act));
  return last_act_;
}

void Daemon::forget(std::uint64_t number) {
  const std::lock_guard lock(acts_mutex_);
  acts_.erase(number);
}

void Daemon::lose() {
  const std::lock_guard lock(acts_mutex_);
  if (lost_.exchange(true)) return;
  log::warn("{}", gone().value().message);
  ::shutdown(socket_.value(), SHUT_RDWR);  // gdxd ends the session, if it lives
  for (const auto& [number, act] : acts_) act();
}

bool Daemon::read_notices() {
  const std::lock_guard lock(notices_mutex_);
  while (!hca_failed_.load() && !kicked_.load()) {
    const auto received = bootstrap::receive_local(notices_, monotonic_ns());
    if (!received) return received.error().status == Status::kTimeout;
    const auto message = parse_message(received->bytes);
    const auto notice =
        message ? parse_body<Notice>(*message) : Result<Notice>(tl::unexpected(message.error()));
    if (!notice) continue;
    log::warn("gdxd tells: {}", text_of(notice->reason));
    hca_failed_.store(notice->event == static_cast<std::uint32_t>(Event::kHcaFailed));
    kicked_.store(notice->event == static_cast<std::uint32_t>(Event::kKicked));
  }
  return false;
}

void Daemon::watch() {
  while (!lost_.load() && !closing_.load()) {
    pollfd ready{notices_.value(), POLLIN, 0};
    if (::poll(&ready, 1, -1) > 0 && !closing_.load() && !read_notices()) lose();
  }
}

Result<MappedPages> map_shared(const Descriptor& file, std::uint64_t offset, std::size_t bytes) {
  void* const mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.value(), static_cast<off_t>(offset));
  if (mapped != MAP_FAILED) return MappedPages(static_cast<std::byte*>(mapped), Unmap{bytes});
  return fail(Status::kNoMemory,
              fmt::format("cannot map {} bytes of a shared file: {}", bytes, std::strerror(errno)));
}

Result<std::string> read_text(const Reply<StatisticsAnswer>& reply) {
  if (reply.files.size() != 1) return fail(Status::kSystem, "gdxd's answer holds no file: restart it");
  std::string text(std::min<std::uint64_t>(reply.answer.bytes, kMaxTextBytes), '\0');
  if (::pread(reply.files.front().value(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()))
    return text;
  return fail(Status::kSystem, "the file of gdxd's answer cannot be read: restart it");
}

}  // namespace gdx::ipc
