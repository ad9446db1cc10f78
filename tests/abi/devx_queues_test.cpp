// Queues made through mlx5dv DevX and worked by hand, as GPU-side clients do.
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
using DevxObject = std::unique_ptr<mlx5dv_devx_obj, Release<mlx5dv_devx_obj, mlx5dv_devx_obj_destroy>>;
using Umem = std::unique_ptr<mlx5dv_devx_umem, Release<mlx5dv_devx_umem, mlx5dv_devx_umem_dereg>>;
using Pd = std::unique_ptr<ibv_pd, Release<ibv_pd, ibv_dealloc_pd>>;
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

  // With `set_valid_bits` off it does as UCX does.
  void create(Queue& queue, bool set_valid_bits = true) {
    queue.umem.reset(
        mlx5dv_devx_umem_reg(context_.get(), queue.memory.data(), kUmemBytes, IBV_ACCESS_LOCAL_WRITE));
    ASSERT_NE(queue.umem, nullptr);
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

  void connect(Queue& queue, const Queue& peer) {
    ibv_gid gid{};
    ASSERT_EQ(ibv_query_gid(context_.get(), 1, 1, &gid), 0);
    prm::Mailbox<prm::kModifyQpInBytes> init{};
    prm::set(init, prm::qp::kRemoteWrite, 1);
    prm::set(init, prm::qp::kPathPort, 1);
    ASSERT_EQ(modify(queue, prm::Opcode::kRst2Init, init), 0);
    prm::Mailbox<prm::kModifyQpInBytes> rtr{};
    prm::set(rtr, prm::qp::kMtu, 3);
    prm::set(rtr, prm::qp::kRemoteQpn, peer.qpn);
    prm::set(rtr, prm::qp::kLogMaxMessage, 30);
    std::memcpy(rtr.data() + prm::qp::kPathRemoteGidByte, gid.raw, sizeof gid.raw);
    ASSERT_EQ(modify(queue, prm::Opcode::kInit2Rtr, rtr), 0);
    prm::Mailbox<prm::kModifyQpInBytes> rts{};
    prm::set(rts, prm::qp::kPathAckTimeout, 14);
    prm::set(rts, prm::qp::kRetryCount, 7);
    prm::set(rts, prm::qp::kRnrRetry, 7);
    ASSERT_EQ(modify(queue, prm::Opcode::kRtr2Rts, rts), 0);
  }

  std::uint32_t query_state(Queue& queue) {
    prm::Mailbox<prm::kShortCommandBytes> in{};
    prm::Mailbox<prm::kQueryQpOutBytes> out{};
    prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::kQueryQp));
    prm::set(in, prm::kObjectId, queue.qpn);
    EXPECT_EQ(mlx5dv_devx_obj_query(queue.qp.get(), in.data(), in.size(), out.data(), out.size()), 0);
    return prm::get32(out, prm::qp::kState);
  }

  Context context_;
  Pd pd_;
  std::uint32_t pdn_ = 0;
  mlx5dv_devx_uar* uar_ = nullptr;
  SofthcaProgress progress_ = nullptr;
};

TEST_F(DevxQueues, general_caps_queried_are_those_of_a_roce_port_with_cqe_version_1) {
  prm::Mailbox<prm::kShortCommandBytes> in{};
  prm::Mailbox<prm::kQueryHcaCapOutBytes> out{};
  prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::kQueryHcaCap));
  prm::set(in, prm::kOpMod, prm::cap::op_mod_current(prm::cap::kGeneral));
  ASSERT_EQ(mlx5dv_devx_general_cmd(context_.get(), in.data(), in.size(), out.data(), out.size()), 0);
  EXPECT_EQ(prm::get(out, prm::cap::kPortType), 1u);
  EXPECT_EQ(prm::get(out, prm::cap::kCqeVersion), 1u);
  EXPECT_EQ(prm::get(out, prm::cap::kLogBlueFlameRegisterSize), 9u);
}

TEST_F(DevxQueues, unsupported_command_answers_eremoteio_with_a_status) {
  prm::Mailbox<prm::kShortCommandBytes> in{};
  prm::Mailbox<prm::kShortCommandBytes> out{};
  prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::kCreateMkey));
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

  auto* const control = reinterpret_cast<mlx5::ControlSegment*>(requester.memory.data());
  *control = {};
  control->opmod_index_opcode = static_cast<std::uint32_t>(mlx5::WqeOpcode::kRdmaWrite);
  control->qpn_ds = requester.qpn << 8 | 3;
  control->fm_ce_se = mlx5::kCompletionAlways;
  auto* const remote = reinterpret_cast<mlx5::RemoteAddressSegment*>(control + 1);
  *remote = {reinterpret_cast<std::uintptr_t>(target.data()), to->rkey, 0};
  auto* const data = reinterpret_cast<mlx5::DataSegment*>(remote + 1);
  *data = {static_cast<std::uint32_t>(source.size()), from->lkey,
           reinterpret_cast<std::uintptr_t>(source.data())};
  std::atomic_ref(requester.qp_record()[mlx5::kSendRecord].raw)
      .store(byte_swap(1u), std::memory_order_release);
  std::uint64_t doorbell = 0;
  std::memcpy(&doorbell, control, sizeof doorbell);
  std::atomic_ref(*static_cast<std::uint64_t*>(uar_->reg_addr)).store(doorbell, std::memory_order_release);

  // wqe_counter to op_own lie in one word, which the device stores last and at once.
  std::byte* const last_bytes = requester.memory.data() + kCqOffset + offsetof(mlx5::Cqe64, send_opcode_qpn);
  auto& last_word = *reinterpret_cast<Be64*>(last_bytes);
  const auto limit = steady_clock::now() + std::chrono::seconds(20);
  std::uint64_t word = ~std::uint64_t{0};
  while ((word & 0xff) == 0xff) {
    progress_();
    word = byte_swap(std::atomic_ref(last_word.raw).load(std::memory_order_acquire));
    ASSERT_LT(steady_clock::now(), limit) << "no completion";
  }
  EXPECT_EQ((word & 0xff) >> mlx5::kCqeOpcodeShift, static_cast<std::uint64_t>(mlx5::CqeOpcode::kRequester));
  EXPECT_EQ(word >> 16 & 0xffff, 0u) << "wqe_counter";
  EXPECT_EQ(source, target);
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
