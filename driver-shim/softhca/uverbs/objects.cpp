#include "driver-shim/softhca/uverbs/objects.h"

#include <algorithm>
#include <cerrno>

namespace gdx::softhca::uverbs {

std::uint32_t ObjectTable::add(std::unique_ptr<Object> object) {
  while (objects_.contains(next_handle_) || next_handle_ == 0) ++next_handle_;
  const std::uint32_t handle = next_handle_++;
  object->handle = handle;
  for (const std::uint32_t below : object->stands_on) ++objects_.at(below)->users;
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
  return found->second.get();
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
  std::replace(object.stands_on.begin(), object.stands_on.end(), from, to);
}

void ObjectTable::drop(Object& object) {
  for (const std::uint32_t below : object.stands_on) --objects_.at(below)->users;
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
