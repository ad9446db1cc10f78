// Methods on queues: the specifications that reach the engine, whole, and what is refused.
#include "driver-shim/softhca/uverbs/queue_objects.h"
#include "tests/unit/uverbs/queue_node.h"

namespace gdx::softhca::uverbs {
namespace queue_methods_test {

TEST_F(QueueMethods, completion_queue_is_as_asked_for_and_tells_its_owner) {
  const int first_events = open_events();
  const int events = open_events();
  const int completions = open_completions();
  Cq queue = cq();
  queue.flags = 2;  // overrun is ignored
  queue.completions = completions;
  queue.events = events;
  queue.driver.cqe_size = 128;
  queue.driver.flags = MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX | MLX5_IB_CREATE_CQ_FLAGS_CQE_128B_PAD;
  queue.driver.uar_page_index = static_cast<std::uint16_t>(uar_);
  auto request = make_cq(queue);
  ASSERT_EQ(request.run(*context_), 0);
  const auto handle = static_cast<std::uint32_t>(request.written(UVERBS_ATTR_CREATE_CQ_HANDLE));
  EXPECT_EQ(request.answer<std::uint32_t>(UVERBS_ATTR_CREATE_CQ_RESP_CQE), 127u);
  EXPECT_EQ(request.answer<mlx5_ib_create_cq_resp>(UVERBS_ATTR_UHW_OUT).cqn, number_of(handle));
  EXPECT_EQ(hca_->cq.ring, pointer(4096));
  EXPECT_EQ(reinterpret_cast<std::byte*>(hca_->cq.doorbell_record), pointer(64));
  EXPECT_EQ(hca_->cq.log_entries, 7u);
  EXPECT_EQ(hca_->cq.entry_bytes, 128u);
  EXPECT_TRUE(hca_->cq.ignore_overrun);
  EXPECT_FALSE(hca_->cq.collapsed);
  EXPECT_EQ(hca_->cq.uar, uar_);
  hca_->cq.on_event();
  EXPECT_EQ(read_event(completions), bytes_of(std::uint64_t{0x7f01}));
  hca_->cq.on_event();
  hca_->cq.on_overrun();
  hca_->cq.on_overrun();
  EXPECT_EQ(read_event(events), async_event(0x7f01, 0));
  EXPECT_EQ(read_event(events), async_event(0x7f01, 0));
  auto gone = make(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY);
  gone.handle(UVERBS_ATTR_DESTROY_CQ_HANDLE, handle).out(UVERBS_ATTR_DESTROY_CQ_RESP, 8);
  ASSERT_EQ(gone.run(*context_), 0);
  EXPECT_EQ(gone.answer<ib_uverbs_destroy_cq_resp>(UVERBS_ATTR_DESTROY_CQ_RESP).comp_events_reported, 1u);
  EXPECT_EQ(gone.answer<ib_uverbs_destroy_cq_resp>(UVERBS_ATTR_DESTROY_CQ_RESP).async_events_reported, 2u);
  EXPECT_TRUE(read_event(completions).empty());
  EXPECT_TRUE(read_event(first_events).empty());

  const std::pair<std::uint32_t, std::uint32_t> sizes[] = {{1, 1}, {3, 3}, {4, 7}, {1023, 1023}};
  for (const auto& [asked, given] : sizes) {
    Cq plain = cq();
    plain.driver.buf_addr = at(0);
    plain.entries = asked;
    plain.uar = uar_;
    auto sized = make_cq(plain);
    ASSERT_EQ(sized.run(*context_), 0) << asked;
    EXPECT_EQ(sized.answer<std::uint32_t>(UVERBS_ATTR_CREATE_CQ_RESP_CQE), given);
    EXPECT_EQ(hca_->cq.uar, uar_) << "the attribute counts without the driver's flag";
    EXPECT_FALSE(hca_->cq.ignore_overrun);
    EXPECT_FALSE(hca_->cq.on_event);
    hca_->cq.on_overrun();
    EXPECT_EQ(read_event(first_events), async_event(0x7f01, 0)) << "of the context, where none is named";
  }
  ASSERT_EQ(run(make_cq(cq())), 0);
  EXPECT_FALSE(hca_->cq.uar);
}

TEST_F(QueueMethods, completion_queue_that_cannot_be_is_refused) {
  mprotect(arena_.data() + kArenaBytes - kPageBytes, kPageBytes, PROT_READ);
  const auto in_driver = [](auto member, auto value) {
    return [=](Cq& queue) { queue.driver.*member = static_cast<std::uint16_t>(value); };
  };
  expect_refused<Cq>(
      cq(), [this](const Cq& queue) { return make_cq(queue); },
      {{"no entries", EINVAL, [](Cq& queue) { queue.entries = 0; }},
       {"beyond the largest", EINVAL, [](Cq& queue) { queue.entries = 1u << 22; }},
       {"the largest, beyond the memory", EFAULT, [](Cq& queue) { queue.entries = (1u << 22) - 1; }},
       {"size", EINVAL, [](Cq& queue) { queue.driver.cqe_size = 32; }},
       {"compressed", EOPNOTSUPP, [](Cq& queue) { queue.driver.cqe_comp_en = 1; }},
       {"real time", EOPNOTSUPP, in_driver(&mlx5_ib_create_cq::flags, MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS)},
       {"unknown driver flag", EINVAL, in_driver(&mlx5_ib_create_cq::flags, 8)},
       {"padding of 64 B", EOPNOTSUPP,
        in_driver(&mlx5_ib_create_cq::flags, MLX5_IB_CREATE_CQ_FLAGS_CQE_128B_PAD)},
       {"unknown flag", EINVAL, [](Cq& queue) { queue.flags = 4; }},
       {"timestamps", EOPNOTSUPP, [](Cq& queue) { queue.flags = 1; }},
       {"vector", EINVAL, [](Cq& queue) { queue.vector = 1; }},
       {"no such UAR", EINVAL, [](Cq& queue) { queue.uar = 99; }},
       {"no such channel", EBADF, [](Cq& queue) { queue.completions = 900; }},
       {"no such events", EBADF, [](Cq& queue) { queue.events = 900; }},
       {"driver's part cut", EINVAL, [](Cq& queue) { queue.driver_bytes = 19; }},
       {"ring over the end", EFAULT, [this](Cq& queue) { queue.driver.buf_addr = at(kArenaBytes - 4096); }},
       {"ring read-only", EFAULT, [this](Cq& queue) { queue.driver.buf_addr = at(kArenaBytes - 8192); }},
       {"record that ends read-only", EFAULT,
        [this](Cq& queue) { queue.driver.db_addr = at(kArenaBytes - kPageBytes - 4); }},
       {"record astride", EINVAL, [this](Cq& queue) { queue.driver.db_addr = at(66); }}},
      {UVERBS_ATTR_CREATE_CQ_RESP_CQE, UVERBS_ATTR_UHW_OUT});
  Cq last = cq();
  last.driver.db_addr = at(kArenaBytes - kPageBytes - 8);
  last.driver_bytes = 20;
  EXPECT_EQ(run(make_cq(last)), 0) << "by the oldest libmlx5";
}

TEST_F(QueueMethods, completion_queue_resized_keeps_what_a_refusal_leaves) {
  const std::uint32_t handle = add_cq();
  mlx5_ib_resize_cq driver{};
  driver.buf_addr = at(32768);
  driver.cqe_size = 64;
  ASSERT_EQ(resize_cq(handle, 200, driver), 0);
  EXPECT_EQ(resized_to_, 255u);
  EXPECT_EQ(hca_->resized, (NotingEngine::Resized{number_of(handle), pointer(32768), 8}));
  const auto entries = [&] {
    return static_cast<const CompletionQueueObject*>(context_->objects.look(handle))->entries;
  };
  EXPECT_EQ(entries(), 255u);
  EXPECT_EQ(resize_cq(handle, 511, driver), 0) << "to the last byte of the memory";
  EXPECT_EQ(resize_cq(handle, 512, driver), EFAULT);
  EXPECT_EQ(resize_cq(handle, 0, driver), EINVAL);
  EXPECT_EQ(resize_cq(handle, 1u << 22, driver), EINVAL);
  EXPECT_EQ(resize_cq(handle, (1u << 22) - 1, driver), EFAULT);
  EXPECT_EQ(resize_cq(pd_, 100, driver), EINVAL);
  for (const auto member : {&mlx5_ib_resize_cq::cqe_size, &mlx5_ib_resize_cq::reserved0}) {
    mlx5_ib_resize_cq wrong = driver;
    wrong.*member = 128;
    EXPECT_EQ(resize_cq(handle, 100, wrong), EINVAL);
  }
  driver.reserved1 = 1;
  EXPECT_EQ(resize_cq(handle, 100, driver), EINVAL);
  EXPECT_EQ(entries(), 511u);
}

TEST_F(QueueMethods, queue_pair_is_as_asked_for_and_tells_its_owner) {
  open_events();
  const int events = open_events();
  const std::pair<std::uint64_t, QpType> types[] = {
      {IB_UVERBS_QPT_UC, QpType::kUc}, {IB_UVERBS_QPT_UD, QpType::kUd}, {IB_UVERBS_QPT_RC, QpType::kRc}};
  for (const auto& [asked, type] : types) {
    Qp queue = qp();
    queue.type = asked;
    queue.events = events;
    auto request = make_qp(queue);
    ASSERT_EQ(request.run(*context_), 0);
    const auto handle = static_cast<std::uint32_t>(request.written(UVERBS_ATTR_CREATE_QP_HANDLE));
    EXPECT_EQ(request.answer<std::uint32_t>(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM), number_of(handle));
    EXPECT_EQ(bytes_of(request.answer<ib_uverbs_qp_cap>(UVERBS_ATTR_CREATE_QP_RESP_CAP)),
              bytes_of(ib_uverbs_qp_cap{11, 8, 13, 4, 15}));
    const QueuePairSpec& spec = hca_->qp;
    EXPECT_EQ(spec.type, type);
    EXPECT_EQ(spec.pd, number_of(pd_));
    EXPECT_EQ(spec.uar, uar_);
    EXPECT_EQ(spec.send_cqn, number_of(send_cq_));
    EXPECT_EQ(spec.receive_cqn, number_of(receive_cq_));
    EXPECT_EQ(spec.srqn, 0u);
    EXPECT_EQ(spec.user_index, 0x55u);
    EXPECT_EQ(spec.receive_ring, pointer(4096));
    EXPECT_EQ(spec.receive_entries, 8u);
    EXPECT_EQ(spec.receive_stride_bytes, 64u);
    EXPECT_EQ(spec.send_ring, pointer(4096 + 512));
    EXPECT_EQ(spec.send_blocks, 16u);
    EXPECT_EQ(reinterpret_cast<std::byte*>(spec.doorbell_record), pointer(64));
    EXPECT_EQ(destroy(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY, send_cq_), EBUSY);
    EXPECT_EQ(destroy(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY, receive_cq_), EBUSY);
    spec.on_event(3);
    spec.on_event(4);
    EXPECT_EQ(read_event(events), async_event(0x7f02, 3));
    auto gone = make(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY);
    gone.handle(UVERBS_ATTR_DESTROY_QP_HANDLE, handle).out(UVERBS_ATTR_DESTROY_QP_RESP, 4);
    ASSERT_EQ(gone.run(*context_), 0);
    EXPECT_EQ(gone.answer<std::uint32_t>(UVERBS_ATTR_DESTROY_QP_RESP), 1u);
    EXPECT_TRUE(read_event(events).empty());
  }
  Qp sends = qp();
  sends.driver.rq_wqe_count = 0;
  sends.srq = static_cast<int>([this] {
    auto request = make_srq(srq());
    EXPECT_EQ(request.run(*context_), 0);
    return request.written(UVERBS_ATTR_CREATE_SRQ_HANDLE);
  }());
  add_qp(sends);
  EXPECT_EQ(hca_->qp.srqn, number_of(static_cast<std::uint32_t>(sends.srq)));
  EXPECT_EQ(hca_->qp.receive_ring, nullptr);
  EXPECT_EQ(hca_->qp.send_ring, pointer(4096));
  EXPECT_EQ(destroy(UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_DESTROY, static_cast<std::uint32_t>(sends.srq)),
            EBUSY);
}

TEST_F(QueueMethods, queue_pair_that_cannot_be_is_refused) {
  const auto sized = [](std::uint32_t sends, std::uint32_t receives, std::uint32_t shift) {
    return [=](Qp& queue) {
      queue.driver.sq_wqe_count = sends;
      queue.driver.rq_wqe_count = receives;
      queue.driver.rq_wqe_shift = shift;
    };
  };
  const auto flagged = [](std::uint32_t flags) { return [=](Qp& queue) { queue.driver.flags = flags; }; };
  const auto typed = [](std::uint64_t type) { return [=](Qp& queue) { queue.type = type; }; };
  constexpr std::uint32_t kPage = MLX5_QP_FLAG_UAR_PAGE_INDEX;
  expect_refused<Qp>(
      qp(), [this](const Qp& queue) { return make_qp(queue); },
      {{"dynamic connection", EOPNOTSUPP, typed(IB_UVERBS_QPT_DRIVER)},
       {"XRC", EOPNOTSUPP, typed(IB_UVERBS_QPT_XRC_INI)},
       {"no domain", EINVAL, [this](Qp& queue) { queue.pd = send_cq_; }},
       {"no such domain", ENOENT, [](Qp& queue) { queue.pd = 99; }},
       {"no send queue", EINVAL, [this](Qp& queue) { queue.send_cq = pd_; }},
       {"no receive queue", EINVAL, [this](Qp& queue) { queue.receive_cq = pd_; }},
       {"no shared queue", EINVAL, [this](Qp& queue) { queue.srq = static_cast<int>(pd_); }},
       {"creation flag", EOPNOTSUPP, [](Qp& queue) { queue.flags = 1; }},
       {"no such events", EBADF, [](Qp& queue) { queue.events = 900; }},
       {"driver's part cut", EINVAL, [](Qp& queue) { queue.driver_bytes = 39; }},
       {"signatures", EOPNOTSUPP, flagged(kPage | MLX5_QP_FLAG_SIGNATURE)},
       {"DCT", EOPNOTSUPP, flagged(kPage | MLX5_QP_FLAG_TYPE_DCT)},
       {"DCI", EOPNOTSUPP, flagged(kPage | MLX5_QP_FLAG_TYPE_DCI)},
       {"unknown driver flag", EINVAL, flagged(kPage | 1u << 30)},
       {"register of a context", EOPNOTSUPP, flagged(MLX5_QP_FLAG_BFREG_INDEX)},
       {"too many sends", EINVAL, sized(65536, 8, 6)},
       {"too many receives", EINVAL, sized(16, 65536, 6)},
       {"most sends, beyond the memory", EFAULT, sized(32768, 8, 6)},
       {"most receives, beyond the memory", EFAULT, sized(16, 32768, 6)},
       {"odd sends", EINVAL, sized(24, 8, 6)},
       {"odd receives", EINVAL, sized(16, 12, 6)},
       {"longest receives", EFAULT, sized(16, 8, 16)},
       {"longer receives", EINVAL, sized(16, 8, 17)},
       {"rings over the end", EFAULT, sized(512, 512, 6)}},
      {UVERBS_ATTR_CREATE_QP_RESP_CAP, UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, UVERBS_ATTR_UHW_OUT});
}

TEST_F(QueueMethods, queue_pair_flags_that_are_forgiven_and_rings_to_the_last_byte_are_taken) {
  Qp queue = qp();
  queue.driver.flags |= MLX5_QP_FLAG_SCATTER_CQE | MLX5_QP_FLAG_ALLOW_SCATTER_CQE | MLX5_QP_FLAG_BFREG_INDEX;
  queue.driver.buf_addr = at(0);
  queue.driver.sq_wqe_count = 512;
  queue.driver.rq_wqe_count = 512;
  queue.driver_bytes = 40;
  for (const std::uint32_t flags : {0u, 2u, 4096u, 4098u}) {
    queue.flags = flags;
    ib_uverbs_query_qp core{};
    core.qp_handle = add_qp(queue);
    const auto told = answer<ib_uverbs_query_qp_resp>(IB_USER_VERBS_CMD_QUERY_QP, core);
    EXPECT_EQ(told.sq_sig_all, (flags & 4096) != 0) << flags;
  }
}

TEST_F(QueueMethods, shared_receive_queue_is_as_asked_for_and_tells_its_owner) {
  const int events = open_events();
  struct Size {
    std::uint32_t max_wr, max_sge, entries, stride_bytes;
  };
  for (const Size& size : {Size{100, 3, 128, 64}, Size{127, 1, 128, 32}, Size{128, 4, 256, 128},
                           Size{1, 0, 2, 32}, Size{3, 31, 4, 512}}) {
    Srq queue = srq();
    queue.max_wr = size.max_wr;
    queue.max_sge = size.max_sge;
    auto request = make_srq(queue);
    ASSERT_EQ(request.run(*context_), 0);
    const auto handle = static_cast<std::uint32_t>(request.written(UVERBS_ATTR_CREATE_SRQ_HANDLE));
    EXPECT_EQ(request.answer<mlx5_ib_create_srq_resp>(UVERBS_ATTR_UHW_OUT).srqn, number_of(handle));
    EXPECT_EQ(request.answer<std::uint32_t>(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR), size.max_wr);
    EXPECT_EQ(request.answer<std::uint32_t>(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE), size.max_sge);
    const SharedReceiveQueueSpec& spec = hca_->srq;
    EXPECT_EQ(spec.pd, number_of(pd_));
    EXPECT_EQ(spec.ring, pointer(4096));
    EXPECT_EQ(spec.entries, size.entries);
    EXPECT_EQ(spec.stride_bytes, size.stride_bytes);
    EXPECT_EQ(reinterpret_cast<std::byte*>(spec.doorbell_record), pointer(64));
    EXPECT_EQ(spec.user_index, 0x66u);
    EXPECT_FALSE(spec.cyclic);
    spec.on_event(15);
    EXPECT_EQ(read_event(events), async_event(0x7f03, 15));
    EXPECT_EQ(bytes_of(query_srq(handle)),
              bytes_of(ib_uverbs_query_srq_resp{size.max_wr, size.max_sge, 0, 0}));
    EXPECT_EQ(destroy(UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY, pd_), EBUSY);
    auto gone = make(UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_DESTROY);
    gone.handle(UVERBS_ATTR_DESTROY_SRQ_HANDLE, handle).out(UVERBS_ATTR_DESTROY_SRQ_RESP, 4);
    ASSERT_EQ(gone.run(*context_), 0);
    EXPECT_EQ(gone.answer<std::uint32_t>(UVERBS_ATTR_DESTROY_SRQ_RESP), 1u);
  }
}

TEST_F(QueueMethods, shared_receive_queue_that_cannot_be_is_refused) {
  expect_refused<Srq>(
      srq(), [this](const Srq& queue) { return make_srq(queue); },
      {{"type", EOPNOTSUPP, [](Srq& queue) { queue.type = IB_UVERBS_SRQT_XRC; }},
       {"driver flags", EOPNOTSUPP, [](Srq& queue) { queue.driver.flags = 1; }},
       {"too many", EINVAL, [](Srq& queue) { queue.max_wr = 32768; }},
       {"most, beyond the memory", EFAULT, [](Srq& queue) { queue.max_wr = 32767; }},
       {"too many pieces", EINVAL, [](Srq& queue) { queue.max_sge = 32; }},
       {"no such domain", ENOENT, [](Srq& queue) { queue.pd = 99; }},
       {"no such events", EBADF, [](Srq& queue) { queue.events = 900; }},
       {"driver's part cut", EINVAL, [](Srq& queue) { queue.driver_bytes = 23; }},
       {"ring over the end", EFAULT, [this](Srq& queue) { queue.driver.buf_addr = at(kArenaBytes - 8128); }}},
      {UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, UVERBS_ATTR_UHW_OUT});
  pd_ = alloc_pd();
  Srq last = srq();
  last.driver.buf_addr = at(kArenaBytes - 8192);
  last.driver_bytes = 24;
  auto request = make_srq(last);
  ASSERT_EQ(request.run(*context_), 0);
  const auto handle = static_cast<std::uint32_t>(request.written(UVERBS_ATTR_CREATE_SRQ_HANDLE));
  EXPECT_EQ(modify_srq(handle, 0, 7), 0);
  EXPECT_EQ(query_srq(handle).srq_limit, 0u) << "not asked for";
  EXPECT_EQ(modify_srq(handle, 1, 7), EINVAL);
  EXPECT_EQ(modify_srq(handle, 3, 7), EINVAL);
  EXPECT_EQ(modify_srq(pd_, 2, 7), EINVAL);
}

}  // namespace queue_methods_test
}  // namespace gdx::softhca::uverbs
