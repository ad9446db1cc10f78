#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>

#include <algorithm>
#include <cerrno>

#include "driver-shim/softhca/devx/limits.h"
#include "driver-shim/softhca/engine/paging.h"
#include "driver-shim/softhca/uverbs/user_memory.h"
#include "driver-shim/softhca/uverbs/write_handlers.h"
#include "driver-shim/softhca/wire/addressing.h"
#include "proto/byte_order.h"

namespace gdx::softhca::uverbs {
namespace {

constexpr std::uint32_t kAtomicWithinHca = 1;  // enum ib_atomic_cap
// Source: Linux include/rdma/ib_verbs.h, enum ib_odp_general_cap_bits and ib_odp_transport_cap_bits.
constexpr std::uint64_t kPaging = 1 << 0;
constexpr std::uint64_t kPagingImplicit = 1 << 1;
constexpr std::uint32_t kPagedSend = 1 << 0;
constexpr std::uint32_t kPagedOnRc = 0x3f;  // and receive, WRITE, READ, atomics, shared receive
constexpr std::uint64_t kFirmwareVersion = std::uint64_t{28} << 32;

ib_uverbs_query_device_resp device_attributes(const Hca& hca) {
  ib_uverbs_query_device_resp answer{};
  const std::uint64_t guid = byte_swap(wire::guid_of(hca.address()));
  constexpr std::uint32_t kObjects = 1u << devx::kLogMaxObjects;
  answer.fw_ver = kFirmwareVersion;
  answer.node_guid = guid;
  answer.sys_image_guid = guid;
  answer.max_mr_size = ~std::uint64_t{0};
  answer.page_size_cap = ~std::uint64_t{kPageBytes - 1};
  answer.vendor_id = 0x02c9;  // the OUI, not the PCI vendor
  answer.vendor_part_id = 0x1021;
  answer.max_qp = kObjects;
  answer.max_qp_wr = 1u << devx::kLogMaxSendBlocks;
  // The extensions are what a process can have of them: SEND with invalidate and local invalidation.
  answer.device_cap_flags = IB_UVERBS_DEVICE_PORT_ACTIVE_EVENT | IB_UVERBS_DEVICE_SYS_IMAGE_GUID |
                            IB_UVERBS_DEVICE_RC_RNR_NAK_GEN | IB_UVERBS_DEVICE_MEM_WINDOW |
                            IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2B | IB_UVERBS_DEVICE_MEM_MGT_EXTENSIONS;
  answer.max_sge = 30;
  answer.max_sge_rd = 30;
  answer.max_cq = kObjects;
  answer.max_cqe = (1u << devx::kLogMaxCqEntries) - 1;
  answer.max_mr = kObjects;
  answer.max_mw = kObjects;
  answer.max_pd = kObjects;
  answer.max_qp_rd_atom = 1u << devx::kLogMaxReads;
  answer.max_res_rd_atom = kObjects << devx::kLogMaxReads;
  answer.max_qp_init_rd_atom = 1u << devx::kLogMaxReads;
  answer.atomic_cap = kAtomicWithinHca;
  answer.max_ah = kObjects;
  answer.max_srq = kObjects;
  answer.max_srq_wr = (1u << devx::kLogMaxSrqEntries) - 1;
  answer.max_srq_sge = 31;
  answer.max_pkeys = static_cast<std::uint16_t>(hca.config().pkeys.size());
  answer.local_ca_ack_delay = 16;
  answer.phys_port_cnt = 1;
  return answer;
}

}  // namespace

Errno write_query_device(Context& context, WriteRequest& request) {
  return request.respond(device_attributes(context.hca));
}

Errno write_query_device_ex(Context& context, WriteRequest& request) {
  ib_uverbs_ex_query_device asked{};
  if (const Errno error = request.read(asked)) return error;
  if (asked.comp_mask != 0 || asked.reserved != 0) return EINVAL;
  ib_uverbs_ex_query_device_resp answer{};
  answer.base = device_attributes(context.hca);
  answer.device_cap_flags_ex = answer.base.device_cap_flags;
  if (can_page_in()) {
    answer.odp_caps.general_caps = kPaging | kPagingImplicit;
    answer.odp_caps.per_transport_caps.rc_odp_caps = kPagedOnRc;
    answer.odp_caps.per_transport_caps.ud_odp_caps = kPagedSend;
  }
  answer.max_dm_size = context.hca.config().device_memory_bytes;
  answer.response_length =
      static_cast<std::uint32_t>(std::min(request.attributes.length(UVERBS_ATTR_CORE_OUT), sizeof answer));
  if (const Errno error = request.respond(answer)) return error;
  mlx5_ib_query_device_resp driver{};
  driver.flags = MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_PAD;  // padding of an entry serves caches, not readers
  driver.response_length =
      static_cast<std::uint32_t>(std::min(request.attributes.length(UVERBS_ATTR_UHW_OUT), sizeof driver));
  return request.respond_driver(driver);
}

Errno write_alloc_pd(Context& context, WriteRequest& request) {
  const ErrnoOr<std::uint32_t> pdn = context.hca.alloc_pd();
  if (!pdn) return pdn.error();
  auto object = std::make_unique<Object>();
  object->type = ObjectType::kPd;
  object->number = *pdn;
  object->release = [&hca = context.hca, number = *pdn] { return hca.dealloc_pd(number); };
  Object& added = *object;
  ib_uverbs_alloc_pd_resp answer{};
  answer.pd_handle = context.objects.add(std::move(object));
  Errno error = request.respond(answer);
  if (error == 0) error = request.respond_driver(mlx5_ib_alloc_pd_resp{*pdn});
  if (error != 0) static_cast<void>(context.objects.remove(added));
  return error;
}

Errno write_create_comp_channel(Context& context, WriteRequest& request) {
  const ErrnoOr<std::shared_ptr<EventChannel>> channel = context.channels.open_channel();
  if (!channel) return channel.error();
  return request.respond(
      ib_uverbs_create_comp_channel_resp{static_cast<std::uint32_t>((*channel)->user_fd())});
}

Errno write_create_ah(Context& context, WriteRequest& request) {
  ib_uverbs_create_ah asked{};
  if (const Errno error = request.read(asked)) return error;
  const ErrnoOr<Object*> pd = context.objects.find(asked.pd_handle, ObjectType::kPd);
  if (!pd) return pd.error() == ENOENT ? EINVAL : pd.error();
  if (asked.attr.port_num != 1 || asked.attr.is_global == 0) return EINVAL;
  if (asked.attr.grh.sgid_index >= wire::kGidTableSize) return EINVAL;
  auto object = std::make_unique<Object>();
  object->type = ObjectType::kAh;
  object->stands_on = {asked.pd_handle};
  Object& added = *object;
  ib_uverbs_create_ah_resp answer{};
  answer.ah_handle = context.objects.add(std::move(object));

  wire::Gid gid;
  std::copy_n(asked.attr.grh.dgid, gid.size(), gid.begin());
  wire::warn_of_mixed_gids(context.hca.address(), asked.attr.grh.sgid_index, gid);
  const wire::Mac mac = wire::mac_of(wire::address_of(gid));
  mlx5_ib_create_ah_resp driver{};
  driver.response_length = sizeof driver;
  std::copy(mac.begin(), mac.end(), driver.dmac);
  Errno error = request.respond(answer);
  if (error == 0) error = request.respond_driver(driver);
  if (error != 0) static_cast<void>(context.objects.remove(added));
  return error;
}

}  // namespace gdx::softhca::uverbs
