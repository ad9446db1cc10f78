// Data Direct: the registration that goes by it, and that the dmabuf has the kind of pages that the verb
// takes. This program stands for a libmlx5 that has the two functions, which those before rdma-core 54 lack,
// and for an HCA with such a function.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/page_size.h"
#include "host/gpu/gpu.h"
#include "host/gpu/gpu_memory.h"
#include "host/memory/gpu_registration.h"
#include "host/memory/memory.h"

namespace {

constexpr int kNotSupported = 524;  // ENOTSUPP
bool has_data_direct = true;

std::string name_of(int file) {
  std::array<char, 64> name{};
  const ssize_t length =
      readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), name.data(), name.size());
  return {name.data(), length < 0 ? 0 : static_cast<std::size_t>(length)};
}

}  // namespace

extern "C" {

int mlx5dv_get_data_direct_sysfs_path(ibv_context* /*context*/, char* path, std::size_t bytes) {
  if (!has_data_direct) return ENODEV;
  std::strncpy(path, "/devices/pci0008:00/0008:01:00.2", bytes);
  return 0;
}

// Refuses as Linux does: pages that are not across PCIe, and an address within a page. The key is of a page
// of the host. Source: Linux drivers/infiniband/hw/mlx5/mr.c, reg_user_mr_dmabuf_by_data_direct.
ibv_mr* mlx5dv_reg_dmabuf_mr(ibv_pd* pd, std::uint64_t /*offset*/, std::size_t /*bytes*/, std::uint64_t iova,
                             int file, int access, int mlx5_access) {
  static std::byte page[64];
  EXPECT_EQ(mlx5_access, 1) << "MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT";
  errno = 0;
  if (iova % gdx::page_bytes() != 0) errno = EOPNOTSUPP;
  if (name_of(file).find("across PCIe") == std::string::npos) errno = kNotSupported;
  return errno == 0 ? ibv_reg_mr(pd, page, sizeof page, access) : nullptr;
}

}  // extern "C"

namespace gdx {
namespace data_direct_test {

constexpr char kPciePages[] = "GDX_FAKE_CUDA_DMABUF_PCIE";

class DataDirect : public ::testing::Test {
 protected:
  void SetUp() override {
    has_data_direct = true;
    setenv(kPciePages, "1", 1);
    unsetenv(kGpuRegistrationVariable);
    auto hca = Hca::open();
    ASSERT_TRUE(hca) << hca.error().message;
    hca_ = std::make_unique<Hca>(std::move(*hca));
    auto memory = GpuMemory::allocate(*Gpu::open(), kGpuPageBytes);
    ASSERT_TRUE(memory) << memory.error().message;
    memory_ = std::make_unique<GpuMemory>(std::move(*memory));
  }
  // Returns the way of a registration that begins `skipped` bytes within the memory.
  [[nodiscard]] RegistrationWay way_of(Access access, std::size_t skipped = 0) const {
    const auto taken =
        register_memory(*hca_, memory_->address() + skipped, memory_->bytes() - skipped, access);
    EXPECT_TRUE(taken) << taken.error().message;
    return taken ? taken->registered_by() : RegistrationWay::kRefused;
  }

  std::unique_ptr<Hca> hca_;
  std::unique_ptr<GpuMemory> memory_;
};

TEST_F(DataDirect, serves_what_the_hca_only_reads) {
  EXPECT_EQ(way_of(Access::kLocalRead), RegistrationWay::kDataDirect);
  EXPECT_EQ(way_of(Access::kRemoteRead), RegistrationWay::kDataDirect);
  EXPECT_EQ(way_of(Access::kAll), RegistrationWay::kDmabuf);
  EXPECT_EQ(way_of(Access::kLocalWrite), RegistrationWay::kDmabuf);
  const auto facts = read_registration_facts(*hca_, {PointerKind::kDevice, 0});
  ASSERT_TRUE(facts) << facts.error().message;
  const auto queues =
      register_gpu_umem(hca_verbs(), *hca_, {memory_->address(), memory_->bytes(), 0, 0}, *facts);
  ASSERT_TRUE(queues) << queues.error().message;
  EXPECT_EQ(queues->way, RegistrationWay::kDmabuf) << "DevX has no such verb";
}

TEST_F(DataDirect, dmabuf_serves_where_it_is_not_offered_or_refused) {
  EXPECT_EQ(way_of(Access::kLocalRead, 64), RegistrationWay::kDmabuf) << "an address within a page";
  has_data_direct = false;
  EXPECT_EQ(way_of(Access::kLocalRead), RegistrationWay::kDmabuf);
  has_data_direct = true;
  setenv(kPciePages, "0", 1);
  EXPECT_EQ(way_of(Access::kLocalRead), RegistrationWay::kDmabuf) << "the GPU exports no such pages";
  setenv(kPciePages, "1", 1);
  for (const auto& [choice, way] :
       {std::pair{"dmabuf", RegistrationWay::kDmabuf}, {"peermem", RegistrationWay::kPeermem}}) {
    setenv(kGpuRegistrationVariable, choice, 1);
    EXPECT_EQ(way_of(Access::kLocalRead), way);
  }
}

TEST_F(DataDirect, pages_across_pcie_are_refused_by_the_other_verbs) {
  const auto gpu = Gpu::open();
  ASSERT_TRUE(gpu);
  const auto address = reinterpret_cast<std::uintptr_t>(memory_->address());
  const auto exported = gpu->export_dmabuf(address, memory_->bytes(), DmabufPages::kPcie);
  ASSERT_TRUE(exported) << exported.error().message;
  const Descriptor closing(*exported);
  EXPECT_EQ(hca_verbs().reg_dmabuf_mr(hca_->pd(), 0, memory_->bytes(), address, *exported, 0), nullptr);
  EXPECT_EQ(errno, kNotSupported);
  EXPECT_EQ(hca_verbs().reg_dmabuf_umem(hca_->context(), 0, memory_->bytes(), *exported, 0), nullptr);
  EXPECT_EQ(errno, kNotSupported);
}

}  // namespace data_direct_test
}  // namespace gdx
