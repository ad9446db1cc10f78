#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>

#include "base/log.h"
#include "driver-shim/softhca/devx/limits.h"
#include "driver-shim/softhca/devx/refusals.h"
#include "driver-shim/softhca/uverbs/modify_rules.h"
#include "driver-shim/softhca/uverbs/queue_objects.h"
#include "driver-shim/softhca/uverbs/user_memory.h"
#include "driver-shim/softhca/uverbs/write_handlers.h"
#include "driver-shim/softhca/wire/addressing.h"

namespace gdx::softhca::uverbs {
namespace {

constexpr std::uint32_t kMtuUnitBytes = 128;  // MTU codes: 256 B is 1
constexpr std::uint8_t kLargestMtuCode = 5;
constexpr std::uint8_t kMigrated = 0;  // enum ib_mig_state

void warn_once_about_lids() {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  log::warn(
      "a peer was addressed by LID and found at 127.0.x.y; a real RoCE port would refuse: use a GID (-g 1)");
}

// Within an InfiniBand subnet the LID leads, with and without a GRH. A port that requires a GRH is one of
// several behind its LID, so a GID of another port is refused, because packets would not arrive. A path
// without a GRH is refused there by the kernel. Source: Linux drivers/infiniband/core/verbs.c,
// rdma_check_ah_attr().
ErrnoOr<wire::Address> remote_address(const Hca& hca, const ib_uverbs_qp_dest& destination) {
  const bool global = destination.is_global != 0;
  if (global && destination.sgid_index >= wire::kGidTableSize) return refuse(EINVAL);
  wire::Gid gid;
  std::copy_n(destination.dgid, gid.size(), gid.begin());
  if (global && !hca.config().infiniband) {
    wire::warn_of_mixed_gids(hca.address(), destination.sgid_index, gid);
    return wire::address_of(gid);
  }
  const wire::Address remote = wire::address_of_lid(destination.dlid);
  const bool leads = !hca.config().grh_required || (global && wire::address_of(gid) == remote);
  if (destination.dlid == 0 || !leads) return refuse(EINVAL);
  if (!hca.config().infiniband) warn_once_about_lids();
  return remote;
}

ErrnoOr<QpAttributes> attributes_from(const Hca& hca, const ib_uverbs_modify_qp& asked) {
  QpAttributes attributes;
  if (asked.qp_state > static_cast<std::uint8_t>(QpState::kError)) return refuse(EINVAL);
  attributes.state = static_cast<QpState>(asked.qp_state);
  attributes.access = asked.qp_access_flags;
  attributes.port = asked.port_num;
  attributes.pkey_index = asked.pkey_index;
  attributes.qkey = asked.qkey;
  if ((asked.attr_mask & kQpAddress) != 0) {
    const ErrnoOr<wire::Address> remote = remote_address(hca, asked.dest);
    if (!remote) return refuse(remote.error());
    attributes.remote = *remote;
    attributes.global = asked.dest.is_global != 0 || !hca.config().infiniband;
  }
  if ((asked.attr_mask & kQpPathMtu) != 0) {
    if (asked.path_mtu < 1 || asked.path_mtu > kLargestMtuCode) return refuse(EINVAL);
    attributes.mtu_bytes = kMtuUnitBytes << asked.path_mtu;
  }
  constexpr std::uint32_t kMaxReads = 1u << devx::kLogMaxReads;  // the device's reported attribute
  if ((asked.attr_mask & kQpMaxRdAtomic) != 0 && asked.max_rd_atomic > kMaxReads) return refuse(EINVAL);
  if ((asked.attr_mask & kQpMaxDestRdAtomic) != 0 && asked.max_dest_rd_atomic > kMaxReads) {
    return refuse(EINVAL);
  }
  attributes.timeout = asked.timeout;
  attributes.retry_count = asked.retry_cnt;
  attributes.rnr_retry = asked.rnr_retry;
  attributes.min_rnr_timer = asked.min_rnr_timer;
  attributes.max_rd_atomic = asked.max_rd_atomic;
  attributes.max_dest_rd_atomic = asked.max_dest_rd_atomic;
  attributes.receive_psn = asked.rq_psn;
  attributes.send_psn = asked.sq_psn;
  attributes.remote_qpn = asked.dest_qp_num;
  return attributes;
}

Errno modify_qp(Context& context, const ib_uverbs_modify_qp& asked) {
  const ErrnoOr<Object*> found = context.objects.find(asked.qp_handle, ObjectType::kQp);
  if (!found) return found.error() == ENOENT ? EINVAL : found.error();
  if ((asked.attr_mask & kQpPort) != 0 && asked.port_num != 1) return EINVAL;
  const ErrnoOr<QpAttributes> attributes = attributes_from(context.hca, asked);
  if (!attributes) return attributes.error();
  auto& object = static_cast<QueuePairObject&>(**found);
  const ErrnoOr<QpAttributes> current = context.hca.query_qp(object.number);
  if (!current) return current.error();
  if ((asked.attr_mask & kCurrentStateAttribute) != 0 &&
      asked.cur_qp_state != static_cast<std::uint8_t>(current->state))
    return EINVAL;
  const QpState to = (asked.attr_mask & kQpState) != 0 ? attributes->state : current->state;
  if (!may_modify(object.qp_type, current->state, to, asked.attr_mask)) return EINVAL;
  if ((asked.attr_mask & kMigrationStateAttribute) != 0 && asked.path_mig_state != kMigrated) return EINVAL;
  if (const Errno error = context.hca.modify_qp(object.number, asked.attr_mask, *attributes)) return error;
  if ((asked.attr_mask & kQpAddress) != 0) object.destination = asked.dest;
  return 0;
}

}  // namespace

Errno write_modify_qp(Context& context, WriteRequest& request) {
  ib_uverbs_modify_qp asked{};
  if (const Errno error = request.read(asked)) return error;
  return modify_qp(context, asked);
}

Errno write_modify_qp_ex(Context& context, WriteRequest& request) {
  ib_uverbs_ex_modify_qp asked{};
  if (const Errno error = request.read(asked)) return error;
  if (asked.rate_limit != 0) return unsupported("rate limit of single queue pairs");
  if (const Errno error = modify_qp(context, asked.base)) return error;
  ib_uverbs_ex_modify_qp_resp answer{};
  answer.response_length = sizeof answer;
  if (const Errno error = request.respond(answer)) return error;
  mlx5_ib_modify_qp_resp driver{};
  driver.response_length = sizeof driver;
  return request.respond_driver(driver);
}

Errno write_query_qp(Context& context, WriteRequest& request) {
  ib_uverbs_query_qp asked{};
  if (const Errno error = request.read(asked)) return error;
  const ErrnoOr<Object*> found = context.objects.find(asked.qp_handle, ObjectType::kQp);
  if (!found) return found.error() == ENOENT ? EINVAL : found.error();
  const auto& object = static_cast<const QueuePairObject&>(**found);
  const ErrnoOr<QpAttributes> attributes = context.hca.query_qp(object.number);
  if (!attributes) return attributes.error();

  ib_uverbs_query_qp_resp answer{};
  answer.dest = object.destination;
  answer.max_send_wr = object.capacity.max_send_wr;
  answer.max_recv_wr = object.capacity.max_recv_wr;
  answer.max_send_sge = object.capacity.max_send_sge;
  answer.max_recv_sge = object.capacity.max_recv_sge;
  answer.max_inline_data = object.capacity.max_inline_data;
  answer.qkey = attributes->qkey;
  answer.rq_psn = attributes->receive_psn;
  answer.sq_psn = attributes->send_psn;
  answer.dest_qp_num = attributes->remote_qpn;
  answer.qp_access_flags = attributes->access;
  answer.qp_state = static_cast<std::uint8_t>(attributes->state);
  answer.cur_qp_state = answer.qp_state;
  answer.path_mtu = static_cast<std::uint8_t>(std::bit_width(attributes->mtu_bytes / kMtuUnitBytes) - 1);
  answer.path_mig_state = kMigrated;
  answer.max_rd_atomic = attributes->max_rd_atomic;
  answer.max_dest_rd_atomic = attributes->max_dest_rd_atomic;
  answer.min_rnr_timer = attributes->min_rnr_timer;
  answer.port_num = attributes->port;
  answer.pkey_index = attributes->pkey_index;
  answer.timeout = attributes->timeout;
  answer.retry_cnt = attributes->retry_count;
  answer.rnr_retry = attributes->rnr_retry;
  answer.sq_sig_all = object.all_signaled;
  return request.respond(answer);
}

Errno write_resize_cq(Context& context, WriteRequest& request) {
  ib_uverbs_resize_cq asked{};
  if (const Errno error = request.read(asked)) return error;
  const ErrnoOr<Object*> found = context.objects.find(asked.cq_handle, ObjectType::kCq);
  if (!found) return EINVAL;
  auto& object = static_cast<CompletionQueueObject&>(**found);
  mlx5_ib_resize_cq driver{};
  if (request.attributes.read_bytes(UVERBS_ATTR_UHW_IN, &driver, sizeof driver, sizeof driver) != 0)
    return EINVAL;
  if (driver.reserved0 != 0 || driver.reserved1 != 0 || driver.cqe_size != object.entry_bytes) return EINVAL;
  if (asked.cqe == 0 || asked.cqe >= 1u << devx::kLogMaxCqEntries) return EINVAL;
  const auto log_entries = static_cast<std::uint32_t>(std::bit_width(asked.cqe));
  const std::uint64_t ring_bytes = std::uint64_t{object.entry_bytes} << log_entries;
  if (const Errno error = check_access(driver.buf_addr, ring_bytes, Use::kReadWrite)) return error;
  ib_uverbs_resize_cq_resp answer{};
  answer.cqe = (1u << log_entries) - 1;
  if (const Errno error = request.respond(answer)) return error;
  auto* const ring = reinterpret_cast<std::byte*>(driver.buf_addr);
  if (const Errno error = context.hca.resize_cq(object.number, ring, log_entries)) return error;
  object.entries = answer.cqe;
  return 0;
}

Errno write_modify_srq(Context& context, WriteRequest& request) {
  constexpr std::uint32_t kLimit = 1u << 1;  // IB_SRQ_LIMIT; a resize, IB_SRQ_MAX_WR, mlx5 refuses
  ib_uverbs_modify_srq asked{};
  if (const Errno error = request.read(asked)) return error;
  const ErrnoOr<Object*> found = context.objects.find(asked.srq_handle, ObjectType::kSrq);
  if (!found || (asked.attr_mask & ~kLimit) != 0) return EINVAL;
  if ((asked.attr_mask & kLimit) == 0) return 0;
  return context.hca.set_srq_limit((*found)->number, asked.srq_limit);
}

Errno write_query_srq(Context& context, WriteRequest& request) {
  ib_uverbs_query_srq asked{};
  if (const Errno error = request.read(asked)) return error;
  const ErrnoOr<Object*> found = context.objects.find(asked.srq_handle, ObjectType::kSrq);
  if (!found) return found.error() == ENOENT ? EINVAL : found.error();
  const auto& object = static_cast<const SharedReceiveQueueObject&>(**found);
  const ErrnoOr<std::uint32_t> limit = context.hca.srq_limit(object.number);
  if (!limit) return limit.error();
  return request.respond(ib_uverbs_query_srq_resp{object.max_wr, object.max_sge, *limit, 0});
}

}  // namespace gdx::softhca::uverbs
