// A process of its own: what it asks is whether anything has loaded a driver yet.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "driver-shim/cuda/driver.h"

namespace gdx::cuda {
namespace loaded_driver_test {

TEST(CudaDriver, loaded_by_somebody_else_loaded_driver_finds_it_and_not_before) {
  if (void* const mine = dlopen(kDriverLibrary, RTLD_NOW | RTLD_NOLOAD); mine != nullptr) {
    GTEST_SKIP() << "something preloaded has loaded a CUDA driver: run it without";
  }
  EXPECT_EQ(loaded_driver(), nullptr);
  ASSERT_NE(dlopen(FAKE_DRIVER, RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
  const Driver* const found = loaded_driver();
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->version, 13000);
  const auto same = driver();
  ASSERT_TRUE(same);
  EXPECT_EQ(*same, found);
}

}  // namespace loaded_driver_test
}  // namespace gdx::cuda
