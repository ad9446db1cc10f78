#include "host/messaging/keeper.h"

#include <chrono>
#include <exception>

#include "base/library_thread.h"
#include "base/log.h"

namespace gdx::messaging {
namespace {

constexpr std::chrono::milliseconds kPause{1};

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

Keeper::~Keeper() { stop(); }

void Keeper::stop() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
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
      for (Kept* const object : objects_) give_turn(*object);
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace gdx::messaging
