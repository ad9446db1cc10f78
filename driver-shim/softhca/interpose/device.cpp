#include "driver-shim/softhca/interpose/device.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/log.h"
#include "driver-shim/softhca/engine/guarded_access.h"
#include "driver-shim/softhca/engine/planted_fault.h"
#include "driver-shim/softhca/interpose/fault_signals.h"
#include "driver-shim/softhca/interpose/netlink_sockets.h"
#include "driver-shim/softhca/uverbs/cancellation.h"
#include "driver-shim/softhca/uverbs/config.h"
#include "driver-shim/softhca/uverbs/methods.h"
#include "driver-shim/softhca/uverbs/poll_policy.h"
#include "driver-shim/softhca/uverbs/real.h"
#include "driver-shim/softhca/uverbs/user_memory.h"

namespace gdx::softhca::uverbs {
namespace {

constexpr std::uint64_t kExitLimitNs = 50'000'000;  // for each thing that the end of the process waits for
constexpr std::uint64_t kQuietNs = 2'000'000;
constexpr std::uint64_t kHousekeepingNs = 10'000'000;  // between checks for contexts that have ended

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
void let_finish(const Adapters& adapters) {
  const std::uint64_t start_ns = monotonic_ns();
  std::uint64_t last_work_ns = start_ns;
  for (std::uint64_t now_ns = start_ns; now_ns - start_ns < kExitLimitNs && now_ns - last_work_ns < kQuietNs;
       now_ns = monotonic_ns()) {
    int done = 0;
    for (const auto& adapter : adapters) done += adapter->hca->progress();
    if (done > 0) {
      last_work_ns = now_ns;
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

// Notifies the peers of connections that the program has left open. The message may be lost.
void say_goodbye(RdmaCm& connections, const Adapters& adapters) {
  constexpr int kAttempts = 4;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::optional<std::size_t> unconfirmed;
    within_limit([&] { return (unconfirmed = connections.try_say_goodbye(monotonic_ns())).has_value(); });
    let_finish(adapters);
    if (unconfirmed.value_or(0) == 0) return;
  }
}

// Checks for free descriptors first, so that a failure leaves nothing behind. Later failures would name no
// cause: libibverbs finds no device, a copy is a bad address.
Result<void> check_room(std::size_t hcas) {
  constexpr std::size_t kOfTheDevice = 2;  // the tree's lock, copies from the program
  constexpr std::size_t kOfAnHca = 2;      // the descriptors that wake its thread
  constexpr std::size_t kOfAProgram = 8;  // a context with its events, a completion channel, folders it lists
  const std::size_t needed = hcas * kOfAnHca + kOfTheDevice + kOfAProgram;
  std::vector<Descriptor> tried;
  while (tried.size() < needed) {
    const int source = tried.empty() ? memfd_create("gdx-softhca-room", MFD_CLOEXEC)
                                     : fcntl(tried.front().value(), F_DUPFD_CLOEXEC, 0);
    if (source < 0) {
      return fail(
          Status::kNoMemory,
          fmt::format("{} more open files are needed and {} may be opened ({}): raise the limit (ulimit "
                      "-n) by {}",
                      needed, tried.size(), std::strerror(errno), needed - tried.size()));
    }
    tried.emplace_back(source);
  }
  tried.clear();
  char from = 0;
  char to = 0;
  static_cast<void>(
      copy_from_user(&to, reinterpret_cast<std::uintptr_t>(&from), sizeof to));  // makes its file
  return {};
}

}  // namespace

namespace {

// Costs a system call once in a thread, because mask_signals() keeps what it has done.
void guard_this_thread() {
  thread_local bool guarded = false;
  if (!guarded) guarded = unblock_faults();
}

std::atomic<bool> instance_made{false};
[[maybe_unused]] const int watches_forks = pthread_atfork(nullptr, nullptr, [] {
  if (Device::exists()) Device::instance().after_fork_in_child();
});
}  // namespace

Device& Device::instance() {
  static Device* const device = new Device;
  instance_made.store(true, std::memory_order_relaxed);
  return *device;
}

bool Device::exists() { return instance_made.load(std::memory_order_relaxed); }

Result<std::unique_ptr<Device::Parts>> Device::make_parts_or_error() {
  try {
    return make_parts();
  } catch (const std::exception& error) {  // no thread, or no memory
    return fail(Status::kNoMemory, fmt::format("{}; raise the limits on processes, memory and open files "
                                               "(ulimit -u, -v, -n)",
                                               error.what()));
  }
}

Result<std::unique_ptr<Device::Parts>> Device::make_parts() {
  const auto config = GDX_TRY(config_from([](const char* name) { return std::getenv(name); }, getpid()));
  planted_fault = config.fault;
  if (planted_fault != PlantedFault::kNone)
    log::warn("the software HCAs of this process have a planted fault: GDX_SOFTHCA_FAULT={}",
              std::getenv("GDX_SOFTHCA_FAULT"));
  auto parts = std::make_unique<Parts>();
  parts->adapters = GDX_TRY(open_adapters(config));
  std::vector<Hca*> hcas;
  GDX_TRY(check_room(parts->adapters.size()));
  for (const auto& adapter : parts->adapters) {
    hcas.push_back(adapter->hca.get());
  }
  parts->tree = GDX_TRY(SysfsTree::create(hcas));
  parts->inventory = std::make_unique<InventoryFile>(parts->tree->root());
  parts->counters = std::make_unique<CountersFile>(config.counters_path);
  parts->connections = std::make_unique<RdmaCm>(hcas, system_random());
  for (std::size_t i = 0; i < hcas.size(); ++i) {
    parts->threads.push_back(std::make_unique<EngineThread>(
        *hcas[i], driven_at_ns_, [this] { run_housekeeping(); },
        [this, i, hca = hcas[i]]() mutable { running_[i].compare_exchange_strong(hca, nullptr); }));
  }
  return parts;
}

void Device::abandon_parts() {
  parts_->abandoned_before = abandoned_;
  abandoned_ = parts_.release();
}

// Abandons parts that the program closed by system calls of its own. Uses nothing of them any more but the
// tree, because the numbers of their descriptors may belong to other files.
void Device::abandon_lost_parts_locked() {
  const auto& threads = parts_->threads;
  const bool wire_lost =
      std::ranges::any_of(parts_->adapters, [](const auto& adapter) { return adapter->hca->wire_is_lost(); });
  const bool file_lost =
      std::ranges::any_of(parts_->contexts, [](const auto& entry) { return !entry.second->pages.refers(); });
  if (!wire_lost && !file_lost) return;
  for (std::atomic<Hca*>& running : running_) running.store(nullptr);
  connections_.store(nullptr);
  for (const auto& thread : threads) static_cast<void>(thread->stop(kExitLimitNs));
  parts_->tree.reset();
  abandon_parts();
  {
    const std::lock_guard lock(channels_mutex_);
    for (const auto& [fd, channel] : channels_) channel->user_closed();
    channels_.clear();
  }
  state_ = State::kUntouched;
}

bool Device::ensure_locked() {
  if (state_ == State::kReady) abandon_lost_parts_locked();
  if (state_ != State::kUntouched) return state_ == State::kReady;
  Result<std::unique_ptr<Parts>> parts = make_parts_or_error();
  if (!parts) {
    state_ = State::kFailed;
    log::error("software HCA: {}", parts.error().message);
    return false;
  }
  parts_ = std::move(*parts);
  owner_pid_.store(getpid());
  connections_.store(parts_->connections.get());
  state_ = State::kReady;
  for (const auto& adapter : parts_->adapters) {
    log::info("software HCA {} at {}", adapter->hca->config().name, adapter->hca->address().text());
  }
  return true;
}

// By process id, and not by a note of fork's: a child of vfork runs in its parent's memory.
bool Device::in_child() const {
  const pid_t owner_pid = owner_pid_.load();
  return owner_pid != 0 && owner_pid != getpid();
}

// A child has the memory but not the threads, and would answer with its parent's address: it begins anew.
// Objects of the parent stay, and are still its own; the descriptors of them that the child has are of no
// device. One whose fork met a call that did not end, as where a signal's handler forks in it, is refused.
void Device::after_fork_in_child() {
  for (std::atomic<Hca*>& running : running_) running.store(nullptr);
  connections_.store(nullptr);
  progressing_.store(0);
  commanding_.store(0);
  begin_guard_in_child();
  if (!ForkMutex::fork_had_all() || state_ != State::kReady) return;
  parts_->channels = std::move(channels_);
  channels_.clear();
  abandon_parts();
  state_ = State::kUntouched;
  owner_pid_.store(0);
}

std::string Device::files_root() {
  if (in_child() || planted_fault == PlantedFault::kNoDevice) return {};
  const CancellationOff uncancelled;
  const std::lock_guard lock(mutex_);
  return ensure_locked() ? parts_->tree->root() : std::string{};
}

ErrnoOr<int> Device::open_node(std::uint8_t hca, bool close_on_exec) {
  if (in_child()) return refuse(ENODEV);
  const CancellationOff uncancelled;
  const std::lock_guard lock(mutex_);
  if (!ensure_locked()) return refuse(EINVAL);
  if (hca >= parts_->adapters.size()) return refuse(ENOENT);
  take_fault_signals();
  Adapter& adapter = *parts_->adapters[hca];
  drop_ended_contexts_locked(0);
  const std::uint32_t number = ++last_context_;
  ErrnoOr<PageFile> pages = PageFile::create(adapter.device_memory);
  if (!pages) return refuse(pages.error());
  // Allocates first, because a failed allocation would leave an opened file behind.
  const auto place =
      parts_->contexts.emplace(number, std::make_unique<Context>(*adapter.hca, std::move(*pages), *this))
          .first;
  const PageFile& file = place->second->pages;
  const DeviceFile role{FileKind::kNode, hca, number};
  const ErrnoOr<PageFile::Opened> opened = file.open(close_on_exec);
  if (!opened || !track_file(opened->fd, role)) {
    if (opened) real_close(opened->fd);
    parts_->contexts.erase(place);
    return refuse(opened ? EMFILE : opened.error());
  }
  announce_open(identity_of(file.fd()), role);
  place->second->counted = opened->counted;
  show_touched(*parts_->inventory, hca, number, *place->second);
  park_unused_locked();
  return opened->fd;
}

Errno Device::request(int fd, std::uint64_t request_address) {
  if (in_child()) return ENODEV;
  const CancellationOff uncancelled;
  guard_this_thread();
  const std::lock_guard lock(mutex_);
  if (state_ != State::kReady) return ENODEV;
  const DeviceFile file = tracked_file(fd);
  const auto found = parts_->contexts.find(file.context);
  if (found == parts_->contexts.end()) return ENODEV;  // the parent's
  try {
    const Errno error = dispatch(*found->second, request_address);
    show_touched(*parts_->inventory, file.hca, file.context, *found->second);
    return error;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

// Untracks before the close, so that no later file at the number counts as the old one.
int Device::close(int fd) {
  const DeviceFile file = tracked_file(fd);
  if (in_child()) return real_close(fd);
  const CancellationOff uncancelled;
  track_file(fd, {});
  if (file.kind == FileKind::kEvents) forget_channel(fd);
  if (file.kind == FileKind::kConnections) {
    const std::lock_guard lock(mutex_);
    try {
      if (state_ == State::kReady) parts_->connections->close_file(fd);
    } catch (const std::bad_alloc&) {  // peers detect the end by their timeouts
    }
  }
  const int result = real_close(fd);
  const int error = errno;
  if (file.kind == FileKind::kNetlink) NetlinkSockets::instance().drop_closed();
  if (file.kind == FileKind::kNode || file.kind == FileKind::kConnections) {
    // After the close: of several threads that close the last descriptors of an open, the last one finds it
    // ended.
    const std::lock_guard lock(mutex_);
    if (state_ == State::kReady) {
      drop_ended_contexts_locked(file.context, fd);
      park_unused_locked();
    }
  }
  errno = error;
  return result;
}

// Drops ended contexts. A context lives while any descriptor or mapping refers to it, duplicates too.
void Device::drop_ended_contexts_locked(std::uint32_t closed_context, int closed) {
  std::erase_if(parts_->contexts, [closed_context, closed](const auto& entry) {
    const auto& [number, context] = entry;
    const bool is_shared = context->shared_number >= 0;
    const bool ended = context->counted && !is_shared
                           ? !context->pages.is_open()
                           : number == closed_context && (!is_shared || closed == context->shared_number);
    if (ended) forget_open(identity_of(context->pages.fd()));
    return ended;
  });
}

// Drops contexts that have ended. Opens end behind this library's back too: by close_range and dup2, by
// system calls, by a mapping that is undone, with a process that has inherited them.
void Device::run_housekeeping() {
  flush_channels();
  const std::uint64_t now_ns = monotonic_ns();
  if (now_ns - housekept_ns_.load(std::memory_order_relaxed) < kHousekeepingNs) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || state_ != State::kReady) return;
  housekept_ns_.store(now_ns, std::memory_order_relaxed);
  drop_ended_contexts_locked(0);
  park_unused_locked();
  show_failures_locked();
  parts_->counters->keep(parts_->adapters, now_ns);
}

// Shows queue pairs anew that have failed meanwhile.
void Device::show_failures_locked() {
  for (std::size_t i = 0; i < parts_->adapters.size(); ++i) {
    const Hca& hca = *parts_->adapters[i]->hca;
    const std::uint64_t failures = hca.failed_queue_pairs();
    if (std::exchange(parts_->failures_shown[i], failures) == failures) continue;
    for (const auto& [number, context] : parts_->contexts) {
      if (&context->hca != &hca) continue;
      context->objects.touch_queue_pairs();
      show_touched(*parts_->inventory, static_cast<std::uint8_t>(i), number, *context);
    }
  }
}

std::vector<HcaInventory> Device::inventory() {
  if (in_child()) return {};
  const CancellationOff uncancelled;
  const std::lock_guard lock(mutex_);
  if (!ensure_locked()) return {};
  std::vector<HcaInventory> all;
  for (const auto& adapter : parts_->adapters) {
    Hca& hca = *adapter->hca;
    HcaInventory& own =
        all.emplace_back(HcaInventory{hca.config().name, hca.address(), counter_values(hca.counters()), {}});
    for (const auto& [number, context] : parts_->contexts) {
      if (&context->hca == &hca) append_resources(number, *context, own.resources);
    }
  }
  return all;
}

// An HCA is in use while it is open, and all are while connections may be made: a program that listens does
// so on every one.
void Device::park_unused_locked() {
  const bool connecting = parts_->connections->in_use();
  for (std::size_t i = 0; i < parts_->adapters.size(); ++i) {
    Hca* const hca = parts_->adapters[i]->hca.get();
    const bool open = connecting || std::ranges::any_of(parts_->contexts, [hca](const auto& entry) {
                        return &entry.second->hca == hca;
                      });
    const bool used = open && !parts_->threads[i]->lost();
    if ((running_[i].load() != nullptr) == used) continue;
    running_[i].store(used ? hca : nullptr);
    parts_->threads[i]->set_parked(!used);
  }
}

ErrnoOr<int> Device::open_connections(int flags) {
  if (in_child()) return refuse(ENODEV);
  const CancellationOff uncancelled;
  const std::lock_guard lock(mutex_);
  if (!ensure_locked()) return refuse(ENODEV);
  const ErrnoOr<int> fd = parts_->connections->open_file(flags);
  if (!fd) return fd;
  if (!track_file(*fd, {FileKind::kConnections})) {
    parts_->connections->close_file(*fd);
    real_close(*fd);
    return refuse(EMFILE);
  }
  park_unused_locked();
  return fd;
}

// Passes a command on without the device lock, because the command may wait for an event.
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
  const Errno error = connections == nullptr ? ENODEV : connections->command(fd, address, length_bytes);
  return error == EBADF ? ENODEV : error;  // the parent's
}

void Device::refresh_counters() {
  if (in_child()) return;
  const CancellationOff uncancelled;
  const std::lock_guard lock(mutex_);
  if (state_ != State::kReady) return;
  for (const auto& adapter : parts_->adapters) {
    parts_->tree->write_counters(*adapter->hca, adapter->hca->counters());
  }
}

ErrnoOr<FlightRecord> Device::read_flight(std::string_view path) {
  const std::size_t folder = path.find(kFlightFolder);
  if (in_child() || planted_fault == PlantedFault::kDisguised || folder == std::string_view::npos)
    return refuse(ENOENT);
  const std::string_view device_path = path.substr(0, folder);
  const std::string_view device_name = device_path.substr(device_path.rfind('/') + 1);
  std::string_view number = path.substr(folder + sizeof kFlightFolder - 1);
  if (!number.starts_with("0x")) return refuse(ENOENT);
  number.remove_prefix(2);
  std::uint32_t qpn = 0;
  const auto [rest, error] = std::from_chars(number.data(), number.data() + number.size(), qpn, 16);
  if (error != std::errc{} || rest != number.data() + number.size()) return refuse(ENOENT);
  const std::lock_guard lock(mutex_);
  if (state_ != State::kReady) return refuse(ENOENT);
  for (const auto& adapter : parts_->adapters) {
    if (adapter->hca->config().name != device_name) continue;
    if (auto record = adapter->hca->read_flight(qpn)) return record;
  }
  return refuse(ENOENT);
}

Descriptor Device::make_flight_file(std::string_view path) {
  const CancellationOff uncancelled;
  const auto record = read_flight(path);
  if (!record) {
    errno = record.error();
    return {};
  }
  const std::string text = encode_flight(*record);
  Descriptor file(::memfd_create("softhca_flight", MFD_CLOEXEC));
  if (file && ::write(file.value(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) return {};
  return file;
}

std::vector<HcaIdentity> Device::identities() {
  if (in_child()) return {};
  const CancellationOff uncancelled;
  const std::lock_guard lock(mutex_);
  if (!ensure_locked()) return {};
  std::vector<HcaIdentity> all;
  for (const auto& adapter : parts_->adapters) {
    all.push_back({adapter->hca->config().name, adapter->hca->address()});
  }
  return all;
}

int Device::raise(int event) {
  if (in_child()) return 0;
  const CancellationOff uncancelled;
  const std::lock_guard lock(mutex_);
  if (!ensure_locked()) return 0;
  constexpr std::uint64_t kPort = 1;
  int told = 0;
  for (const auto& [number, context] : parts_->contexts) {
    if (context->asyncs == nullptr) continue;
    context->asyncs->push_async(kPort, static_cast<std::uint32_t>(event));
    ++told;
  }
  return told;
}

void Device::share(int fd) {
  if (in_child()) return;
  const CancellationOff uncancelled;
  const std::lock_guard lock(mutex_);
  if (state_ != State::kReady) return;
  const auto found = parts_->contexts.find(tracked_file(fd).context);
  if (found != parts_->contexts.end()) found->second->shared_number = fd;
}

void Device::wake() {
  if (in_child()) return;
  const CancellationOff uncancelled;
  const std::lock_guard lock(mutex_);
  if (!ensure_locked()) return;
  for (const auto& thread : parts_->threads) thread->rouse();
}

int Device::progress() {
  const CancellationOff uncancelled;
  guard_this_thread();
  // Counted in before a pointer is read, so that shut_down can wait for whoever may hold one.
  progressing_.fetch_add(1);
  driven_at_ns_.store(monotonic_ns(), std::memory_order_relaxed);
  int done = 0;
  for (const std::atomic<Hca*>& running : running_) {
    if (Hca* const hca = running.load(); hca != nullptr) done += hca->progress();
  }
  progressing_.fetch_sub(1);
  return done;
}

int Device::progress_of_waiter() {
  thread_local PollPolicy policy;
  if (policy.is_due()) {
    const std::uint64_t begun_ns = monotonic_ns();
    sched_yield();
    policy.on_yielded(monotonic_ns() - begun_ns);
  }
  const int done = progress();
  policy.on_step(done > 0);
  return done;
}

// The process may end in a signal handler that interrupted this very thread inside the engine or a method
// here: every wait here ends, and what may still be in use stays where it is.
void Device::shut_down() {
  if (in_child()) return;
  const CancellationOff uncancelled;
  std::unique_lock lock(mutex_, std::defer_lock);
  if (!within_limit([&lock] { return lock.try_lock(); }) || state_ != State::kReady) return;
  state_ = State::kClosed;
  bool free = true;
  for (const auto& thread : parts_->threads) free = thread->stop(kExitLimitNs) && free;
  say_goodbye(*parts_->connections, parts_->adapters);
  for (std::atomic<Hca*>& running : running_) running.store(nullptr);
  connections_.store(nullptr);
  free = within_limit([this] { return progressing_.load() == 0; }) && free;
  free = commanding_.load() == 0 && free;  // one that waits for an event will not end
  if (free) {
    parts_->counters->write(parts_->adapters);
    parts_.reset();
  } else {
    parts_->tree.reset();
    abandon_parts();
  }
}

}  // namespace gdx::softhca::uverbs
