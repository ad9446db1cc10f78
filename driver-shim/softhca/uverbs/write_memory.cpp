#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "driver-shim/softhca/devx/refusals.h"
#include "driver-shim/softhca/uverbs/memory_objects.h"
#include "driver-shim/softhca/uverbs/methods.h"
#include "driver-shim/softhca/uverbs/user_memory.h"
#include "driver-shim/softhca/uverbs/write_handlers.h"

namespace gdx::softhca::uverbs {
namespace {

// enum ib_uverbs_rereg_mr_flags of libibverbs; the kernel's IB_MR_REREG_*.
constexpr std::uint32_t kChangeTranslation = 1;
constexpr std::uint32_t kChangeDomain = 2;
constexpr std::uint32_t kChangeAccess = 4;

// enum ibv_mw_type.
constexpr std::uint8_t kWindowType1 = 1;
constexpr std::uint8_t kWindowType2 = 2;
constexpr std::uint32_t kWindowEntries = 4;  // entries of its translation, as mlx5_ib makes it: one is used

// Returns the owner of the memory, null for this process. Errors: EINVAL, EFAULT; EOVERFLOW for a range that
// is paged on demand and would wrap (Linux drivers/infiniband/core/umem_odp.c, ib_init_umem_odp).
ErrnoOr<std::unique_ptr<ForeignRange>> check_range(Context& context, const MemoryRegionSpec& spec) {
  const auto start = reinterpret_cast<std::uintptr_t>(spec.base);
  if (spec.length_bytes == 0 || (start ^ spec.iova) % kPageBytes != 0) return refuse(EINVAL);
  if ((spec.access & kOnDemand) != 0) {
    // Accepts memory that is not mapped yet. Address 0 to the end: all memory that this process will ever
    // have.
    if (start == 0 && spec.length_bytes == ~std::uint64_t{0}) {
      if (spec.iova != 0) return refuse(EINVAL);
      return nullptr;
    }
    const std::uint64_t end = start + spec.length_bytes;
    if (end < start || end > ~std::uint64_t{0} - kPageBytes + 1) return refuse(EOVERFLOW);
    return nullptr;
  }
  auto foreign = context.gpus.claim(start, spec.length_bytes);
  if (!foreign || *foreign) return foreign;
  const Use use = may_be_written(spec.access) ? Use::kReadWrite : Use::kRead;
  if (const Errno error = check_access(start, spec.length_bytes, use)) return refuse(error);
  return nullptr;
}

}  // namespace

ErrnoOr<std::unique_ptr<MemoryRegionObject>> checked_region(Context& context, const Object& pd,
                                                            MemoryRegionSpec spec) {
  spec.pd = pd.number;
  if (const Errno error = check_rights(spec.access)) return refuse(error);
  auto foreign = check_range(context, spec);
  if (!foreign) return refuse(foreign.error());
  auto object = std::make_unique<MemoryRegionObject>();
  object->type = ObjectType::kMr;
  object->stands_on = {pd.handle};
  object->spec = spec;
  object->length_bytes = spec.length_bytes;
  object->iova = spec.iova;
  object->foreign = std::move(*foreign);
  return object;
}

Errno write_reg_mr(Context& context, WriteRequest& request) {
  ib_uverbs_reg_mr asked{};
  if (const Errno error = request.read(asked)) return error;
  const ErrnoOr<Object*> pd = context.objects.find(asked.pd_handle, ObjectType::kPd);
  if (!pd) return pd.error() == ENOENT ? EINVAL : pd.error();
  MemoryRegionSpec spec;
  spec.base = reinterpret_cast<std::byte*>(asked.start);
  spec.iova = asked.hca_va;
  spec.length_bytes = asked.length;
  spec.access = asked.access_flags;
  ErrnoOr<std::unique_ptr<MemoryRegionObject>> checked = checked_region(context, **pd, spec);
  if (!checked) return checked.error();
  std::unique_ptr<MemoryRegionObject> object = std::move(*checked);
  const ErrnoOr<std::uint32_t> mkey = context.hca.register_memory(object->spec);
  if (!mkey) return mkey.error();
  object->number = *mkey;
  object->release = [&hca = context.hca, key = *mkey] { return hca.deregister_memory(key); };
  Object& added = *object;
  ib_uverbs_reg_mr_resp answer{};
  answer.mr_handle = context.objects.add(std::move(object));
  answer.lkey = *mkey;
  answer.rkey = *mkey;
  const Errno error = request.respond(answer);
  if (error != 0) static_cast<void>(context.objects.remove(added));
  return error;
}

// Keeps the key. A refusal leaves the region unchanged.
Errno write_rereg_mr(Context& context, WriteRequest& request) {
  ib_uverbs_rereg_mr asked{};
  if (const Errno error = request.read(asked)) return error;
  if (asked.flags == 0) return EINVAL;
  if ((asked.flags & ~(kChangeTranslation | kChangeDomain | kChangeAccess)) != 0) {
    return unsupported("changes of a memory region but of its range, domain and rights");
  }
  const ErrnoOr<Object*> found = context.objects.find(asked.mr_handle, ObjectType::kMr);
  if (!found) return EINVAL;
  // One of device memory is another kind of object, which cannot be changed.
  auto* const object = dynamic_cast<MemoryRegionObject*>(*found);
  if (object == nullptr) return EINVAL;
  MemoryRegionSpec spec = object->spec;
  std::uint32_t domain = object->stands_on.front();
  if ((asked.flags & kChangeDomain) != 0) {
    const ErrnoOr<Object*> pd = context.objects.find(asked.pd_handle, ObjectType::kPd);
    if (!pd) return EINVAL;
    domain = asked.pd_handle;
    spec.pd = (*pd)->number;
  }
  if ((asked.flags & kChangeAccess) != 0) spec.access = asked.access_flags;
  if ((asked.flags & kChangeTranslation) != 0) {
    spec.base = reinterpret_cast<std::byte*>(asked.start);
    spec.iova = asked.hca_va;
    spec.length_bytes = asked.length;
  }
  if (const Errno error = check_rights(spec.access)) return error;
  if (((spec.access | object->spec.access) & kOnDemand) != 0) {
    return unsupported("changes of memory regions that are paged on demand");
  }
  auto foreign = check_range(context, spec);
  if (!foreign) return foreign.error();
  if (const Errno error = request.respond(ib_uverbs_rereg_mr_resp{object->number, object->number})) {
    return error;
  }
  if (const Errno error = context.hca.replace_memory(object->number, spec)) return error;
  object->spec = spec;
  object->length_bytes = spec.length_bytes;
  object->iova = spec.iova;
  object->foreign = std::move(*foreign);
  context.objects.move(*object, object->stands_on.front(), domain);
  return 0;
}

// Stands on its domain only: a region may go while windows are bound to it, which then lead nowhere.
// Source: Linux drivers/infiniband/core/uverbs_cmd.c, drivers/infiniband/hw/mlx5/mr.c (mlx5_ib_alloc_mw).
Errno write_alloc_mw(Context& context, WriteRequest& request) {
  ib_uverbs_alloc_mw asked{};
  if (const Errno error = request.read(asked)) return error;
  const ErrnoOr<Object*> pd = context.objects.find(asked.pd_handle, ObjectType::kPd);
  if (!pd) return pd.error() == ENOENT ? EINVAL : pd.error();
  if (asked.mw_type != kWindowType1 && asked.mw_type != kWindowType2) return EINVAL;
  mlx5_ib_alloc_mw driver{};
  const Errno read = request.attributes.read_bytes(UVERBS_ATTR_UHW_IN, &driver, sizeof driver, 0);
  if (read != 0 && read != ENOENT) return read;
  if (driver.comp_mask != 0 || driver.reserved1 != 0 || driver.reserved2 != 0) return EOPNOTSUPP;
  MemoryRegionSpec spec;
  spec.pd = (*pd)->number;
  spec.umr = UmrKey{
      .window = true, .peer_may_invalidate = asked.mw_type == kWindowType2, .max_entries = kWindowEntries};
  const ErrnoOr<std::uint32_t> rkey = context.hca.register_memory(spec);
  if (!rkey) return rkey.error();
  auto object = std::make_unique<Object>();
  object->type = ObjectType::kMw;
  object->number = *rkey;
  object->stands_on = {asked.pd_handle};
  object->release = [&hca = context.hca, key = *rkey] { return hca.deregister_memory(key); };
  Object& added = *object;
  ib_uverbs_alloc_mw_resp answer{};
  answer.mw_handle = context.objects.add(std::move(object));
  answer.rkey = *rkey;
  const Errno error = request.respond(answer);
  if (error != 0) static_cast<void>(context.objects.remove(added));
  return error;
}

}  // namespace gdx::softhca::uverbs
