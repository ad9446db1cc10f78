// The fake driver refuses what the real one refuses: whatever passes on it has asked properly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "driver-shim/cuda/driver.h"
#include "tests/unit/cuda/io_page.h"

namespace gdx::cuda {
namespace fake_test {

constexpr std::size_t kPageBytes = 4096;

class FakeCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loaded = load_driver(FAKE_DRIVER);
    ASSERT_TRUE(loaded) << loaded.error().message;
    driver_ = *loaded;
    ASSERT_EQ(call().primary_ctx_retain(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(call().ctx_push_current(context_), CUDA_SUCCESS);
  }
  void TearDown() override {
    EXPECT_EQ(call().ctx_pop_current(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(call().primary_ctx_release(0), CUDA_SUCCESS);
  }
  [[nodiscard]] const Functions& call() const { return driver_.call; }
  CUdeviceptr allocate(std::size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(call().mem_alloc(&address, bytes), CUDA_SUCCESS);
    return address;
  }
  CUresult share(CUdeviceptr address, std::size_t bytes, int* descriptor) {
    return call().mem_get_handle_for_address_range(descriptor, address, bytes,
                                                   CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  }

  Driver driver_;
  CUcontext context_ = nullptr;
};

struct Pages {
  explicit Pages(std::size_t count)
      : bytes(count * kPageBytes),
        data(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~Pages() { munmap(data, bytes); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::size_t bytes;
  void* data;
};

TEST_F(FakeCuda, without_a_current_context_calls_are_refused) {
  ASSERT_EQ(call().ctx_pop_current(nullptr), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  EXPECT_EQ(call().mem_alloc(&address, 64), CUDA_ERROR_INVALID_CONTEXT);
  Pages pages(1);
  EXPECT_EQ(call().mem_host_register(pages.data, pages.bytes, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(call().ctx_pop_current(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  CUdevice device = -1;
  EXPECT_EQ(call().ctx_get_device(&device), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(call().ctx_push_current(context_), CUDA_SUCCESS);
  EXPECT_EQ(call().ctx_get_device(&device), CUDA_SUCCESS);
  EXPECT_EQ(device, 0);
}

TEST_F(FakeCuda, device_memory_touched_by_the_host_is_a_fault) {
  const CUdeviceptr address = allocate(64);
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(address) = 1, "");
}

TEST_F(FakeCuda, nothing_allocated_or_freed_twice_is_refused) {
  CUdeviceptr address = 0;
  EXPECT_EQ(call().mem_alloc(&address, 0), CUDA_ERROR_INVALID_VALUE);
  address = allocate(64);
  EXPECT_EQ(call().mem_free(address + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call().mem_free(address), CUDA_SUCCESS);
  EXPECT_EQ(call().mem_free(address), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCuda, dmabuf_of_anything_but_whole_pages_of_one_allocation_is_refused) {
  const CUdeviceptr address = allocate(3 * kPageBytes);
  ASSERT_NE(address % kPageBytes, 0u) << "small allocations are not on a page";
  const CUdeviceptr page = address / kPageBytes * kPageBytes;
  int descriptor = -1;
  EXPECT_EQ(share(address, kPageBytes, &descriptor), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(share(page, 64, &descriptor), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(share(page, 5 * kPageBytes, &descriptor), CUDA_ERROR_INVALID_VALUE);
  Pages host(1);
  EXPECT_EQ(share(reinterpret_cast<CUdeviceptr>(host.data), kPageBytes, &descriptor),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(share(page, 4 * kPageBytes, &descriptor), CUDA_SUCCESS);
  EXPECT_GE(descriptor, 0);
  close(descriptor);
}

TEST_F(FakeCuda, copies_are_made_when_the_stream_is_asked_and_in_order) {
  const CUdeviceptr address = allocate(256);
  CUstream stream = nullptr;
  ASSERT_EQ(call().stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  std::string text = "first";
  std::string back(text.size(), '.');
  ASSERT_EQ(call().memcpy_htod_async(address, "wrong", text.size(), stream), CUDA_SUCCESS);
  ASSERT_EQ(call().memcpy_htod_async(address, text.data(), text.size(), stream), CUDA_SUCCESS);
  text = "other";  // unpinned memory has been read
  ASSERT_EQ(call().memcpy_dtoh_async(back.data(), address, back.size(), stream), CUDA_SUCCESS);
  EXPECT_EQ(back, ".....");
  EXPECT_EQ(call().stream_query(stream), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(back, ".....") << "it is the last of three";
  EXPECT_EQ(call().stream_synchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(back, "first");
  EXPECT_EQ(call().stream_query(stream), CUDA_SUCCESS);
  ASSERT_EQ(call().stream_destroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(call().stream_query(stream), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(FakeCuda, pinned_memory_is_read_when_the_copy_is_made) {
  const CUdeviceptr address = allocate(256);
  Pages pages(1);
  ASSERT_EQ(call().mem_host_register(pages.data, pages.bytes, 0), CUDA_SUCCESS);
  auto* const text = static_cast<char*>(pages.data);
  CUstream stream = nullptr;
  ASSERT_EQ(call().stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  text[0] = 'a';
  ASSERT_EQ(call().memcpy_htod_async(address, text, 1, stream), CUDA_SUCCESS);
  text[0] = 'b';
  char back = 0;
  ASSERT_EQ(call().memcpy_dtoh_async(&back, address, 1, stream), CUDA_SUCCESS);
  ASSERT_EQ(call().stream_synchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(back, 'b');
  EXPECT_EQ(call().stream_destroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(call().mem_host_unregister(pages.data), CUDA_SUCCESS);
}

TEST_F(FakeCuda, copies_beyond_an_allocation_or_on_no_stream_are_refused) {
  const CUdeviceptr address = allocate(256);
  CUstream stream = nullptr;
  EXPECT_EQ(call().stream_create(&stream, 2), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(call().stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  char bytes[257] = {};
  EXPECT_EQ(call().memcpy_htod_async(address, bytes, 257, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call().memcpy_dtoh_async(bytes, address + 256, 1, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call().memcpy_htod_async(address - 1, bytes, 1, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call().memcpy_htod_async(address, bytes, 1, nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(call().stream_destroy(stream), CUDA_SUCCESS);
}

TEST_F(FakeCuda, host_pages_registered_twice_or_not_at_all_are_refused) {
  Pages pages(2);
  EXPECT_EQ(call().mem_host_register(nullptr, 64, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call().mem_host_register(pages.data, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call().mem_host_register(pages.data, pages.bytes, 0x80), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call().mem_host_unregister(pages.data), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  ASSERT_EQ(call().mem_host_register(pages.data, pages.bytes, CU_MEMHOSTREGISTER_DEVICEMAP), CUDA_SUCCESS);
  EXPECT_EQ(call().mem_host_register(static_cast<char*>(pages.data) + kPageBytes, 64, 0),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(call().mem_host_unregister(static_cast<char*>(pages.data) + kPageBytes),
            CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(call().mem_host_unregister(pages.data), CUDA_SUCCESS);
}

TEST_F(FakeCuda, unmapped_pages_registered_are_refused) {
  void* gone = nullptr;
  {
    Pages pages(1);
    gone = pages.data;
  }
  EXPECT_EQ(call().mem_host_register(gone, kPageBytes, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCuda, ordinary_pages_registered_as_io_and_io_as_ordinary_are_refused) {
  Pages pages(1);
  EXPECT_EQ(call().mem_host_register(pages.data, pages.bytes, CU_MEMHOSTREGISTER_IOMEMORY),
            CUDA_ERROR_INVALID_VALUE);
  void* const io = io_page();
  if (io == nullptr) GTEST_SKIP() << kNoIoPage;
  EXPECT_EQ(call().mem_host_register(io, kPageBytes, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call().mem_host_register(io, kPageBytes, CU_MEMHOSTREGISTER_IOMEMORY), CUDA_SUCCESS);
  EXPECT_EQ(call().mem_host_unregister(io), CUDA_SUCCESS);
}

TEST_F(FakeCuda, device_pointer_of_what_is_not_mapped_is_refused) {
  Pages pages(1);
  CUdeviceptr address = 0;
  EXPECT_EQ(call().mem_host_get_device_pointer(&address, pages.data, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(call().mem_host_register(pages.data, pages.bytes, CU_MEMHOSTREGISTER_PORTABLE), CUDA_SUCCESS);
  EXPECT_EQ(call().mem_host_get_device_pointer(&address, pages.data, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call().mem_host_unregister(pages.data), CUDA_SUCCESS);
}

TEST_F(FakeCuda, unknown_pointer_has_no_attributes_and_is_no_error) {
  Pages pages(1);
  unsigned type = 77;
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* data = &type;
  EXPECT_EQ(call().pointer_get_attributes(1, &attribute, &data, reinterpret_cast<CUdeviceptr>(pages.data)),
            CUDA_SUCCESS);
  EXPECT_EQ(type, 0u);
  EXPECT_EQ(call().pointer_get_attributes(1, &attribute, &data, allocate(64)), CUDA_SUCCESS);
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
}

TEST_F(FakeCuda, last_release_of_a_context_takes_its_memory_along) {
  const CUdeviceptr address = allocate(64);
  ASSERT_EQ(call().primary_ctx_release(0), CUDA_SUCCESS);
  EXPECT_EQ(call().mem_free(address), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(call().primary_ctx_retain(&context_, 0), CUDA_SUCCESS);
  EXPECT_EQ(call().mem_free(address), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace fake_test
}  // namespace gdx::cuda
