// Methods of libraries newer than Debian 12's: memory by REG_MR, the port's speed, a region of no memory.
#include <fcntl.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "driver-shim/softhca/uverbs/newer_ids.h"
#include "tests/abi/loopback.h"
#include "tests/abi/request.h"

namespace gdx::abi_tests {
namespace newer_methods_test {

namespace ids = softhca::uverbs;

class NewerMethods : public Loopback {
 protected:
  // A registration but for where the memory is.
  Request registration(std::uint64_t length_bytes, std::uint64_t iova) {
    Request request(UVERBS_OBJECT_MR, ids::kMethodRegMr);
    request.attribute(ids::kAttrRegMrHandle, 0, 0)
        .attribute(ids::kAttrRegMrPdHandle, 0, pd_->handle)
        .attribute(ids::kAttrRegMrIova, 8, iova)
        .attribute(ids::kAttrRegMrLength, 8, length_bytes)
        .attribute(ids::kAttrRegMrAccessFlags, 4, kAllAccess)
        .attribute(ids::kAttrRegMrRespLkey, 4, reinterpret_cast<std::uintptr_t>(&lkey_))
        .attribute(ids::kAttrRegMrRespRkey, 4, reinterpret_cast<std::uintptr_t>(&rkey_));
    return request;
  }
  int send(Request& request) { return request.send(context_->cmd_fd); }
  // The first attribute's.
  static std::uint64_t handle_in(Request& request) {
    ib_uverbs_attr first{};
    std::memcpy(&first, request.bytes().data() + sizeof(ib_uverbs_ioctl_hdr), sizeof first);
    return first.data;
  }
  int destroy(std::uint64_t region) {
    Request request(UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY);
    request.attribute(UVERBS_ATTR_DESTROY_MR_HANDLE, 0, region);
    return send(request);
  }
  // Connects a queue pair to itself.
  void connect_loop() {
    cq_ = make_cq();
    qp_ = make_qp(cq_.get());
    connect(qp_.get(), qp_->qp_num);
  }
  ibv_wc_status written(std::uint64_t to, std::uint32_t rkey, ibv_sge from) {
    EXPECT_EQ(post_write(qp_.get(), from, to, rkey), 0);
    const auto completion = await(cq_.get());
    return completion ? completion->status : IBV_WC_GENERAL_ERR;
  }

  std::uint32_t lkey_ = 0;
  std::uint32_t rkey_ = 0;
  Cq cq_;
  Qp qp_;
};

constexpr std::uint64_t kIova = 0x7000'0000'0000;
constexpr std::size_t kPageBytes = 4096;

TEST_F(NewerMethods, memory_registered_by_its_address_is_written) {
  connect_loop();
  alignas(kPageBytes) std::array<char, 64> target{};
  Request request = registration(target.size(), kIova);
  request.attribute(ids::kAttrRegMrAddr, 8, reinterpret_cast<std::uintptr_t>(target.data()));
  ASSERT_EQ(send(request), 0);
  EXPECT_EQ(lkey_, rkey_);
  std::memcpy(memory_.data(), "by ioctl", 8);
  EXPECT_EQ(written(kIova, rkey_, piece(0, 8)), IBV_WC_SUCCESS);
  EXPECT_EQ(std::string_view(target.data(), 8), "by ioctl");
  EXPECT_EQ(destroy(handle_in(request)), 0);
  EXPECT_EQ(destroy(handle_in(request)), ENOENT);
}

TEST_F(NewerMethods, memory_of_a_file_registered_is_written) {
  connect_loop();
  const int file = memfd_create("dmabuf", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, 2 * kPageBytes), 0);
  Request request = registration(kPageBytes, kIova);
  request.attribute(ids::kAttrRegMrFdOffset, 8, kPageBytes)
      .attribute(ids::kAttrRegMrFd, 0, static_cast<std::uint64_t>(file));
  ASSERT_EQ(send(request), 0);
  std::memcpy(memory_.data(), "by ioctl", 8);
  EXPECT_EQ(written(kIova, rkey_, piece(0, 8)), IBV_WC_SUCCESS);
  EXPECT_EQ(destroy(handle_in(request)), 0);
  std::array<char, 8> found{};
  EXPECT_EQ(pread(file, found.data(), found.size(), kPageBytes), 8);
  EXPECT_EQ(std::string_view(found.data(), found.size()), "by ioctl");
  close(file);
}

TEST_F(NewerMethods, memory_of_both_kinds_or_of_none_is_refused) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
  Request none = registration(64, address);
  EXPECT_EQ(send(none), EINVAL);
  Request no_offset = registration(64, address);
  no_offset.attribute(ids::kAttrRegMrFd, 0, 0);
  EXPECT_EQ(send(no_offset), EINVAL);
  Request offset_alone = registration(64, address);
  offset_alone.attribute(ids::kAttrRegMrAddr, 8, address).attribute(ids::kAttrRegMrFdOffset, 8, 0);
  EXPECT_EQ(send(offset_alone), EINVAL);
  Request both = registration(64, address);
  both.attribute(ids::kAttrRegMrAddr, 8, address)
      .attribute(ids::kAttrRegMrFdOffset, 8, 0)
      .attribute(ids::kAttrRegMrFd, 0, 0);
  EXPECT_EQ(send(both), EINVAL);
  Request off_its_page = registration(64, address + 1);
  off_its_page.attribute(ids::kAttrRegMrAddr, 8, address);
  EXPECT_EQ(send(off_its_page), EINVAL);
  Request unmapped = registration(64, kPageBytes);
  unmapped.attribute(ids::kAttrRegMrAddr, 8, kPageBytes);
  EXPECT_EQ(send(unmapped), EFAULT);
}

TEST_F(NewerMethods, speed_of_the_port_is_that_of_its_lanes) {
  std::uint64_t speed = 0;
  const auto ask = [&](std::uint64_t port) {
    Request request(UVERBS_OBJECT_DEVICE, ids::kMethodQueryPortSpeed);
    request.attribute(ids::kAttrQueryPortSpeedPortNum, 8, port)
        .attribute(ids::kAttrQueryPortSpeedResp, 8, reinterpret_cast<std::uintptr_t>(&speed));
    return send(request);
  };
  EXPECT_EQ(ask(1), 0);
  EXPECT_EQ(speed, 1000u) << "in 100 Mbit/s";
  EXPECT_EQ(ask(2), EINVAL);
}

TEST_F(NewerMethods, region_of_no_memory_discards_and_reads_as_zeros) {
  connect_loop();
  const Mr nothing(ibv_alloc_null_mr(pd_.get()));
  ASSERT_NE(nothing, nullptr) << std::strerror(errno);
  const ibv_sge null{.addr = 0, .length = static_cast<std::uint32_t>(memory_.size()), .lkey = nothing->lkey};
  std::ranges::fill(memory_, std::byte{0x5a});

  ASSERT_EQ(post_receive(qp_.get(), null, 1), 0);
  ASSERT_EQ(post_send(qp_.get(), piece(0, null.length), 2), 0);
  for (int i = 0; i < 2; ++i) {
    const auto completion = await(cq_.get());
    ASSERT_TRUE(completion);
    EXPECT_EQ(completion->status, IBV_WC_SUCCESS);
    EXPECT_EQ(completion->byte_len, completion->wr_id == 1 ? null.length : completion->byte_len);
  }
  EXPECT_EQ(written(piece(0, 0).addr, mr_->rkey, null), IBV_WC_SUCCESS);
  EXPECT_TRUE(std::ranges::all_of(memory_, [](std::byte byte) { return byte == std::byte{0}; }));
  EXPECT_NE(written(0, nothing->lkey, piece(0, 8)), IBV_WC_SUCCESS) << "it is a local key only";
}

}  // namespace newer_methods_test
}  // namespace gdx::abi_tests
