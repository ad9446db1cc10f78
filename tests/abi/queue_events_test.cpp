// Asynchronous events, and what takes a queue to an error state and back.
#include <cerrno>

#include "tests/abi/loopback.h"

namespace gdx::abi_tests {
namespace queue_events_test {

class QueueEvents : public Loopback {
 protected:
  void SetUp() override {
    Loopback::SetUp();
    cq_ = make_cq();
    ASSERT_NE(cq_, nullptr);
  }
  Srq make_srq(std::uint32_t entries) {
    ibv_srq_init_attr attributes{};
    attributes.attr.max_wr = entries;
    attributes.attr.max_sge = 1;
    return Srq(ibv_create_srq(pd_.get(), &attributes));
  }
  Cq cq_;
};

TEST_F(QueueEvents, first_packet_in_rtr_establishes_the_communication) {
  const Qp active = make_qp(cq_.get());
  const Qp passive = make_qp(cq_.get());
  connect(active.get(), passive->qp_num);
  ASSERT_EQ(to_init(passive.get()), 0);
  ASSERT_EQ(post_receive(passive.get(), piece(0, 64)), 0);
  ASSERT_EQ(to_rtr(passive.get(), active->qp_num), 0);
  ASSERT_EQ(post_send(active.get(), piece(4096, 64)), 0);
  EXPECT_EQ(next_event(passive.get()), IBV_EVENT_COMM_EST);
  ASSERT_TRUE(await(cq_.get()));
  ASSERT_TRUE(await(cq_.get()));
  EXPECT_FALSE(event_waits()) << "once, and only in RTR";
}

TEST_F(QueueEvents, srq_below_its_limit_tells_once_and_loses_the_limit) {
  const Srq srq = make_srq(8);
  ASSERT_NE(srq, nullptr);
  const Qp sender = make_qp(cq_.get());
  const Qp receiver = make_qp(cq_.get(), IBV_QPT_RC, srq.get());
  connect(sender.get(), receiver->qp_num);
  connect(receiver.get(), sender->qp_num);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(post_receive(srq.get(), piece(0, 64)), 0);

  ibv_srq_attr attributes{};
  attributes.srq_limit = 3;
  ASSERT_EQ(ibv_modify_srq(srq.get(), &attributes, IBV_SRQ_LIMIT), 0);
  EXPECT_FALSE(event_waits()) << "three are posted";
  attributes = {};
  ASSERT_EQ(ibv_query_srq(srq.get(), &attributes), 0);
  EXPECT_EQ(attributes.srq_limit, 3u);
  EXPECT_EQ(attributes.max_sge, 1u);
  EXPECT_GE(attributes.max_wr, 8u);

  ASSERT_EQ(post_send(sender.get(), piece(4096, 64)), 0);
  EXPECT_EQ(next_event(srq.get()), IBV_EVENT_SRQ_LIMIT_REACHED);
  ASSERT_TRUE(await(cq_.get()));
  ASSERT_TRUE(await(cq_.get()));
  ASSERT_EQ(ibv_query_srq(srq.get(), &attributes), 0);
  EXPECT_EQ(attributes.srq_limit, 0u);
  EXPECT_FALSE(event_waits());
}

TEST_F(QueueEvents, srq_limit_that_cannot_be_is_refused) {
  const Srq srq = make_srq(8);
  ibv_srq_attr attributes{};
  attributes.srq_limit = 1000;
  EXPECT_EQ(ibv_modify_srq(srq.get(), &attributes, IBV_SRQ_LIMIT), EINVAL);
  attributes.max_wr = 16;
  EXPECT_EQ(ibv_modify_srq(srq.get(), &attributes, IBV_SRQ_MAX_WR), EINVAL) << "mlx5 resizes no SRQ";
}

TEST_F(QueueEvents, srq_in_use_is_busy) {
  Srq srq = make_srq(8);
  Qp qp = make_qp(cq_.get(), IBV_QPT_RC, srq.get());
  EXPECT_EQ(ibv_destroy_srq(srq.get()), EBUSY);
  qp.reset();
  srq.reset();
}

TEST_F(QueueEvents, queue_pair_of_an_srq_put_in_error_tells_when_its_last_receive_is_out) {
  const Srq srq = make_srq(8);
  const Qp qp = make_qp(cq_.get(), IBV_QPT_RC, srq.get());
  connect(qp.get(), qp->qp_num);
  ASSERT_EQ(post_receive(srq.get(), piece(0, 64)), 0);
  ASSERT_EQ(set_state(qp.get(), IBV_QPS_ERR), 0);
  EXPECT_EQ(next_event(qp.get()), IBV_EVENT_QP_LAST_WQE_REACHED);
  ibv_wc completion{};
  EXPECT_EQ(ibv_poll_cq(cq_.get(), 1, &completion), 0) << "what the SRQ holds is not this queue pair's";
}

TEST_F(QueueEvents, overrun_completion_queue_is_in_error_and_so_is_its_queue_pair) {
  const Cq small = make_cq(1);
  const Qp qp = make_qp(small.get());
  connect(qp.get(), qp->qp_num);
  const auto remote = reinterpret_cast<std::uintptr_t>(memory_.data());
  for (int i = 0; i < 8; ++i) ASSERT_EQ(post_write(qp.get(), piece(4096, 8), remote, mr_->rkey), 0);
  EXPECT_EQ(next_event(small.get()), IBV_EVENT_CQ_ERR);
  EXPECT_EQ(next_event(qp.get()), IBV_EVENT_QP_FATAL);
}

TEST_F(QueueEvents, write_without_the_right_is_an_access_error_at_the_responder) {
  const Qp requester = make_qp(cq_.get());
  const Qp responder = make_qp(cq_.get());
  connect(requester.get(), responder->qp_num);
  connect(responder.get(), requester->qp_num);
  const auto remote = reinterpret_cast<std::uintptr_t>(memory_.data());
  ASSERT_EQ(post_write(requester.get(), piece(4096, 8), remote, mr_->rkey + 1), 0);
  EXPECT_EQ(next_event(responder.get()), IBV_EVENT_QP_ACCESS_ERR);
  const auto completion = await(cq_.get());
  ASSERT_TRUE(completion);
  EXPECT_EQ(completion->status, IBV_WC_REM_ACCESS_ERR);
}

// An unread event is taken back: destroying does not wait for its acknowledgement.
TEST_F(QueueEvents, queue_pair_destroyed_with_an_unread_event_leaves_none) {
  const Srq srq = make_srq(8);
  Qp qp = make_qp(cq_.get(), IBV_QPT_RC, srq.get());
  connect(qp.get(), qp->qp_num);
  ASSERT_EQ(set_state(qp.get(), IBV_QPS_ERR), 0);
  ASSERT_TRUE(readable(context_->async_fd));
  qp.reset();
  EXPECT_FALSE(event_waits());
}

TEST_F(QueueEvents, datagram_send_that_fails_stops_the_sending_until_rts) {
  const Qp qp = make_qp(cq_.get(), IBV_QPT_UD);
  connect(qp.get(), 0);
  ASSERT_EQ(post_receive(qp.get(), piece(0, 256)), 0);
  ibv_ah_attr path{};
  path.is_global = 1;
  path.port_num = 1;
  path.grh.dgid = gid();
  path.grh.sgid_index = 1;
  const Ah ah(ibv_create_ah(pd_.get(), &path));
  ASSERT_NE(ah, nullptr);
  const auto send = [&](ibv_sge from) {
    ibv_send_wr request{};
    request.sg_list = &from;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.wr.ud = {.ah = ah.get(), .remote_qpn = qp->qp_num, .remote_qkey = kQkey};
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp.get(), &request, &bad);
  };
  ibv_sge stray = piece(4096, 64);
  stray.lkey += 1;
  ASSERT_EQ(send(stray), 0);
  ASSERT_EQ(send(piece(4096, 64)), 0);
  auto completion = await(cq_.get());
  ASSERT_TRUE(completion);
  EXPECT_EQ(completion->status, IBV_WC_LOC_PROT_ERR);
  completion = await(cq_.get());
  ASSERT_TRUE(completion);
  EXPECT_EQ(completion->status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(state_of(qp.get()), IBV_QPS_SQE);

  ASSERT_EQ(send(piece(4096, 64)), 0);
  completion = await(cq_.get());
  ASSERT_TRUE(completion);
  EXPECT_EQ(completion->status, IBV_WC_WR_FLUSH_ERR) << "posted in SQE";

  ASSERT_EQ(set_state(qp.get(), IBV_QPS_RTS), 0);
  ASSERT_EQ(send(piece(4096, 64)), 0);
  for (int i = 0; i < 2; ++i) {
    completion = await(cq_.get());
    ASSERT_TRUE(completion);
    EXPECT_EQ(completion->status, IBV_WC_SUCCESS) << ibv_wc_status_str(completion->status);
  }
}

}  // namespace queue_events_test
}  // namespace gdx::abi_tests
