#include "host/plugins/nccl/context.h"

#include <fmt/format.h>

#include <set>

#include "host/plugins/nccl/log.h"

namespace gdx::nccl {
namespace {

// Stops the keeper when the process ends, because communicators that are still open keep it, and what their
// turns use ends next.
struct SharedKeeper {
  std::mutex mutex;
  std::weak_ptr<messaging::Keeper> keeper;
  ~SharedKeeper() {
    if (const auto kept = keeper.lock()) kept->stop();
  }
};

// One thread of this process, while anything needs turns.
std::shared_ptr<messaging::Keeper> shared_keeper() {
  static SharedKeeper shared;
  const std::lock_guard lock(shared.mutex);
  auto keeper = shared.keeper.lock();
  if (!keeper) shared.keeper = keeper = std::make_shared<messaging::Keeper>();
  return keeper;
}

struct Contexts {
  std::mutex mutex;
  std::uintptr_t begun = 0;
  std::map<std::uintptr_t, std::shared_ptr<Context>> all;
};
Contexts& contexts() {
  static Contexts made;
  return made;
}

}  // namespace

Result<const std::vector<Device>*> devices() {
  static std::mutex mutex;
  static std::vector<Device> found;
  const std::lock_guard lock(mutex);
  if (found.empty()) found = GDX_TRY(find_devices());
  return &found;
}

Result<const Device*> device_at(int number) {
  const auto* const all = GDX_TRY(devices());
  if (number >= 0 && static_cast<std::size_t>(number) < all->size())
    return &(*all)[static_cast<std::size_t>(number)];
  return fail(Status::kInvalidArgument, fmt::format("device {} of {}", number, all->size()));
}

Context::Context() : keeper_(shared_keeper()) {}

Result<std::unique_ptr<Listener>> Context::listen(int number, Handle& handle) {
  const Device* const device = GDX_TRY(device_at(number));
  auto host = GDX_TRY(messaging::Host::open(keeper_, device->door));
  handle = {host->invitation(), 0, 0};
  return std::make_unique<Listener>(Listener{std::move(host)});
}

Result<std::unique_ptr<GroupListener>> Context::listen_for_group(int number, Handle& handle) {
  const Device* const device = GDX_TRY(device_at(number));
  auto inviting = GDX_TRY(messaging::invite(device->door));
  handle = {inviting.invitation, 0, 0};
  return std::make_unique<GroupListener>(GroupListener{keeper_, device->door, std::move(inviting)});
}

Result<std::unique_ptr<Communicator>> Context::connect(int number, Handle& handle) {
  // Outside of the map, because opening a port and a handshake take long, and other connections go on.
  std::unique_lock lock(mutex_);
  auto found = guests_.extract(handle.guest);
  lock.unlock();
  handle.guest = 0;
  std::unique_ptr<messaging::Guest> guest;
  if (found) {
    guest = std::move(found.mapped());
  } else {
    const Device* const device = GDX_TRY(device_at(number));
    guest = GDX_TRY(messaging::Guest::begin(keeper_, device->door, handle.invitation));
  }
  auto peer = GDX_TRY(guest->step());
  if (peer) return std::make_unique<Communicator>(std::move(peer), Direction::kSend);
  lock.lock();
  handle.guest = next_guest_++;
  guests_.emplace(handle.guest, std::move(guest));
  return std::unique_ptr<Communicator>();
}

void* begin_context() {
  auto context = std::make_shared<Context>();
  const std::lock_guard lock(contexts().mutex);
  const std::uintptr_t number = ++contexts().begun;
  contexts().all.emplace(number, std::move(context));
  return reinterpret_cast<void*>(number);
}

Result<std::shared_ptr<Context>> context_of(void* handle) {
  const std::lock_guard lock(contexts().mutex);
  const auto found = contexts().all.find(reinterpret_cast<std::uintptr_t>(handle));
  if (found != contexts().all.end()) return found->second;
  return fail(Status::kInvalidArgument, fmt::format("{} is no context, or has been finalized", handle));
}

void end_context(void* handle) {
  std::shared_ptr<Context> ended;  // outside of the lock
  const std::lock_guard lock(contexts().mutex);
  const auto found = contexts().all.find(reinterpret_cast<std::uintptr_t>(handle));
  if (found == contexts().all.end()) return;
  ended = std::move(found->second);
  contexts().all.erase(found);
}

}  // namespace gdx::nccl
