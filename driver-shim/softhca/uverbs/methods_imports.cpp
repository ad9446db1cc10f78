// Methods on memory that another context of the open imports by its handle, and advice about memory.
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/mlx5_user_ioctl_cmds.h>

#include <cerrno>
#include <cstring>

#include "driver-shim/softhca/devx/refusals.h"
#include "driver-shim/softhca/uverbs/memory_objects.h"
#include "driver-shim/softhca/uverbs/methods.h"

namespace gdx::softhca::uverbs {
namespace {

ErrnoOr<Object*> object_in(Context& context, const Attributes& request, std::uint16_t id, ObjectType type) {
  const ErrnoOr<std::uint32_t> handle = request.handle(id);
  if (!handle) return refuse(handle.error());
  return context.objects.find(*handle, type);
}

Errno query_pd(Context& context, Attributes& request) {
  const ErrnoOr<Object*> pd = object_in(context, request, MLX5_IB_ATTR_QUERY_PD_HANDLE, ObjectType::kPd);
  if (!pd) return pd.error();
  return request.write(MLX5_IB_ATTR_QUERY_PD_RESP_PDN, (*pd)->number);
}

Errno query_mr(Context& context, Attributes& request) {
  const ErrnoOr<Object*> found = object_in(context, request, UVERBS_ATTR_QUERY_MR_HANDLE, ObjectType::kMr);
  if (!found) return found.error();
  const auto& region = static_cast<const RegionObject&>(**found);
  Errno error = request.write(UVERBS_ATTR_QUERY_MR_RESP_LKEY, region.number);
  if (error == 0) error = request.write(UVERBS_ATTR_QUERY_MR_RESP_RKEY, region.number);
  if (error == 0) error = request.write(UVERBS_ATTR_QUERY_MR_RESP_LENGTH, region.length_bytes);
  if (error == 0) error = request.write(UVERBS_ATTR_QUERY_MR_RESP_IOVA, region.iova);
  return error;
}

Errno query_dm(Context& context, Attributes& request) {
  const ErrnoOr<Object*> found =
      object_in(context, request, MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE, ObjectType::kDm);
  if (!found) return found.error();
  const auto& memory = static_cast<const DeviceMemoryObject&>(**found);
  const std::uint64_t start_offset = 0;
  Errno error = request.write(MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET, start_offset);
  if (error == 0) error = request.write(MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX, memory.first_page);
  if (error == 0) error = request.write(MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH, memory.length_bytes);
  return error;
}

// One piece of memory, laid out as ibv_sge.
struct Stretch {
  std::uint64_t address;
  std::uint32_t length_bytes;
  std::uint32_t lkey;
};

// Advice not to fault is about pages that are there, of which this HCA keeps no account.
Prefetch what_to_fetch(std::uint64_t advice) {
  switch (advice) {
    case IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH: return Prefetch::kForReading;
    case IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE: return Prefetch::kForWriting;
    default: return Prefetch::kCheck;
  }
}

// Fetches pages at once. Without IB_UVERBS_ADVISE_MR_FLAG_FLUSH a driver only begins to fetch, and does not
// report absent pages. Source: Linux drivers/infiniband/hw/mlx5/odp.c, mlx5_ib_advise_mr_prefetch().
Errno advise_mr(Context& context, Attributes& request) {
  const ErrnoOr<Object*> pd = object_in(context, request, UVERBS_ATTR_ADVISE_MR_PD_HANDLE, ObjectType::kPd);
  if (!pd) return pd.error();
  const ErrnoOr<std::uint64_t> advice = request.constant(UVERBS_ATTR_ADVISE_MR_ADVICE);
  const ErrnoOr<std::uint32_t> flags = request.value<std::uint32_t>(UVERBS_ATTR_ADVISE_MR_FLAGS);
  const auto list = request.blob(UVERBS_ATTR_ADVISE_MR_SGE_LIST);
  if (!advice || !flags || !list || list->size() % sizeof(Stretch) != 0) return EINVAL;
  if ((*flags & ~std::uint32_t{IB_UVERBS_ADVISE_MR_FLAG_FLUSH}) != 0) return EINVAL;
  if (*advice > IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT) {
    return unsupported("advice about memory but to fetch it");
  }
  const Prefetch what = what_to_fetch(*advice);
  const bool heeded = (*flags & IB_UVERBS_ADVISE_MR_FLAG_FLUSH) != 0;
  for (std::size_t at = 0; at < list->size(); at += sizeof(Stretch)) {
    Stretch wanted{};
    std::memcpy(&wanted, list->data() + at, sizeof wanted);
    const Errno error =
        context.hca.prefetch((*pd)->number, wanted.lkey, wanted.address, wanted.length_bytes, what);
    if (error != 0 && (error != EFAULT || heeded)) return error;
  }
  return 0;
}

constexpr Method kMethods[] = {
    {UVERBS_OBJECT_PD,
     MLX5_IB_METHOD_PD_QUERY,
     false,
     query_pd,
     {MLX5_IB_ATTR_QUERY_PD_HANDLE, MLX5_IB_ATTR_QUERY_PD_RESP_PDN}},
    {UVERBS_OBJECT_MR,
     UVERBS_METHOD_QUERY_MR,
     false,
     query_mr,
     {UVERBS_ATTR_QUERY_MR_HANDLE, UVERBS_ATTR_QUERY_MR_RESP_LKEY, UVERBS_ATTR_QUERY_MR_RESP_RKEY,
      UVERBS_ATTR_QUERY_MR_RESP_LENGTH, UVERBS_ATTR_QUERY_MR_RESP_IOVA}},
    {UVERBS_OBJECT_MR,
     UVERBS_METHOD_ADVISE_MR,
     false,
     advise_mr,
     {UVERBS_ATTR_ADVISE_MR_PD_HANDLE, UVERBS_ATTR_ADVISE_MR_ADVICE, UVERBS_ATTR_ADVISE_MR_FLAGS,
      UVERBS_ATTR_ADVISE_MR_SGE_LIST}},
    {UVERBS_OBJECT_DM,
     MLX5_IB_METHOD_DM_QUERY,
     false,
     query_dm,
     {MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE, MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET,
      MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX, MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH}},
};

}  // namespace

std::span<const Method> import_methods() { return kMethods; }

}  // namespace gdx::softhca::uverbs
