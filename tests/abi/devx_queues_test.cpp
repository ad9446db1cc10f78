// Queues made through mlx5dv DevX and worked by hand, as GPU-side clients do.
#include "tests/abi/devx_queues.h"

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/abi/netlink.h"

namespace gdx::abi_tests {
namespace devx_queues_test {

using testing::HasSubstr;

TEST_F(DevxQueues, objects_of_another_open_file_are_refused) {
  if (std::getenv("GDX_STRICT") == nullptr)
    GTEST_SKIP() << "only a strict HCA refuses them: set GDX_STRICT=1";
  Queue queue;
  ASSERT_NO_FATAL_FAILURE(create(queue));
  const Context other = open_device();
  const Pd foreign_pd(ibv_alloc_pd(other.get()));
  const Cq foreign_cq(ibv_create_cq(other.get(), 4, nullptr, nullptr, 0));
  mlx5dv_devx_uar* const foreign_uar = mlx5dv_devx_alloc_uar(other.get(), MLX5DV_UAR_ALLOC_TYPE_BF);
  mlx5dv_pd pd{};
  mlx5dv_cq cq{};
  mlx5dv_obj object{};
  object.pd = {foreign_pd.get(), &pd};
  object.cq = {foreign_cq.get(), &cq};
  ASSERT_EQ(mlx5dv_init_obj(&object, MLX5DV_OBJ_PD | MLX5DV_OBJ_CQ), 0);
  for (const auto& [field, number] : {std::pair{prm::qp::kPd, pd.pdn}, std::pair{prm::qp::kSendCqn, cq.cqn},
                                      std::pair{prm::qp::kUarPage, foreign_uar->page_id}}) {
    auto in = qp_command(queue, true);
    prm::set(in, field, number);
    prm::Mailbox<prm::kShortCommandBytes> out{};
    EXPECT_EQ(mlx5dv_devx_obj_create(context_.get(), in.data(), in.size(), out.data(), out.size()), nullptr);
    EXPECT_EQ(prm::get(out, prm::kStatus), static_cast<std::uint64_t>(prm::CommandStatus::kBadResource))
        << number;
  }
  mlx5dv_devx_free_uar(foreign_uar);
}

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

TEST_F(DevxQueues, queues_are_shown_by_rdma_of_another_process_until_they_are_destroyed) {
  Queue queue;
  ASSERT_NO_FATAL_FAILURE(create(queue));
  const std::string pairs = Netlink::lines_of_rdma("qp");
  if (pairs == Netlink::kNoRdma) GTEST_SKIP() << pairs;
  EXPECT_THAT(pairs,
              HasSubstr("link gdx0/- lqpn " + std::to_string(queue.qpn) + " rqpn 0 type RC state RESET"));
  EXPECT_THAT(pairs, HasSubstr(" comm abi_devx_test "));
  EXPECT_THAT(Netlink::lines_of_rdma("cq"), HasSubstr("cqn " + std::to_string(queue.cqn) + " cqe 16 "));
  EXPECT_THAT(Netlink::lines_of_rdma("pd"), HasSubstr("pdn " + std::to_string(pdn_) + ' '));
  queue.qp.reset();
  EXPECT_EQ(Netlink::lines_of_rdma("qp"), "");
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

// One process, one domain: a pair of verbs queues and a pair of DevX ones. The requester of the DevX pair has
// a completion queue that verbs made.
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
    const auto limit = steady_clock::now() + kHang;
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
  ASSERT_EQ(poll(&readable, 1, 1000 * kHangSeconds), 1) << "no event";
  mlx5dv_devx_async_event_hdr event{};
  ASSERT_EQ(mlx5dv_devx_get_event(channel.get(), &event, sizeof event),
            static_cast<ssize_t>(sizeof event.cookie));
  EXPECT_EQ(event.cookie, 0x1122334455667788u);
}

// Source: Linux include/linux/mlx5/device.h, struct mlx5_eqe_cq_err.
TEST_F(DevxQueues, subscribed_error_event_of_an_overrun_cq_names_it_as_hardware_does) {
  Queue requester;
  Queue responder;
  ASSERT_NO_FATAL_FAILURE(create(requester));
  ASSERT_NO_FATAL_FAILURE(create(responder, false));
  ASSERT_NO_FATAL_FAILURE(connect(requester, responder));
  ASSERT_NO_FATAL_FAILURE(connect(responder, requester));
  const auto make_channel = [&] {
    return EventChannel(mlx5dv_devx_create_event_channel(
        context_.get(), static_cast<mlx5dv_devx_create_event_channel_flags>(0)));
  };
  const EventChannel channel = make_channel();
  ASSERT_NE(channel, nullptr);
  auto error_event = static_cast<std::uint16_t>(prm::Event::kCqError);
  ASSERT_EQ(mlx5dv_devx_subscribe_devx_event(channel.get(), requester.cq.get(), sizeof error_event,
                                             &error_event, 77),
            0);
  auto fatal_event = static_cast<std::uint16_t>(prm::Event::kQpFatal);
  ASSERT_EQ(mlx5dv_devx_subscribe_devx_event(channel.get(), requester.qp.get(), sizeof fatal_event,
                                             &fatal_event, 78),
            0);
  const EventChannel redirected = make_channel();
  const int counter = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  ASSERT_EQ(mlx5dv_devx_subscribe_devx_event_fd(redirected.get(), counter, requester.cq.get(),
                                                static_cast<std::uint16_t>(prm::Event::kCqError)),
            0);
  constexpr std::uint32_t kEntries = 1u << kLogBlocks;
  std::vector<std::uint8_t> source(kEntries + 1, 0x5a);
  std::vector<std::uint8_t> target(source.size());
  const Mr from(ibv_reg_mr(pd_.get(), source.data(), source.size(), IBV_ACCESS_LOCAL_WRITE));
  const Mr to(
      ibv_reg_mr(pd_.get(), target.data(), target.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  ASSERT_TRUE(from != nullptr && to != nullptr);
  const auto limit = steady_clock::now() + kHang;
  for (std::uint32_t i = 0; i <= kEntries; ++i) {
    post_write(requester, i, &source[i], *from, &target[i], *to, 1);
    while (std::atomic_ref(target[i]).load() != source[i]) ASSERT_LT(steady_clock::now(), limit) << i;
  }

  constexpr std::size_t kEntryOffset = offsetof(mlx5dv_devx_async_event_hdr, out_data);
  alignas(mlx5dv_devx_async_event_hdr) std::array<std::uint8_t, kEntryOffset + 64> event{};
  const auto number_at = [&](std::size_t byte) {
    Be32 number{};
    std::memcpy(&number, &event[kEntryOffset + byte], sizeof number);
    return static_cast<std::uint32_t>(number);
  };
  const auto read_event = [&](std::uint64_t cookie, prm::Event type) {
    pollfd readable{.fd = channel->fd, .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&readable, 1, 1000 * kHangSeconds), 1) << "no event";
    auto* const header = reinterpret_cast<mlx5dv_devx_async_event_hdr*>(event.data());
    ASSERT_EQ(mlx5dv_devx_get_event(channel.get(), header, event.size()), static_cast<ssize_t>(event.size()));
    EXPECT_EQ(header->cookie, cookie);
    EXPECT_EQ(event[kEntryOffset + 1], static_cast<std::uint8_t>(type));
  };
  read_event(77, prm::Event::kCqError);
  EXPECT_EQ(number_at(32), requester.cqn);
  EXPECT_EQ(event[kEntryOffset + 43], 1u) << "syndrome: overrun";
  read_event(78, prm::Event::kQpFatal);
  EXPECT_EQ(number_at(56), requester.qpn);
  std::uint64_t raised = 0;
  EXPECT_EQ(read(counter, &raised, sizeof raised), static_cast<ssize_t>(sizeof raised));
  EXPECT_EQ(raised, 1u);
  close(counter);
  pollfd silent{.fd = redirected->fd, .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&silent, 1, 0), 0) << "an event went to the eventfd and to its channel";
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

}  // namespace devx_queues_test
}  // namespace gdx::abi_tests
