// Queues made through mlx5dv DevX and worked by hand, as GPU-side clients do.
#include <dlfcn.h>
#include <poll.h>

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
#include "tests/abi/netlink.h"
#include "tests/abi/open_device.h"

namespace gdx::abi_tests {
namespace {

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

  void create_qp(Queue& queue, bool set_valid_bits) {
    prm::Mailbox<prm::kCreateQpInBytes> in{};
    prm::Mailbox<prm::kShortCommandBytes> out{};
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
    const auto limit = steady_clock::now() + std::chrono::seconds(20);
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

TEST_F(DevxQueues, queues_and_keys_are_told_by_netlink) {
  Queue queue;
  ASSERT_NO_FATAL_FAILURE(create(queue));
  Netlink netlink;
  const auto qp =
      netlink.find(RDMA_NLDEV_CMD_RES_QP_GET, RDMA_NLDEV_ATTR_RES_QP, RDMA_NLDEV_ATTR_RES_LQPN, queue.qpn);
  ASSERT_TRUE(qp);
  EXPECT_EQ(Netlink::value<std::uint8_t>(qp->attributes(), RDMA_NLDEV_ATTR_RES_TYPE), IBV_QPT_RC);
  EXPECT_EQ(Netlink::value(qp->attributes(), RDMA_NLDEV_ATTR_RES_PDN), pdn_);
  const auto cq =
      netlink.find(RDMA_NLDEV_CMD_RES_CQ_GET, RDMA_NLDEV_ATTR_RES_CQ, RDMA_NLDEV_ATTR_RES_CQN, queue.cqn);
  ASSERT_TRUE(cq);
  EXPECT_EQ(Netlink::value(cq->attributes(), RDMA_NLDEV_ATTR_RES_CQE), 1u << kLogBlocks);
  queue.qp.reset();
  EXPECT_TRUE(netlink.dump(RDMA_NLDEV_CMD_RES_QP_GET, RDMA_NLDEV_ATTR_RES_QP).empty());
}

TEST_F(DevxQueues, general_caps_queried_are_those_of_a_roce_port_with_cqe_version_1) {
  const prm::Mailbox<prm::kQueryHcaCapOutBytes> out = capabilities(prm::cap::kGeneral);
  EXPECT_EQ(prm::get(out, prm::cap::kPortType), 1u);
  EXPECT_EQ(prm::get(out, prm::cap::kCqeVersion), 1u);
  EXPECT_EQ(prm::get(out, prm::cap::kLogBlueFlameRegisterSize), 9u);
}

TEST_F(DevxQueues, unsupported_command_answers_eremoteio_with_a_status) {
  prm::Mailbox<prm::kShortCommandBytes> in{};
  prm::Mailbox<prm::kShortCommandBytes> out{};
  constexpr std::uint64_t kCreateDct = 0x710;
  prm::set(in, prm::kOpcode, kCreateDct);
  EXPECT_EQ(mlx5dv_devx_obj_create(context_.get(), in.data(), in.size(), out.data(), out.size()), nullptr);
  EXPECT_EQ(errno, EREMOTEIO);
  EXPECT_EQ(prm::get(out, prm::kStatus), static_cast<std::uint64_t>(prm::CommandStatus::kBadOperation));
  EXPECT_NE(prm::get(out, prm::kSyndrome), 0u);
}

TEST_F(DevxQueues, rts_write_posted_by_hand_arrives_and_completes) {
  Queue requester;
  Queue responder;
  ASSERT_NO_FATAL_FAILURE(create(requester));
  ASSERT_NO_FATAL_FAILURE(create(responder, false));
  ASSERT_NO_FATAL_FAILURE(connect(requester, responder));
  ASSERT_NO_FATAL_FAILURE(connect(responder, requester));
  EXPECT_EQ(query_state(requester), prm::qp::kRts);

  std::vector<std::uint8_t> source(10'000);
  std::vector<std::uint8_t> target(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::uint8_t>(i * 7);
  const Mr from(ibv_reg_mr(pd_.get(), source.data(), source.size(), IBV_ACCESS_LOCAL_WRITE));
  const Mr to(
      ibv_reg_mr(pd_.get(), target.data(), target.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  ASSERT_NE(from, nullptr);
  ASSERT_NE(to, nullptr);

  post_write(requester, 0, source.data(), *from, target.data(), *to, source.size());

  const std::uint64_t word = first_completion(requester);
  EXPECT_EQ((word & 0xff) >> mlx5::kCqeOpcodeShift, static_cast<std::uint64_t>(mlx5::CqeOpcode::kRequester));
  EXPECT_EQ(word >> 16 & 0xffff, 0u) << "wqe_counter";
  EXPECT_EQ(source, target);
}

TEST_F(DevxQueues, masked_atomic_of_four_bytes_is_advertised_and_executed) {
  const prm::Mailbox<prm::kQueryHcaCapOutBytes> out = capabilities(prm::cap::kAtomic);
  EXPECT_EQ(prm::get(out, prm::cap::kAtomicOperations), 0xfu);
  EXPECT_EQ(prm::get(out, prm::cap::kAtomicSizeQp), 4u | 8u);

  Queue requester;
  Queue responder;
  ASSERT_NO_FATAL_FAILURE(create(requester));
  ASSERT_NO_FATAL_FAILURE(create(responder));
  ASSERT_NO_FATAL_FAILURE(connect(requester, responder));
  ASSERT_NO_FATAL_FAILURE(connect(responder, requester));
  struct {
    alignas(8) std::array<std::uint32_t, 2> words{0x11111111, 0x0000ffff};
    std::array<Be32, 2> results{};
  } memory;
  const Mr region(ibv_reg_mr(pd_.get(), &memory, sizeof memory,
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC));
  ASSERT_NE(region, nullptr);
  post_masked_add(requester, 0x00020001, 0x8000, memory.results.data(), &memory.words[1], *region);
  EXPECT_EQ((first_completion(requester) & 0xff) >> mlx5::kCqeOpcodeShift,
            static_cast<std::uint64_t>(mlx5::CqeOpcode::kRequester));
  EXPECT_EQ(memory.words[0], 0x11111111u);
  EXPECT_EQ(memory.words[1], 0x00020000u) << "the low field wraps and carries nothing";
  EXPECT_EQ(memory.results[0], 0x0000ffffu);
  EXPECT_EQ(memory.results[1], 0u);
}

// A completion queue that verbs made and the client polls itself, as UCX does: libmlx5 does not know the
// queue pairs that complete there.
struct HandPolledCq {
  mlx5dv_cq cq{};
  std::uint32_t consumed = 0;

  // The next completion's last 8 B, or 0 while there is none.
  std::uint64_t take() {
    auto* const entry =
        static_cast<std::byte*>(cq.buf) + std::size_t{consumed % cq.cqe_cnt} * sizeof(mlx5::Cqe64);
    auto* const last = reinterpret_cast<std::uint64_t*>(entry + offsetof(mlx5::Cqe64, send_opcode_qpn));
    const std::uint64_t word = byte_swap(std::atomic_ref(*last).load(std::memory_order_acquire));
    const bool odd_pass = (consumed / cq.cqe_cnt) % 2 != 0;
    const bool owner = (word & mlx5::kCqeOwnerMask) != 0;
    if (opcode_of(word) == mlx5::CqeOpcode::kInvalid || owner != odd_pass) return 0;
    ++consumed;
    auto* const records = reinterpret_cast<Be32*>(cq.dbrec);
    std::atomic_ref(records[mlx5::kConsumerRecord].raw).store(byte_swap(consumed), std::memory_order_release);
    return word;
  }
  static mlx5::CqeOpcode opcode_of(std::uint64_t word) {
    return static_cast<mlx5::CqeOpcode>((word & 0xff) >> mlx5::kCqeOpcodeShift);
  }
};

// One process, one domain: a pair of verbs queues and a pair of DevX ones, the requester of the second kind
// on a completion queue that verbs made.
class MixedQueues : public DevxQueues {
 protected:
  static constexpr std::size_t kChunkBytes = 5000;
  static constexpr std::uint32_t kBatch = 8;
  static constexpr std::uint32_t kChunks = 64;

  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(DevxQueues::SetUp());
    verbs_cq_.reset(ibv_create_cq(context_.get(), 64, nullptr, nullptr, 0));
    shared_cq_.reset(ibv_create_cq(context_.get(), 15, nullptr, nullptr, 0));
    ASSERT_TRUE(verbs_cq_ != nullptr && shared_cq_ != nullptr);
    verbs_requester_ = verbs_qp(verbs_cq_.get());
    verbs_responder_ = verbs_qp(verbs_cq_.get());
    ASSERT_TRUE(verbs_requester_ != nullptr && verbs_responder_ != nullptr);
    ASSERT_NO_FATAL_FAILURE(connect(verbs_requester_.get(), verbs_responder_->qp_num));
    ASSERT_NO_FATAL_FAILURE(connect(verbs_responder_.get(), verbs_requester_->qp_num));
    mlx5dv_obj object{};
    object.cq = {shared_cq_.get(), &devx_cq_.cq};
    ASSERT_EQ(mlx5dv_init_obj(&object, MLX5DV_OBJ_CQ), 0);
    ASSERT_NO_FATAL_FAILURE(register_umem(requester_));
    requester_.cqn = devx_cq_.cq.cqn;
    ASSERT_NO_FATAL_FAILURE(create_qp(requester_, true));
    ASSERT_NO_FATAL_FAILURE(create(responder_));
    ASSERT_NO_FATAL_FAILURE(connect(requester_, responder_));
    ASSERT_NO_FATAL_FAILURE(connect(responder_, requester_));
  }

  Mr registered(std::vector<std::uint8_t>& bytes) {
    return Mr(
        ibv_reg_mr(pd_.get(), bytes.data(), bytes.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  }

  void post_verbs_write(std::uint8_t* source, const ibv_mr& from, std::uint8_t* target, const ibv_mr& to) {
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(source), kChunkBytes, from.lkey};
    ibv_send_wr work{};
    ibv_send_wr* bad = nullptr;
    work.sg_list = &sge;
    work.num_sge = 1;
    work.opcode = IBV_WR_RDMA_WRITE;
    work.send_flags = IBV_SEND_SIGNALED;
    work.wr.rdma = {reinterpret_cast<std::uintptr_t>(target), to.rkey};
    ASSERT_EQ(ibv_post_send(verbs_requester_.get(), &work, &bad), 0);
  }

  void poll_until(std::uint32_t completed) {
    const auto limit = steady_clock::now() + std::chrono::seconds(20);
    while (verbs_done_ < completed || devx_cq_.consumed < completed) {
      ASSERT_LT(steady_clock::now(), limit) << verbs_done_ << " and " << devx_cq_.consumed << " completed";
      ibv_wc completion{};
      if (ibv_poll_cq(verbs_cq_.get(), 1, &completion) == 1) {
        ASSERT_EQ(completion.status, IBV_WC_SUCCESS);
        ++verbs_done_;
      }
      const std::uint64_t word = devx_cq_.take();
      if (word == 0) continue;
      ASSERT_EQ(HandPolledCq::opcode_of(word), mlx5::CqeOpcode::kRequester);
      ASSERT_EQ(word >> 16 & 0xffff, devx_cq_.consumed - 1) << "wqe_counter";
    }
  }

  Queue responder_;
  Cq verbs_cq_;
  Cq shared_cq_;
  Queue requester_;
  Qp verbs_requester_;
  Qp verbs_responder_;
  HandPolledCq devx_cq_;
  std::uint32_t verbs_done_ = 0;
};

TEST_F(MixedQueues, writes_on_verbs_and_devx_queues_posted_in_turn_all_arrive) {
  std::vector<std::uint8_t> source(kChunks * kChunkBytes);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
  std::vector<std::uint8_t> by_verbs(source.size());
  std::vector<std::uint8_t> by_devx(source.size());
  const Mr from = registered(source);
  const Mr to_verbs = registered(by_verbs);
  const Mr to_devx = registered(by_devx);
  ASSERT_TRUE(from != nullptr && to_verbs != nullptr && to_devx != nullptr);
  for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    const std::size_t offset = chunk * kChunkBytes;
    ASSERT_NO_FATAL_FAILURE(
        post_verbs_write(source.data() + offset, *from, by_verbs.data() + offset, *to_verbs));
    post_write(requester_, chunk, source.data() + offset, *from, by_devx.data() + offset, *to_devx,
               kChunkBytes);
    if ((chunk + 1) % kBatch != 0) continue;
    ASSERT_NO_FATAL_FAILURE(poll_until(chunk + 1));
  }
  EXPECT_EQ(by_verbs, source);
  EXPECT_EQ(by_devx, source);
}

TEST_F(DevxQueues, subscribed_completion_event_of_an_armed_cq_arrives_with_its_cookie) {
  Queue requester;
  Queue responder;
  ASSERT_NO_FATAL_FAILURE(create(requester));
  ASSERT_NO_FATAL_FAILURE(create(responder));
  ASSERT_NO_FATAL_FAILURE(connect(requester, responder));
  ASSERT_NO_FATAL_FAILURE(connect(responder, requester));
  const EventChannel channel(
      mlx5dv_devx_create_event_channel(context_.get(), MLX5DV_DEVX_CREATE_EVENT_CHANNEL_FLAGS_OMIT_EV_DATA));
  ASSERT_NE(channel, nullptr);
  auto completion_event = static_cast<std::uint16_t>(prm::Event::kCompletion);
  ASSERT_EQ(mlx5dv_devx_subscribe_devx_event(channel.get(), requester.cq.get(), sizeof completion_event,
                                             &completion_event, 0x1122334455667788),
            0);
  std::uint16_t page_fault = 0x0c;
  EXPECT_EQ(
      mlx5dv_devx_subscribe_devx_event(channel.get(), requester.cq.get(), sizeof page_fault, &page_fault, 1),
      EINVAL)
      << "never raised here";

  std::vector<std::uint8_t> bytes(64);
  const Mr region(
      ibv_reg_mr(pd_.get(), bytes.data(), bytes.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  ASSERT_NE(region, nullptr);
  post_write(requester, 0, bytes.data(), *region, bytes.data() + 32, *region, 32);
  // Armed, for whatever completes next or has completed.
  auto* const records = reinterpret_cast<Be32*>(requester.memory.data() + kRecordOffset);
  std::atomic_ref(records[mlx5::kArmRecord].raw).store(byte_swap(0u), std::memory_order_release);
  const std::uint64_t doorbell = std::uint64_t{byte_swap(requester.cqn)} << 32;
  auto* const page = static_cast<std::byte*>(uar_->base_addr);
  std::atomic_ref(*reinterpret_cast<std::uint64_t*>(page + mlx5::kUarCqDoorbell))
      .store(doorbell, std::memory_order_release);

  pollfd readable{.fd = channel->fd, .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&readable, 1, 20'000), 1) << "no event";
  mlx5dv_devx_async_event_hdr event{};
  ASSERT_EQ(mlx5dv_devx_get_event(channel.get(), &event, sizeof event),
            static_cast<ssize_t>(sizeof event.cookie));
  EXPECT_EQ(event.cookie, 0x1122334455667788u);
}

TEST_F(DevxQueues, umem_under_a_queue_deregistered_answers_ebusy) {
  Queue queue;
  ASSERT_NO_FATAL_FAILURE(create(queue));
  EXPECT_NE(mlx5dv_devx_umem_dereg(queue.umem.get()), 0);
  EXPECT_EQ(errno, EBUSY);
}

TEST_F(DevxQueues, reset_queue_taken_to_rts_at_once_is_refused) {
  Queue queue;
  ASSERT_NO_FATAL_FAILURE(create(queue));
  EXPECT_EQ(modify(queue, prm::Opcode::kRtr2Rts, {}), EREMOTEIO);
  EXPECT_EQ(query_state(queue), prm::qp::kReset);
}

}  // namespace
}  // namespace gdx::abi_tests
