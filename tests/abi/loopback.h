// Verbs queue pairs of one process that talk to one another through the software HCA.
#pragma once

#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <vector>

#include "tests/abi/open_device.h"

namespace gdx::abi_tests {

template <typename Object, int (*release)(Object*)>
struct Release {
  void operator()(Object* object) const { EXPECT_EQ(release(object), 0); }
};
using Pd = std::unique_ptr<ibv_pd, Release<ibv_pd, ibv_dealloc_pd>>;
using Mr = std::unique_ptr<ibv_mr, Release<ibv_mr, ibv_dereg_mr>>;
using Cq = std::unique_ptr<ibv_cq, Release<ibv_cq, ibv_destroy_cq>>;
using Srq = std::unique_ptr<ibv_srq, Release<ibv_srq, ibv_destroy_srq>>;
using Qp = std::unique_ptr<ibv_qp, Release<ibv_qp, ibv_destroy_qp>>;
using Ah = std::unique_ptr<ibv_ah, Release<ibv_ah, ibv_destroy_ah>>;

class Loopback : public testing::Test {
 protected:
  static constexpr std::uint32_t kPsn = 0x1234;
  static constexpr std::uint32_t kQkey = 0x11111111;
  static constexpr int kAllAccess =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

  void SetUp() override {
    context_ = open_device();
    ASSERT_NE(context_, nullptr) << "no software HCA: errno " << errno;
    pd_.reset(ibv_alloc_pd(context_.get()));
    mr_.reset(ibv_reg_mr(pd_.get(), memory_.data(), memory_.size(), kAllAccess));
    ASSERT_NE(mr_, nullptr);
  }

  Cq make_cq(int entries = 64) { return Cq(ibv_create_cq(context_.get(), entries, nullptr, nullptr, 0)); }

  Qp make_qp(ibv_cq* cq, ibv_qp_type type = IBV_QPT_RC, ibv_srq* srq = nullptr) {
    ibv_qp_init_attr attributes{};
    attributes.qp_type = type;
    attributes.send_cq = cq;
    attributes.recv_cq = cq;
    attributes.srq = srq;
    attributes.sq_sig_all = 1;
    attributes.cap = {
        .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 0};
    return Qp(ibv_create_qp(pd_.get(), &attributes));
  }

  ibv_gid gid() {
    ibv_gid own{};
    EXPECT_EQ(ibv_query_gid(context_.get(), 1, 1, &own), 0);
    return own;
  }

  static int to_init(ibv_qp* qp) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qkey = kQkey;
    attributes.qp_access_flags = kAllAccess;
    const int own = qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    return ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | own);
  }

  int to_rtr(ibv_qp* qp, std::uint32_t remote_qpn, std::uint8_t reads = 4) {
    ibv_ah_attr path{};
    path.is_global = 1;
    path.port_num = 1;
    path.grh.dgid = gid();
    path.grh.sgid_index = 1;
    path.grh.hop_limit = 64;
    return to_rtr(qp, remote_qpn, path, reads);
  }

  static int to_rtr(ibv_qp* qp, std::uint32_t remote_qpn, const ibv_ah_attr& path, std::uint8_t reads = 4) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTR;
    if (qp->qp_type == IBV_QPT_UD) return ibv_modify_qp(qp, &attributes, IBV_QP_STATE);
    attributes.path_mtu = IBV_MTU_1024;
    attributes.dest_qp_num = remote_qpn;
    attributes.rq_psn = kPsn;
    attributes.max_dest_rd_atomic = reads;
    attributes.min_rnr_timer = 1;
    attributes.ah_attr = path;
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (qp->qp_type == IBV_QPT_RC) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    return ibv_modify_qp(qp, &attributes, mask);
  }

  // Local ACK timeout codes: 8 s, longer than the machine stands still, and 4 ms, for tests of timeouts.
  static constexpr std::uint8_t kPatient = 21;
  static constexpr std::uint8_t kHasty = 10;

  static int to_rts(ibv_qp* qp, std::uint8_t reads = 4, std::uint8_t timeout = kPatient) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = timeout;
    attributes.retry_cnt = 3;
    attributes.rnr_retry = 3;
    attributes.sq_psn = kPsn;
    attributes.max_rd_atomic = reads;
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (qp->qp_type == IBV_QPT_RC) {
      mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    }
    return ibv_modify_qp(qp, &attributes, mask);
  }

  void connect(ibv_qp* qp, std::uint32_t remote_qpn, std::uint8_t timeout = kPatient) {
    ASSERT_EQ(to_init(qp), 0);
    ASSERT_EQ(to_rtr(qp, remote_qpn), 0);
    ASSERT_EQ(to_rts(qp, 4, timeout), 0);
  }

  static int set_state(ibv_qp* qp, ibv_qp_state state) {
    ibv_qp_attr attributes{};
    attributes.qp_state = state;
    return ibv_modify_qp(qp, &attributes, IBV_QP_STATE);
  }

  static ibv_qp_state state_of(ibv_qp* qp) {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr created{};
    EXPECT_EQ(ibv_query_qp(qp, &attributes, IBV_QP_STATE, &created), 0);
    return attributes.qp_state;
  }

  ibv_sge piece(std::size_t offset, std::uint32_t length_bytes) const {
    return {.addr = reinterpret_cast<std::uintptr_t>(memory_.data()) + offset,
            .length = length_bytes,
            .lkey = mr_->lkey};
  }

  int post_send(ibv_qp* qp, ibv_sge from, std::uint64_t id = 0) {
    ibv_send_wr request{};
    request.wr_id = id;
    request.sg_list = &from;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &request, &bad);
  }

  int post_write(ibv_qp* qp, ibv_sge from, std::uint64_t remote, std::uint32_t rkey) {
    ibv_send_wr request{};
    request.sg_list = &from;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_WRITE;
    request.wr.rdma = {.remote_addr = remote, .rkey = rkey};
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &request, &bad);
  }

  static ibv_recv_wr receive_into(ibv_sge& to, std::uint64_t id) {
    ibv_recv_wr request{};
    request.wr_id = id;
    request.sg_list = &to;
    request.num_sge = 1;
    return request;
  }

  static int post_receive(ibv_qp* qp, ibv_sge to, std::uint64_t id = 0) {
    ibv_recv_wr request = receive_into(to, id);
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp, &request, &bad);
  }

  static int post_receive(ibv_srq* srq, ibv_sge to, std::uint64_t id = 0) {
    ibv_recv_wr request = receive_into(to, id);
    ibv_recv_wr* bad = nullptr;
    return ibv_post_srq_recv(srq, &request, &bad);
  }

  // The next completion; none: it hangs.
  static std::optional<ibv_wc> await(ibv_cq* cq) {
    ibv_wc completion{};
    const auto end = std::chrono::steady_clock::now() + kHang;
    while (std::chrono::steady_clock::now() < end) {
      if (ibv_poll_cq(cq, 1, &completion) == 1) return completion;
    }
    return std::nullopt;
  }

  static bool readable(int fd, std::chrono::milliseconds limit = kHang) {
    pollfd waited{.fd = fd, .events = POLLIN, .revents = 0};
    return poll(&waited, 1, static_cast<int>(limit.count())) == 1;
  }

  // The next asynchronous event, acknowledged; none: -1.
  int next_event(void* expected_element = nullptr) {
    if (!readable(context_->async_fd)) return -1;
    ibv_async_event event{};
    if (ibv_get_async_event(context_.get(), &event) != 0) return -1;
    if (expected_element != nullptr) {
      EXPECT_EQ(static_cast<void*>(event.element.qp), expected_element);
    }
    ibv_ack_async_event(&event);
    return event.event_type;
  }
  bool event_waits() { return readable(context_->async_fd, std::chrono::milliseconds(0)); }

  alignas(4096) std::array<std::byte, 8 * 4096> memory_{};
  Context context_;
  Pd pd_;
  Mr mr_;
};

}  // namespace gdx::abi_tests
