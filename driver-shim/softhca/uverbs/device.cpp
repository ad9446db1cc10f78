#include "driver-shim/softhca/uverbs/device.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "driver-shim/softhca/uverbs/config.h"
#include "driver-shim/softhca/uverbs/methods.h"
#include "driver-shim/softhca/uverbs/real.h"

namespace gdx::softhca::uverbs {
namespace {

constexpr std::size_t kTrackedFiles = 1 << 16;
std::array<std::atomic<FileKind>, kTrackedFiles> file_kinds{};

bool track(int fd, FileKind kind) {
  if (fd < 0 || static_cast<std::size_t>(fd) >= kTrackedFiles) return false;
  file_kinds[static_cast<std::size_t>(fd)].store(kind, std::memory_order_release);
  return true;
}

constexpr std::uint64_t kFlushLimitNs = 50'000'000;
constexpr std::uint64_t kQuietNs = 2'000'000;

// A peer may still wait for the acknowledgement of what it sent last.
void let_finish(Hca& hca) {
  const std::uint64_t start_ns = monotonic_ns();
  std::uint64_t last_work_ns = start_ns;
  for (std::uint64_t now_ns = start_ns; now_ns - start_ns < kFlushLimitNs && now_ns - last_work_ns < kQuietNs;
       now_ns = monotonic_ns()) {
    if (hca.progress() > 0) {
      last_work_ns = now_ns;
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

}  // namespace

Device& Device::instance() {
  static Device* const device = new Device;
  return *device;
}

FileKind Device::file_kind(int fd) {
  if (fd < 0 || static_cast<std::size_t>(fd) >= kTrackedFiles) return FileKind::kForeign;
  return file_kinds[static_cast<std::size_t>(fd)].load(std::memory_order_acquire);
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
  parts->thread = std::make_unique<EngineThread>(*parts->hca, outside_steps_, [this] { flush_channels(); });
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
  // A child has the memory but not the thread, and would answer with its parent's address.
  pthread_atfork(nullptr, nullptr, [] {
    instance().in_forked_child_.store(true);
    instance().running_.store(nullptr);
  });
  parts_ = std::move(*parts);
  running_.store(parts_->hca.get());
  state_ = State::kReady;
  log::info("software HCA {} at {}", parts_->hca->config().name, parts_->hca->address().text());
  return true;
}

std::string Device::files_root() {
  if (in_forked_child_.load()) return {};
  const std::lock_guard lock(mutex_);
  return ensure_locked() ? parts_->tree->root() : std::string{};
}

Answer<int> Device::open_node(bool close_on_exec) {
  if (in_forked_child_.load()) return refuse(ENODEV);
  const std::lock_guard lock(mutex_);
  if (!ensure_locked()) return refuse(EINVAL);
  const Answer<int> fd = parts_->pages.duplicate(close_on_exec);
  if (!fd) return fd;
  if (!track(*fd, FileKind::kNode)) {
    real_close(*fd);
    return refuse(EMFILE);
  }
  parts_->contexts.emplace(*fd, std::make_unique<Context>(*parts_->hca, parts_->pages, *this));
  parts_->thread->set_parked(false);
  return fd;
}

Errno Device::request(int fd, std::uint64_t request_address) {
  if (in_forked_child_.load()) return ENODEV;
  const std::lock_guard lock(mutex_);
  if (state_ != State::kReady) return ENODEV;
  const auto found = parts_->contexts.find(fd);
  if (found == parts_->contexts.end()) return EBADF;
  return dispatch(*found->second, request_address);
}

void Device::before_close(int fd) {
  const FileKind kind = file_kind(fd);
  track(fd, FileKind::kForeign);
  if (in_forked_child_.load()) return;
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
    if (parts_->contexts.empty()) parts_->thread->set_parked(true);
  }
}

void Device::refresh_counters() {
  if (in_forked_child_.load()) return;
  const std::lock_guard lock(mutex_);
  if (state_ == State::kReady) parts_->tree->write_counters(parts_->hca->counters());
}

int Device::progress() {
  // Counted in before the pointer is read, so that shut_down can wait for whoever may hold it.
  progressing_.fetch_add(1);
  outside_steps_.fetch_add(1, std::memory_order_relaxed);
  Hca* const hca = running_.load();
  const int done = hca == nullptr ? 0 : hca->progress();
  progressing_.fetch_sub(1);
  return done;
}

void Device::shut_down() {
  if (in_forked_child_.load()) return;
  const std::lock_guard lock(mutex_);
  if (state_ != State::kReady) return;
  state_ = State::kClosed;
  parts_->thread.reset();
  let_finish(*parts_->hca);
  running_.store(nullptr);
  const std::uint64_t start_ns = monotonic_ns();
  while (progressing_.load() != 0) {
    if (monotonic_ns() - start_ns > kFlushLimitNs) {
      static_cast<void>(parts_.release());  // a thread is stuck in the engine: leave everything where it is
      return;
    }
    std::this_thread::yield();
  }
  parts_.reset();
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
  channels_[fd] = *channel;
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
