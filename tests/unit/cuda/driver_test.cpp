// Loading the CUDA driver: from a machine without one to a machine that has it.
#include "driver-shim/cuda/driver.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace gdx::cuda {
namespace driver_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Setting {
  Setting(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Setting() { unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;
  const char* name_;
};

Error load_error(const std::string& library) {
  const auto loaded = load_driver(library);
  EXPECT_FALSE(loaded) << library;
  const Error error = loaded ? Error{} : loaded.error();
  EXPECT_THAT(error.message, Not(HasSubstr("\n")));
  return error;
}

TEST(CudaDriver, no_library_load_says_so_and_what_to_do) {
  const Error error = load_error("libcuda_that_nobody_has.so.1");
  EXPECT_EQ(error.status, Status::kNoDevice);
  EXPECT_THAT(error.message, AllOf(HasSubstr("no CUDA driver here: libcuda_that_nobody_has.so.1"),
                                   HasSubstr("install the NVIDIA driver, or run kernels on the CPU layer")));
}

TEST(CudaDriver, library_without_the_functions_load_names_the_first) {
  const Error error = load_error("libc.so.6");
  EXPECT_EQ(error.status, Status::kUnsupported);
  EXPECT_THAT(error.message, HasSubstr("libc.so.6 has no cuInit"));
}

TEST(CudaDriver, toolkit_stub_load_is_refused_as_a_stub) {
  if (std::string(STUB_LIBRARY).empty())
    GTEST_SKIP() << "no stub of libcuda: install the CUDA Toolkit, and configure anew";
  const Error error = load_error(STUB_LIBRARY);
  EXPECT_EQ(error.status, Status::kNoDevice);
  EXPECT_THAT(error.message, HasSubstr("is the CUDA Toolkit's stub, no driver"));
}

TEST(CudaDriver, every_function_is_one_that_nvidia_exports) {
  if (std::string(STUB_LIBRARY).empty())
    GTEST_SKIP() << "no stub of libcuda: install the CUDA Toolkit, and configure anew";
  void* const stub = dlopen(STUB_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(stub, nullptr) << dlerror();
#define GDX_EXPECT_EXPORTED(member, symbol) EXPECT_NE(dlsym(stub, #symbol), nullptr) << #symbol;
  GDX_CUDA_FUNCTIONS(GDX_EXPECT_EXPORTED)
  GDX_CUDA_OPTIONAL_FUNCTIONS(GDX_EXPECT_EXPORTED)
}

TEST(CudaDriver, too_old_driver_load_names_both_versions) {
  const Setting version("GDX_FAKE_CUDA_VERSION", "10020");
  const Error error = load_error(FAKE_DRIVER);
  EXPECT_EQ(error.status, Status::kUnsupported);
  EXPECT_THAT(error.message, HasSubstr("speaks CUDA 10.2, gdx needs 11.0"));
  const Setting oldest("GDX_FAKE_CUDA_VERSION", "11000");
  EXPECT_TRUE(load_driver(FAKE_DRIVER));
}

TEST(CudaDriver, driver_without_a_gpu_load_says_where_to_look) {
  const Setting devices("GDX_FAKE_CUDA_DEVICES", "0");
  const Error error = load_error(FAKE_DRIVER);
  EXPECT_EQ(error.status, Status::kNoDevice);
  EXPECT_THAT(error.message, AllOf(HasSubstr("CUDA_ERROR_NO_DEVICE"), HasSubstr("CUDA_VISIBLE_DEVICES")));
}

TEST(CudaDriver, driver_of_another_kernel_module_load_asks_for_a_reboot) {
  const Setting init("GDX_FAKE_CUDA_INIT", "803");
  const Error error = load_error(FAKE_DRIVER);
  EXPECT_EQ(error.status, Status::kSystem);
  EXPECT_THAT(error.message, AllOf(HasSubstr("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), HasSubstr("reboot")));
}

TEST(CudaDriver, error_without_a_name_load_gives_its_number) {
  const Setting init("GDX_FAKE_CUDA_INIT", "4711");
  const Error error = load_error(FAKE_DRIVER);
  EXPECT_THAT(error.message, HasSubstr("CUDA error 4711"));
}

TEST(CudaDriver, present_driver_load_fills_the_whole_table) {
  const auto loaded = load_driver(FAKE_DRIVER);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->version, 13000);
#define GDX_EXPECT_FILLED(member, symbol) EXPECT_NE(loaded->call.member, nullptr) << #symbol;
  GDX_CUDA_FUNCTIONS(GDX_EXPECT_FILLED)
  GDX_CUDA_OPTIONAL_FUNCTIONS(GDX_EXPECT_FILLED)
}

TEST(CudaDriver, driver_of_11_4_load_leaves_out_what_came_later) {
  const auto loaded = load_driver(FAKE_OLD_DRIVER);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(version_text(loaded->version), "11.4");
  EXPECT_EQ(loaded->call.mem_get_handle_for_address_range, nullptr);
}

}  // namespace driver_test
}  // namespace gdx::cuda
