#include "host/plugins/nccl/context.h"

#include <fmt/format.h>

#include <set>

#include "host/plugins/nccl/log.h"

namespace gdx::nccl {
namespace {

// One thread of this process, while anything needs turns.
std::shared_ptr<messaging::Keeper> shared_keeper() {
  static std::mutex mutex;
  static std::weak_ptr<messaging::Keeper> shared;
  const std::lock_guard lock(mutex);
  auto keeper = shared.lock();
  if (!keeper) shared = keeper = std::make_shared<messaging::Keeper>();
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

Result<const Device*> device_at(int device) {
  const auto* const all = GDX_TRY(devices());
  if (device >= 0 && static_cast<std::size_t>(device) < all->size())
    return &(*all)[static_cast<std::size_t>(device)];
  return fail(Status::kInvalidArgument, fmt::format("device {} of {}", device, all->size()));
}

}  // namespace

Result<const std::vector<Device>*> devices() {
  static std::mutex mutex;
  static std::vector<Device> found;
  const std::lock_guard lock(mutex);
  if (found.empty()) found = GDX_TRY(find_devices());
  return &found;
}

Context::Context() : keeper_(shared_keeper()) {}

Result<std::unique_ptr<Listener>> Context::listen(int number, Handle& handle) {
  const Device* const device = GDX_TRY(device_at(number));
  auto host = GDX_TRY(messaging::Host::open(keeper_, device->door));
  handle = {host->invitation(), 0, 0};
  return std::make_unique<Listener>(Listener{std::move(host)});
}

Result<std::unique_ptr<Communicator>> Context::connect(int number, Handle& handle) {
  const std::lock_guard lock(mutex_);
  auto found = guests_.find(handle.guest);
  if (found == guests_.end()) {
    const Device* const device = GDX_TRY(device_at(number));
    auto guest = GDX_TRY(messaging::Guest::begin(keeper_, device->door, handle.invitation));
    handle.guest = next_guest_++;
    found = guests_.emplace(handle.guest, std::move(guest)).first;
  }
  auto peer = found->second->step();
  if (peer && !*peer) return std::unique_ptr<Communicator>();
  guests_.erase(found);
  handle.guest = 0;
  if (!peer) return tl::unexpected(peer.error());
  return std::make_unique<Communicator>(std::move(*peer), Direction::kSend);
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
