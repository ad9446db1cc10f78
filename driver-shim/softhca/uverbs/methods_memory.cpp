#include <fmt/format.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_verbs.h>

#include <cerrno>
#include <utility>

#include "driver-shim/softhca/devx/refusals.h"
#include "driver-shim/softhca/uverbs/dmabuf.h"
#include "driver-shim/softhca/uverbs/memory_objects.h"
#include "driver-shim/softhca/uverbs/methods.h"
#include "driver-shim/softhca/uverbs/newer_ids.h"
#include "driver-shim/softhca/uverbs/user_memory.h"

namespace gdx::softhca::uverbs {
namespace {

// Unmaps the buffer when its key is gone.
struct DmabufRegionObject : RegionObject {
  explicit DmabufRegionObject(DmabufMapping mapped) : mapping(std::move(mapped)) {}
  DmabufMapping mapping;
};

// Attributes that receive the answers of a registration.
struct RegionAttributes {
  std::uint16_t handle;
  std::uint16_t lkey;
  std::uint16_t rkey;
};
constexpr RegionAttributes kDmRegionAttributes{UVERBS_ATTR_REG_DM_MR_HANDLE, UVERBS_ATTR_REG_DM_MR_RESP_LKEY,
                                               UVERBS_ATTR_REG_DM_MR_RESP_RKEY};
constexpr RegionAttributes kDmabufRegionAttributes{UVERBS_ATTR_REG_DMABUF_MR_HANDLE,
                                                   UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY,
                                                   UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY};
constexpr RegionAttributes kMemoryRegionAttributes{kAttrRegMrHandle, kAttrRegMrRespLkey, kAttrRegMrRespRkey};

// Attributes that contain the request of a registration.
struct RangeAttributes {
  std::uint16_t pd;
  std::uint16_t start;  // an address, or an offset into the dmabuf `fd`
  std::uint16_t length;
  std::uint16_t iova;
  std::uint16_t access;
  std::uint16_t fd;
};
constexpr RangeAttributes kDmabufRange{
    UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE,    UVERBS_ATTR_REG_DMABUF_MR_OFFSET,
    UVERBS_ATTR_REG_DMABUF_MR_LENGTH,       UVERBS_ATTR_REG_DMABUF_MR_IOVA,
    UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, UVERBS_ATTR_REG_DMABUF_MR_FD};
constexpr RangeAttributes kFileRange{kAttrRegMrPdHandle, kAttrRegMrFdOffset,    kAttrRegMrLength,
                                     kAttrRegMrIova,     kAttrRegMrAccessFlags, kAttrRegMrFd};

Errno destroy_pd(Context& context, Attributes& request) {
  return destroy_object(context, request, UVERBS_ATTR_DESTROY_PD_HANDLE, ObjectType::kPd);
}

Errno destroy_mr(Context& context, Attributes& request) {
  return destroy_object(context, request, UVERBS_ATTR_DESTROY_MR_HANDLE, ObjectType::kMr);
}

Errno destroy_mw(Context& context, Attributes& request) {
  return destroy_object(context, request, UVERBS_ATTR_DESTROY_MW_HANDLE, ObjectType::kMw);
}

Errno destroy_ah(Context& context, Attributes& request) {
  return destroy_object(context, request, UVERBS_ATTR_DESTROY_AH_HANDLE, ObjectType::kAh);
}

Errno allocate_dm(Context& context, Attributes& request) {
  const ErrnoOr<std::uint64_t> length_bytes = request.value<std::uint64_t>(UVERBS_ATTR_ALLOC_DM_LENGTH);
  const ErrnoOr<std::uint32_t> log_alignment = request.value<std::uint32_t>(UVERBS_ATTR_ALLOC_DM_ALIGNMENT);
  if (!length_bytes || !log_alignment) return EINVAL;
  if (request.has(MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE)) {
    const ErrnoOr<std::uint64_t> type = request.constant(MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE);
    if (!type) return type.error();
    if (*type != MLX5_IB_UAPI_DM_TYPE_MEMIC) return unsupported("device memory for steering");
  }
  const ErrnoOr<std::uint16_t> first_page = context.pages.allocate(*length_bytes, *log_alignment);
  if (!first_page) return first_page.error();

  auto object = std::make_unique<DeviceMemoryObject>();
  object->type = ObjectType::kDm;
  object->length_bytes = *length_bytes;
  object->first_page = *first_page;
  object->release = [&pages = context.pages, page = *first_page] {
    pages.release(page);
    return 0;
  };
  const std::uint64_t start_offset = 0;
  Errno error = request.write(MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET, start_offset);
  if (error == 0) error = request.write(MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX, *first_page);
  if (error != 0) {
    context.pages.release(*first_page);
    return error;
  }
  return publish(context, request, UVERBS_ATTR_ALLOC_DM_HANDLE, std::move(object));
}

Errno free_dm(Context& context, Attributes& request) {
  return destroy_object(context, request, UVERBS_ATTR_FREE_DM_HANDLE, ObjectType::kDm);
}

// The range of a device memory registration, checked.
ErrnoOr<MemoryRegionSpec> dm_region(Context& context, const Attributes& request,
                                    const DeviceMemoryObject& memory) {
  const ErrnoOr<std::uint64_t> offset = request.value<std::uint64_t>(UVERBS_ATTR_REG_DM_MR_OFFSET);
  const ErrnoOr<std::uint64_t> length_bytes = request.value<std::uint64_t>(UVERBS_ATTR_REG_DM_MR_LENGTH);
  const ErrnoOr<std::uint32_t> access = request.value<std::uint32_t>(UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS);
  if (!offset || !length_bytes || !access) return refuse(EINVAL);
  if (const Errno error = check_rights(*access)) return refuse(error);
  // Linux drivers/infiniband/hw/mlx5/mlx5_ib.h, MLX5_IB_DM_MEMIC_ALLOWED_ACCESS.
  constexpr std::uint32_t kAllowed = IB_UVERBS_ACCESS_LOCAL_WRITE | IB_UVERBS_ACCESS_REMOTE_WRITE |
                                     IB_UVERBS_ACCESS_REMOTE_READ | IB_UVERBS_ACCESS_REMOTE_ATOMIC |
                                     IB_UVERBS_ACCESS_ZERO_BASED;
  if ((*access & ~kAllowed) != 0 || (*access & IB_UVERBS_ACCESS_ZERO_BASED) == 0) return refuse(EINVAL);
  if (*offset > memory.length_bytes || *length_bytes > memory.length_bytes - *offset) return refuse(EINVAL);
  MemoryRegionSpec spec;
  spec.base = context.pages.device_memory() + memory.first_page * kPageBytes + *offset;
  spec.length_bytes = *length_bytes;
  spec.access = *access;
  spec.device_memory = true;
  return spec;
}

// Publishes `object` as a region under `spec`'s new key, and tells the program the key.
Errno publish_region(Context& context, Attributes& request, const MemoryRegionSpec& spec,
                     const RegionAttributes& ids, std::unique_ptr<RegionObject> object) {
  const ErrnoOr<std::uint32_t> mkey = context.hca.register_memory(spec);
  if (!mkey) return mkey.error();
  object->type = ObjectType::kMr;
  object->length_bytes = spec.length_bytes;
  object->iova = spec.iova;
  object->number = *mkey;
  object->release = [&hca = context.hca, key = *mkey] { return hca.deregister_memory(key); };
  Errno error = request.write(ids.lkey, *mkey);
  if (error == 0) error = request.write(ids.rkey, *mkey);
  if (error != 0) {
    static_cast<void>(context.hca.deregister_memory(*mkey));
    return error;
  }
  return publish(context, request, ids.handle, std::move(object));
}

Errno register_dm(Context& context, Attributes& request) {
  const ErrnoOr<std::uint32_t> pd_handle = request.handle(UVERBS_ATTR_REG_DM_MR_PD_HANDLE);
  const ErrnoOr<std::uint32_t> dm_handle = request.handle(UVERBS_ATTR_REG_DM_MR_DM_HANDLE);
  if (!pd_handle || !dm_handle) return EINVAL;
  const ErrnoOr<Object*> pd = context.objects.find(*pd_handle, ObjectType::kPd);
  if (!pd) return pd.error();
  const ErrnoOr<Object*> dm = context.objects.find(*dm_handle, ObjectType::kDm);
  if (!dm) return dm.error();
  ErrnoOr<MemoryRegionSpec> spec = dm_region(context, request, static_cast<DeviceMemoryObject&>(**dm));
  if (!spec) return spec.error();
  spec->pd = (*pd)->number;
  auto object = std::make_unique<RegionObject>();
  object->stands_on = {*pd_handle, *dm_handle};
  return publish_region(context, request, *spec, kDmRegionAttributes, std::move(object));
}

// Source: Linux drivers/infiniband/core/uverbs_std_types_mr.c, UVERBS_METHOD_REG_DMABUF_MR.
Errno register_buffer(Context& context, Attributes& request, const RangeAttributes& ids,
                      const RegionAttributes& answers) {
  const ErrnoOr<std::uint32_t> pd_handle = request.handle(ids.pd);
  const auto offset = request.value<std::uint64_t>(ids.start);
  const auto length_bytes = request.value<std::uint64_t>(ids.length);
  const auto iova = request.value<std::uint64_t>(ids.iova);
  const auto access = request.value<std::uint32_t>(ids.access);
  const ErrnoOr<int> descriptor = request.raw_descriptor(ids.fd);
  if (!pd_handle || !offset || !length_bytes || !iova || !access || !descriptor) return EINVAL;
  const ErrnoOr<Object*> pd = context.objects.find(*pd_handle, ObjectType::kPd);
  if (!pd) return pd.error();
  if ((*offset ^ *iova) % kPageBytes != 0) return EINVAL;
  if (const Errno error = check_rights(*access)) return error;
  if ((*access & IB_UVERBS_ACCESS_ON_DEMAND) != 0) return EINVAL;
  auto mapping = DmabufMapping::map(*descriptor, *offset, *length_bytes, may_be_written(*access));
  if (!mapping) return mapping.error();
  MemoryRegionSpec spec;
  spec.pd = (*pd)->number;
  spec.base = mapping->first();
  spec.iova = *iova;
  spec.length_bytes = *length_bytes;
  spec.access = *access;
  auto object = std::make_unique<DmabufRegionObject>(std::move(*mapping));
  object->stands_on = {*pd_handle};
  return publish_region(context, request, spec, answers, std::move(object));
}

Errno register_dmabuf(Context& context, Attributes& request) {
  return register_buffer(context, request, kDmabufRange, kDmabufRegionAttributes);
}

// Either of a file's memory or of memory by its address.
// Source: Linux drivers/infiniband/core/uverbs_std_types_mr.c, UVERBS_METHOD_REG_MR.
Errno register_memory(Context& context, Attributes& request) {
  const bool of_file = request.has(kAttrRegMrFd);
  if (request.has(kAttrRegMrFdOffset) != of_file || request.has(kAttrRegMrAddr) == of_file) return EINVAL;
  if (of_file) return register_buffer(context, request, kFileRange, kMemoryRegionAttributes);
  const ErrnoOr<std::uint32_t> pd_handle = request.handle(kAttrRegMrPdHandle);
  const auto address = request.value<std::uint64_t>(kAttrRegMrAddr);
  const auto length_bytes = request.value<std::uint64_t>(kAttrRegMrLength);
  const auto iova = request.value<std::uint64_t>(kAttrRegMrIova);
  const auto access = request.value<std::uint32_t>(kAttrRegMrAccessFlags);
  if (!pd_handle || !address || !length_bytes || !iova || !access) return EINVAL;
  const ErrnoOr<Object*> pd = context.objects.find(*pd_handle, ObjectType::kPd);
  if (!pd) return pd.error();
  MemoryRegionSpec spec;
  spec.base = reinterpret_cast<std::byte*>(*address);
  spec.iova = *iova;
  spec.length_bytes = *length_bytes;
  spec.access = *access;
  ErrnoOr<std::unique_ptr<MemoryRegionObject>> object = checked_region(context, **pd, spec);
  if (!object) return object.error();
  const MemoryRegionSpec checked = (*object)->spec;
  return publish_region(context, request, checked, kMemoryRegionAttributes, std::move(*object));
}

Errno allocate_uar(Context& context, Attributes& request) {
  const ErrnoOr<std::uint64_t> type = request.constant(MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE);
  if (!type) return type.error();
  if (*type != MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF && *type != MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC) {
    return unsupported(fmt::format("UAR pages of type {}", *type));
  }
  const ErrnoOr<PageFile::DoorbellPage> page = context.pages.add_doorbell_page();
  if (!page) return page.error();
  const ErrnoOr<std::uint32_t> uar = context.hca.add_uar({page->address});
  if (!uar) {
    context.pages.remove_doorbell_page(*page);
    return uar.error();
  }
  auto object = std::make_unique<Object>();
  object->type = ObjectType::kUar;
  object->number = *uar;
  object->release = [&context, number = *uar, doorbells = *page] {
    const Errno error = context.hca.remove_uar(number);
    if (error == 0) context.pages.remove_doorbell_page(doorbells);
    return error;
  };
  const std::uint32_t length_bytes = kPageBytes;
  Errno error = request.write(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, page->mmap_offset);
  if (error == 0) error = request.write(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, length_bytes);
  if (error == 0) error = request.write(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, *uar);
  if (error != 0) {
    static_cast<void>(object->release());
    return error;
  }
  return publish(context, request, MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, std::move(object));
}

Errno destroy_uar(Context& context, Attributes& request) {
  return destroy_object(context, request, MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE, ObjectType::kUar);
}

constexpr Method kMethods[] = {
    {UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY, false, destroy_pd, {UVERBS_ATTR_DESTROY_PD_HANDLE}},
    {UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY, false, destroy_mr, {UVERBS_ATTR_DESTROY_MR_HANDLE}},
    {UVERBS_OBJECT_MR,
     UVERBS_METHOD_DM_MR_REG,
     false,
     register_dm,
     {UVERBS_ATTR_REG_DM_MR_HANDLE, UVERBS_ATTR_REG_DM_MR_OFFSET, UVERBS_ATTR_REG_DM_MR_LENGTH,
      UVERBS_ATTR_REG_DM_MR_PD_HANDLE, UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS, UVERBS_ATTR_REG_DM_MR_DM_HANDLE,
      UVERBS_ATTR_REG_DM_MR_RESP_LKEY, UVERBS_ATTR_REG_DM_MR_RESP_RKEY}},
    {UVERBS_OBJECT_MR,
     UVERBS_METHOD_REG_DMABUF_MR,
     false,
     register_dmabuf,
     {UVERBS_ATTR_REG_DMABUF_MR_HANDLE, UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, UVERBS_ATTR_REG_DMABUF_MR_OFFSET,
      UVERBS_ATTR_REG_DMABUF_MR_LENGTH, UVERBS_ATTR_REG_DMABUF_MR_IOVA, UVERBS_ATTR_REG_DMABUF_MR_FD,
      UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY,
      UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY}},
    {UVERBS_OBJECT_MR,
     kMethodRegMr,
     false,
     register_memory,
     {kAttrRegMrHandle, kAttrRegMrPdHandle, kAttrRegMrIova, kAttrRegMrAddr, kAttrRegMrLength,
      kAttrRegMrAccessFlags, kAttrRegMrFd, kAttrRegMrFdOffset, kAttrRegMrRespLkey, kAttrRegMrRespRkey,
      UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT}},
    {UVERBS_OBJECT_MW, UVERBS_METHOD_MW_DESTROY, false, destroy_mw, {UVERBS_ATTR_DESTROY_MW_HANDLE}},
    {UVERBS_OBJECT_AH, UVERBS_METHOD_AH_DESTROY, false, destroy_ah, {UVERBS_ATTR_DESTROY_AH_HANDLE}},
    {UVERBS_OBJECT_DM,
     UVERBS_METHOD_DM_ALLOC,
     false,
     allocate_dm,
     {UVERBS_ATTR_ALLOC_DM_HANDLE, UVERBS_ATTR_ALLOC_DM_LENGTH, UVERBS_ATTR_ALLOC_DM_ALIGNMENT,
      MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET, MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX,
      MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE}},
    {UVERBS_OBJECT_DM, UVERBS_METHOD_DM_FREE, false, free_dm, {UVERBS_ATTR_FREE_DM_HANDLE}},
    {MLX5_IB_OBJECT_UAR,
     MLX5_IB_METHOD_UAR_OBJ_ALLOC,
     false,
     allocate_uar,
     {MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE,
      MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH,
      MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID}},
    {MLX5_IB_OBJECT_UAR,
     MLX5_IB_METHOD_UAR_OBJ_DESTROY,
     false,
     destroy_uar,
     {MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE}},
};

}  // namespace

std::span<const Method> memory_methods() { return kMethods; }

}  // namespace gdx::softhca::uverbs
