// Memory windows as programs have them: through ibv_bind_mw, ibv_post_send and the ibv_wr_* calls.
#include <cerrno>

#include "tests/abi/loopback.h"

namespace gdx::abi_tests {
namespace memory_windows_test {

using Mw = std::unique_ptr<ibv_mw, Release<ibv_mw, ibv_dealloc_mw>>;

class MemoryWindows : public Loopback {
 protected:
  static constexpr std::size_t kOffset = 4096;
  static constexpr std::uint32_t kLength = 256;
  static constexpr unsigned kRights = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

  void SetUp() override {
    Loopback::SetUp();
    region_.reset(
        ibv_reg_mr(pd_.get(), memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
    ASSERT_NE(region_, nullptr);
    sender_cq_ = make_cq();
    owner_cq_ = make_cq();
    sender_ = make_qp(sender_cq_.get());
    owner_ = make_qp(owner_cq_.get());
    connect(sender_.get(), owner_->qp_num);
    connect(owner_.get(), sender_->qp_num);
  }
  std::uint64_t at(std::size_t offset) const {
    return reinterpret_cast<std::uintptr_t>(memory_.data()) + offset;
  }
  Mw make_window(ibv_mw_type type) {
    Mw window(ibv_alloc_mw(pd_.get(), type));
    EXPECT_NE(window, nullptr) << "errno " << errno;
    return window;
  }
  ibv_mw_bind_info range(std::uint64_t length_bytes = kLength, unsigned rights = kRights) const {
    ibv_mw_bind_info info{};
    info.mr = region_.get();
    info.addr = at(kOffset);
    info.length = length_bytes;
    info.mw_access_flags = rights;
    return info;
  }
  ibv_wc_status await_status(ibv_cq* cq, ibv_wc_opcode opcode) {
    const auto completion = await(cq);
    EXPECT_TRUE(completion);
    if (!completion) return IBV_WC_GENERAL_ERR;
    if (completion->status == IBV_WC_SUCCESS) {
      EXPECT_EQ(completion->opcode, opcode);
    }
    return completion->status;
  }
  ibv_wc_status bind_type_1(ibv_mw* window, const ibv_mw_bind_info& info) {
    ibv_mw_bind request{};
    request.bind_info = info;
    request.send_flags = IBV_SEND_SIGNALED;
    EXPECT_EQ(ibv_bind_mw(owner_.get(), window, &request), 0);
    return await_status(owner_cq_.get(), IBV_WC_BIND_MW);
  }
  ibv_wc_status bind_type_2(ibv_mw* window, std::uint32_t rkey, const ibv_mw_bind_info& info) {
    ibv_send_wr request{};
    request.opcode = IBV_WR_BIND_MW;
    request.bind_mw.mw = window;
    request.bind_mw.rkey = rkey;
    request.bind_mw.bind_info = info;
    return post_to_owner(request, IBV_WC_BIND_MW);
  }
  ibv_wc_status invalidate(std::uint32_t rkey) {
    ibv_send_wr request{};
    request.opcode = IBV_WR_LOCAL_INV;
    request.invalidate_rkey = rkey;
    return post_to_owner(request, IBV_WC_LOCAL_INV);
  }
  ibv_wc_status post_to_owner(ibv_send_wr& request, ibv_wc_opcode opcode) {
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(owner_.get(), &request, &bad), 0);
    return await_status(owner_cq_.get(), opcode);
  }
  ibv_wc_status write(std::uint32_t rkey, std::uint64_t remote, std::uint32_t length_bytes = kLength) {
    EXPECT_EQ(post_write(sender_.get(), piece(0, length_bytes), remote, rkey), 0);
    return await_status(sender_cq_.get(), IBV_WC_RDMA_WRITE);
  }

  Mr region_;
  Cq sender_cq_, owner_cq_;
  Qp sender_, owner_;
};

TEST_F(MemoryWindows, device_reports_what_it_has_of_them) {
  ibv_device_attr device{};
  ASSERT_EQ(ibv_query_device(context_.get(), &device), 0);
  EXPECT_GT(device.max_mw, 0);
  constexpr unsigned kOffered =
      IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS;
  EXPECT_EQ(device.device_cap_flags & kOffered, kOffered);
  EXPECT_EQ(device.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2A, 0u);
}

TEST_F(MemoryWindows, window_of_no_type_is_refused) {
  EXPECT_EQ(ibv_alloc_mw(pd_.get(), static_cast<ibv_mw_type>(3)), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(MemoryWindows, type_1_bound_rebound_and_bound_to_nothing) {
  memory_[0] = std::byte{0x77};
  const Mw window = make_window(IBV_MW_TYPE_1);
  ASSERT_EQ(bind_type_1(window.get(), range()), IBV_WC_SUCCESS);
  const std::uint32_t first = window->rkey;
  EXPECT_EQ(write(first, at(kOffset)), IBV_WC_SUCCESS);
  EXPECT_EQ(memory_[kOffset], std::byte{0x77});
  ASSERT_EQ(bind_type_1(window.get(), range(64)), IBV_WC_SUCCESS);
  EXPECT_NE(window->rkey, first);
  EXPECT_EQ(write(window->rkey, at(kOffset), 64), IBV_WC_SUCCESS);
  ibv_mw_bind_info nothing{};
  ASSERT_EQ(bind_type_1(window.get(), nothing), IBV_WC_SUCCESS);
  EXPECT_EQ(write(window->rkey, at(kOffset), 8), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(MemoryWindows, type_1_rebound_ends_the_key_that_it_had) {
  const Mw window = make_window(IBV_MW_TYPE_1);
  ASSERT_EQ(bind_type_1(window.get(), range()), IBV_WC_SUCCESS);
  const std::uint32_t first = window->rkey;
  ASSERT_EQ(bind_type_1(window.get(), range()), IBV_WC_SUCCESS);
  EXPECT_EQ(write(first, at(kOffset)), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(MemoryWindows, type_2_bound_invalidated_and_bound_again) {
  const Mw window = make_window(IBV_MW_TYPE_2);
  std::uint32_t rkey = window->rkey;
  for (int i = 0; i < 3; ++i) {
    rkey = ibv_inc_rkey(rkey);
    ASSERT_EQ(bind_type_2(window.get(), rkey, range()), IBV_WC_SUCCESS);
    EXPECT_EQ(write(rkey, at(kOffset)), IBV_WC_SUCCESS);
    ASSERT_EQ(invalidate(rkey), IBV_WC_SUCCESS);
  }
  EXPECT_EQ(write(rkey, at(kOffset)), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(MemoryWindows, type_2_bound_while_bound_is_a_bind_error) {
  const Mw window = make_window(IBV_MW_TYPE_2);
  ASSERT_EQ(bind_type_2(window.get(), window->rkey, range()), IBV_WC_SUCCESS);
  EXPECT_EQ(bind_type_2(window.get(), window->rkey, range()), IBV_WC_MW_BIND_ERR);
  EXPECT_EQ(state_of(owner_.get()), IBV_QPS_ERR);
}

TEST_F(MemoryWindows, type_2_is_of_no_use_to_another_queue_pair) {
  const Cq cq = make_cq();
  const Qp other = make_qp(cq.get());
  const Qp other_peer = make_qp(cq.get());
  connect(other.get(), other_peer->qp_num);
  connect(other_peer.get(), other->qp_num);
  const Mw window = make_window(IBV_MW_TYPE_2);
  ASSERT_EQ(bind_type_2(window.get(), window->rkey, range()), IBV_WC_SUCCESS);
  ASSERT_EQ(post_write(other.get(), piece(0, 8), at(kOffset), window->rkey), 0);
  EXPECT_EQ(await_status(cq.get(), IBV_WC_RDMA_WRITE), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(write(window->rkey, at(kOffset)), IBV_WC_SUCCESS);
}

TEST_F(MemoryWindows, type_2_zero_based_is_addressed_from_zero) {
  const Mw window = make_window(IBV_MW_TYPE_2);
  ASSERT_EQ(bind_type_2(window.get(), window->rkey, range(kLength, kRights | IBV_ACCESS_ZERO_BASED)),
            IBV_WC_SUCCESS);
  memory_[0] = std::byte{0x33};
  EXPECT_EQ(write(window->rkey, 16, 8), IBV_WC_SUCCESS);
  EXPECT_EQ(memory_[kOffset + 16], std::byte{0x33});
  EXPECT_EQ(write(window->rkey, at(kOffset), 8), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(MemoryWindows, send_with_invalidate_names_the_key_in_the_completion) {
  const Mw window = make_window(IBV_MW_TYPE_2);
  ASSERT_EQ(bind_type_2(window.get(), window->rkey, range()), IBV_WC_SUCCESS);
  ASSERT_EQ(post_receive(owner_.get(), piece(8192, 64)), 0);
  ibv_sge from = piece(0, 64);
  ibv_send_wr request{};
  request.sg_list = &from;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND_WITH_INV;
  request.invalidate_rkey = window->rkey;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(sender_.get(), &request, &bad), 0);
  EXPECT_EQ(await_status(sender_cq_.get(), IBV_WC_SEND), IBV_WC_SUCCESS);
  const auto received = await(owner_cq_.get());
  ASSERT_TRUE(received);
  EXPECT_EQ(received->opcode, IBV_WC_RECV);
  EXPECT_EQ(received->wc_flags & IBV_WC_WITH_INV, unsigned{IBV_WC_WITH_INV});
  EXPECT_EQ(received->invalidated_rkey, window->rkey);
  EXPECT_EQ(write(window->rkey, at(kOffset)), IBV_WC_REM_ACCESS_ERR);
}

// mlx5 counts no windows on a region; what is bound to one that is gone leads nowhere.
TEST_F(MemoryWindows, window_holds_its_domain_and_not_its_region) {
  Pd domain(ibv_alloc_pd(context_.get()));
  {
    const Mw alone(ibv_alloc_mw(domain.get(), IBV_MW_TYPE_1));
    ASSERT_NE(alone, nullptr);
    EXPECT_EQ(ibv_dealloc_pd(domain.get()), EBUSY);
  }
  domain.reset();
  const Mw window = make_window(IBV_MW_TYPE_2);
  ASSERT_EQ(bind_type_2(window.get(), window->rkey, range()), IBV_WC_SUCCESS);
  region_.reset();
  EXPECT_EQ(write(window->rkey, at(kOffset)), IBV_WC_REM_ACCESS_ERR);
}

}  // namespace memory_windows_test
}  // namespace gdx::abi_tests
