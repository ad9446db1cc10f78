// Methods on queues of the device node, and the queues that tests ask for.
#pragma once

#include <functional>

#include "tests/unit/uverbs/device_node.h"

namespace gdx::softhca::uverbs {

inline constexpr std::uint16_t kCqUar = (1u << UVERBS_ID_NS_SHIFT) + 2;
inline constexpr int kNone = -1;

struct Cq {
  mlx5_ib_create_cq driver{};
  std::size_t driver_bytes = sizeof driver;
  std::uint32_t entries = 100;
  std::uint64_t owner = 0x7f01;
  std::uint32_t vector = 0;
  std::uint32_t flags = 0;
  std::int64_t uar = kNone;
  int completions = kNone;
  int events = kNone;
};

struct Qp {
  mlx5_ib_create_qp driver{};
  std::size_t driver_bytes = sizeof driver;
  std::uint64_t type = IB_UVERBS_QPT_RC;
  ib_uverbs_qp_cap capacity{11, 12, 13, 14, 15};
  std::uint32_t flags = 0;
  std::uint32_t pd = 0;
  std::uint32_t send_cq = 0;
  std::uint32_t receive_cq = 0;
  int srq = kNone;
  int events = kNone;
};

struct Srq {
  mlx5_ib_create_srq driver{};
  std::size_t driver_bytes = sizeof driver;
  std::uint64_t type = IB_UVERBS_SRQT_BASIC;
  std::uint32_t max_wr = 100;
  std::uint32_t max_sge = 3;
  std::uint32_t pd = 0;
  int events = kNone;
};

class QueueMethods : public DeviceNode {
 protected:
  explicit QueueMethods(const HcaConfig& config = {}) : DeviceNode(config) {}
  void SetUp() override {
    DeviceNode::SetUp();
    pd_ = alloc_pd();
    uar_ = add_uar();
  }
  Cq cq() {
    Cq queue;
    queue.driver.buf_addr = at(4096);
    queue.driver.db_addr = at(64);
    queue.driver.cqe_size = 64;
    return queue;
  }
  Request make_cq(const Cq& queue) {
    Request request(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE, nothing_);
    request.handle(UVERBS_ATTR_CREATE_CQ_HANDLE, 0)
        .in(UVERBS_ATTR_CREATE_CQ_CQE, queue.entries)
        .in(UVERBS_ATTR_CREATE_CQ_USER_HANDLE, queue.owner)
        .in(UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, queue.vector)
        .in(UVERBS_ATTR_CREATE_CQ_FLAGS, queue.flags)
        .in(UVERBS_ATTR_UHW_IN, queue.driver)
        .resize(UVERBS_ATTR_UHW_IN, queue.driver_bytes)
        .out(UVERBS_ATTR_CREATE_CQ_RESP_CQE, 4)
        .out(UVERBS_ATTR_UHW_OUT, sizeof(mlx5_ib_create_cq_resp));
    if (queue.uar >= 0) request.in(kCqUar, static_cast<std::uint32_t>(queue.uar));
    if (queue.completions != kNone)
      request.handle(UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL, static_cast<std::uint32_t>(queue.completions));
    if (queue.events != kNone)
      request.handle(UVERBS_ATTR_CREATE_CQ_EVENT_FD, static_cast<std::uint32_t>(queue.events));
    return request;
  }
  std::uint32_t add_cq() {
    auto request = make_cq(cq());
    EXPECT_EQ(request.run(*context_), 0);
    return static_cast<std::uint32_t>(request.written(UVERBS_ATTR_CREATE_CQ_HANDLE));
  }
  Qp qp() {
    Qp queue;
    queue.driver.buf_addr = at(4096);
    queue.driver.db_addr = at(64);
    queue.driver.sq_wqe_count = 16;
    queue.driver.rq_wqe_count = 8;
    queue.driver.rq_wqe_shift = 6;
    queue.driver.flags = MLX5_QP_FLAG_UAR_PAGE_INDEX;
    queue.driver.uidx = 0x55;
    queue.driver.bfreg_index = uar_;
    queue.pd = pd_;
    if (send_cq_ == 0) send_cq_ = add_cq();
    if (receive_cq_ == 0) receive_cq_ = add_cq();
    queue.send_cq = send_cq_;
    queue.receive_cq = receive_cq_;
    return queue;
  }
  Request make_qp(const Qp& queue) {
    Request request(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE, nothing_);
    request.handle(UVERBS_ATTR_CREATE_QP_HANDLE, 0)
        .handle(UVERBS_ATTR_CREATE_QP_PD_HANDLE, queue.pd)
        .handle(UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, queue.send_cq)
        .handle(UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, queue.receive_cq)
        .in(UVERBS_ATTR_CREATE_QP_TYPE, queue.type)
        .in(UVERBS_ATTR_CREATE_QP_CAP, queue.capacity)
        .in(UVERBS_ATTR_CREATE_QP_USER_HANDLE, std::uint64_t{0x7f02})
        .in(UVERBS_ATTR_CREATE_QP_FLAGS, queue.flags)
        .in(UVERBS_ATTR_UHW_IN, queue.driver)
        .resize(UVERBS_ATTR_UHW_IN, queue.driver_bytes)
        .out(UVERBS_ATTR_CREATE_QP_RESP_CAP, sizeof(ib_uverbs_qp_cap))
        .out(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, 4)
        .out(UVERBS_ATTR_UHW_OUT, sizeof(mlx5_ib_create_qp_resp));
    if (queue.srq != kNone)
      request.handle(UVERBS_ATTR_CREATE_QP_SRQ_HANDLE, static_cast<std::uint32_t>(queue.srq));
    if (queue.events != kNone)
      request.handle(UVERBS_ATTR_CREATE_QP_EVENT_FD, static_cast<std::uint32_t>(queue.events));
    return request;
  }
  std::uint32_t add_qp(const Qp& queue) {
    auto request = make_qp(queue);
    EXPECT_EQ(request.run(*context_), 0);
    return static_cast<std::uint32_t>(request.written(UVERBS_ATTR_CREATE_QP_HANDLE));
  }
  Srq srq() {
    Srq queue;
    queue.driver.buf_addr = at(4096);
    queue.driver.db_addr = at(64);
    queue.driver.uidx = 0x66;
    queue.pd = pd_;
    return queue;
  }
  Request make_srq(const Srq& queue) {
    Request request(UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE, nothing_);
    request.handle(UVERBS_ATTR_CREATE_SRQ_HANDLE, 0)
        .handle(UVERBS_ATTR_CREATE_SRQ_PD_HANDLE, queue.pd)
        .in(UVERBS_ATTR_CREATE_SRQ_TYPE, queue.type)
        .in(UVERBS_ATTR_CREATE_SRQ_USER_HANDLE, std::uint64_t{0x7f03})
        .in(UVERBS_ATTR_CREATE_SRQ_MAX_WR, queue.max_wr)
        .in(UVERBS_ATTR_CREATE_SRQ_MAX_SGE, queue.max_sge)
        .in(UVERBS_ATTR_UHW_IN, queue.driver)
        .resize(UVERBS_ATTR_UHW_IN, queue.driver_bytes)
        .out(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, 4)
        .out(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, 4)
        .out(UVERBS_ATTR_UHW_OUT, sizeof(mlx5_ib_create_srq_resp));
    if (queue.events != kNone)
      request.handle(UVERBS_ATTR_CREATE_SRQ_EVENT_FD, static_cast<std::uint32_t>(queue.events));
    return request;
  }
  Errno run(Request request) { return request.run(*context_); }
  template <typename Queue>
  struct Wrong {
    const char* what;
    Errno error;
    std::function<void(Queue&)> change;
  };
  // Runs the request with each change alone, and with each of its answers unwritable.
  template <typename Queue, typename Make>
  void expect_refused(const Queue& valid, Make make_queue, const std::vector<Wrong<Queue>>& wrongs,
                      std::initializer_list<std::uint16_t> answers) {
    const std::size_t before = objects();
    for (const Wrong<Queue>& wrong : wrongs) {
      Queue queue = valid;
      wrong.change(queue);
      EXPECT_EQ(run(make_queue(queue)), wrong.error) << wrong.what;
    }
    for (const std::uint16_t id : answers) {
      Request request = make_queue(valid);
      request.redirect(id, kNowhere);
      EXPECT_EQ(request.run(*context_), EFAULT) << "answer " << id;
    }
    EXPECT_EQ(objects(), before);
    EXPECT_EQ(run(make_queue(valid)), 0);
    context_->objects.clear();
    EXPECT_EQ(objects(), 0u) << "a refused queue that the engine kept holds its domain";
    EXPECT_EQ(hca_->cqs, 0) << "or is a completion queue, which has none";
  }
  Errno resize_cq(std::uint32_t handle, std::uint32_t entries, const mlx5_ib_resize_cq& driver) {
    ib_uverbs_resize_cq core{};
    core.cq_handle = handle;
    core.cqe = entries;
    Request request = command(IB_USER_VERBS_CMD_RESIZE_CQ, core, 8);
    const Errno error = request.in(UVERBS_ATTR_UHW_IN, driver).run(*context_);
    if (error == 0) resized_to_ = request.answer<std::uint32_t>(UVERBS_ATTR_CORE_OUT);
    return error;
  }
  ib_uverbs_query_srq_resp query_srq(std::uint32_t handle) {
    ib_uverbs_query_srq core{};
    core.srq_handle = handle;
    return answer<ib_uverbs_query_srq_resp>(IB_USER_VERBS_CMD_QUERY_SRQ, core);
  }
  Errno modify_srq(std::uint32_t handle, std::uint32_t mask, std::uint32_t limit) {
    ib_uverbs_modify_srq core{};
    core.srq_handle = handle;
    core.attr_mask = mask;
    core.srq_limit = limit;
    return command(IB_USER_VERBS_CMD_MODIFY_SRQ, core, 0).run(*context_);
  }

  std::uint32_t pd_ = 0;
  std::uint32_t uar_ = 0;
  std::uint32_t send_cq_ = 0;
  std::uint32_t receive_cq_ = 0;
  std::uint32_t resized_to_ = 0;
};

}  // namespace gdx::softhca::uverbs
