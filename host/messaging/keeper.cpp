#include "host/messaging/keeper.h"

#include <chrono>

#include "base/library_thread.h"

namespace gdx::messaging {
namespace {

constexpr std::chrono::milliseconds kPause{1};

}  // namespace

Keeper::Keeper() : thread_(start_library_thread([this] { serve(); })) {}

Keeper::~Keeper() {
  stopping_ = true;
  thread_.join();
}

void Keeper::add(Kept& object) {
  const std::lock_guard lock(mutex_);
  objects_.push_back(&object);
}

void Keeper::remove(Kept& object) {
  const std::lock_guard lock(mutex_);
  std::erase(objects_, &object);
}

void Keeper::serve() {
  while (!stopping_) {
    {
      const std::lock_guard lock(mutex_);
      for (Kept* const object : objects_) object->take_turn();
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace gdx::messaging
