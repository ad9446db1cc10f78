#include "driver-shim/softhca/uverbs/device.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "driver-shim/softhca/uverbs/config.h"
#include "driver-shim/softhca/uverbs/file_identity.h"
#include "driver-shim/softhca/uverbs/methods.h"
#include "driver-shim/softhca/uverbs/real.h"

namespace gdx::softhca::uverbs {
namespace {

constexpr std::size_t kTrackedFiles = 1 << 16;
struct TrackedFile {
  std::atomic<FileKind> kind{FileKind::kForeign};
  std::atomic<dev_t> device{0};
  std::atomic<ino_t> inode{0};
};
std::array<TrackedFile, kTrackedFiles> tracked_files;

bool track(int fd, FileKind kind) {
  if (fd < 0 || static_cast<std::size_t>(fd) >= kTrackedFiles) return false;
  TrackedFile& file = tracked_files[static_cast<std::size_t>(fd)];
  const FileIdentity identity = kind == FileKind::kForeign ? FileIdentity{} : identity_of(fd);
  file.device.store(identity.device, std::memory_order_relaxed);
  file.inode.store(identity.inode, std::memory_order_relaxed);
  file.kind.store(kind, std::memory_order_release);
  return true;
}

constexpr std::uint64_t kExitLimitNs = 50'000'000;  // for each thing that the end of the process waits for
constexpr std::uint64_t kQuietNs = 2'000'000;

// Tries `attempt` until it succeeds. False: it has not in kExitLimitNs.
template <typename Attempt>
bool within_limit(Attempt attempt) {
  const std::uint64_t start_ns = monotonic_ns();
  while (!attempt()) {
    if (monotonic_ns() - start_ns > kExitLimitNs) return false;
    std::this_thread::yield();
  }
  return true;
}

// A peer may still wait for the acknowledgement of what it sent last.
void let_finish(Hca& hca) {
  const std::uint64_t start_ns = monotonic_ns();
  std::uint64_t last_work_ns = start_ns;
  for (std::uint64_t now_ns = start_ns; now_ns - start_ns < kExitLimitNs && now_ns - last_work_ns < kQuietNs;
       now_ns = monotonic_ns()) {
    if (hca.progress() > 0) {
      last_work_ns = now_ns;
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

// The peers of connections that the program has left open learn of its end. A goodbye may be lost.
void say_goodbye(RdmaCm& connections, Hca& hca) {
  constexpr int kAttempts = 4;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::optional<std::size_t> unconfirmed;
    within_limit([&] { return (unconfirmed = connections.try_say_goodbye(monotonic_ns())).has_value(); });
    let_finish(hca);
    if (unconfirmed.value_or(0) == 0) return;
  }
}

}  // namespace

namespace {
std::atomic<bool> instance_made{false};
}  // namespace

Device& Device::instance() {
  static Device* const device = new Device;
  instance_made.store(true, std::memory_order_relaxed);
  return *device;
}

bool Device::exists() { return instance_made.load(std::memory_order_relaxed); }

FileKind Device::file_kind(int fd) {
  if (fd < 0 || static_cast<std::size_t>(fd) >= kTrackedFiles) return FileKind::kForeign;
  const TrackedFile& file = tracked_files[static_cast<std::size_t>(fd)];
  const FileKind kind = file.kind.load(std::memory_order_acquire);
  if (kind == FileKind::kForeign) return kind;
  const FileIdentity tracked{file.device.load(std::memory_order_relaxed),
                             file.inode.load(std::memory_order_relaxed)};
  return identity_of(fd) == tracked ? kind : FileKind::kForeign;
}

Result<std::unique_ptr<Device::Parts>> Device::make_parts() {
  const Result<HcaConfig> config = config_from([](const char* name) { return std::getenv(name); }, getpid());
  if (!config) return tl::unexpected(config.error());
  Answer<PageFile> pages = PageFile::create(config->device_memory_bytes);
  if (!pages) {
    return fail(Status::kSystem,
                fmt::format("cannot make the device's memory file: {}", std::strerror(pages.error())));
  }
  auto parts = std::make_unique<Parts>(std::move(*pages));
  Result<std::unique_ptr<Hca>> hca = open_hca(*config, parts->pages.device_memory());
  if (!hca) return tl::unexpected(hca.error());
  parts->hca = std::move(*hca);
  Result<std::unique_ptr<SysfsTree>> tree = SysfsTree::create(*parts->hca);
  if (!tree) return tl::unexpected(tree.error());
  parts->tree = std::move(*tree);
  std::random_device entropy;
  parts->connections = std::make_unique<RdmaCm>(std::vector<Hca*>{parts->hca.get()}, entropy());
  parts->thread = std::make_unique<EngineThread>(*parts->hca, driven_at_ns_, [this] { flush_channels(); });
  return parts;
}

bool Device::ensure_locked() {
  if (state_ != State::kUntouched) return state_ == State::kReady;
  Result<std::unique_ptr<Parts>> parts = make_parts();
  if (!parts) {
    state_ = State::kFailed;
    log::error("software HCA: {}", parts.error().message);
    return false;
  }
  static const int watches_forks = pthread_atfork(nullptr, nullptr, [] { instance().after_fork(); });
  static_cast<void>(watches_forks);
  parts_ = std::move(*parts);
  owner_pid_.store(getpid());
  running_.store(parts_->hca.get());
  connections_.store(parts_->connections.get());
  state_ = State::kReady;
  log::info("software HCA {} at {}", parts_->hca->config().name, parts_->hca->address().text());
  return true;
}

// By process id, and not by a note of fork's: a child of vfork runs in its parent's memory.
bool Device::in_child() const {
  const pid_t owner_pid = owner_pid_.load();
  return owner_pid != 0 && owner_pid != getpid();
}

// A child has the memory but not the thread, and would answer with its parent's address: it is refused.
// One whose parent had nothing open begins anew; what the parent made stays, it is still the parent's.
void Device::after_fork() {
  running_.store(nullptr);
  connections_.store(nullptr);
  progressing_.store(0);
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || state_ != State::kReady || !parts_->contexts.empty()) return;
  if (parts_->connections->in_use()) return;
  static_cast<void>(parts_.release());
  state_ = State::kUntouched;
  owner_pid_.store(0);
}

std::string Device::files_root() {
  if (in_child()) return {};
  const std::lock_guard lock(mutex_);
  return ensure_locked() ? parts_->tree->root() : std::string{};
}

Answer<int> Device::open_node(bool close_on_exec) {
  if (in_child()) return refuse(ENODEV);
  const std::lock_guard lock(mutex_);
  if (!ensure_locked()) return refuse(EINVAL);
  const Answer<int> fd = parts_->pages.duplicate(close_on_exec);
  if (!fd) return fd;
  if (!track(*fd, FileKind::kNode)) {
    real_close(*fd);
    return refuse(EMFILE);
  }
  // A context of this number is left where its descriptor was closed behind our back.
  parts_->contexts.insert_or_assign(*fd, std::make_unique<Context>(*parts_->hca, parts_->pages, *this));
  parts_->thread->set_parked(false);
  return fd;
}

Errno Device::request(int fd, std::uint64_t request_address) {
  if (in_child()) return ENODEV;
  const std::lock_guard lock(mutex_);
  if (state_ != State::kReady) return ENODEV;
  const auto found = parts_->contexts.find(fd);
  if (found == parts_->contexts.end()) return EBADF;
  return dispatch(*found->second, request_address);
}

void Device::before_close(int fd) {
  if (in_child()) return;
  const FileKind kind = file_kind(fd);
  track(fd, FileKind::kForeign);
  if (kind == FileKind::kEvents) {
    const std::lock_guard lock(channels_mutex_);
    const auto found = channels_.find(fd);
    if (found == channels_.end()) return;
    found->second->user_closed();
    channels_.erase(found);
  } else if (kind == FileKind::kNode) {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kReady) return;
    parts_->contexts.erase(fd);
    park_if_unused_locked();
  } else if (kind == FileKind::kConnections) {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kReady) return;
    parts_->connections->close_file(fd);
    park_if_unused_locked();
  }
}

void Device::park_if_unused_locked() {
  if (parts_->contexts.empty() && !parts_->connections->in_use()) parts_->thread->set_parked(true);
}

Answer<int> Device::open_connections(bool close_on_exec) {
  if (in_child()) return refuse(ENODEV);
  const std::lock_guard lock(mutex_);
  if (!ensure_locked()) return refuse(ENODEV);
  const Answer<int> fd = parts_->connections->open_file(close_on_exec);
  if (!fd) return fd;
  if (!track(*fd, FileKind::kConnections)) {
    parts_->connections->close_file(*fd);
    real_close(*fd);
    return refuse(EMFILE);
  }
  parts_->thread->set_parked(false);
  return fd;
}

// Without the device lock: a command may wait for an event.
Errno Device::write_connections(int fd, std::uint64_t address, std::size_t length_bytes) {
  if (in_child()) return ENODEV;
  // Undone too where the thread is cancelled while it waits.
  struct Counted {
    explicit Counted(std::atomic<int>& inside) : count(inside) { count.fetch_add(1); }
    ~Counted() { count.fetch_sub(1); }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;
    std::atomic<int>& count;
  } const counted(commanding_);
  RdmaCm* const connections = connections_.load();
  return connections == nullptr ? ENODEV : connections->command(fd, address, length_bytes);
}

void Device::refresh_counters() {
  if (in_child()) return;
  const std::lock_guard lock(mutex_);
  if (state_ == State::kReady) parts_->tree->write_counters(parts_->hca->counters());
}

std::vector<HcaIdentity> Device::identities() {
  if (in_child()) return {};
  const std::lock_guard lock(mutex_);
  if (!ensure_locked()) return {};
  return {{parts_->hca->config().name, parts_->hca->address()}};
}

int Device::progress() {
  // Counted in before the pointer is read, so that shut_down can wait for whoever may hold it.
  progressing_.fetch_add(1);
  driven_at_ns_.store(monotonic_ns(), std::memory_order_relaxed);
  Hca* const hca = running_.load();
  const int done = hca == nullptr ? 0 : hca->progress();
  progressing_.fetch_sub(1);
  return done;
}

// The end of the process may come from a signal handler that interrupted this very thread inside the
// engine or a method of ours: every wait here ends, and what may still be in use stays where it is.
void Device::shut_down() {
  if (in_child()) return;
  std::unique_lock lock(mutex_, std::defer_lock);
  if (!within_limit([&lock] { return lock.try_lock(); }) || state_ != State::kReady) return;
  state_ = State::kClosed;
  bool free = parts_->thread->stop(kExitLimitNs);
  say_goodbye(*parts_->connections, *parts_->hca);
  running_.store(nullptr);
  connections_.store(nullptr);
  free = within_limit([this] { return progressing_.load() == 0; }) && free;
  free = commanding_.load() == 0 && free;  // one that waits for an event will not end
  if (free) {
    parts_.reset();
  } else {
    parts_->tree.reset();
    static_cast<void>(parts_.release());
  }
}

Answer<std::shared_ptr<EventChannel>> Device::open_channel() {
  Answer<std::shared_ptr<EventChannel>> channel = EventChannel::open();
  if (!channel) return channel;
  const int fd = (*channel)->user_fd();
  if (!track(fd, FileKind::kEvents)) {
    real_close(fd);
    return refuse(EMFILE);
  }
  const std::lock_guard lock(channels_mutex_);
  std::shared_ptr<EventChannel>& known = channels_[fd];
  if (known) known->user_closed();  // its descriptor was closed behind our back
  known = *channel;
  return channel;
}

Answer<std::shared_ptr<EventChannel>> Device::find_channel(int user_fd) {
  const std::lock_guard lock(channels_mutex_);
  const auto found = channels_.find(user_fd);
  if (found == channels_.end()) return refuse(EBADF);
  return found->second;
}

void Device::flush_channels() {
  const std::lock_guard lock(channels_mutex_);
  for (const auto& [fd, channel] : channels_) channel->flush();
}

}  // namespace gdx::softhca::uverbs
