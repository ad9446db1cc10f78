#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>

#include "base/log.h"
#include "driver-shim/softhca/devx/addressing.h"
#include "driver-shim/softhca/uverbs/queue_objects.h"
#include "driver-shim/softhca/uverbs/write_handlers.h"

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

Answer<wire::Address> remote_address(const ib_uverbs_qp_dest& destination) {
  if (destination.is_global != 0) {
    if (destination.sgid_index >= devx::kGidTableSize) return refuse(EINVAL);
    devx::Gid gid;
    std::copy_n(destination.dgid, gid.size(), gid.begin());
    return devx::address_of(gid);
  }
  if (destination.dlid == 0) return refuse(EINVAL);
  warn_once_about_lids();
  return devx::address_of_lid(destination.dlid);
}

Answer<QpAttributes> attributes_from(const ib_uverbs_modify_qp& asked) {
  QpAttributes attributes;
  if (asked.qp_state > static_cast<std::uint8_t>(QpState::kError)) return refuse(EINVAL);
  attributes.state = static_cast<QpState>(asked.qp_state);
  attributes.access = asked.qp_access_flags;
  attributes.port = asked.port_num;
  attributes.qkey = asked.qkey;
  if ((asked.attr_mask & kQpAddress) != 0) {
    const Answer<wire::Address> remote = remote_address(asked.dest);
    if (!remote) return refuse(remote.error());
    attributes.remote = *remote;
  }
  if ((asked.attr_mask & kQpPathMtu) != 0) {
    if (asked.path_mtu < 1 || asked.path_mtu > kLargestMtuCode) return refuse(EINVAL);
    attributes.mtu_bytes = kMtuUnitBytes << asked.path_mtu;
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
  const Answer<Object*> found = context.objects.find(asked.qp_handle, ObjectType::kQp);
  if (!found) return found.error() == ENOENT ? EINVAL : found.error();
  if ((asked.attr_mask & kQpPort) != 0 && asked.port_num != 1) return EINVAL;
  if ((asked.attr_mask & kQpPkeyIndex) != 0 && asked.pkey_index != 0) return EINVAL;
  const Answer<QpAttributes> attributes = attributes_from(asked);
  if (!attributes) return attributes.error();
  auto& object = static_cast<QueuePairObject&>(**found);
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
  if (asked.rate_limit != 0) return EOPNOTSUPP;
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
  const Answer<Object*> found = context.objects.find(asked.qp_handle, ObjectType::kQp);
  if (!found) return found.error() == ENOENT ? EINVAL : found.error();
  const auto& object = static_cast<const QueuePairObject&>(**found);
  const Answer<QpAttributes> attributes = context.hca.query_qp(object.number);
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
  answer.timeout = attributes->timeout;
  answer.retry_cnt = attributes->retry_count;
  answer.rnr_retry = attributes->rnr_retry;
  return request.respond(answer);
}

Errno write_query_srq(Context& context, WriteRequest& request) {
  ib_uverbs_query_srq asked{};
  if (const Errno error = request.read(asked)) return error;
  const Answer<Object*> found = context.objects.find(asked.srq_handle, ObjectType::kSrq);
  if (!found) return found.error() == ENOENT ? EINVAL : found.error();
  const auto& object = static_cast<const SharedReceiveQueueObject&>(**found);
  return request.respond(ib_uverbs_query_srq_resp{object.max_wr, object.max_sge, 0, 0});
}

}  // namespace gdx::softhca::uverbs
