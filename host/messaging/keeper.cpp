#include "host/messaging/keeper.h"

#include <algorithm>
#include <chrono>
#include <exception>

#include "base/library_thread.h"
#include "base/log.h"

namespace gdx::messaging {
namespace {

constexpr std::chrono::milliseconds kPause{1};
constexpr std::chrono::seconds kMostEnd{10};  // for other processes that close later, or never

void give_turn(Kept& object) {
  try {
    object.take_turn();
  } catch (const std::exception& error) {
    log::warn_of_others("messaging: a turn failed: {}", error.what());
    try {
      object.give_up(error.what());
    } catch (const std::exception&) {
      return;  // without memory for its error; its next turn comes to it again
    }
  }
}

}  // namespace

Keeper::Keeper() : thread_(start_library_thread([this] { serve(); })) {}

Keeper::~Keeper() {
  const auto end = std::chrono::steady_clock::now() + kMostEnd;
  while (thread_.joinable() && owns_any() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(kPause);
  stop();
}

bool Keeper::owns_any() {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(objects_, [](const Entry& entry) { return entry.owned != nullptr; });
}

void Keeper::stop() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
}

void Keeper::add(Kept& object) {
  const std::lock_guard lock(mutex_);
  objects_.push_back({&object, nullptr});
}

void Keeper::remove(Kept& object) {
  const std::lock_guard lock(mutex_);
  std::erase_if(objects_, [&](const Entry& entry) { return entry.object == &object; });
}

// Allocates nothing, so that an object always finds an owner.
void Keeper::own(std::unique_ptr<Kept> object) {
  const std::lock_guard lock(mutex_);
  const auto entry = std::ranges::find(objects_, object.get(), &Entry::object);
  entry->owned = std::move(object);
}

void Keeper::serve() {
  while (!stopping_) {
    std::unique_ptr<Kept> over;  // ends outside of the lock
    {
      const std::lock_guard lock(mutex_);
      for (const Entry& entry : objects_) give_turn(*entry.object);
      const auto found = std::ranges::find_if(
          objects_, [](const Entry& entry) { return entry.owned && entry.owned->is_over(); });
      if (found != objects_.end()) {
        over = std::move(found->owned);
        objects_.erase(found);
      }
    }
    over.reset();
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace gdx::messaging
