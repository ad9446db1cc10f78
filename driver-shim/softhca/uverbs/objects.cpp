#include "driver-shim/softhca/uverbs/objects.h"

#include <algorithm>
#include <cerrno>
#include <new>

namespace gdx::softhca::uverbs {

std::uint32_t ObjectTable::add(std::unique_ptr<Object> object) {
  while (objects_.contains(next_handle_) || next_handle_ == 0) ++next_handle_;
  const std::uint32_t handle = next_handle_++;
  object->handle = handle;
  touch(handle);
  for (const std::uint32_t below : object->stands_on) {
    ++objects_.at(below)->users;
    touch(below);
  }
  objects_.emplace(handle, std::move(object));
  return handle;
}

ErrnoOr<Object*> ObjectTable::find(std::uint32_t handle, ObjectType type) {
  const auto found = find_any(handle);
  if (found && (*found)->type != type) return refuse(EINVAL);
  return found;
}

ErrnoOr<Object*> ObjectTable::find_any(std::uint32_t handle) {
  const auto found = objects_.find(handle);
  if (found == objects_.end()) return refuse(ENOENT);
  touch(handle);
  return found->second.get();
}

const Object* ObjectTable::look(std::uint32_t handle) const {
  const auto found = objects_.find(handle);
  return found == objects_.end() ? nullptr : found->second.get();
}

void ObjectTable::touch(std::uint32_t handle) noexcept {
  try {
    touched_.push_back(handle);
  } catch (const std::bad_alloc&) {  // its record keeps the state before
  }
}

void ObjectTable::touch_queue_pairs() {
  for (const auto& [handle, object] : objects_) {
    if (object->type == ObjectType::kQp || object->type == ObjectType::kDevx) touch(handle);
  }
}

Errno ObjectTable::remove(Object& object) {
  if (object.users != 0) return EBUSY;
  if (object.release) {
    if (const Errno error = object.release()) return error;
  }
  drop(object);
  return 0;
}

void ObjectTable::move(Object& object, std::uint32_t from, std::uint32_t to) {
  --objects_.at(from)->users;
  ++objects_.at(to)->users;
  touch(from);
  touch(to);
  std::replace(object.stands_on.begin(), object.stands_on.end(), from, to);
}

void ObjectTable::drop(Object& object) {
  for (const std::uint32_t below : object.stands_on) {
    --objects_.at(below)->users;
    touch(below);
  }
  objects_.erase(object.handle);
}

void ObjectTable::clear() {
  bool refusals_count = true;
  while (!objects_.empty()) {
    bool dropped = false;
    for (auto at = objects_.end(); at != objects_.begin();) {
      Object& object = *(--at)->second;
      if (object.users != 0) continue;
      const bool refused = object.release && object.release() != 0;
      if (refused && refusals_count) continue;
      ++at;
      drop(object);
      dropped = true;
    }
    if (!dropped && !refusals_count) return;
    refusals_count = dropped;
  }
}

}  // namespace gdx::softhca::uverbs
