// Changes of live objects, their queries, and features that this device lacks.
#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <tuple>

#include "tests/abi/loopback.h"

namespace gdx::abi_tests {
namespace queue_changes_test {

class QueueChanges : public Loopback {
 protected:
  void SetUp() override {
    Loopback::SetUp();
    cq_ = make_cq();
    ASSERT_NE(cq_, nullptr);
  }
  std::uint64_t at(std::size_t offset) const {
    return reinterpret_cast<std::uintptr_t>(memory_.data()) + offset;
  }
  Cq cq_;
};

TEST_F(QueueChanges, cq_resized_keeps_what_is_unpolled_and_goes_on) {
  const Cq cq = make_cq(7);
  const Qp qp = make_qp(cq.get());
  connect(qp.get(), qp->qp_num);
  std::uint64_t posted = 0;
  std::uint64_t polled = 0;
  const auto post = [&](int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_EQ(post_receive(qp.get(), piece(0, 64), posted), 0);
      ASSERT_EQ(post_send(qp.get(), piece(4096, 64), posted++), 0);
    }
  };
  const auto poll_all = [&] {
    for (std::uint64_t sends = 0, receives = 0; sends + receives < 2 * (posted - polled);) {
      const auto completion = await(cq.get());
      ASSERT_TRUE(completion);
      ASSERT_EQ(completion->status, IBV_WC_SUCCESS);
      auto& seen = completion->opcode == IBV_WC_SEND ? sends : receives;
      EXPECT_EQ(completion->wr_id, polled + seen++);
    }
    polled = posted;
  };
  // Unpolled completions lie across the change, and the ring's end moves under them.
  for (const int entries : {15, 31, 7, 63, 15}) {
    post(2);
    poll_all();
    post(3);
    ASSERT_EQ(ibv_resize_cq(cq.get(), entries), 0) << entries;
    EXPECT_GE(cq->cqe, entries);
    poll_all();
    post(3);
    poll_all();
  }
}

TEST_F(QueueChanges, cq_resized_to_nonsense_is_refused) {
  EXPECT_NE(ibv_resize_cq(cq_.get(), 1 << 30), 0);
  EXPECT_NE(ibv_resize_cq(cq_.get(), -1), 0);
}

TEST_F(QueueChanges, region_changes_its_memory_rights_and_domain_under_one_key) {
  const Qp requester = make_qp(cq_.get());
  const Qp responder = make_qp(cq_.get());
  const auto connect_both = [&] {
    connect(requester.get(), responder->qp_num);
    connect(responder.get(), requester->qp_num);
  };
  connect_both();
  alignas(4096) static std::array<std::byte, 8192> other{};
  Mr mr(ibv_reg_mr(pd_.get(), memory_.data(), 4096, IBV_ACCESS_LOCAL_WRITE));
  ASSERT_NE(mr, nullptr);
  const auto write_status = [&](std::uint64_t to) {
    EXPECT_EQ(post_write(requester.get(), piece(8192, 8), to, mr->rkey), 0);
    const auto completion = await(cq_.get());
    if (!completion || completion->status == IBV_WC_SUCCESS) return IBV_WC_SUCCESS;
    EXPECT_EQ(set_state(requester.get(), IBV_QPS_RESET), 0);
    EXPECT_EQ(set_state(responder.get(), IBV_QPS_RESET), 0);
    connect_both();
    return completion->status;
  };
  EXPECT_EQ(write_status(at(0)), IBV_WC_REM_ACCESS_ERR);

  ASSERT_EQ(ibv_rereg_mr(mr.get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kAllAccess), 0);
  memory_[8192] = std::byte{0x77};
  EXPECT_EQ(write_status(at(0)), IBV_WC_SUCCESS);
  EXPECT_EQ(memory_[0], std::byte{0x77});

  ASSERT_EQ(ibv_rereg_mr(mr.get(), IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, other.data(), other.size(), 0),
            0);
  EXPECT_EQ(write_status(at(0)), IBV_WC_REM_ACCESS_ERR) << "no longer its memory";
  EXPECT_EQ(write_status(reinterpret_cast<std::uintptr_t>(other.data())), IBV_WC_SUCCESS);
  EXPECT_EQ(other[0], std::byte{0x77});

  Pd second(ibv_alloc_pd(context_.get()));
  ASSERT_EQ(ibv_rereg_mr(mr.get(), IBV_REREG_MR_CHANGE_PD, second.get(), nullptr, 0, 0), 0);
  EXPECT_EQ(write_status(reinterpret_cast<std::uintptr_t>(other.data())), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dealloc_pd(second.get()), EBUSY) << "the region stands on it now";

  // All at once, back to where it was.
  ASSERT_EQ(
      ibv_rereg_mr(mr.get(),
                   IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS,
                   pd_.get(), memory_.data(), 4096, kAllAccess),
      0);
  EXPECT_EQ(write_status(at(8)), IBV_WC_SUCCESS);
  mr.reset();
}

TEST_F(QueueChanges, region_change_refused_leaves_it_as_it_was) {
  const Qp qp = make_qp(cq_.get());
  connect(qp.get(), qp->qp_num);
  EXPECT_NE(ibv_rereg_mr(mr_.get(), 0, nullptr, nullptr, 0, 0), 0) << "nothing to change";
  EXPECT_NE(ibv_rereg_mr(mr_.get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, IBV_ACCESS_REMOTE_WRITE),
            0);
  EXPECT_NE(ibv_rereg_mr(mr_.get(), IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, reinterpret_cast<void*>(0x1000),
                         4096, 0),
            0)
      << "nothing is mapped there";
  ASSERT_EQ(post_write(qp.get(), piece(4096, 8), at(0), mr_->rkey), 0);
  const auto completion = await(cq_.get());
  ASSERT_TRUE(completion);
  EXPECT_EQ(completion->status, IBV_WC_SUCCESS);
}

TEST_F(QueueChanges, queue_pair_queried_tells_what_it_was_given_and_where_it_stands) {
  const Qp qp = make_qp(cq_.get());
  ASSERT_EQ(to_init(qp.get()), 0);
  ASSERT_EQ(to_rtr(qp.get(), qp->qp_num, 2), 0);
  ASSERT_EQ(to_rts(qp.get(), 4), 0);
  ASSERT_EQ(post_receive(qp.get(), piece(0, 64)), 0);
  ASSERT_EQ(post_send(qp.get(), piece(4096, 64)), 0);
  ASSERT_TRUE(await(cq_.get()));
  ASSERT_TRUE(await(cq_.get()));
  ibv_qp_attr attributes{};
  ibv_qp_init_attr created{};
  ASSERT_EQ(ibv_query_qp(qp.get(), &attributes, IBV_QP_STATE, &created), 0);
  EXPECT_EQ(attributes.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(attributes.cur_qp_state, IBV_QPS_RTS);
  EXPECT_EQ(attributes.path_mtu, IBV_MTU_1024);
  EXPECT_EQ(attributes.path_mig_state, IBV_MIG_MIGRATED);
  EXPECT_EQ(attributes.sq_psn, kPsn + 1) << "the next one";
  EXPECT_EQ(attributes.rq_psn, kPsn + 1);
  EXPECT_EQ(attributes.dest_qp_num, qp->qp_num);
  EXPECT_EQ(attributes.qp_access_flags, static_cast<unsigned>(kAllAccess));
  EXPECT_EQ(attributes.max_rd_atomic, 4);
  EXPECT_EQ(attributes.max_dest_rd_atomic, 2);
  EXPECT_EQ(attributes.min_rnr_timer, 1);
  EXPECT_EQ(attributes.port_num, 1);
  EXPECT_EQ(attributes.timeout, kPatient);
  EXPECT_EQ(attributes.retry_cnt, 3);
  EXPECT_EQ(attributes.rnr_retry, 3);
  EXPECT_EQ(attributes.ah_attr.is_global, 1);
  EXPECT_EQ(attributes.ah_attr.grh.sgid_index, 1);
  EXPECT_EQ(attributes.ah_attr.grh.hop_limit, 64);
  const ibv_gid own = gid();
  EXPECT_EQ(std::memcmp(&attributes.ah_attr.grh.dgid, &own, sizeof own), 0);
  EXPECT_GE(created.cap.max_send_wr, 16u);
  EXPECT_GE(created.cap.max_recv_wr, 16u);
  EXPECT_EQ(created.sq_sig_all, 1);
}

// Each attribute that ibv_modify_qp may change by itself, in INIT and in RTS; the others are other values
// then.
TEST_F(QueueChanges, queue_pair_attribute_changed_alone_reads_back_and_leaves_the_others) {
  const Qp qp = make_qp(cq_.get());
  const auto query = [&qp] {
    ibv_qp_attr now{};
    ibv_qp_init_attr created{};
    EXPECT_EQ(ibv_query_qp(qp.get(), &now, IBV_QP_STATE, &created), 0);
    return now;
  };
  const auto fields = [](const ibv_qp_attr& of) {
    return std::tuple(of.qp_state, of.path_mtu, of.path_mig_state, of.qkey, of.rq_psn, of.sq_psn,
                      of.dest_qp_num, of.qp_access_flags, of.max_rd_atomic, of.max_dest_rd_atomic,
                      of.min_rnr_timer, of.port_num, of.timeout, of.retry_cnt, of.rnr_retry,
                      of.ah_attr.grh.traffic_class, of.ah_attr.sl, of.ah_attr.grh.hop_limit,
                      of.ah_attr.grh.sgid_index);
  };
  const auto change_alone = [&](int mask, auto set) {
    ibv_qp_attr asked{};
    asked.qp_state = IBV_QPS_ERR;
    asked.path_mtu = IBV_MTU_256;
    asked.qkey = asked.rq_psn = asked.sq_psn = asked.dest_qp_num = 0x77;
    asked.max_rd_atomic = asked.max_dest_rd_atomic = asked.min_rnr_timer = 2;
    asked.timeout = asked.retry_cnt = asked.rnr_retry = 1;
    asked.port_num = 1;
    ibv_qp_attr expected = query();
    set(asked);
    set(expected);
    EXPECT_EQ(ibv_modify_qp(qp.get(), &asked, mask), 0) << mask;
    EXPECT_EQ(fields(query()), fields(expected)) << mask;
  };
  const auto change_rights = [&](unsigned rights) {
    change_alone(IBV_QP_ACCESS_FLAGS, [rights](ibv_qp_attr& of) { of.qp_access_flags = rights; });
  };
  ASSERT_EQ(to_init(qp.get()), 0);
  change_rights(IBV_ACCESS_REMOTE_READ);
  change_alone(IBV_QP_PORT, [](ibv_qp_attr& of) { of.port_num = 1; });
  ASSERT_EQ(to_rtr(qp.get(), qp->qp_num), 0);
  ASSERT_EQ(to_rts(qp.get()), 0);
  change_rights(IBV_ACCESS_REMOTE_WRITE);
  change_rights(IBV_ACCESS_REMOTE_ATOMIC);
  change_alone(IBV_QP_MIN_RNR_TIMER, [](ibv_qp_attr& of) { of.min_rnr_timer = 20; });
  change_alone(IBV_QP_PATH_MIG_STATE, [](ibv_qp_attr& of) { of.path_mig_state = IBV_MIG_MIGRATED; });
}

// UC refuses in silence, so a later WRITE under a right that is there again shows that others arrive.
TEST_F(QueueChanges, right_to_write_taken_from_a_uc_queue_pair_in_rts_holds_for_the_next_write) {
  const Qp qp = make_qp(cq_.get(), IBV_QPT_UC);
  connect(qp.get(), qp->qp_num);
  const auto write = [&](std::size_t to, unsigned rights) {
    ibv_qp_attr attributes{};
    attributes.qp_access_flags = rights;
    ASSERT_EQ(ibv_modify_qp(qp.get(), &attributes, IBV_QP_ACCESS_FLAGS), 0);
    ASSERT_EQ(post_write(qp.get(), piece(4096, 8), at(to), mr_->rkey), 0);
    ASSERT_TRUE(await(cq_.get()));
  };
  memory_[4096] = std::byte{0x5a};
  write(0, 0);
  // Waits for a reliable write behind it. Its acknowledgement says that the first one is over.
  const Qp behind = make_qp(cq_.get());
  connect(behind.get(), behind->qp_num);
  ASSERT_EQ(post_write(behind.get(), piece(4096, 8), at(128), mr_->rkey), 0);
  const auto over = await(cq_.get());
  ASSERT_TRUE(over && over->status == IBV_WC_SUCCESS);
  const auto end = std::chrono::steady_clock::now() + kHang;
  volatile std::byte* const later = &memory_[64];
  while (*later != std::byte{0x5a} && std::chrono::steady_clock::now() < end) write(64, kAllAccess);
  EXPECT_EQ(memory_[64], std::byte{0x5a});
  EXPECT_EQ(memory_[0], std::byte{0});
}

// Linux drivers/infiniband/hw/mlx5/qp.c, process_vendor_flags().
TEST_F(QueueChanges, queue_pair_made_with_flags_that_are_not_its_types_answers_einval) {
  const auto make = [this](std::uint32_t create_flags) {
    ibv_qp_init_attr_ex init{};
    init.qp_type = IBV_QPT_RC;
    init.send_cq = cq_.get();
    init.recv_cq = cq_.get();
    init.pd = pd_.get();
    init.comp_mask = IBV_QP_INIT_ATTR_PD;
    init.cap = {
        .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
    mlx5dv_qp_init_attr driver{};
    driver.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
    driver.create_flags = create_flags;
    errno = 0;
    const Qp qp(mlx5dv_create_qp(context_.get(), &init, &driver));
    return qp == nullptr ? errno : 0;
  };
  EXPECT_EQ(make(0), 0);
  EXPECT_EQ(make(MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE), 0) << "forgiven where it is not offered";
  EXPECT_EQ(make(MLX5DV_QP_CREATE_TUNNEL_OFFLOADS), EINVAL);
  EXPECT_EQ(make(MLX5DV_QP_CREATE_TIR_ALLOW_SELF_LOOPBACK_UC), EINVAL);
  EXPECT_EQ(make(MLX5DV_QP_CREATE_PACKET_BASED_CREDIT_MODE), EINVAL) << "not among the capabilities";
}

TEST_F(QueueChanges, queue_pair_in_reset_taken_to_error_answers_einval) {
  const Qp qp = make_qp(cq_.get());
  EXPECT_EQ(set_state(qp.get(), IBV_QPS_ERR), EINVAL);
  ASSERT_EQ(to_init(qp.get()), 0);
  EXPECT_EQ(set_state(qp.get(), IBV_QPS_ERR), 0);
}

TEST_F(QueueChanges, more_reads_in_flight_than_the_device_reports_answer_einval) {
  ibv_device_attr device{};
  ASSERT_EQ(ibv_query_device(context_.get(), &device), 0);
  const Qp qp = make_qp(cq_.get());
  ASSERT_EQ(to_init(qp.get()), 0);
  const auto most_in = static_cast<std::uint8_t>(device.max_qp_rd_atom);
  EXPECT_EQ(to_rtr(qp.get(), qp->qp_num, most_in + 1), EINVAL);
  EXPECT_EQ(to_rtr(qp.get(), qp->qp_num, most_in), 0);
  const auto most_out = static_cast<std::uint8_t>(device.max_qp_init_rd_atom);
  EXPECT_EQ(to_rts(qp.get(), most_out + 1), EINVAL);
  EXPECT_EQ(to_rts(qp.get(), most_out), 0);
}

// Only what is bound may be invalidated by a peer.
TEST_F(QueueChanges, send_with_invalidate_of_a_region_ends_in_an_error_at_both_ends) {
  const Cq receiver_cq = make_cq();
  const Qp sender = make_qp(cq_.get());
  const Qp receiver = make_qp(receiver_cq.get());
  connect(sender.get(), receiver->qp_num);
  connect(receiver.get(), sender->qp_num);
  ASSERT_EQ(post_receive(receiver.get(), piece(4096, 64), 7), 0);
  ibv_sge from = piece(0, 64);
  ibv_send_wr request{};
  request.wr_id = 9;
  request.sg_list = &from;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND_WITH_INV;
  request.invalidate_rkey = mr_->rkey;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(sender.get(), &request, &bad), 0);
  const auto sent = await(cq_.get());
  ASSERT_TRUE(sent);
  EXPECT_EQ(sent->wr_id, 9u);
  EXPECT_EQ(sent->status, IBV_WC_REM_ACCESS_ERR);
  const auto received = await(receiver_cq.get());
  ASSERT_TRUE(received);
  EXPECT_EQ(received->wr_id, 7u);
  EXPECT_EQ(received->status, IBV_WC_REM_INV_REQ_ERR);
}

TEST_F(QueueChanges, gid_index_beyond_the_ports_table_is_refused) {
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(context_.get(), 1, &port), 0);
  const Qp qp = make_qp(cq_.get());
  ASSERT_EQ(to_init(qp.get()), 0);
  ibv_ah_attr path{};
  path.is_global = 1;
  path.port_num = 1;
  path.grh.dgid = gid();
  path.grh.hop_limit = 64;
  for (const int index : {port.gid_tbl_len, 255}) {
    path.grh.sgid_index = static_cast<std::uint8_t>(index);
    EXPECT_EQ(to_rtr(qp.get(), qp->qp_num, path), EINVAL) << index;
    EXPECT_EQ(Ah(ibv_create_ah(pd_.get(), &path)), nullptr) << index;
  }
  path.grh.sgid_index = static_cast<std::uint8_t>(port.gid_tbl_len - 1);
  EXPECT_EQ(to_rtr(qp.get(), qp->qp_num, path), 0);
}

// Here both GIDs of a port lead to it; on RoCE v2 an IPv6 GID and an IPv4 one would not meet.
TEST_F(QueueChanges, gids_of_different_kinds_are_warned_of_once) {
  const auto handle_from = [this](std::uint8_t source_index) {
    ibv_ah_attr attributes{};
    attributes.is_global = 1;
    attributes.port_num = 1;
    attributes.grh.dgid = gid();
    attributes.grh.sgid_index = source_index;
    attributes.grh.hop_limit = 64;
    return Ah(ibv_create_ah(pd_.get(), &attributes));
  };
  testing::internal::CaptureStderr();
  EXPECT_NE(handle_from(1), nullptr);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  EXPECT_NE(handle_from(0), nullptr);
  EXPECT_NE(handle_from(0), nullptr);
  const std::string log = testing::internal::GetCapturedStderr();
  const std::size_t first = log.find("use the same GID index at both ends");
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("GID index", first + 20), std::string::npos) << log;
}

TEST_F(QueueChanges, what_is_not_offered_is_named_in_the_log_once) {
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) {
    ibv_xrcd_init_attr domain{
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    EXPECT_EQ(ibv_open_xrcd(context_.get(), &domain), nullptr);
  }
  const std::string log = testing::internal::GetCapturedStderr();
  constexpr const char* kName = "open_xrcd (XRC)";
  const std::size_t first = log.find(kName);
  ASSERT_NE(first, std::string::npos) << kName << " in: " << log;
  EXPECT_EQ(log.find(kName, first + 1), std::string::npos) << log;
}

TEST_F(QueueChanges, what_is_not_offered_is_refused_as_the_kernel_refuses) {
  const Qp qp = make_qp(cq_.get());
  connect(qp.get(), qp->qp_num);
  EXPECT_EQ(set_state(qp.get(), IBV_QPS_SQD), EINVAL) << "mlx5 knows no way there";
}

}  // namespace queue_changes_test
}  // namespace gdx::abi_tests
