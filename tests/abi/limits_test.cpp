// Limits in the output of ibv_devinfo -v, compared with real objects: the limit works, one more is refused.
#include <cerrno>

#include "tests/abi/open_device.h"

namespace gdx::abi_tests {
namespace limits_test {

class Limits : public testing::Test {
 protected:
  void SetUp() override {
    context_ = open_device();
    ASSERT_NE(context_, nullptr) << "no software HCA: errno " << errno;
    ASSERT_EQ(ibv_query_device(context_.get(), &limits_), 0);
    pd_ = ibv_alloc_pd(context_.get());
    cq_ = ibv_create_cq(context_.get(), 16, nullptr, nullptr, 0);
    ASSERT_TRUE(pd_ != nullptr && cq_ != nullptr);
  }
  void TearDown() override {
    if (cq_ != nullptr) {
      EXPECT_EQ(ibv_destroy_cq(cq_), 0);
    }
    if (pd_ != nullptr) {
      EXPECT_EQ(ibv_dealloc_pd(pd_), 0);
    }
  }

  // 0, or errno.
  int try_cq(int entries) {
    ibv_cq* const cq = ibv_create_cq(context_.get(), entries, nullptr, nullptr, 0);
    return cq == nullptr ? errno : ibv_destroy_cq(cq);
  }
  int try_qp(ibv_qp_type type, int receives, int sges) {
    ibv_qp_init_attr init{};
    init.send_cq = cq_;
    init.recv_cq = cq_;
    init.qp_type = type;
    init.cap.max_send_wr = 1;
    init.cap.max_recv_wr = static_cast<std::uint32_t>(receives);
    init.cap.max_send_sge = static_cast<std::uint32_t>(sges);
    init.cap.max_recv_sge = static_cast<std::uint32_t>(sges);
    ibv_qp* const qp = ibv_create_qp(pd_, &init);
    return qp == nullptr ? errno : ibv_destroy_qp(qp);
  }
  int try_srq(int receives, int sges) {
    ibv_srq_init_attr init{};
    init.attr.max_wr = static_cast<std::uint32_t>(receives);
    init.attr.max_sge = static_cast<std::uint32_t>(sges);
    ibv_srq* const srq = ibv_create_srq(pd_, &init);
    return srq == nullptr ? errno : ibv_destroy_srq(srq);
  }

  Context context_;
  ibv_device_attr limits_{};
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
};

TEST_F(Limits, completion_queue_of_the_largest_size_is_made_and_a_larger_one_refused) {
  EXPECT_EQ(try_cq(limits_.max_cqe), 0);
  EXPECT_EQ(try_cq(limits_.max_cqe + 1), EINVAL);
}

// Tests receives only, because libmlx5 computes the size of sends, and its largest send queue is smaller on
// any ConnectX.
TEST_F(Limits, queue_pair_of_the_largest_size_is_made_and_a_larger_one_refused) {
  for (const ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD}) {
    EXPECT_EQ(try_qp(type, limits_.max_qp_wr, 1), 0) << type;
    EXPECT_EQ(try_qp(type, limits_.max_qp_wr + 1, 1), EINVAL) << type;
    EXPECT_EQ(try_qp(type, 1, limits_.max_sge), 0) << type;
  }
}

TEST_F(Limits, shared_receive_queue_of_the_largest_size_is_made_and_a_larger_one_refused) {
  EXPECT_EQ(try_srq(limits_.max_srq_wr, 1), 0);
  EXPECT_EQ(try_srq(limits_.max_srq_wr + 1, 1), EINVAL);
  EXPECT_EQ(try_srq(1, limits_.max_srq_sge), 0);
  EXPECT_EQ(try_srq(1, limits_.max_srq_sge + 1), EINVAL);
}

TEST_F(Limits, gid_table_ends_where_the_port_says) {
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(context_.get(), 1, &port), 0);
  ibv_gid gid{};
  for (int index = 0; index < port.gid_tbl_len; ++index) {
    EXPECT_EQ(ibv_query_gid(context_.get(), 1, index, &gid), 0) << index;
  }
  EXPECT_NE(ibv_query_gid(context_.get(), 1, port.gid_tbl_len, &gid), 0);
}

// libmlx5 reads the clock through a page that this device does not offer.
TEST_F(Limits, clock_is_neither_advertised_nor_readable) {
  ibv_device_attr_ex extended{};
  ASSERT_EQ(ibv_query_device_ex(context_.get(), nullptr, &extended), 0);
  EXPECT_EQ(extended.completion_timestamp_mask, 0u);
  EXPECT_EQ(extended.hca_core_clock, 0u);
  ibv_values_ex values{};
  values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  EXPECT_EQ(ibv_query_rt_values_ex(context_.get(), &values), EOPNOTSUPP);
}

}  // namespace limits_test
}  // namespace gdx::abi_tests
