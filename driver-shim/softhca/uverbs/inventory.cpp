#include "driver-shim/softhca/uverbs/inventory.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <optional>

#include "base/log.h"
#include "driver-shim/softhca/uverbs/context.h"
#include "driver-shim/softhca/uverbs/inventory_file.h"
#include "driver-shim/softhca/uverbs/memory_objects.h"
#include "driver-shim/softhca/uverbs/queue_objects.h"
#include "driver-shim/softhca/uverbs/sysfs.h"

namespace gdx::softhca::uverbs {
namespace {

ResourceKind kind_of(devx::ObjectKind kind) {
  switch (kind) {
    case devx::ObjectKind::kCq: return ResourceKind::kCq;
    case devx::ObjectKind::kQp: return ResourceKind::kQp;
    case devx::ObjectKind::kRmp: return ResourceKind::kSrq;
    default: return ResourceKind::kMr;
  }
}

// Returns the fields of the object's type. Empty: no resource that the kernel accounts for.
std::optional<Resource> fields_of(const Object& object) {
  Resource resource;
  switch (object.type) {
    case ObjectType::kPd: resource.kind = ResourceKind::kPd; return resource;
    case ObjectType::kCq:
      resource.kind = ResourceKind::kCq;
      resource.extent = static_cast<const CompletionQueueObject&>(object).entries;
      return resource;
    case ObjectType::kQp:
      resource.kind = ResourceKind::kQp;
      resource.type = static_cast<const QueuePairObject&>(object).qp_type;
      return resource;
    case ObjectType::kSrq: resource.kind = ResourceKind::kSrq; return resource;
    case ObjectType::kMr: {
      const auto& region = static_cast<const RegionObject&>(object);
      resource.kind = ResourceKind::kMr;
      resource.extent = region.length_bytes;
      resource.iova = region.iova;
      return resource;
    }
    case ObjectType::kDevx: {
      const devx::Object& made = static_cast<const DevxObject&>(object).devx;
      resource.kind = kind_of(made.kind);
      resource.pd = made.pd;
      resource.extent = made.extent;
      return resource;
    }
    default: return std::nullopt;
  }
}

// Returns the object as a resource of this process; nullopt for what fields_of() leaves out.
std::optional<Resource> resource_of(std::uint32_t number, const Context& context, const Object& object) {
  std::optional<Resource> resource = fields_of(object);
  if (!resource) return resource;
  resource->process = static_cast<std::uint32_t>(getpid());
  resource->number = object.number;
  resource->context = number;
  resource->users = object.users;
  for (const std::uint32_t below : object.stands_on) {
    const Object* const domain = context.objects.look(below);
    if (domain != nullptr && domain->type == ObjectType::kPd) resource->pd = domain->number;
  }
  if (resource->kind == ResourceKind::kQp) {
    const ErrnoOr<QpAttributes> attributes = context.hca.query_qp(object.number);
    if (attributes) resource->attributes = *attributes;
  }
  return resource;
}

Resource open_of(std::uint32_t number) {
  Resource open;
  open.process = static_cast<std::uint32_t>(getpid());
  open.number = number;
  open.context = number;
  return open;
}

}  // namespace

void append_resources(std::uint32_t number, const Context& context, std::vector<Resource>& resources) {
  resources.push_back(open_of(number));
  context.objects.visit([&](const Object& object) {
    if (const auto resource = resource_of(number, context, object)) resources.push_back(*resource);
  });
}

void show_touched(InventoryFile& file, std::uint8_t hca, std::uint32_t number, Context& context) noexcept {
  try {
    context.record.show(file, hca, open_of(number));
    context.objects.visit_touched([&](Object& object) {
      if (const auto resource = resource_of(number, context, object))
        object.record.show(file, hca, *resource);
    });
  } catch (const std::bad_alloc&) {  // an object that is not shown
  }
}

void append_neighbours(std::vector<HcaInventory>& hcas) {
  static std::atomic<bool> told{false};
  std::size_t needed = hcas.size();
  for (const std::string& tree : user_trees()) {
    for (const PlacedResource& placed : read_inventory(tree)) {
      if (placed.first < hcas.size()) {
        hcas[placed.first].resources.push_back(placed.second);
      } else {
        needed = std::max<std::size_t>(needed, placed.first + std::size_t{1});
      }
    }
  }
  if (needed > hcas.size() && !told.exchange(true))
    log::warn("other processes have objects on HCAs up to gdx{}: set GDX_SOFTHCA_HCAS={} to see them",
              needed - 1, needed);
}

}  // namespace gdx::softhca::uverbs
