// The order of an HCA's writes to GPU memory, as gdx asks for it beside what it takes for hardware: the
// software HCA with the fault `disguised`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "host/gpu/gpu_memory.h"
#include "host/memory/gpu_registration.h"
#include "host/memory/memory.h"

namespace gdx {
namespace gpu_order_test {

using ::testing::HasSubstr;

// The refusal of memory that the HCA may write, and whether memory that it may only read is taken.
std::string refusal_of(const Hca& hca, WriteOrder expected) {
  const auto gpu = Gpu::open();
  EXPECT_TRUE(gpu);
  const auto memory = GpuMemory::allocate(*gpu, kGpuPageBytes);
  EXPECT_TRUE(memory);
  const auto facts = read_registration_facts(hca, {PointerKind::kDevice, 0});
  EXPECT_TRUE(facts);
  EXPECT_EQ(facts->write_order, expected);
  EXPECT_TRUE(register_memory(hca, memory->address(), 4096, Access::kLocalRead));
  const auto written = register_memory(hca, memory->address(), 4096);
  return written ? "" : written.error().message;
}

TEST(GpuWriteOrder, decides_what_an_hca_of_hardware_may_write) {
  const auto hca = Hca::open();
  ASSERT_TRUE(hca) << hca.error().message;
  ASSERT_FALSE(hca->is_software());
  EXPECT_EQ(refusal_of(*hca, WriteOrder::kKept), "");
  setenv("GDX_FAKE_CUDA_HOST_ATOMICS", "1", 1);  // as over C2C; its path to this HCA is not known
  EXPECT_THAT(refusal_of(*hca, WriteOrder::kTwoWays), HasSubstr("by C2C, and to the HCA by a PCIe switch"));
  setenv("GDX_FAKE_CUDA_WRITES_ORDERING", "0", 1);
  EXPECT_THAT(refusal_of(*hca, WriteOrder::kBelowOwner), HasSubstr("WRITES_ORDERING below OWNER"));
}

}  // namespace gpu_order_test
}  // namespace gdx
