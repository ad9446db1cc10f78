#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_verbs.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "driver-shim/softhca/devx/limits.h"
#include "driver-shim/softhca/engine/memory_table.h"
#include "driver-shim/softhca/engine/planted_fault.h"
#include "driver-shim/softhca/uverbs/methods.h"
#include "driver-shim/softhca/uverbs/newer_ids.h"
#include "driver-shim/softhca/wire/addressing.h"
#include "driver-shim/softhca/wire/interface.h"

namespace gdx::softhca::uverbs {
namespace {

constexpr std::uint8_t kPortDown = 1;
constexpr std::uint8_t kPortActive = 4;
constexpr std::uint8_t kPhysicalLinkUp = 5;
constexpr std::uint8_t kLinkLayerInfiniBand = 1;
constexpr std::uint8_t kLinkLayerEthernet = 2;
constexpr std::uint8_t kWidth4x = 2;
constexpr std::uint8_t kSpeedEdr = 32;
constexpr std::uint8_t kMtuCode4096 = 5;

std::uint8_t mtu_code(std::uint32_t mtu_bytes) {
  return static_cast<std::uint8_t>(std::bit_width(mtu_bytes / 256));  // 256 B is 1
}

mlx5_ib_alloc_ucontext_resp context_response(const mlx5_ib_alloc_ucontext_req_v2& asked) {
  mlx5_ib_alloc_ucontext_resp answer{};
  answer.qp_tab_size = 1u << devx::kLogMaxObjects;
  answer.bf_reg_size = 1u << devx::kLogBlueFlameRegister;
  answer.tot_bfregs = 0;  // every UAR is allocated through its own object
  answer.cache_line_size = 64;
  answer.max_sq_desc_sz = devx::kMaxSendWqeBytes;
  answer.max_rq_desc_sz = devx::kMaxReceiveWqeBytes;
  answer.max_send_wqebb = 1u << devx::kLogMaxSendBlocks;
  answer.max_recv_wr = 1u << devx::kLogMaxSendBlocks;
  answer.max_srq_recv_wr = (1u << devx::kLogMaxSrqEntries) - 1;
  answer.num_ports = 1;
  answer.cqe_version = std::min<std::uint8_t>(asked.max_cqe_version, 1);
  answer.cmds_supp_uhw = MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | MLX5_USER_CMDS_SUPP_UHW_CREATE_AH;
  answer.eth_min_inline = MLX5_USER_INLINE_MODE_NONE;
  answer.log_uar_size = 12;
  answer.num_uars_per_page = 1;
  answer.num_dyn_bfregs = 512;
  answer.comp_mask = MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY;
  answer.dump_fill_mkey = MemoryTable::kNullMkey;
  answer.response_length = sizeof answer;
  return answer;
}

Errno write_context(Attributes& request, const mlx5_ib_alloc_ucontext_resp& driver, std::uint16_t vectors_id,
                    std::uint16_t support_id, std::uint16_t driver_id) {
  const std::uint32_t vectors = devx::kCompletionVectors;
  const std::uint64_t support = IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS;
  if (const Errno error = request.write(vectors_id, vectors)) return error;
  if (const Errno error = request.write(support_id, support)) return error;
  return request.write(driver_id, driver);
}

Errno get_context(Context& context, Attributes& request) {
  if (context.opened) return EINVAL;
  mlx5_ib_alloc_ucontext_req_v2 asked{};
  constexpr std::size_t kOldest = sizeof(mlx5_ib_alloc_ucontext_req);
  if (const Errno error = request.read_bytes(UVERBS_ATTR_UHW_IN, &asked, sizeof asked, kOldest)) {
    return error == ENOENT ? EINVAL : error;
  }
  if ((asked.flags & ~std::uint32_t{MLX5_IB_ALLOC_UCTX_DEVX}) != 0 || asked.comp_mask != 0) return EINVAL;
  const Errno error =
      write_context(request, context_response(asked), UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS,
                    UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, UVERBS_ATTR_UHW_OUT);
  if (error != 0) return error;
  context.opened = true;
  context.devx = (asked.flags & MLX5_IB_ALLOC_UCTX_DEVX) != 0;
  return 0;
}

Errno query_context(Context&, Attributes& request) {
  mlx5_ib_alloc_ucontext_req_v2 newest{};
  newest.max_cqe_version = 1;
  return write_context(request, context_response(newest), UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS,
                       UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX);
}

Errno query_port(Context& context, Attributes& request) {
  const ErrnoOr<std::uint64_t> port = request.constant(UVERBS_ATTR_QUERY_PORT_PORT_NUM);
  if (!port) return port.error();
  if (*port != 1) return EINVAL;
  ib_uverbs_query_port_resp_ex answer{};
  ib_uverbs_query_port_resp& base = answer.legacy_resp;
  base.port_cap_flags = IB_UVERBS_PCF_CM_SUP | IB_UVERBS_PCF_IP_BASED_GIDS;
  base.max_msg_sz = 1u << devx::kLogMaxMessage;
  base.gid_tbl_len = wire::kGidTableSize;
  base.pkey_tbl_len = static_cast<std::uint16_t>(context.hca.config().pkeys.size());
  // The planted fault is one without a subnet manager.
  const bool unmanaged = planted_fault == PlantedFault::kInfiniBandPort;
  const bool infiniband = unmanaged || context.hca.config().infiniband;
  base.lid = unmanaged ? std::uint16_t{0} : wire::lid_of(context.hca.address());
  base.state = planted_fault == PlantedFault::kPortDown ? kPortDown : kPortActive;
  base.max_mtu = kMtuCode4096;
  base.active_mtu = mtu_code(context.hca.config().mtu_bytes);
  base.max_vl_num = 1;
  base.active_width = kWidth4x;
  base.active_speed = kSpeedEdr;
  base.phys_state = kPhysicalLinkUp;
  base.link_layer = infiniband ? kLinkLayerInfiniBand : kLinkLayerEthernet;
  base.sm_lid = infiniband && !unmanaged ? 1 : 0;
  if (!infiniband || context.hca.config().grh_required) base.flags = IB_UVERBS_QPF_GRH_REQUIRED;
  return request.write(UVERBS_ATTR_QUERY_PORT_RESP, answer);
}

// In units of 100 Mbit/s, as the width and the speed of query_port() make it.
Errno query_port_speed(Context&, Attributes& request) {
  const ErrnoOr<std::uint64_t> port = request.constant(kAttrQueryPortSpeedPortNum);
  if (!port) return port.error();
  if (*port != 1) return EINVAL;
  constexpr std::uint64_t kHundredGbps = 1000;
  return request.write(kAttrQueryPortSpeedResp, kHundredGbps);
}

// Answers mlx5dv_query_port() about the port's place in an embedded switch, which this device lacks.
Errno query_switch_port(Context&, Attributes& request) {
  const auto port = request.value<std::uint32_t>(MLX5_IB_ATTR_QUERY_PORT_PORT_NUM);
  if (!port) return port.error();
  if (*port != 1) return EINVAL;
  return request.write(MLX5_IB_ATTR_QUERY_PORT, mlx5_ib_uapi_query_port{});
}

// There is none, as on every HCA before ConnectX-8. Source: Linux drivers/infiniband/hw/mlx5/std_types.c.
Errno query_data_direct(Context& /*context*/, Attributes& /*request*/) { return ENODEV; }

// Requires no flags, because these queries have none, in the Linux kernel either.
Errno check_no_flags(const Attributes& request, std::uint16_t id) {
  if (!request.has(id)) return 0;
  const ErrnoOr<std::uint32_t> flags = request.value<std::uint32_t>(id);
  if (!flags) return flags.error();
  return *flags == 0 ? 0 : EINVAL;
}

ib_uverbs_gid_entry gid_entry(const Hca& hca, std::uint8_t index) {
  ib_uverbs_gid_entry entry{};
  const wire::Gid gid = wire::gid_of(hca.address(), index);
  static_assert(sizeof entry.gid == sizeof gid);
  std::memcpy(entry.gid, gid.data(), gid.size());
  entry.gid_index = index;
  entry.port_num = 1;
  entry.gid_type = hca.config().infiniband ? IB_UVERBS_GID_TYPE_IB : IB_UVERBS_GID_TYPE_ROCE_V2;
  entry.netdev_ifindex = wire::interface_of(hca.address()).index;
  return entry;
}

Errno query_gid_entry(Context& context, Attributes& request) {
  const ErrnoOr<std::uint64_t> port = request.constant(UVERBS_ATTR_QUERY_GID_ENTRY_PORT);
  const ErrnoOr<std::uint64_t> index = request.constant(UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX);
  if (!port || !index || *port != 1) return EINVAL;
  if (const Errno error = check_no_flags(request, UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS)) return error;
  if (*index >= wire::kGidTableSize) return EINVAL;
  return request.write(UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY,
                       gid_entry(context.hca, static_cast<std::uint8_t>(*index)));
}

Errno query_gid_table(Context& context, Attributes& request) {
  const ErrnoOr<std::uint64_t> entry_bytes = request.constant(UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE);
  if (!entry_bytes) return entry_bytes.error();
  if (const Errno error = check_no_flags(request, UVERBS_ATTR_QUERY_GID_TABLE_FLAGS)) return error;
  if (*entry_bytes < sizeof(ib_uverbs_gid_entry) || *entry_bytes > kPageBytes) return EINVAL;
  std::vector<std::uint8_t> table(wire::kGidTableSize * *entry_bytes);
  if (request.length(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES) < table.size()) return EINVAL;
  for (std::uint8_t index = 0; index < wire::kGidTableSize; ++index) {
    const ib_uverbs_gid_entry entry = gid_entry(context.hca, index);
    std::memcpy(&table[index * *entry_bytes], &entry, sizeof entry);
  }
  const Errno error =
      request.write_bytes(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, table.data(), table.size());
  if (error != 0) return error;
  return request.write(UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, std::uint64_t{wire::kGidTableSize});
}

Errno allocate_async_events(Context& context, Attributes& request) {
  const ErrnoOr<std::shared_ptr<EventChannel>> channel = context.channels.open_channel();
  if (!channel) return channel.error();
  if (context.asyncs == nullptr) context.asyncs = *channel;
  return request.write_handle(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE,
                              static_cast<std::uint32_t>((*channel)->user_fd()));
}

constexpr Method kMethods[] = {
    {UVERBS_OBJECT_DEVICE,
     UVERBS_METHOD_INVOKE_WRITE,
     true,
     invoke_write,
     {UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_WRITE_CMD, UVERBS_ATTR_UHW_IN,
      UVERBS_ATTR_UHW_OUT}},
    {UVERBS_OBJECT_DEVICE,
     UVERBS_METHOD_GET_CONTEXT,
     true,
     get_context,
     {UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, UVERBS_ATTR_UHW_IN,
      UVERBS_ATTR_UHW_OUT}},
    {UVERBS_OBJECT_DEVICE,
     UVERBS_METHOD_QUERY_CONTEXT,
     false,
     query_context,
     {UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT,
      MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX}},
    {UVERBS_OBJECT_DEVICE,
     UVERBS_METHOD_QUERY_PORT,
     false,
     query_port,
     {UVERBS_ATTR_QUERY_PORT_PORT_NUM, UVERBS_ATTR_QUERY_PORT_RESP}},
    {UVERBS_OBJECT_DEVICE,
     kMethodQueryPortSpeed,
     false,
     query_port_speed,
     {kAttrQueryPortSpeedPortNum, kAttrQueryPortSpeedResp}},
    {UVERBS_OBJECT_DEVICE,
     MLX5_IB_METHOD_QUERY_PORT,
     false,
     query_switch_port,
     {MLX5_IB_ATTR_QUERY_PORT_PORT_NUM, MLX5_IB_ATTR_QUERY_PORT}},
    {UVERBS_OBJECT_DEVICE,
     kMethodGetDataDirectSysfsPath,
     false,
     query_data_direct,
     {kAttrGetDataDirectSysfsPath}},
    {UVERBS_OBJECT_DEVICE,
     UVERBS_METHOD_QUERY_GID_TABLE,
     false,
     query_gid_table,
     {UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE, UVERBS_ATTR_QUERY_GID_TABLE_FLAGS,
      UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES}},
    {UVERBS_OBJECT_DEVICE,
     UVERBS_METHOD_QUERY_GID_ENTRY,
     false,
     query_gid_entry,
     {UVERBS_ATTR_QUERY_GID_ENTRY_PORT, UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX,
      UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY}},
    {UVERBS_OBJECT_ASYNC_EVENT,
     UVERBS_METHOD_ASYNC_EVENT_ALLOC,
     false,
     allocate_async_events,
     {UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE}},
};

}  // namespace

std::span<const Method> device_methods() { return kMethods; }

}  // namespace gdx::softhca::uverbs
