// Queue pairs and completion queues made through mlx5dv DevX and worked by hand, as GPU-side clients do.
#pragma once

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "proto/mlx5/cqe.h"
#include "proto/mlx5/doorbell.h"
#include "proto/mlx5/prm.h"
#include "proto/mlx5/wqe.h"
#include "proto/softhca.h"
#include "tests/abi/open_device.h"

namespace gdx::abi_tests {

namespace prm = mlx5::prm;
using std::chrono::steady_clock;

constexpr std::uint32_t kLogBlocks = 4;
constexpr std::size_t kSendBytes = (1u << kLogBlocks) * mlx5::kWqeBasicBlockBytes;
constexpr std::size_t kCqOffset = 4096;
constexpr std::size_t kRecordOffset = 8192;  // CQ record, then at +64 the QP record
constexpr std::size_t kUmemBytes = 3 * 4096;

template <typename Object, int (*release)(Object*)>
struct Release {
  void operator()(Object* object) const { EXPECT_EQ(release(object), 0); }
};
struct CloseChannel {
  void operator()(mlx5dv_devx_event_channel* channel) const { mlx5dv_devx_destroy_event_channel(channel); }
};
using DevxObject = std::unique_ptr<mlx5dv_devx_obj, Release<mlx5dv_devx_obj, mlx5dv_devx_obj_destroy>>;
using Umem = std::unique_ptr<mlx5dv_devx_umem, Release<mlx5dv_devx_umem, mlx5dv_devx_umem_dereg>>;
using Pd = std::unique_ptr<ibv_pd, Release<ibv_pd, ibv_dealloc_pd>>;
using Cq = std::unique_ptr<ibv_cq, Release<ibv_cq, ibv_destroy_cq>>;
using Qp = std::unique_ptr<ibv_qp, Release<ibv_qp, ibv_destroy_qp>>;
using EventChannel = std::unique_ptr<mlx5dv_devx_event_channel, CloseChannel>;
using Mr = std::unique_ptr<ibv_mr, Release<ibv_mr, ibv_dereg_mr>>;

// One queue pair with its CQ, in one umem.
struct Queue {
  alignas(4096) std::array<std::byte, kUmemBytes> memory{};
  Umem umem;
  DevxObject cq;
  DevxObject qp;
  std::uint32_t cqn = 0;
  std::uint32_t qpn = 0;

  Be32* qp_record() { return reinterpret_cast<Be32*>(memory.data() + kRecordOffset + 64); }
};

class DevxQueues : public testing::Test {
 protected:
  void SetUp() override {
    context_ = open_device();
    ASSERT_NE(context_, nullptr) << "no software HCA: errno " << errno;
    pd_.reset(ibv_alloc_pd(context_.get()));
    ASSERT_NE(pd_, nullptr);
    mlx5dv_pd dv_pd{};
    mlx5dv_obj object{};
    object.pd = {pd_.get(), &dv_pd};
    ASSERT_EQ(mlx5dv_init_obj(&object, MLX5DV_OBJ_PD), 0);
    pdn_ = dv_pd.pdn;
    uar_ = mlx5dv_devx_alloc_uar(context_.get(), MLX5DV_UAR_ALLOC_TYPE_BF);
    ASSERT_NE(uar_, nullptr);
    progress_ = reinterpret_cast<SofthcaProgress>(dlsym(RTLD_DEFAULT, kSofthcaProgressSymbol));
    ASSERT_NE(progress_, nullptr);
  }
  void TearDown() override {
    if (uar_ != nullptr) mlx5dv_devx_free_uar(uar_);
  }

  void register_umem(Queue& queue) {
    mlx5dv_devx_umem_in in{};
    in.addr = queue.memory.data();
    in.size = kUmemBytes;
    in.access = IBV_ACCESS_LOCAL_WRITE;
    in.pgsz_bitmap = 4096;
    queue.umem.reset(mlx5dv_devx_umem_reg_ex(context_.get(), &in));
    ASSERT_NE(queue.umem, nullptr);
  }

  // With `set_valid_bits` off it does as UCX does.
  void create(Queue& queue, bool set_valid_bits = true) {
    ASSERT_NO_FATAL_FAILURE(register_umem(queue));
    std::memset(queue.memory.data() + kCqOffset, 0xff, 4096);

    std::uint32_t eqn = 0;
    ASSERT_EQ(mlx5dv_devx_query_eqn(context_.get(), 0, &eqn), 0);
    prm::Mailbox<prm::kCreateCqInBytes> in{};
    prm::Mailbox<prm::kShortCommandBytes> out{};
    prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::kCreateCq));
    prm::set(in, prm::cq::kLogSize, kLogBlocks);
    prm::set(in, prm::cq::kUarPage, uar_->page_id);
    prm::set(in, prm::cq::kEqn, eqn);
    prm::set(in, prm::cq::kDbrUmemId, queue.umem->umem_id);
    prm::set(in, prm::cq::kDbrAddress, kRecordOffset);
    prm::set(in, prm::cq::kUmemId, queue.umem->umem_id);
    prm::set(in, prm::cq::kUmemOffset, kCqOffset);
    prm::set(in, prm::cq::kUmemValid, set_valid_bits);
    prm::set(in, prm::cq::kDbrUmemValid, set_valid_bits);
    queue.cq.reset(mlx5dv_devx_obj_create(context_.get(), in.data(), in.size(), out.data(), out.size()));
    ASSERT_NE(queue.cq, nullptr) << "status " << prm::get(out, prm::kStatus);
    queue.cqn = prm::get32(out, prm::kObjectId);
    create_qp(queue, set_valid_bits);
  }

  prm::Mailbox<prm::kCreateQpInBytes> qp_command(const Queue& queue, bool set_valid_bits) const {
    prm::Mailbox<prm::kCreateQpInBytes> in{};
    prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::kCreateQp));
    prm::set(in, prm::qp::kServiceType, prm::qp::kRc);
    prm::set(in, prm::qp::kPathMigrationState, prm::qp::kMigrated);
    prm::set(in, prm::qp::kPd, pdn_);
    prm::set(in, prm::qp::kTimestampFormat, prm::qp::kDefaultTimestamps);
    prm::set(in, prm::qp::kUarPage, uar_->page_id);
    prm::set(in, prm::qp::kSendCqn, queue.cqn);
    prm::set(in, prm::qp::kReceiveCqn, queue.cqn);
    prm::set(in, prm::qp::kLogSqSize, kLogBlocks);
    prm::set(in, prm::qp::kRqType, prm::qp::kNoReceiveQueue);
    prm::set(in, prm::qp::kDbrUmemId, queue.umem->umem_id);
    prm::set(in, prm::qp::kDbrAddress, kRecordOffset + 64);
    prm::set(in, prm::qp::kUmemId, queue.umem->umem_id);
    prm::set(in, prm::qp::kUmemValid, set_valid_bits);
    prm::set(in, prm::qp::kDbrUmemValid, set_valid_bits);
    return in;
  }

  void create_qp(Queue& queue, bool set_valid_bits) {
    const auto in = qp_command(queue, set_valid_bits);
    prm::Mailbox<prm::kShortCommandBytes> out{};
    queue.qp.reset(mlx5dv_devx_obj_create(context_.get(), in.data(), in.size(), out.data(), out.size()));
    ASSERT_NE(queue.qp, nullptr) << "status " << prm::get(out, prm::kStatus);
    queue.qpn = prm::get32(out, prm::kObjectId);
  }

  int modify(Queue& queue, prm::Opcode opcode, prm::Mailbox<prm::kModifyQpInBytes> in) {
    prm::Mailbox<prm::kShortCommandBytes> out{};
    prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(opcode));
    prm::set(in, prm::kObjectId, queue.qpn);
    return mlx5dv_devx_obj_modify(queue.qp.get(), in.data(), in.size(), out.data(), out.size());
  }

  // A software HCA's MAC is 02:67 and the last four bytes of its address.
  static void set_path(prm::Mailbox<prm::kModifyQpInBytes>& in, const ibv_gid& gid) {
    std::memcpy(in.data() + prm::qp::kPathRemoteGidByte, gid.raw, sizeof gid.raw);
    const std::array<std::uint8_t, 6> mac = {0x02, 0x67, gid.raw[12], gid.raw[13], gid.raw[14], gid.raw[15]};
    std::memcpy(in.data() + prm::qp::kPathRemoteMacHigh.bit_offset / 8, mac.data(), mac.size());
    prm::set(in, prm::qp::kPathSourceGidIndex, 1);
    prm::set(in, prm::qp::kPathHopLimit, 64);
    prm::set(in, prm::qp::kPathUdpSourcePort, 0xc000);
  }

  void connect(Queue& queue, const Queue& peer) {
    ibv_gid gid{};
    ASSERT_EQ(ibv_query_gid(context_.get(), 1, 1, &gid), 0);
    prm::Mailbox<prm::kModifyQpInBytes> init{};
    prm::set(init, prm::qp::kRemoteWrite, 1);
    prm::set(init, prm::qp::kRemoteAtomic, 1);
    prm::set(init, prm::qp::kAtomicMode, prm::qp::kAtomicModeIbSpec);
    prm::set(init, prm::qp::kPathPort, 1);
    prm::set(init, prm::qp::kPathMigrationState, prm::qp::kMigrated);
    ASSERT_EQ(modify(queue, prm::Opcode::kRst2Init, init), 0);
    prm::Mailbox<prm::kModifyQpInBytes> rtr{};
    prm::set(rtr, prm::qp::kMtu, 3);
    prm::set(rtr, prm::qp::kRemoteQpn, peer.qpn);
    prm::set(rtr, prm::qp::kLogMaxMessage, 30);
    set_path(rtr, gid);
    ASSERT_EQ(modify(queue, prm::Opcode::kInit2Rtr, rtr), 0);
    prm::Mailbox<prm::kModifyQpInBytes> rts{};
    prm::set(rts, prm::qp::kPathAckTimeout, 14);
    prm::set(rts, prm::qp::kRetryCount, 7);
    prm::set(rts, prm::qp::kRnrRetry, 7);
    ASSERT_EQ(modify(queue, prm::Opcode::kRtr2Rts, rts), 0);
  }

  // Posts the `index`th RDMA WRITE of one block, and rings.
  void post_write(Queue& queue, std::uint32_t index, const std::uint8_t* source, const ibv_mr& from,
                  const std::uint8_t* target, const ibv_mr& to, std::size_t length_bytes) {
    constexpr std::uint32_t kBlocks = 1u << kLogBlocks;
    auto* const wqe = reinterpret_cast<mlx5::PutWqe*>(queue.memory.data() + std::size_t{index % kBlocks} *
                                                                                mlx5::kWqeBasicBlockBytes);
    *wqe = {};
    wqe->control.opmod_index_opcode = index << 8 | static_cast<std::uint32_t>(mlx5::WqeOpcode::kRdmaWrite);
    wqe->control.qpn_ds = queue.qpn << 8 | 3;
    wqe->control.fm_ce_se = mlx5::kCompletionAlways;
    wqe->remote = {reinterpret_cast<std::uintptr_t>(target), to.rkey, 0};
    wqe->data = {static_cast<std::uint32_t>(length_bytes), from.lkey,
                 reinterpret_cast<std::uintptr_t>(source)};
    ring(queue, index, &wqe->control);
  }

  // Posts a masked fetch-and-add of 4 B as the queue's first WQE, and rings.
  void post_masked_add(Queue& queue, std::uint32_t add, std::uint32_t boundaries, const Be32* result,
                       const std::uint32_t* target, const ibv_mr& region) {
    auto* const control = reinterpret_cast<mlx5::ControlSegment*>(queue.memory.data());
    *control = {};
    control->opmod_index_opcode =
        mlx5::kExtendedAtomic << 24 | static_cast<std::uint32_t>(mlx5::WqeOpcode::kAtomicMaskedFetchAdd);
    control->qpn_ds = queue.qpn << 8 | 4;
    control->fm_ce_se = mlx5::kCompletionAlways;
    auto* const remote = reinterpret_cast<mlx5::RemoteAddressSegment*>(control + 1);
    *remote = {reinterpret_cast<std::uintptr_t>(target), region.rkey, 0};
    auto* const atomic = reinterpret_cast<mlx5::AtomicSegment32*>(remote + 1);
    *atomic = {add, boundaries, 0, 0};
    auto* const data = reinterpret_cast<mlx5::DataSegment*>(atomic + 1);
    *data = {sizeof *result, region.lkey, reinterpret_cast<std::uintptr_t>(result)};
    ring(queue, 0, control);
  }

  void ring(Queue& queue, std::uint32_t index, const mlx5::ControlSegment* control) {
    std::atomic_ref(queue.qp_record()[mlx5::kSendRecord].raw)
        .store(byte_swap(index + 1), std::memory_order_release);
    std::uint64_t doorbell = 0;
    std::memcpy(&doorbell, control, sizeof doorbell);
    std::atomic_ref(*static_cast<std::uint64_t*>(uar_->reg_addr)).store(doorbell, std::memory_order_release);
  }

  Qp verbs_qp(ibv_cq* cq) {
    ibv_qp_init_attr init{};
    init.send_cq = cq;
    init.recv_cq = cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {
        .max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
    return Qp(ibv_create_qp(pd_.get(), &init));
  }

  void connect(ibv_qp* qp, std::uint32_t peer) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    ASSERT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
              0);
    attr = {};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_4096;
    attr.dest_qp_num = peer;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 12;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.sgid_index = 1;
    attr.ah_attr.grh.hop_limit = 64;
    ASSERT_EQ(ibv_query_gid(context_.get(), 1, 1, &attr.ah_attr.grh.dgid), 0);
    ASSERT_EQ(ibv_modify_qp(qp, &attr,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
              0);
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 1;
    ASSERT_EQ(ibv_modify_qp(qp, &attr,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
              0);
  }

  // The last word of the queue's first CQE: wqe_counter to op_own, which the device stores last and at once.
  std::uint64_t first_completion(Queue& queue) {
    std::byte* const last_bytes = queue.memory.data() + kCqOffset + offsetof(mlx5::Cqe64, send_opcode_qpn);
    auto& last_word = *reinterpret_cast<Be64*>(last_bytes);
    const auto limit = steady_clock::now() + kHang;
    std::uint64_t word = ~std::uint64_t{0};
    while ((word & 0xff) == 0xff && steady_clock::now() < limit) {
      progress_();
      word = byte_swap(std::atomic_ref(last_word.raw).load(std::memory_order_acquire));
    }
    EXPECT_NE(word & 0xff, 0xffu) << "no completion";
    return word;
  }

  std::uint32_t query_state(Queue& queue) {
    prm::Mailbox<prm::kShortCommandBytes> in{};
    prm::Mailbox<prm::kQueryQpOutBytes> out{};
    prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::kQueryQp));
    prm::set(in, prm::kObjectId, queue.qpn);
    EXPECT_EQ(mlx5dv_devx_obj_query(queue.qp.get(), in.data(), in.size(), out.data(), out.size()), 0);
    return prm::get32(out, prm::qp::kState);
  }

  // Current ones, of a kind.
  prm::Mailbox<prm::kQueryHcaCapOutBytes> capabilities(prm::cap::Capability kind) {
    prm::Mailbox<prm::kShortCommandBytes> in{};
    prm::Mailbox<prm::kQueryHcaCapOutBytes> out{};
    prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::kQueryHcaCap));
    prm::set(in, prm::kOpMod, prm::cap::op_mod_current(kind));
    EXPECT_EQ(mlx5dv_devx_general_cmd(context_.get(), in.data(), in.size(), out.data(), out.size()), 0);
    return out;
  }

  Context context_;
  Pd pd_;
  std::uint32_t pdn_ = 0;
  mlx5dv_devx_uar* uar_ = nullptr;
  SofthcaProgress progress_ = nullptr;
};

}  // namespace gdx::abi_tests
