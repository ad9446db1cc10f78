// Requests that no library would send: each is answered with an errno, none harms the process.
#include <fcntl.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <random>
#include <vector>

#include "tests/abi/open_device.h"
#include "tests/abi/request.h"

namespace gdx::abi_tests {
namespace malformed_requests_test {

class MalformedRequests : public testing::Test {
 protected:
  void SetUp() override {
    context_ = open_device();
    ASSERT_NE(context_, nullptr) << "no software HCA: errno " << errno;
    fd_ = context_->cmd_fd;
  }
  Context context_;
  int fd_ = -1;
};

constexpr std::uint64_t kUnmapped = 0x10;
constexpr std::uint16_t kHandle = 0;  // the attribute that carries the handle in every destroy method

TEST_F(MalformedRequests, header_at_an_unmapped_address_answers_efault) {
  EXPECT_EQ(ioctl(fd_, RDMA_VERBS_IOCTL, reinterpret_cast<void*>(kUnmapped)), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(ioctl(fd_, RDMA_VERBS_IOCTL, nullptr), -1);
  EXPECT_EQ(errno, EFAULT);
}

TEST_F(MalformedRequests, other_ioctl_answers_enotty) {
  int value = 0;
  EXPECT_EQ(ioctl(fd_, FIONREAD, &value), -1);
  EXPECT_EQ(errno, ENOTTY);
}

TEST_F(MalformedRequests, length_that_disagrees_with_the_count_answers_einval) {
  Request request(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT);
  for (const std::uint16_t count : std::initializer_list<std::uint16_t>{1, 255, 256, 4096, 65535}) {
    request.header().num_attrs = count;
    EXPECT_EQ(request.send(fd_), EINVAL) << count;
  }
  request.header().num_attrs = 0;
  for (const std::uint16_t length : std::initializer_list<std::uint16_t>{0, 8, 23, 25, 65535}) {
    request.header().length = length;
    EXPECT_EQ(request.send(fd_), EINVAL) << length;
  }
}

TEST_F(MalformedRequests, unknown_object_or_method_answers_eprotonosupport) {
  EXPECT_EQ(Request(0x7777, 1).send(fd_), EPROTONOSUPPORT);
  EXPECT_EQ(Request(UVERBS_OBJECT_DEVICE, 0x777).send(fd_), EPROTONOSUPPORT);
}

TEST_F(MalformedRequests, header_of_another_driver_answers_einval) {
  std::vector<std::uint64_t> answer(64);
  Request request(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT);
  request.attribute(UVERBS_ATTR_QUERY_PORT_PORT_NUM, 8, 1)
      .attribute(UVERBS_ATTR_QUERY_PORT_RESP, 64, reinterpret_cast<std::uintptr_t>(answer.data()));
  EXPECT_EQ(request.send(fd_), 0);
  request.header().driver_id = RDMA_DRIVER_MLX4;
  EXPECT_EQ(request.send(fd_), EINVAL);
}

// Linux drivers/infiniband/core/uverbs_ioctl.c, uverbs_set_attr().
TEST_F(MalformedRequests, unknown_mandatory_attribute_answers_eprotonosupport) {
  constexpr std::uint16_t kUnknown = 0x777;
  std::vector<std::uint64_t> answer(64);
  const auto query = [&](std::uint16_t flags) {
    Request request(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT);
    request.attribute(UVERBS_ATTR_QUERY_PORT_PORT_NUM, 8, 1)
        .attribute(UVERBS_ATTR_QUERY_PORT_RESP, 64, reinterpret_cast<std::uintptr_t>(answer.data()))
        .attribute(kUnknown, 8, 1, flags);
    return request.send(fd_);
  };
  EXPECT_EQ(query(UVERBS_ATTR_F_MANDATORY), EPROTONOSUPPORT);
  EXPECT_EQ(query(0), 0);
}

TEST_F(MalformedRequests, unknown_mandatory_attribute_of_a_destroy_keeps_the_object) {
  ibv_pd* const pd = ibv_alloc_pd(context_.get());
  ASSERT_NE(pd, nullptr);
  Request request(UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY);
  request.attribute(kHandle, 0, pd->handle).attribute(1, 8, 0, UVERBS_ATTR_F_MANDATORY);
  EXPECT_EQ(request.send(fd_), EPROTONOSUPPORT);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
}

TEST_F(MalformedRequests, attribute_given_twice_answers_einval) {
  std::vector<std::uint64_t> answer(64);
  Request request(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT);
  request.attribute(UVERBS_ATTR_QUERY_PORT_PORT_NUM, 8, 1)
      .attribute(UVERBS_ATTR_QUERY_PORT_RESP, 64, reinterpret_cast<std::uintptr_t>(answer.data()))
      .attribute(UVERBS_ATTR_QUERY_PORT_PORT_NUM, 8, 1);
  EXPECT_EQ(request.send(fd_), EINVAL);
}

TEST_F(MalformedRequests, flags_of_gid_queries_answer_einval) {
  std::vector<std::uint64_t> answer(64);
  for (const std::uint64_t flags : {0, 1}) {
    Request request(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY);
    request.attribute(UVERBS_ATTR_QUERY_GID_ENTRY_PORT, 8, 1)
        .attribute(UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX, 8, 1)
        .attribute(UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, 4, flags)
        .attribute(UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, 32,
                   reinterpret_cast<std::uintptr_t>(answer.data()));
    EXPECT_EQ(request.send(fd_), flags == 0 ? 0 : EINVAL);
  }
}

// libmlx5 keeps such rights from the kernel. Linux drivers/infiniband/hw/mlx5/mlx5_ib.h,
// MLX5_IB_DM_MEMIC_ALLOWED_ACCESS.
TEST_F(MalformedRequests, device_memory_registered_with_rights_it_cannot_have_answers_einval) {
  ibv_pd* const pd = ibv_alloc_pd(context_.get());
  ibv_alloc_dm_attr page{};
  page.length = 4096;
  ibv_dm* const dm = ibv_alloc_dm(context_.get(), &page);
  ASSERT_TRUE(pd != nullptr && dm != nullptr);
  const auto try_access = [&](std::uint64_t access) {
    std::uint32_t key = 0;
    const auto out = reinterpret_cast<std::uintptr_t>(&key);
    Request request(UVERBS_OBJECT_MR, UVERBS_METHOD_DM_MR_REG);
    request.attribute(UVERBS_ATTR_REG_DM_MR_HANDLE, 0, 0)
        .attribute(UVERBS_ATTR_REG_DM_MR_OFFSET, 8, 0)
        .attribute(UVERBS_ATTR_REG_DM_MR_LENGTH, 8, page.length)
        .attribute(UVERBS_ATTR_REG_DM_MR_PD_HANDLE, 0, pd->handle)
        .attribute(UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS, 4, access)
        .attribute(UVERBS_ATTR_REG_DM_MR_DM_HANDLE, 0, dm->handle)
        .attribute(UVERBS_ATTR_REG_DM_MR_RESP_LKEY, 4, out)
        .attribute(UVERBS_ATTR_REG_DM_MR_RESP_RKEY, 4, out);
    return request.send(fd_);
  };
  constexpr std::uint64_t kBase = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE;
  EXPECT_EQ(try_access(kBase | IBV_ACCESS_MW_BIND), EINVAL);
  EXPECT_EQ(try_access(kBase | IBV_ACCESS_HUGETLB), EINVAL);
  EXPECT_EQ(try_access(IBV_ACCESS_LOCAL_WRITE), EINVAL);
  EXPECT_EQ(try_access(kBase), 0);
}

TEST_F(MalformedRequests, write_probe_without_a_request_answers_enospc) {
  Request request(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
  request.attribute(UVERBS_ATTR_WRITE_CMD, 8, IB_USER_VERBS_CMD_QUERY_DEVICE);
  EXPECT_EQ(request.send(fd_), ENOSPC);
}

TEST_F(MalformedRequests, handle_that_is_not_there_answers_enoent) {
  const std::vector<std::pair<std::uint16_t, std::uint16_t>> destroyers = {
      {UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY},   {UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY},
      {UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY},   {UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY},
      {UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_DESTROY}, {UVERBS_OBJECT_AH, UVERBS_METHOD_AH_DESTROY},
      {UVERBS_OBJECT_DM, UVERBS_METHOD_DM_FREE}};
  for (const auto& [object, method] : destroyers) {
    Request absent(object, method);
    absent.attribute(kHandle, 0, 0x7fffffff);
    EXPECT_EQ(absent.send(fd_), ENOENT) << object;
    Request none(object, method);
    EXPECT_EQ(none.send(fd_), EINVAL) << object;
    Request wide(object, method);
    wide.attribute(kHandle, 0, std::uint64_t{1} << 32);
    EXPECT_EQ(wide.send(fd_), EINVAL) << object;
  }
}

TEST_F(MalformedRequests, handle_of_another_type_answers_einval) {
  ibv_pd* const pd = ibv_alloc_pd(context_.get());
  ASSERT_NE(pd, nullptr);
  Request request(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY);
  request.attribute(kHandle, 0, pd->handle);
  EXPECT_EQ(request.send(fd_), EINVAL);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
}

TEST_F(MalformedRequests, output_at_an_unmapped_address_answers_efault) {
  Request request(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT);
  request.attribute(UVERBS_ATTR_QUERY_PORT_PORT_NUM, 8, 1)
      .attribute(UVERBS_ATTR_QUERY_PORT_RESP, 64, kUnmapped);
  EXPECT_EQ(request.send(fd_), EFAULT);
}

// No object may stay of which its caller learns nothing: more than half of the device memory is there but
// once, and a key would hold its domain.
TEST_F(MalformedRequests, answer_that_cannot_be_written_leaves_nothing) {
  ibv_device_attr_ex limits{};
  ASSERT_EQ(ibv_query_device_ex(context_.get(), nullptr, &limits), 0);
  const std::uint64_t most_bytes = limits.max_dm_size / 2 + 1;
  std::array<std::uint64_t, 2> answers{};
  const auto answer = reinterpret_cast<std::uintptr_t>(answers.data());
  const auto allocate = [&](std::uint64_t offset_at, std::uint64_t page_at, auto send) {
    Request request(UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC);
    request.attribute(UVERBS_ATTR_ALLOC_DM_LENGTH, 8, most_bytes)
        .attribute(UVERBS_ATTR_ALLOC_DM_ALIGNMENT, 4, 0)
        .attribute(MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET, 8, offset_at)
        .attribute(MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX, 2, page_at)
        .attribute(UVERBS_ATTR_ALLOC_DM_HANDLE, 0, 0);
    return (request.*send)(fd_);
  };
  EXPECT_EQ(allocate(kUnmapped, answer, &Request::send), EFAULT);
  EXPECT_EQ(allocate(answer, kUnmapped, &Request::send), EFAULT);
  EXPECT_EQ(allocate(answer, answer, &Request::send_last_unwritable), EFAULT);
  ibv_alloc_dm_attr all{};
  all.length = most_bytes;
  ibv_dm* const dm = ibv_alloc_dm(context_.get(), &all);
  ASSERT_NE(dm, nullptr) << "errno " << errno;

  ibv_pd* const pd = ibv_alloc_pd(context_.get());
  ASSERT_NE(pd, nullptr);
  const auto register_all = [&](std::uint64_t lkey_at, std::uint64_t rkey_at, auto send) {
    Request request(UVERBS_OBJECT_MR, UVERBS_METHOD_DM_MR_REG);
    request.attribute(UVERBS_ATTR_REG_DM_MR_OFFSET, 8, 0)
        .attribute(UVERBS_ATTR_REG_DM_MR_LENGTH, 8, all.length)
        .attribute(UVERBS_ATTR_REG_DM_MR_PD_HANDLE, 0, pd->handle)
        .attribute(UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS, 4, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE)
        .attribute(UVERBS_ATTR_REG_DM_MR_DM_HANDLE, 0, dm->handle)
        .attribute(UVERBS_ATTR_REG_DM_MR_RESP_LKEY, 4, lkey_at)
        .attribute(UVERBS_ATTR_REG_DM_MR_RESP_RKEY, 4, rkey_at)
        .attribute(UVERBS_ATTR_REG_DM_MR_HANDLE, 0, 0);
    return (request.*send)(fd_);
  };
  EXPECT_EQ(register_all(kUnmapped, answer, &Request::send), EFAULT);
  EXPECT_EQ(register_all(answer, kUnmapped, &Request::send), EFAULT);
  EXPECT_EQ(register_all(answer, answer, &Request::send_last_unwritable), EFAULT);
  EXPECT_EQ(ibv_free_dm(dm), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
}

TEST_F(MalformedRequests, device_node_without_a_context_refuses_methods) {
  const int fresh = open("/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC);
  ASSERT_GE(fresh, 0);
  Request request(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT);
  request.attribute(UVERBS_ATTR_QUERY_PORT_PORT_NUM, 8, 1);
  EXPECT_EQ(request.send(fresh), EINVAL);
  EXPECT_EQ(close(fresh), 0);
}

// Every method with attributes of random shape. Small numbers often, so that some are real handles.
TEST_F(MalformedRequests, random_attributes_never_harm_the_process) {
  constexpr std::uint32_t kSeed = 20'240'601;
  std::mt19937 random(kSeed);
  std::vector<std::uint64_t> scratch(512);
  const auto data = [&]() -> std::uint64_t {
    switch (random() % 4) {
      case 0: return random() % 8;
      case 1: return kUnmapped;
      case 2: return std::uint64_t{random()} << 32 | random();
      default: return reinterpret_cast<std::uintptr_t>(scratch.data());
    }
  };
  const std::uint16_t objects = UVERBS_OBJECT_ASYNC_EVENT + 1;
  for (int round = 0; round < 20'000; ++round) {
    const bool driver = random() % 2 == 0;
    const auto object =
        static_cast<std::uint16_t>(driver ? MLX5_IB_OBJECT_DEVX + random() % 9 : random() % objects);
    const auto method = static_cast<std::uint16_t>((driver ? 1u << UVERBS_ID_NS_SHIFT : 0u) + random() % 5);
    // Each of these hands out a descriptor; a thousand of them would only exhaust the process.
    if (object == UVERBS_OBJECT_ASYNC_EVENT || object == MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD) continue;
    Request request(object, method);
    const int attributes = static_cast<int>(random() % 8);
    for (int i = 0; i < attributes; ++i) {
      const auto id =
          static_cast<std::uint16_t>((random() % 2 == 0 ? 1u << UVERBS_ID_NS_SHIFT : 0u) + random() % 9);
      const std::uint16_t lengths[] = {0, 4, 8, 64, 272, 4096};
      request.attribute(id, lengths[random() % std::size(lengths)], data(),
                        static_cast<std::uint16_t>(random() % 2));
    }
    for (std::uint64_t& word : scratch) word = random() % 4 == 0 ? random() : 0;
    static_cast<void>(request.send(fd_));
  }
  ibv_port_attr port{};
  EXPECT_EQ(ibv_query_port(context_.get(), 1, &port), 0) << "seed " << kSeed;
}

}  // namespace malformed_requests_test
}  // namespace gdx::abi_tests
