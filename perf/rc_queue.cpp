#include "perf/rc_queue.h"

#include <infiniband/mlx5dv.h>

#include <array>
#include <cstring>

namespace gdx::perf {
namespace {

constexpr int kGidIndex = 1;
constexpr int kMaxBatch = 64;
constexpr unsigned kRemoteAccess = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

ibv_context* open_device(int number) {
  int count = 0;
  ibv_device** const devices = ibv_get_device_list(&count);
  if (devices == nullptr || count <= number) {
    give_up("too few RDMA devices: run it as `gdx run --hcas 2 -- gdx_softhca_bench`");
  }
  ibv_context* const context = ibv_open_device(devices[number]);
  ibv_free_device_list(devices);
  require(context != nullptr, "open the device");
  return context;
}

unsigned send_flags(std::uint32_t length_bytes, bool signaled) {
  unsigned flags = 0;
  if (signaled) flags |= IBV_SEND_SIGNALED;
  if (length_bytes <= RcQueue::kInlineBytes) flags |= IBV_SEND_INLINE;
  return flags;
}

}  // namespace

Nic::Nic(std::size_t buffer_bytes, int device) : buffer_(buffer_bytes), context_(open_device(device)) {
  pd_.reset(ibv_alloc_pd(context_.get()));
  require(pd_ != nullptr, "allocate a protection domain");
  mr_.reset(ibv_reg_mr(pd_.get(), buffer_.data(), buffer_.size(), IBV_ACCESS_LOCAL_WRITE | kRemoteAccess));
  require(mr_ != nullptr, "register memory");
}

RcQueue::RcQueue(Nic& nic, int depth) : nic_(nic), batch_(kMaxBatch) {
  cq_.reset(ibv_create_cq(nic.context(), 2 * depth, nullptr, nullptr, 0));
  require(cq_ != nullptr, "create a completion queue");
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = cq_.get();
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap = {.max_send_wr = static_cast<std::uint32_t>(depth),
                .max_recv_wr = 16,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = kInlineBytes};
  qp_.reset(ibv_create_qp(nic.pd(), &wanted));
  require(qp_ != nullptr, "create a queue pair");
  ibv_qp_attr to_init{};
  to_init.qp_state = IBV_QPS_INIT;
  to_init.port_num = 1;
  to_init.qp_access_flags = kRemoteAccess;
  require(ibv_modify_qp(qp_.get(), &to_init,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
          "initialise the queue pair");
}

RcAddress RcQueue::address() const {
  RcAddress mine{};
  require(ibv_query_gid(nic_.context(), 1, kGidIndex, &mine.gid) == 0, "query the GID");
  mine.qpn = qp_->qp_num;
  mine.psn = qp_->qp_num ^ 0x5a5a5a;
  mine.rkey = nic_.key();
  mine.buffer = reinterpret_cast<std::uint64_t>(nic_.buffer());
  return mine;
}

std::size_t RcQueue::ring_bytes() const {
  mlx5dv_qp queue{};
  mlx5dv_cq completions{};
  mlx5dv_obj objects{};
  objects.qp = {.in = qp_.get(), .out = &queue};
  objects.cq = {.in = cq_.get(), .out = &completions};
  require(mlx5dv_init_obj(&objects, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ) == 0, "look into the queue pair");
  return std::size_t{queue.sq.wqe_cnt} * queue.sq.stride + std::size_t{queue.rq.wqe_cnt} * queue.rq.stride +
         std::size_t{completions.cqe_cnt} * completions.cqe_size;
}

void RcQueue::connect(const RcAddress& peer, std::uint8_t ack_timeout) {
  peer_ = peer;
  ibv_qp_attr to_rtr{};
  to_rtr.qp_state = IBV_QPS_RTR;
  to_rtr.path_mtu = IBV_MTU_4096;
  to_rtr.dest_qp_num = peer_.qpn;
  to_rtr.rq_psn = peer_.psn;
  to_rtr.max_dest_rd_atomic = 1;
  to_rtr.min_rnr_timer = 12;
  to_rtr.ah_attr.is_global = 1;
  to_rtr.ah_attr.port_num = 1;
  to_rtr.ah_attr.grh.dgid = peer_.gid;
  to_rtr.ah_attr.grh.sgid_index = kGidIndex;
  to_rtr.ah_attr.grh.hop_limit = 64;
  require(ibv_modify_qp(qp_.get(), &to_rtr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0,
          "ready the queue pair to receive");
  ibv_qp_attr to_rts{};
  to_rts.qp_state = IBV_QPS_RTS;
  to_rts.timeout = ack_timeout;
  to_rts.retry_cnt = 7;
  to_rts.rnr_retry = 7;
  to_rts.sq_psn = address().psn;
  to_rts.max_rd_atomic = 1;
  require(ibv_modify_qp(qp_.get(), &to_rts,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC) == 0,
          "ready the queue pair to send");
}

void RcQueue::post_writes(std::uint32_t length_bytes, int count) {
  ibv_sge source{reinterpret_cast<std::uint64_t>(nic_.buffer()), length_bytes, nic_.key()};
  for (int i = 0; i < count; ++i) {
    ibv_send_wr& wr = batch_[static_cast<std::size_t>(i)];
    const bool last = i + 1 == count;
    wr = {};
    wr.next = last ? nullptr : &wr + 1;
    wr.sg_list = &source;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = send_flags(length_bytes, last);
    wr.wr.rdma.remote_addr = peer_.buffer;
    wr.wr.rdma.rkey = peer_.rkey;
  }
  ibv_send_wr* refused = nullptr;
  require(ibv_post_send(qp_.get(), batch_.data(), &refused) == 0, "post writes");
}

void RcQueue::post_read(std::uint32_t length_bytes) {
  ibv_sge target{reinterpret_cast<std::uint64_t>(nic_.buffer()), length_bytes, nic_.key()};
  ibv_send_wr wr{};
  wr.sg_list = &target;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_READ;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = peer_.buffer;
  wr.wr.rdma.rkey = peer_.rkey;
  ibv_send_wr* refused = nullptr;
  require(ibv_post_send(qp_.get(), &wr, &refused) == 0, "post a read");
}

void RcQueue::post_send(std::uint32_t length_bytes) {
  ibv_sge source{reinterpret_cast<std::uint64_t>(nic_.buffer()), length_bytes, nic_.key()};
  ibv_send_wr wr{};
  wr.sg_list = &source;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = send_flags(length_bytes, true);
  ibv_send_wr* refused = nullptr;
  require(ibv_post_send(qp_.get(), &wr, &refused) == 0, "post a send");
}

void RcQueue::post_receive(std::uint32_t length_bytes) {
  ibv_sge target{reinterpret_cast<std::uint64_t>(nic_.buffer()), length_bytes, nic_.key()};
  ibv_recv_wr wr{};
  wr.sg_list = &target;
  wr.num_sge = 1;
  ibv_recv_wr* refused = nullptr;
  require(ibv_post_recv(qp_.get(), &wr, &refused) == 0, "post a receive");
}

RcQueue::Completed RcQueue::poll() {
  std::array<ibv_wc, 16> completions;
  const int n = ibv_poll_cq(cq_.get(), static_cast<int>(completions.size()), completions.data());
  require(n >= 0, "poll");
  Completed completed;
  for (int i = 0; i < n; ++i) {
    const ibv_wc& completion = completions[static_cast<std::size_t>(i)];
    if (completion.status != IBV_WC_SUCCESS) {
      give_up(std::string("a work request failed: ") + ibv_wc_status_str(completion.status));
    }
    ++(completion.opcode == IBV_WC_RECV ? completed.receives : completed.sends);
  }
  return completed;
}

void connect(RcQueue& queue, const Peer& peer) {
  queue.connect(peer.exchange(queue.address()));
  peer.meet();
}

}  // namespace gdx::perf
