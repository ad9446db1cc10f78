// The older command set, which travels inside the INVOKE_WRITE method.
// Source: Linux include/uapi/rdma/ib_user_verbs.h, drivers/infiniband/core/uverbs_cmd.c.
#include <fmt/format.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>

#include <cerrno>
#include <vector>

#include "driver-shim/softhca/devx/refusals.h"
#include "driver-shim/softhca/uverbs/methods.h"
#include "driver-shim/softhca/uverbs/write_handlers.h"

namespace gdx::softhca::uverbs {
namespace {

struct WriteCommand {
  std::uint32_t number;
  std::size_t request_bytes;
  std::size_t response_bytes;
  Errno (*handler)(Context&, WriteRequest&);
};

constexpr std::uint32_t kExtended = IB_USER_VERBS_CMD_FLAG_EXTENDED;

constexpr WriteCommand kCommands[] = {
    {IB_USER_VERBS_CMD_QUERY_DEVICE, sizeof(ib_uverbs_query_device), sizeof(ib_uverbs_query_device_resp),
     write_query_device},
    {kExtended | IB_USER_VERBS_EX_CMD_QUERY_DEVICE, sizeof(ib_uverbs_ex_query_device),
     sizeof(ib_uverbs_query_device_resp), write_query_device_ex},
    {IB_USER_VERBS_CMD_ALLOC_PD, sizeof(ib_uverbs_alloc_pd), sizeof(ib_uverbs_alloc_pd_resp), write_alloc_pd},
    {IB_USER_VERBS_CMD_REG_MR, sizeof(ib_uverbs_reg_mr), sizeof(ib_uverbs_reg_mr_resp), write_reg_mr},
    {IB_USER_VERBS_CMD_REREG_MR, sizeof(ib_uverbs_rereg_mr), sizeof(ib_uverbs_rereg_mr_resp), write_rereg_mr},
    {IB_USER_VERBS_CMD_ALLOC_MW, sizeof(ib_uverbs_alloc_mw), sizeof(ib_uverbs_alloc_mw_resp), write_alloc_mw},
    {IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, sizeof(ib_uverbs_create_comp_channel),
     sizeof(ib_uverbs_create_comp_channel_resp), write_create_comp_channel},
    {IB_USER_VERBS_CMD_CREATE_AH, sizeof(ib_uverbs_create_ah), sizeof(ib_uverbs_create_ah_resp),
     write_create_ah},
    {IB_USER_VERBS_CMD_RESIZE_CQ, sizeof(ib_uverbs_resize_cq),
     offsetof(ib_uverbs_resize_cq_resp, driver_data), write_resize_cq},
    {IB_USER_VERBS_CMD_QUERY_QP, sizeof(ib_uverbs_query_qp), sizeof(ib_uverbs_query_qp_resp), write_query_qp},
    {IB_USER_VERBS_CMD_MODIFY_QP, sizeof(ib_uverbs_modify_qp), 0, write_modify_qp},
    {kExtended | IB_USER_VERBS_EX_CMD_MODIFY_QP, sizeof(ib_uverbs_ex_modify_qp),
     sizeof(ib_uverbs_ex_modify_qp_resp), write_modify_qp_ex},
    {IB_USER_VERBS_CMD_QUERY_SRQ, sizeof(ib_uverbs_query_srq), sizeof(ib_uverbs_query_srq_resp),
     write_query_srq},
    {IB_USER_VERBS_CMD_MODIFY_SRQ, sizeof(ib_uverbs_modify_srq), 0, write_modify_srq},
};

// Returns the usual name of a command that is missing here.
const char* name_of(std::uint32_t number) {
  switch (number) {
    case IB_USER_VERBS_CMD_OPEN_XRCD: return "open_xrcd (XRC)";
    case IB_USER_VERBS_CMD_CREATE_XSRQ: return "create_xsrq (XRC)";
    case IB_USER_VERBS_CMD_OPEN_QP: return "open_qp (XRC)";
    case IB_USER_VERBS_CMD_ATTACH_MCAST: return "attach_mcast (multicast)";
    case kExtended | IB_USER_VERBS_EX_CMD_CREATE_FLOW: return "create_flow (flow steering)";
    case kExtended | IB_USER_VERBS_EX_CMD_CREATE_WQ: return "create_wq (receive side scaling)";
    default: return "unnamed";
  }
}

}  // namespace

Errno invoke_write(Context& context, Attributes& attributes) {
  const ErrnoOr<std::uint64_t> number = attributes.constant(UVERBS_ATTR_WRITE_CMD);
  if (!number) return number.error();
  for (const WriteCommand& command : kCommands) {
    if (command.number != *number) continue;
    // Too short a buffer is ENOSPC even before there is a context: libibverbs probes with that.
    if (attributes.length(UVERBS_ATTR_CORE_IN) < command.request_bytes ||
        attributes.length(UVERBS_ATTR_CORE_OUT) < command.response_bytes) {
      return ENOSPC;
    }
    if (!context.opened) return EINVAL;
    WriteRequest request{attributes};
    return command.handler(context, request);
  }
  return unsupported(
      fmt::format("uverbs write command {:#x}, {}", *number, name_of(static_cast<std::uint32_t>(*number))));
}

}  // namespace gdx::softhca::uverbs
