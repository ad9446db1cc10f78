// The objects of one open device file, by handle, with what each stands on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "driver-shim/softhca/engine/hca.h"
#include "driver-shim/softhca/uverbs/event_channel.h"
#include "driver-shim/softhca/uverbs/inventory_file.h"

namespace gdx::softhca::uverbs {

enum class ObjectType : std::uint8_t { kPd, kMr, kMw, kAh, kDm, kCq, kQp, kSrq, kUar, kUmem, kDevx };

struct Object {
  ObjectType type = ObjectType::kPd;
  std::uint32_t handle = 0;
  std::uint32_t number = 0;  // the HCA's: pdn, mkey, cqn, qpn, srqn, UAR page
  std::uint32_t users = 0;   // objects that stand on this one
  std::vector<std::uint32_t> stands_on;
  std::uint64_t user_handle = 0;
  std::shared_ptr<EventChannel> completions;
  std::shared_ptr<EventChannel> asyncs;
  // Undoes what creation did in the HCA. A refusal keeps the object.
  std::function<Errno()> release;
  InventoryRecord record;

  virtual ~Object() = default;
};

// Threads: the caller serialises.
class ObjectTable {
 public:
  // Takes `object` in, and a hold on everything that it stands on. Returns its handle.
  std::uint32_t add(std::unique_ptr<Object> object);
  // Errors: ENOENT for no such handle, EINVAL for an object of another type.
  ErrnoOr<Object*> find(std::uint32_t handle, ObjectType type);
  ErrnoOr<Object*> find_any(std::uint32_t handle);
  // Returns the object without noting that it may change; null for no such handle.
  [[nodiscard]] const Object* look(std::uint32_t handle) const;
  // Calls visit(const Object&) for every object, oldest first.
  template <typename Visit>
  void visit(Visit visit) const {
    for (const auto& [handle, object] : objects_) visit(*object);
  }
  // Calls visit(Object&) for each object that was made or found since the last call, because only such an
  // object may have changed.
  template <typename Visit>
  void visit_touched(Visit visit) {
    for (const std::uint32_t handle : touched_) {
      if (const auto found = objects_.find(handle); found != objects_.end()) visit(*found->second);
    }
    touched_.clear();
  }
  void forget_touched() { touched_.clear(); }
  // Counts every queue pair as changed.
  void touch_queue_pairs();
  // Makes `object` stand on `to` instead of on `from`, so that `to` cannot be removed before it. Both exist.
  void move(Object& object, std::uint32_t from, std::uint32_t to);
  // Errors: EBUSY while another object stands on it, or the HCA's refusal.
  Errno remove(Object& object);
  // Destroys everything, newest first, users before the objects that they use. Retries an object that refuses
  // (a UAR page whose queue still exists) after others have gone. Drops it when no other goes.
  void clear();

 private:
  void drop(Object& object);
  void touch(std::uint32_t handle) noexcept;

  std::map<std::uint32_t, std::unique_ptr<Object>> objects_;
  std::vector<std::uint32_t> touched_;  // handles, also of objects that are gone
  std::uint32_t next_handle_ = 1;
};

}  // namespace gdx::softhca::uverbs
