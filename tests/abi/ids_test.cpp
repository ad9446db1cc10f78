// The numbers of objects stay within the bits that mlx5 has for them: libmlx5 and PRM commands cut off the
// rest.
#include <infiniband/mlx5dv.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/mlx5-abi.h>

#include <cerrno>
#include <set>

#include "proto/mlx5/wqe.h"
#include "tests/abi/loopback.h"
#include "tests/abi/request.h"

namespace gdx::abi_tests {
namespace ids_test {

// More than 8 bits count. UAR pages numbered with the queues, from anywhere in 24 bits, would be seen. Too
// large a range of their own would not, because a program cannot map that many: gdx_engine_test holds them
// all.
constexpr int kObjects = 300;

class Ids : public Loopback {
 protected:
  // 0, or errno. `flags` and `short_uar` are in mlx5's own part of the request; libmlx5 puts a page beyond 16
  // bits into an attribute.
  int create_cq(std::uint32_t flags, std::uint16_t short_uar, const std::optional<std::uint64_t>& long_uar,
                std::uint16_t long_bytes = 4) {
    constexpr std::uint16_t kUarIndex = 0x1002;  // MLX5_IB_ATTR_CREATE_CQ_UAR_INDEX
    alignas(64) static std::array<std::byte, 8 * 64> ring;
    alignas(8) static std::array<std::byte, 8> record;
    mlx5_ib_create_cq driver{};
    driver.buf_addr = reinterpret_cast<std::uintptr_t>(ring.data());
    driver.db_addr = reinterpret_cast<std::uintptr_t>(record.data());
    driver.cqe_size = 64;
    driver.flags = static_cast<decltype(driver.flags)>(flags);
    driver.uar_page_index = short_uar;
    std::uint32_t entries = 0;
    mlx5_ib_create_cq_resp answer{};
    Request request(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE);
    request.attribute(UVERBS_ATTR_CREATE_CQ_HANDLE, 0, 0)
        .attribute(UVERBS_ATTR_CREATE_CQ_CQE, 4, 7)
        .attribute(UVERBS_ATTR_CREATE_CQ_USER_HANDLE, 8, 0)
        .attribute(UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, 4, 0)
        .attribute(UVERBS_ATTR_CREATE_CQ_RESP_CQE, 4, reinterpret_cast<std::uintptr_t>(&entries))
        .attribute(UVERBS_ATTR_UHW_IN, sizeof driver, reinterpret_cast<std::uintptr_t>(&driver))
        .attribute(UVERBS_ATTR_UHW_OUT, sizeof answer, reinterpret_cast<std::uintptr_t>(&answer));
    if (long_uar) request.attribute(kUarIndex, long_bytes, *long_uar, UVERBS_ATTR_F_MANDATORY);
    return request.send(context_->cmd_fd);
  }
};

TEST_F(Ids, uar_pages_have_16_bits_and_queues_24) {
  std::vector<mlx5dv_devx_uar*> uars;
  std::vector<Cq> cqs;
  std::vector<Srq> srqs;
  std::vector<Qp> qps;
  for (int i = 0; i < kObjects; ++i) {
    uars.push_back(mlx5dv_devx_alloc_uar(context_.get(), MLX5DV_UAR_ALLOC_TYPE_BF));
    cqs.push_back(make_cq(1));
    ibv_srq_init_attr init{};
    init.attr = {.max_wr = 1, .max_sge = 1, .srq_limit = 0};
    srqs.emplace_back(ibv_create_srq(pd_.get(), &init));
    ASSERT_TRUE(uars.back() != nullptr && cqs.back() != nullptr && srqs.back() != nullptr) << errno;
    qps.push_back(make_qp(cqs.back().get()));
    ASSERT_NE(qps.back(), nullptr) << errno;

    mlx5dv_cq cq{};
    mlx5dv_srq srq{};
    srq.comp_mask = MLX5DV_SRQ_MASK_SRQN;
    mlx5dv_obj object{};
    object.cq = {cqs.back().get(), &cq};
    object.srq = {srqs.back().get(), &srq};
    ASSERT_EQ(mlx5dv_init_obj(&object, MLX5DV_OBJ_CQ | MLX5DV_OBJ_SRQ), 0);
    EXPECT_LT(uars.back()->page_id, 1u << 16);
    EXPECT_LT(cq.cqn, 1u << 24);
    EXPECT_LT(srq.srqn, 1u << 24);
    EXPECT_LT(qps.back()->qp_num, 1u << 24);
    EXPECT_GT(qps.back()->qp_num, 1u) << "QP 0 and 1 are the management's";
  }
  for (mlx5dv_devx_uar* const uar : uars) mlx5dv_devx_free_uar(uar);
}

TEST_F(Ids, keys_have_an_index_of_24_bits_that_is_not_reserved_and_event_queues_have_8) {
  std::vector<Mr> regions;
  std::set<std::uint32_t> indices;
  for (int i = 0; i < kObjects; ++i) {
    regions.emplace_back(ibv_reg_mr(pd_.get(), memory_.data(), 64, kAllAccess));
    ASSERT_NE(regions.back(), nullptr) << errno;
    EXPECT_EQ(regions.back()->lkey, regions.back()->rkey);
    const std::uint32_t index = regions.back()->lkey >> 8;
    EXPECT_TRUE(indices.insert(index).second) << index;
    EXPECT_GT(index, mlx5::kInvalidLkey >> 8);
  }
  std::uint32_t eqn = 0;
  ASSERT_EQ(mlx5dv_devx_query_eqn(context_.get(), 0, &eqn), 0);
  EXPECT_LT(eqn, 1u << 8);
}

TEST_F(Ids, completion_queue_names_its_uar_in_the_short_field_or_in_the_attribute) {
  mlx5dv_devx_uar* const uar = mlx5dv_devx_alloc_uar(context_.get(), MLX5DV_UAR_ALLOC_TYPE_BF);
  ASSERT_NE(uar, nullptr) << errno;
  constexpr std::uint32_t kShort = MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX;
  const std::uint32_t there = uar->page_id;
  EXPECT_EQ(create_cq(kShort, static_cast<std::uint16_t>(there), std::nullopt), 0);
  EXPECT_EQ(create_cq(0, 0, there), 0);
  EXPECT_EQ(create_cq(kShort, 0, there), 0) << "the attribute counts";
  EXPECT_EQ(create_cq(kShort, 0, std::nullopt), EINVAL) << "UAR page 0 is never given out";
  EXPECT_EQ(create_cq(0, 0, there + (1u << 16)), EINVAL) << "all 32 bits count";
  EXPECT_EQ(create_cq(kShort, static_cast<std::uint16_t>(there), 0), EINVAL);
  EXPECT_EQ(create_cq(0, 0, there, 2), EINVAL) << "too short";
  mlx5dv_devx_free_uar(uar);
}

}  // namespace ids_test
}  // namespace gdx::abi_tests
