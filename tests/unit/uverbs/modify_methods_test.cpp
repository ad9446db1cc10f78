// Changes of a queue pair by modify_qp: what reaches the engine, what a query tells, and what is refused.
#include <algorithm>

#include "driver-shim/softhca/wire/addressing.h"
#include "tests/unit/uverbs/queue_node.h"

namespace gdx::softhca::uverbs {
namespace modify_methods_test {

// A queue pair of qp(), changed to `asked`.
ib_uverbs_query_qp_resp as_queried(const ib_uverbs_modify_qp& asked) {
  ib_uverbs_query_qp_resp expected{};
  expected.dest = asked.dest;
  expected.max_send_wr = 11;
  expected.max_recv_wr = 8;
  expected.max_send_sge = 13;
  expected.max_recv_sge = 4;
  expected.max_inline_data = 15;
  expected.rq_psn = 0x123456;
  expected.sq_psn = 0x654321;
  expected.dest_qp_num = 0x77;
  expected.qp_access_flags = 0xe;
  expected.qp_state = expected.cur_qp_state = 3;
  expected.path_mtu = 3;
  expected.max_rd_atomic = 9;
  expected.max_dest_rd_atomic = 13;
  expected.min_rnr_timer = 21;
  expected.port_num = 1;
  expected.timeout = 17;
  expected.retry_cnt = 5;
  expected.rnr_retry = 6;
  expected.sq_sig_all = 1;
  return expected;
}

constexpr std::uint32_t kToInit = kQpState | kQpPkeyIndex | kQpPort | kQpAccessFlags;
constexpr std::uint32_t kToRtr = kQpState | kQpAddress | kQpPathMtu | kQpDestinationQpn | kQpReceivePsn |
                                 kQpMaxDestRdAtomic | kQpMinRnrTimer;
constexpr std::uint32_t kToRts =
    kQpState | kQpTimeout | kQpRetryCount | kQpRnrRetry | kQpSendPsn | kQpMaxRdAtomic;
constexpr std::uint32_t kMigration = 1u << 18;
constexpr std::uint32_t kCurrent = 1u << 1;

// Every attribute with a value of its own, which no default has.
ib_uverbs_modify_qp every_attribute(std::uint32_t handle) {
  ib_uverbs_modify_qp asked{};
  asked.qp_handle = handle;
  asked.port_num = 1;
  asked.qp_access_flags = 0xe;
  asked.rq_psn = 0x123456;
  asked.sq_psn = 0x654321;
  asked.dest_qp_num = 0x77;
  asked.path_mtu = 3;
  asked.max_rd_atomic = 9;
  asked.max_dest_rd_atomic = 13;
  asked.min_rnr_timer = 21;
  asked.timeout = 17;
  asked.retry_cnt = 5;
  asked.rnr_retry = 6;
  const wire::Gid gid = wire::gid_of(wire::Address::ipv4(0x7f000102), 1);
  asked.dest = {{}, 1, 2, 0, 1, 3, 4, 5, 6, 7, 1, 1};
  std::copy(gid.begin(), gid.end(), asked.dest.dgid);
  return asked;
}

TEST_F(QueueMethods, queue_pair_changed_is_queried_as_it_was_set) {
  Qp queue = qp();
  queue.flags = 4096;
  const std::uint32_t handle = add_qp(queue);
  const ib_uverbs_modify_qp asked = every_attribute(handle);
  const auto change = [&](std::uint8_t state, std::uint32_t mask, auto wrong) {
    ib_uverbs_modify_qp changed = asked;
    changed.qp_state = state;
    changed.attr_mask = mask;
    wrong(changed);
    return error_of(IB_USER_VERBS_CMD_MODIFY_QP, changed, 0);
  };
  const auto right = [](ib_uverbs_modify_qp&) {};
  EXPECT_EQ(change(1, kToInit, [](auto& it) { it.port_num = 2; }), EINVAL);
  EXPECT_EQ(change(1, kToInit, [](auto& it) { it.pkey_index = 1; }), EINVAL);
  EXPECT_EQ(change(7, kToInit, right), EINVAL);
  EXPECT_EQ(change(1, kToInit, [](auto& it) { it.qp_handle = 99; }), EINVAL);
  EXPECT_EQ(change(1, kToInit, [this](auto& it) { it.qp_handle = pd_; }), EINVAL);
  const auto nonsense_elsewhere = [](auto& it) {
    it.path_mtu = it.max_rd_atomic = it.max_dest_rd_atomic = it.path_mig_state = 0xff;
    it.dest = {};
  };
  ASSERT_EQ(change(1, kToInit, nonsense_elsewhere), 0);
  EXPECT_EQ(change(2, kToRtr, [](auto& it) { it.path_mtu = 0; }), EINVAL);
  EXPECT_EQ(change(2, kToRtr, [](auto& it) { it.path_mtu = 6; }), EINVAL);
  EXPECT_EQ(change(2, kToRtr, [](auto& it) { it.max_dest_rd_atomic = 17; }), EINVAL);
  EXPECT_EQ(change(2, kToRtr, [](auto& it) { it.dest.sgid_index = 2; }), EINVAL);
  EXPECT_EQ(change(2, kToRtr, [](auto& it) { it.dest.is_global = 0, it.dest.dlid = 0; }), EINVAL);
  EXPECT_EQ(change(2, kToRts, right), EINVAL);
  for (const std::uint8_t code : {std::uint8_t{1}, std::uint8_t{5}}) {
    const std::uint32_t other = add_qp(queue);
    const auto of_mtu = [&](auto& it) { it.qp_handle = other, it.path_mtu = code; };
    EXPECT_EQ(change(1, kToInit, of_mtu), 0);
    EXPECT_EQ(change(2, kToRtr, of_mtu), 0);
    EXPECT_EQ(hca_->query_qp(number_of(other))->mtu_bytes, 128u << code);
  }
  ASSERT_EQ(change(2, kToRtr, right), 0);
  EXPECT_EQ(hca_->query_qp(number_of(handle))->remote, wire::Address::ipv4(0x7f000102));
  EXPECT_EQ(change(3, kToRts, [](auto& it) { it.max_rd_atomic = 17; }), EINVAL);
  EXPECT_EQ(change(3, kToRts | kMigration, [](auto& it) { it.path_mig_state = 1; }), EINVAL);
  EXPECT_EQ(change(3, kToRts | kCurrent, [](auto& it) { it.cur_qp_state = 3; }), EINVAL) << "it is in RTR";
  ASSERT_EQ(change(3, kToRts | kMigration | kCurrent,
                   [](auto& it) { it.pkey_index = it.port_num = 9, it.cur_qp_state = 2; }),
            0);
  ib_uverbs_query_qp query{};
  query.qp_handle = handle;
  EXPECT_EQ(bytes_of(answer<ib_uverbs_query_qp_resp>(IB_USER_VERBS_CMD_QUERY_QP, query)),
            bytes_of(as_queried(asked)));
  query.qp_handle = 99;
  EXPECT_EQ(error_of(IB_USER_VERBS_CMD_QUERY_QP, query), EINVAL);
}

// Of InfiniBand, and it requires a GRH.
class VirtualFunctionQueues : public QueueMethods {
 protected:
  VirtualFunctionQueues() : QueueMethods(config()) {}
  static HcaConfig config() {
    HcaConfig made;
    made.infiniband = made.grh_required = true;
    made.pkeys = {0xffff, 0x8001};
    return made;
  }
};

TEST_F(VirtualFunctionQueues, path_has_the_grh_and_the_gid_of_its_lids_port) {
  ib_uverbs_modify_qp asked{};
  asked.qp_handle = add_qp(qp());
  asked.qp_state = 1;
  asked.attr_mask = kQpState | kQpPkeyIndex | kQpPort | kQpAccessFlags;
  asked.port_num = 1;
  asked.pkey_index = 1;
  ASSERT_EQ(error_of(IB_USER_VERBS_CMD_MODIFY_QP, asked, 0), 0);
  asked.qp_state = 2;
  asked.attr_mask = kQpState | kQpAddress | kQpPathMtu | kQpDestinationQpn | kQpReceivePsn |
                    kQpMaxDestRdAtomic | kQpMinRnrTimer;
  asked.path_mtu = 3;
  asked.dest.dlid = 0x0102;
  asked.dest.is_global = 1;
  const wire::Gid gid = wire::gid_of(wire::Address::ipv4(0x7f000102), 0);
  std::ranges::copy(gid, asked.dest.dgid);
  ib_uverbs_modify_qp wrong = asked;
  wrong.dest.is_global = 0;
  EXPECT_EQ(error_of(IB_USER_VERBS_CMD_MODIFY_QP, wrong, 0), EINVAL);
  wrong = asked;
  wrong.dest.dlid = 0x0103;
  EXPECT_EQ(error_of(IB_USER_VERBS_CMD_MODIFY_QP, wrong, 0), EINVAL);
  ASSERT_EQ(error_of(IB_USER_VERBS_CMD_MODIFY_QP, asked, 0), 0);
  const QpAttributes made = *hca_->query_qp(number_of(asked.qp_handle));
  EXPECT_TRUE(made.global);
  EXPECT_EQ(made.pkey_index, 1);
  ib_uverbs_query_qp query{};
  query.qp_handle = asked.qp_handle;
  EXPECT_EQ(answer<ib_uverbs_query_qp_resp>(IB_USER_VERBS_CMD_QUERY_QP, query).pkey_index, 1);
}

}  // namespace modify_methods_test
}  // namespace gdx::softhca::uverbs
