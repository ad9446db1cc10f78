// The fake driver refuses of virtual memory management what the real one refuses.
#include "driver-shim/cuda/sharing.h"

#include <gtest/gtest.h>

#include "driver-shim/cuda/driver.h"

namespace gdx::cuda {
namespace {

constexpr std::size_t kChunk = 2u << 20;

class FakeSharing : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto driver = load_driver(FAKE_DRIVER);
    ASSERT_TRUE(driver) << driver.error().message;
    const auto loaded = load_sharing(FAKE_DRIVER);
    ASSERT_TRUE(loaded) << loaded.error().message;
    call = *loaded;
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    ASSERT_EQ(call.mem_create(&handle, 2 * kChunk, &properties, 0), CUDA_SUCCESS);
    ASSERT_EQ(call.mem_address_reserve(&base, 4 * kChunk, 0, 0, 0), CUDA_SUCCESS);
  }
  SharingFunctions call;
  CUmemAllocationProp properties{};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr base = 0;
};

TEST_F(FakeSharing, driver_that_is_not_there_is_said_so) {
  EXPECT_EQ(load_sharing("/nonexistent/libcuda.so.1").error().status, Status::kNoDevice);
  EXPECT_EQ(load_sharing("libc.so.6").error().status, Status::kUnsupported);
}

TEST_F(FakeSharing, create_and_map_refuse_what_the_reference_says) {
  CUmemGenericAllocationHandle other = 0;
  EXPECT_EQ(call.mem_create(&other, kChunk + 4096, &properties, 0), CUDA_ERROR_INVALID_VALUE)
      << "granularity";
  properties.location.id = 7;
  EXPECT_EQ(call.mem_create(&other, kChunk, &properties, 0), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(call.mem_map(base, kChunk, kChunk, handle, 0), CUDA_ERROR_INVALID_VALUE) << "an offset";
  EXPECT_EQ(call.mem_map(base, 3 * kChunk, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "more than it has";
  EXPECT_EQ(call.mem_map(base + 3 * kChunk, 2 * kChunk, 0, handle, 0), CUDA_ERROR_INVALID_VALUE)
      << "not reserved";
  ASSERT_EQ(call.mem_map(base + kChunk, 2 * kChunk, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(call.mem_map(base, 2 * kChunk, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "mapped already";
  EXPECT_EQ(call.mem_unmap(base + kChunk, kChunk), CUDA_ERROR_INVALID_VALUE) << "a part";
  EXPECT_EQ(call.mem_address_free(base, 4 * kChunk), CUDA_ERROR_INVALID_VALUE) << "still mapped";
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  EXPECT_EQ(call.mem_set_access(base, 2 * kChunk, &access, 1), CUDA_ERROR_INVALID_VALUE) << "a hole";
  EXPECT_EQ(call.mem_set_access(base + kChunk, 2 * kChunk, &access, 1), CUDA_SUCCESS);
  EXPECT_EQ(call.mem_unmap(base + kChunk, 2 * kChunk), CUDA_SUCCESS);
  EXPECT_EQ(call.mem_address_free(base, 4 * kChunk), CUDA_SUCCESS);
}

TEST_F(FakeSharing, handles_are_counted) {
  ASSERT_EQ(call.mem_map(base, 2 * kChunk, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(call.mem_release(handle), CUDA_SUCCESS);
  EXPECT_EQ(call.mem_release(handle), CUDA_ERROR_INVALID_VALUE);
  CUmemGenericAllocationHandle retained = 0;
  EXPECT_EQ(call.mem_retain_allocation_handle(&retained, reinterpret_cast<void*>(base + kChunk)),
            CUDA_SUCCESS);
  EXPECT_EQ(retained, handle) << "the same value";
  EXPECT_EQ(call.mem_retain_allocation_handle(&retained, reinterpret_cast<void*>(base + 3 * kChunk)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call.mem_release(handle), CUDA_SUCCESS);
  EXPECT_EQ(call.mem_unmap(base, 2 * kChunk), CUDA_SUCCESS);
  EXPECT_EQ(call.mem_get_allocation_properties_from_handle(&properties, handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call.mem_address_free(base, 4 * kChunk), CUDA_SUCCESS);
}

TEST_F(FakeSharing, nothing_but_an_allocation_is_imported) {
  CUmemGenericAllocationHandle imported = 0;
  EXPECT_EQ(
      call.mem_import_from_shareable_handle(&imported, nullptr, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      CUDA_ERROR_INVALID_VALUE);
  int file = -1;
  EXPECT_EQ(call.mem_export_to_shareable_handle(&file, handle, CU_MEM_HANDLE_TYPE_NONE, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call.mem_address_free(base, 4 * kChunk), CUDA_SUCCESS);
}

}  // namespace
}  // namespace gdx::cuda
