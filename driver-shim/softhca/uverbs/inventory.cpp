#include "driver-shim/softhca/uverbs/inventory.h"

#include <map>
#include <optional>

#include "driver-shim/softhca/uverbs/context.h"
#include "driver-shim/softhca/uverbs/memory_objects.h"
#include "driver-shim/softhca/uverbs/queue_objects.h"

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
std::optional<Resource> resource_of(const Object& object) {
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

}  // namespace

void append_resources(std::uint32_t number, const Context& context, std::vector<Resource>& resources) {
  Resource open;
  open.number = number;
  open.context = number;
  resources.push_back(open);
  std::map<std::uint32_t, std::uint32_t> domains;  // by handle
  // All first: an object may have come to stand on a domain that is younger.
  context.objects.visit([&](const Object& object) {
    if (object.type == ObjectType::kPd) domains.emplace(object.handle, object.number);
  });
  context.objects.visit([&](const Object& object) {
    std::optional<Resource> resource = resource_of(object);
    if (!resource) return;
    resource->number = object.number;
    resource->context = number;
    resource->users = object.users;
    for (const std::uint32_t below : object.stands_on) {
      if (const auto domain = domains.find(below); domain != domains.end()) resource->pd = domain->second;
    }
    if (resource->kind == ResourceKind::kQp) {
      const ErrnoOr<QpAttributes> attributes = context.hca.query_qp(object.number);
      if (attributes) resource->attributes = *attributes;
    }
    resources.push_back(std::move(*resource));
  });
}

}  // namespace gdx::softhca::uverbs
