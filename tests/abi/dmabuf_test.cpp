// Memory shared as a dmabuf: what stands for one serves, and everything else is refused as the kernel refuses
// it.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "tests/abi/loopback.h"

namespace gdx::abi_tests {
namespace dmabuf_test {

constexpr std::size_t kPageBytes = 4096;
constexpr std::uint64_t kIova = 0x7000'0000'0000;

struct File {
  explicit File(int opened) : descriptor(opened) {}
  ~File() { close(descriptor); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int descriptor;
};

class Dmabuf : public Loopback {
 protected:
  void SetUp() override {
    Loopback::SetUp();
    ASSERT_EQ(ftruncate(buffer_.descriptor, 4 * kPageBytes), 0);
  }
  ibv_mr* register_part(std::uint64_t offset, std::size_t bytes, std::uint64_t iova, int descriptor,
                        int access = kAllAccess) {
    errno = 0;
    return ibv_reg_dmabuf_mr(pd_.get(), offset, bytes, iova, descriptor, access);
  }
  int refusal(std::uint64_t offset, std::size_t bytes, std::uint64_t iova, int descriptor,
              int access = kAllAccess) {
    EXPECT_EQ(register_part(offset, bytes, iova, descriptor, access), nullptr);
    return errno;
  }
  mlx5dv_devx_umem* register_umem(std::uint64_t offset, std::size_t bytes, int descriptor) {
    mlx5dv_devx_umem_in in{};
    in.addr = reinterpret_cast<void*>(offset);
    in.size = bytes;
    in.access = IBV_ACCESS_LOCAL_WRITE;
    in.pgsz_bitmap = ~std::uint64_t{kPageBytes - 1};
    in.comp_mask = MLX5DV_UMEM_MASK_DMABUF;
    in.dmabuf_fd = descriptor;
    errno = 0;
    return mlx5dv_devx_umem_reg_ex(context_.get(), &in);
  }
  int umem_refusal(std::uint64_t offset, std::size_t bytes, int descriptor) {
    EXPECT_EQ(register_umem(offset, bytes, descriptor), nullptr);
    return errno;
  }

  File buffer_{memfd_create("dmabuf", MFD_CLOEXEC)};
};

TEST_F(Dmabuf, what_is_written_to_a_region_is_in_the_buffer_behind_its_start) {
  ASSERT_EQ(lseek(buffer_.descriptor, kPageBytes, SEEK_SET), static_cast<off_t>(kPageBytes));
  const Cq cq = make_cq();
  const Qp qp = make_qp(cq.get());
  connect(qp.get(), qp->qp_num);
  {
    const Mr region(register_part(kPageBytes + 100, 1000, kIova + 100, buffer_.descriptor));
    ASSERT_NE(region, nullptr) << std::strerror(errno);
    std::memcpy(memory_.data(), "through the HCA", 15);
    ASSERT_EQ(post_write(qp.get(), piece(0, 15), kIova + 100 + 985, region->rkey), 0);
    const auto completion = await(cq.get());
    ASSERT_TRUE(completion);
    ASSERT_EQ(completion->status, IBV_WC_SUCCESS);
  }
  std::string written(15, '.');
  EXPECT_EQ(pread(buffer_.descriptor, written.data(), written.size(), 2 * kPageBytes + 100 + 985), 15);
  EXPECT_EQ(written, "through the HCA");
}

// A page that gdxd's client takes out afterwards would come back as one of gdxd's memory.
TEST_F(Dmabuf, hole_in_what_had_all_its_pages_stays_one) {
  ASSERT_EQ(posix_fallocate(buffer_.descriptor, 0, 4 * kPageBytes), 0);
  const Cq cq = make_cq();
  const Qp qp = make_qp(cq.get());
  connect(qp.get(), qp->qp_num);
  const Mr region(register_part(0, 4 * kPageBytes, kIova, buffer_.descriptor));
  ASSERT_NE(region, nullptr) << std::strerror(errno);
  ASSERT_EQ(
      fallocate(buffer_.descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, off_t{4 * kPageBytes}), 0);
  ASSERT_EQ(post_write(qp.get(), piece(0, 15), kIova, region->rkey), 0);
  const auto completion = await(cq.get());
  ASSERT_TRUE(completion);
  EXPECT_NE(completion->status, IBV_WC_SUCCESS);
  struct stat facts {};
  ASSERT_EQ(fstat(buffer_.descriptor, &facts), 0);
  EXPECT_EQ(facts.st_blocks, 0);
}

TEST_F(Dmabuf, what_is_no_dmabuf_is_refused) {
  const File other(memfd_create("other", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(other.descriptor, kPageBytes), 0);
  EXPECT_EQ(refusal(0, kPageBytes, 0, -1), EBADF) << "programs ask for support with it";
  EXPECT_EQ(refusal(0, kPageBytes, 0, 1 << 20), EBADF);
  EXPECT_EQ(refusal(0, kPageBytes, 0, other.descriptor), EINVAL);
  EXPECT_EQ(umem_refusal(0, kPageBytes, 1 << 20), EBADF);
  EXPECT_EQ(umem_refusal(0, kPageBytes, other.descriptor), EINVAL);
}

TEST_F(Dmabuf, range_beyond_the_buffer_or_off_its_page_is_refused) {
  const int buffer = buffer_.descriptor;
  EXPECT_EQ(refusal(0, 4 * kPageBytes + 1, kIova, buffer), EINVAL);
  EXPECT_EQ(refusal(4 * kPageBytes, 1, kIova, buffer), EINVAL);
  EXPECT_EQ(refusal(kPageBytes, ~std::size_t{0} - 10, kIova, buffer), EINVAL);
  EXPECT_EQ(refusal(0, 0, kIova, buffer), EINVAL);
  EXPECT_EQ(refusal(8, 64, kIova, buffer), EINVAL) << "offset and address lie differently in their pages";
  EXPECT_EQ(refusal(0, 64, kIova, buffer, IBV_ACCESS_REMOTE_WRITE), EINVAL);
  EXPECT_EQ(umem_refusal(0, 4 * kPageBytes + 1, buffer), EINVAL);
  EXPECT_EQ(umem_refusal(64, kPageBytes, buffer), EINVAL);
}

TEST_F(Dmabuf, one_that_cannot_be_mapped_is_not_supported) {
  const std::string path = "/proc/self/fd/" + std::to_string(buffer_.descriptor);
  const File writable(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_GE(writable.descriptor, 0);
  EXPECT_EQ(refusal(0, kPageBytes, kIova, writable.descriptor), EOPNOTSUPP);
  EXPECT_EQ(umem_refusal(0, kPageBytes, writable.descriptor), EOPNOTSUPP);
}

TEST_F(Dmabuf, umem_outlives_the_descriptor) {
  mlx5dv_devx_umem* umem = nullptr;
  {
    const File again(dup(buffer_.descriptor));
    umem = register_umem(kPageBytes, 2 * kPageBytes, again.descriptor);
  }
  ASSERT_NE(umem, nullptr) << std::strerror(errno);
  EXPECT_NE(umem->umem_id, 0u);
  EXPECT_EQ(mlx5dv_devx_umem_dereg(umem), 0);
}

}  // namespace dmabuf_test
}  // namespace gdx::abi_tests
