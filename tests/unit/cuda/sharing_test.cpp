// The fake driver refuses of virtual memory management what the real one refuses.
#include "driver-shim/cuda/sharing.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <tuple>

#include "driver-shim/cuda/driver.h"
#include "tests/open_files.h"

namespace gdx::cuda {
namespace sharing_test {

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

// Two devices, the first one's context current.
class FakePair : public FakeSharing {
 protected:
  void SetUp() override {
    setenv("GDX_FAKE_CUDA_DEVICES", "2", 1);
    FakeSharing::SetUp();
    driver = load_driver(FAKE_DRIVER)->call;
    for (const int device : {0, 1})
      ASSERT_EQ(driver.primary_ctx_retain(&contexts[device], device), CUDA_SUCCESS);
    ASSERT_EQ(driver.ctx_push_current(contexts[0]), CUDA_SUCCESS);
  }
  void TearDown() override {
    EXPECT_EQ(driver.ctx_pop_current(nullptr), CUDA_SUCCESS);
    for (const int device : {0, 1}) EXPECT_EQ(driver.primary_ctx_release(device), CUDA_SUCCESS);
    unsetenv("GDX_FAKE_CUDA_DEVICES");
  }
  CUresult share(CUdeviceptr address, std::size_t bytes) {
    int file = -1;
    const CUresult result = driver.mem_get_handle_for_address_range(&file, address, bytes,
                                                                    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    shared_bytes = 0;
    if (result != CUDA_SUCCESS) return result;
    struct stat status {};
    if (fstat(file, &status) == 0) shared_bytes = static_cast<std::size_t>(status.st_size);
    close(file);
    return result;
  }
  // Type, device, start and length.
  std::tuple<unsigned, int, CUdeviceptr, std::size_t> attributes_of(CUdeviceptr address) {
    std::tuple<unsigned, int, CUdeviceptr, std::size_t> found{};
    auto& [type, device, start, bytes] = found;
    std::array<CUpointer_attribute, 4> asked{
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    std::array<void*, 4> values{&type, &device, &start, &bytes};
    EXPECT_EQ(driver.pointer_get_attributes(4, asked.data(), values.data(), address), CUDA_SUCCESS);
    return found;
  }
  Functions driver;
  std::array<CUcontext, 2> contexts{};
  std::size_t shared_bytes = 0;
};

TEST_F(FakePair, dmabuf_of_several_allocations_is_of_alike_neighbours_alone) {
  ASSERT_EQ(call.mem_map(base, 2 * kChunk, 0, handle, 0), CUDA_SUCCESS);
  struct Neighbour {
    int device;
    CUmemAllocationHandleType handles;
    std::size_t chunk;
    CUresult result;
  };
  for (const Neighbour& neighbour :
       {Neighbour{0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 2, CUDA_SUCCESS},
        Neighbour{1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 2, CUDA_ERROR_INVALID_VALUE},
        Neighbour{0, CU_MEM_HANDLE_TYPE_NONE, 2, CUDA_ERROR_INVALID_VALUE},
        Neighbour{0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 3, CUDA_ERROR_INVALID_VALUE}}) {
    properties.location.id = neighbour.device;
    properties.requestedHandleTypes = neighbour.handles;
    CUmemGenericAllocationHandle other = 0;
    ASSERT_EQ(call.mem_create(&other, kChunk, &properties, 0), CUDA_SUCCESS);
    const CUdeviceptr at = base + neighbour.chunk * kChunk;
    ASSERT_EQ(call.mem_map(at, kChunk, 0, other, 0), CUDA_SUCCESS);
    EXPECT_EQ(share(base + kChunk, neighbour.chunk * kChunk), neighbour.result) << neighbour.device;
    EXPECT_EQ(shared_bytes, neighbour.result == CUDA_SUCCESS ? 2 * kChunk : 0);
    EXPECT_EQ(attributes_of(at + kChunk - 1),
              std::tuple(CU_MEMORYTYPE_DEVICE + 0u, neighbour.device, at, kChunk));
    CUmemAllocationProp told{};
    EXPECT_EQ(call.mem_get_allocation_properties_from_handle(&told, other), CUDA_SUCCESS);
    EXPECT_EQ(told.location.id, neighbour.device);
    EXPECT_EQ(told.requestedHandleTypes, neighbour.handles);
    int file = -1;
    const bool exported = call.mem_export_to_shareable_handle(
                              &file, other, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS;
    EXPECT_EQ(exported, neighbour.handles == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (exported) close(file);
    EXPECT_EQ(call.mem_unmap(at, kChunk), CUDA_SUCCESS);
    EXPECT_EQ(call.mem_release(other), CUDA_SUCCESS);
  }
  EXPECT_EQ(share(base + 4096, 2 * kChunk - 4096), CUDA_SUCCESS);
  EXPECT_GT(shared_bytes, 2 * kChunk) << "of one allocation, its own file";
  EXPECT_EQ(share(base + 4096, 2 * kChunk), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(share(base + 64, 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(share(base, 64), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(share(base, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call.mem_unmap(base, 2 * kChunk), CUDA_SUCCESS);
  EXPECT_EQ(call.mem_release(handle), CUDA_SUCCESS);
  EXPECT_EQ(call.mem_address_free(base, 4 * kChunk), CUDA_SUCCESS);
}

TEST_F(FakePair, granularity_is_the_drivers_and_mapped_addresses_have_it) {
  setenv("GDX_FAKE_CUDA_GRANULARITY", "8388608", 1);
  std::size_t unit = 0;
  EXPECT_EQ(call.mem_get_allocation_granularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_SUCCESS);
  EXPECT_EQ(unit, 4 * kChunk);
  CUmemGenericAllocationHandle other = 0;
  EXPECT_EQ(call.mem_create(&other, 2 * kChunk, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr at = 0;
  EXPECT_EQ(call.mem_address_reserve(&at, 4 * kChunk, 16 * kChunk, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(at % (16 * kChunk), 0u);
  EXPECT_EQ(call.mem_address_free(at, 4 * kChunk), CUDA_SUCCESS);
  unsetenv("GDX_FAKE_CUDA_GRANULARITY");
  EXPECT_EQ(call.mem_get_allocation_granularity(nullptr, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_ERROR_INVALID_VALUE);
  properties.location.id = 2;
  EXPECT_EQ(call.mem_get_allocation_granularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_ERROR_INVALID_DEVICE);
}

// Copies of a device wait until the range is open to it, and end with the mapping.
TEST_F(FakePair, mapped_memory_is_there_for_those_alone_to_whom_it_is_opened) {
  CUstream stream = nullptr;
  ASSERT_EQ(driver.stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(call.mem_map(base, 2 * kChunk, 0, handle, 0), CUDA_SUCCESS);
  CUmemAccessDesc access{};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  char byte = 'x';
  for (const int device : {1, 0}) {
    EXPECT_EQ(driver.memcpy_htod_async(base + 5, "y", 1, stream), CUDA_ERROR_INVALID_VALUE);
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    ASSERT_EQ(call.mem_set_access(base, 2 * kChunk, &access, 1), CUDA_SUCCESS);
  }
  EXPECT_EQ(driver.memcpy_dtoh_async(&byte, base + 2 * kChunk - 1, 2, stream), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(driver.memcpy_htod_async(base + 5, "y", 1, stream), CUDA_SUCCESS);
  ASSERT_EQ(driver.memcpy_dtoh_async(&byte, base + 5, 1, stream), CUDA_SUCCESS);
  EXPECT_EQ(byte, 'x') << "nobody has waited";
  ASSERT_EQ(driver.ctx_synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(byte, 'y');
  EXPECT_EQ(call.mem_unmap(base, 2 * kChunk), CUDA_SUCCESS);
  EXPECT_EQ(driver.memcpy_dtoh_async(&byte, base + 5, 1, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver.stream_destroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(call.mem_release(handle), CUDA_SUCCESS);
  EXPECT_EQ(call.mem_address_free(base, 4 * kChunk), CUDA_SUCCESS);
}

TEST_F(FakePair, memory_for_hcas_is_what_was_made_for_them_and_on_grace_no_other) {
  const auto is_capable = [this](CUdeviceptr at) {
    bool capable = false;
    void* value = &capable;
    CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE;
    EXPECT_EQ(driver.pointer_get_attributes(1, &asked, &value, at), CUDA_SUCCESS);
    return capable;
  };
  CUmemGenericAllocationHandle made_for_it = 0;
  properties.allocFlags.gpuDirectRDMACapable = 1;
  ASSERT_EQ(call.mem_create(&made_for_it, kChunk, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(call.mem_map(base, kChunk, 0, made_for_it, 0), CUDA_SUCCESS);
  ASSERT_EQ(call.mem_map(base + kChunk, kChunk, 0, handle, 0), CUDA_SUCCESS);
  CUdeviceptr plain = 0;
  ASSERT_EQ(driver.mem_alloc(&plain, 65536), CUDA_SUCCESS);
  EXPECT_TRUE(is_capable(base) && !is_capable(base + kChunk) && is_capable(plain));
  EXPECT_EQ(share(plain, 65536), CUDA_SUCCESS);
  setenv("GDX_FAKE_CUDA_ONLY_VMM_RDMA", "1", 1);
  EXPECT_TRUE(is_capable(base) && !is_capable(plain));
  EXPECT_EQ(share(base, 65536), CUDA_SUCCESS);
  EXPECT_EQ(share(base + kChunk, 65536), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(share(plain, 65536), CUDA_ERROR_NOT_SUPPORTED);
  unsetenv("GDX_FAKE_CUDA_ONLY_VMM_RDMA");
  EXPECT_EQ(driver.mem_free(plain), CUDA_SUCCESS);
  for (const std::size_t chunk : {0, 1})
    EXPECT_EQ(call.mem_unmap(base + chunk * kChunk, kChunk), CUDA_SUCCESS);
  for (const auto held : {made_for_it, handle}) EXPECT_EQ(call.mem_release(held), CUDA_SUCCESS);
  EXPECT_EQ(call.mem_address_free(base, 4 * kChunk), CUDA_SUCCESS);
}

TEST_F(FakePair, file_of_an_allocation_is_no_dmabuf_and_a_dmabuf_no_such_file) {
  constexpr auto kFile = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  ASSERT_EQ(call.mem_map(base, 2 * kChunk, 0, handle, 0), CUDA_SUCCESS);
  int file = -1;
  int dmabuf = -1;
  ASSERT_EQ(call.mem_export_to_shareable_handle(&file, handle, kFile, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver.mem_get_handle_for_address_range(&dmabuf, base + 65536, 65536,
                                                    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
            CUDA_SUCCESS);
  struct stat found {};
  ASSERT_EQ(fstat(file, &found), 0);
  EXPECT_EQ(lseek(file, 0, SEEK_CUR), found.st_size) << "nothing for an HCA";
  EXPECT_EQ(lseek(dmabuf, 0, SEEK_CUR), 65536);
  CUmemGenericAllocationHandle imported = 0;
  const auto import_of = [&](int from) {
    return call.mem_import_from_shareable_handle(
        &imported, reinterpret_cast<void*>(static_cast<std::uintptr_t>(from)), kFile);
  };
  EXPECT_EQ(import_of(dmabuf), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(import_of(file), CUDA_SUCCESS);
  for (const int descriptor : {file, dmabuf}) close(descriptor);
  EXPECT_EQ(call.mem_unmap(base, 2 * kChunk), CUDA_SUCCESS);
  for (const auto held : {imported, handle}) EXPECT_EQ(call.mem_release(held), CUDA_SUCCESS);
  EXPECT_EQ(call.mem_address_free(base, 4 * kChunk), CUDA_SUCCESS);
}

TEST_F(FakePair, memory_that_was_exported_leaves_no_file_when_it_is_freed) {
  const std::size_t files = test::open_files();
  CUipcMemHandle told{};
  CUipcMemHandle again{};
  CUdeviceptr address = 0;
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(driver.mem_alloc(&address, 4096), CUDA_SUCCESS);
    EXPECT_EQ(call.ipc_get_mem_handle(&told, address), CUDA_SUCCESS);
    EXPECT_EQ(call.ipc_get_mem_handle(&again, address), CUDA_SUCCESS);
    EXPECT_EQ(std::memcmp(&told, &again, sizeof told), 0);
    EXPECT_EQ(call.ipc_get_mem_handle(&told, address + 64), CUDA_ERROR_INVALID_VALUE) << "inside it";
    CUdeviceptr opened = 0;
    EXPECT_EQ(call.ipc_open_mem_handle(&opened, told, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
              CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(call.ipc_open_mem_handle(&opened, told, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(driver.mem_free(address), CUDA_SUCCESS);
    EXPECT_EQ(call.ipc_get_mem_handle(&told, address), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(test::open_files(), files);
  }
  EXPECT_EQ(call.ipc_close_mem_handle(address), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakePair, devices_differ_and_each_has_its_own_memory) {
  int count = 0;
  EXPECT_EQ(driver.device_get_count(&count), CUDA_SUCCESS);
  EXPECT_EQ(count, 2);
  std::array<char, 16> bus{};
  EXPECT_EQ(driver.device_get_pci_bus_id(bus.data(), 12, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver.device_get_pci_bus_id(bus.data(), 13, 1), CUDA_SUCCESS);
  EXPECT_STREQ(bus.data(), "0000:F1:00.0");
  int atomics = -1;
  EXPECT_EQ(call.device_get_p2p_attribute(&atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, 0, 1),
            CUDA_SUCCESS);
  EXPECT_EQ(atomics, 1);
  EXPECT_EQ(call.device_get_p2p_attribute(&atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, 1, 1),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call.device_get_p2p_attribute(&atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, 0, 2),
            CUDA_ERROR_INVALID_DEVICE);
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  ASSERT_EQ(driver.mem_alloc(&first, 100), CUDA_SUCCESS);
  ASSERT_EQ(driver.ctx_push_current(contexts[1]), CUDA_SUCCESS);
  ASSERT_EQ(driver.mem_alloc(&second, 200'000), CUDA_SUCCESS);
  EXPECT_EQ(attributes_of(first + 99), std::tuple(CU_MEMORYTYPE_DEVICE + 0u, 0, first, std::size_t{100}));
  EXPECT_EQ(attributes_of(second), std::tuple(CU_MEMORYTYPE_DEVICE + 0u, 1, second, std::size_t{200'000}));
  EXPECT_EQ(attributes_of(first + 100), std::tuple(0u, 0, CUdeviceptr{0}, std::size_t{0}));
  CUcontext popped = nullptr;
  ASSERT_EQ(driver.ctx_pop_current(&popped), CUDA_SUCCESS);
  EXPECT_EQ(popped, contexts[1]);
  ASSERT_EQ(driver.primary_ctx_release(1), CUDA_SUCCESS);
  EXPECT_EQ(driver.ctx_push_current(contexts[1]), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(driver.mem_free(second), CUDA_ERROR_INVALID_VALUE) << "gone with its context";
  EXPECT_EQ(driver.mem_free(first), CUDA_SUCCESS) << "the other device's stays";
  ASSERT_EQ(driver.primary_ctx_retain(&contexts[1], 1), CUDA_SUCCESS);
}

TEST_F(FakePair, pooled_memory_is_of_a_pool_and_host_memory_where_it_is_registered) {
  CUdeviceptr pooled = 0;
  ASSERT_EQ(call.mem_alloc_async(&pooled, 5000, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(attributes_of(pooled + 8191),
            std::tuple(CU_MEMORYTYPE_DEVICE + 0u, 0, pooled, std::size_t{8192}));
  void* pool = nullptr;
  void* value = &pool;
  CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
  EXPECT_EQ(driver.pointer_get_attributes(1, &asked, &value, pooled), CUDA_SUCCESS);
  EXPECT_NE(pool, nullptr);
  CUdeviceptr first = 0;
  std::size_t bytes = 0;
  EXPECT_EQ(call.mem_get_address_range(&first, &bytes, pooled), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call.mem_free_async(pooled + 64, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call.mem_free_async(pooled, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(call.mem_free_async(pooled, nullptr), CUDA_ERROR_INVALID_VALUE);
  void* const host = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const auto address = reinterpret_cast<CUdeviceptr>(host);
  ASSERT_EQ(driver.mem_host_register(host, 8192, CU_MEMHOSTREGISTER_DEVICEMAP), CUDA_SUCCESS);
  EXPECT_EQ(attributes_of(address + 8191),
            std::tuple(CU_MEMORYTYPE_HOST + 0u, 0, address, std::size_t{8192}));
  setenv("GDX_FAKE_CUDA_HOST_OFFSET", "4096", 1);
  CUdeviceptr seen = 0;
  EXPECT_EQ(driver.mem_host_get_device_pointer(&seen, static_cast<char*>(host) + 8191, 0), CUDA_SUCCESS);
  EXPECT_EQ(seen, address + 8191 + 4096);
  unsetenv("GDX_FAKE_CUDA_HOST_OFFSET");
  EXPECT_EQ(driver.mem_host_get_device_pointer(&seen, static_cast<char*>(host) + 8192, 0),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(driver.ctx_push_current(contexts[1]), CUDA_SUCCESS);
  EXPECT_EQ(driver.mem_host_get_device_pointer(&seen, host, 0), CUDA_ERROR_INVALID_VALUE) << "not portable";
  ASSERT_EQ(driver.ctx_pop_current(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(driver.mem_host_unregister(host), CUDA_SUCCESS);
  munmap(host, 8192);
}

// Refusals of each call, one argument at a time.
TEST_F(FakePair, calls_of_the_driver_are_refused_for_each_bad_argument) {
  const auto invalid = [](CUresult result) { return result == CUDA_ERROR_INVALID_VALUE; };
  std::array<char, 16> text{};
  int number = 0;
  for (const int device : {-1, 2}) {
    EXPECT_EQ(driver.device_get(&number, device), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(driver.device_get_name(text.data(), 16, device), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(driver.device_get_pci_bus_id(text.data(), 16, device), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(driver.device_get_attribute(&number, CU_DEVICE_ATTRIBUTE_CLOCK_RATE, device),
              CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(driver.primary_ctx_retain(&contexts[0], device), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(driver.primary_ctx_release(device), CUDA_ERROR_INVALID_DEVICE);
  }
  EXPECT_TRUE(invalid(driver.init(1)) && invalid(driver.driver_get_version(nullptr)) &&
              invalid(driver.device_get_count(nullptr)) && invalid(driver.primary_ctx_retain(nullptr, 0)));
  EXPECT_TRUE(invalid(driver.device_get_name(nullptr, 16, 0)));
  EXPECT_TRUE(invalid(driver.device_get_name(text.data(), 0, 0)));
  EXPECT_EQ(driver.device_get_name(text.data(), 5, 1), CUDA_SUCCESS);
  EXPECT_STREQ(text.data(), "Fake");
  for (const auto& [attribute, value] : {std::pair(CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1'000'000),
                                         {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
                                         {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
                                         {CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, 0},
                                         {CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 1},
                                         {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
                                         {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1},
                                         {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 100}}) {
    EXPECT_EQ(driver.device_get_attribute(&number, attribute, 1), CUDA_SUCCESS);
    EXPECT_EQ(number, value) << attribute;
    EXPECT_TRUE(invalid(driver.device_get_attribute(nullptr, attribute, 1)));
  }
  EXPECT_TRUE(invalid(driver.device_get_attribute(&number, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, 1)));
  CUdeviceptr address = 0;
  EXPECT_TRUE(invalid(driver.mem_alloc(nullptr, 64)));
  ASSERT_EQ(driver.mem_alloc(&address, 65536), CUDA_SUCCESS);
  EXPECT_EQ(address % 4096, 0u) << "a large one";
  EXPECT_EQ(share(address, 65536), CUDA_SUCCESS);
  int file = -1;
  constexpr auto kDmabuf = CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
  const auto handle_of = driver.mem_get_handle_for_address_range;
  EXPECT_TRUE(invalid(handle_of(nullptr, address, 4096, kDmabuf, 0)));
  EXPECT_TRUE(invalid(handle_of(&file, address, 4096, CUmemRangeHandleType{}, 0)));
  EXPECT_TRUE(invalid(handle_of(&file, address, 4096, kDmabuf, 2)));
  EXPECT_EQ(handle_of(&file, address, 4096, kDmabuf, kDmabufAcrossPcie), CUDA_ERROR_NOT_SUPPORTED);
  bool shareable = false;
  void* value = &shareable;
  CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
  EXPECT_EQ(driver.pointer_get_attributes(1, &asked, &value, address), CUDA_SUCCESS);
  EXPECT_TRUE(shareable);
  EXPECT_TRUE(invalid(driver.pointer_get_attributes(0, &asked, &value, address)));
  EXPECT_TRUE(invalid(driver.pointer_get_attributes(1, nullptr, &value, address)));
  EXPECT_TRUE(invalid(driver.pointer_get_attributes(1, &asked, nullptr, address)));
  asked = CUpointer_attribute{};
  EXPECT_TRUE(invalid(driver.pointer_get_attributes(1, &asked, &value, address)));
  EXPECT_EQ(driver.mem_free(address), CUDA_SUCCESS);
}

TEST_F(FakePair, calls_of_sharing_are_refused_for_each_bad_argument) {
  const auto invalid = [](CUresult result) { return result == CUDA_ERROR_INVALID_VALUE; };
  CUmemGenericAllocationHandle other = 0;
  CUdeviceptr at = 0;
  const auto creates = [&](std::size_t bytes, unsigned long long flags, auto change) {
    CUmemAllocationProp changed = properties;
    change(changed);
    return call.mem_create(&other, bytes, &changed, flags);
  };
  const auto as_they_are = [](CUmemAllocationProp&) {};
  EXPECT_TRUE(invalid(call.mem_create(nullptr, kChunk, &properties, 0)));
  EXPECT_TRUE(invalid(call.mem_create(&other, kChunk, nullptr, 0)));
  EXPECT_TRUE(invalid(creates(0, 0, as_they_are)) && invalid(creates(kChunk, 1, as_they_are)));
  EXPECT_TRUE(invalid(creates(kChunk, 0, [](auto& p) { p.type = CUmemAllocationType{}; })));
  EXPECT_TRUE(invalid(creates(kChunk, 0, [](auto& p) { p.location.type = CUmemLocationType{}; })));
  EXPECT_TRUE(invalid(creates(kChunk, 0, [&](auto& p) { p.win32HandleMetaData = &other; })));
  EXPECT_TRUE(invalid(call.mem_address_reserve(nullptr, kChunk, 0, 0, 0)));
  EXPECT_TRUE(invalid(call.mem_address_reserve(&at, 0, 0, 0, 0)));
  EXPECT_TRUE(invalid(call.mem_address_reserve(&at, kChunk / 2, 0, 0, 0)));
  EXPECT_TRUE(invalid(call.mem_address_reserve(&at, kChunk, 3, 0, 0)));
  EXPECT_TRUE(invalid(call.mem_address_reserve(&at, kChunk, 0, 0, 1)));
  ASSERT_EQ(call.mem_address_reserve(&at, kChunk, kChunk, 0, 0), CUDA_SUCCESS);
  EXPECT_TRUE(invalid(call.mem_address_free(at, kChunk / 2)) &&
              invalid(call.mem_address_free(at + 1, kChunk)));
  EXPECT_EQ(call.mem_address_free(at, kChunk), CUDA_SUCCESS);
  EXPECT_TRUE(invalid(call.mem_address_free(at, kChunk)));

  EXPECT_TRUE(invalid(call.mem_map(base, 0, 0, handle, 0)) &&
              invalid(call.mem_map(base, kChunk, 0, handle, 1)));
  EXPECT_TRUE(invalid(call.mem_map(base, kChunk / 2, 0, handle, 0)));
  EXPECT_TRUE(invalid(call.mem_map(base, kChunk, 0, handle + 100, 0)));
  EXPECT_TRUE(invalid(call.mem_map(at, kChunk, 0, handle, 0))) << "not reserved any more";
  ASSERT_EQ(call.mem_map(base + 2 * kChunk, 2 * kChunk, 0, handle, 0), CUDA_SUCCESS) << "up to the end";
  EXPECT_TRUE(invalid(call.mem_map(base + kChunk, 2 * kChunk, 0, handle, 0))) << "into the next";
  EXPECT_TRUE(invalid(call.mem_map(base + 3 * kChunk, kChunk, 0, handle, 0))) << "within it";
  ASSERT_EQ(call.mem_map(base, 2 * kChunk, 0, handle, 0), CUDA_SUCCESS) << "up to the next";
  std::size_t bytes = 0;
  EXPECT_EQ(call.mem_get_address_range(&at, &bytes, base + 2 * kChunk - 1), CUDA_SUCCESS);
  EXPECT_TRUE(at == base && bytes == 2 * kChunk);
  EXPECT_EQ(call.mem_get_address_range(nullptr, nullptr, base + 2 * kChunk), CUDA_SUCCESS);
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
  EXPECT_EQ(call.mem_set_access(base, 4 * kChunk, &access, 1), CUDA_SUCCESS);
  EXPECT_TRUE(invalid(call.mem_set_access(base, 3 * kChunk, &access, 1))) << "a part";
  EXPECT_TRUE(invalid(call.mem_set_access(base, 0, &access, 1)) &&
              invalid(call.mem_set_access(base, kChunk, nullptr, 1)) &&
              invalid(call.mem_set_access(base, kChunk, &access, 0)));
  access.location.id = 2;
  EXPECT_EQ(call.mem_set_access(base, 4 * kChunk, &access, 1), CUDA_ERROR_INVALID_DEVICE);
  access.location.type = CUmemLocationType{};
  EXPECT_TRUE(invalid(call.mem_set_access(base, 4 * kChunk, &access, 1)));
  EXPECT_TRUE(invalid(call.mem_unmap(base + kChunk, kChunk)));
  for (const std::size_t chunk : {0, 2})
    EXPECT_EQ(call.mem_unmap(base + chunk * kChunk, 2 * kChunk), CUDA_SUCCESS);
  EXPECT_EQ(call.mem_release(handle), CUDA_SUCCESS);
  EXPECT_EQ(call.mem_address_free(base, 4 * kChunk), CUDA_SUCCESS);
}

// Memory that is freed has been copied to and from, on every stream of its device and on no other's.
TEST_F(FakePair, streams_end_with_their_device_and_work_for_it_alone) {
  constexpr int kPending = 3;
  std::array<CUdeviceptr, 2> memory{};
  std::array<CUstream, 2> streams{};
  std::array<std::array<char, 2>, 2> came{};
  const auto ask = [&](std::size_t device) {
    for (int i = 0; i < kPending; ++i)
      EXPECT_EQ(driver.memcpy_dtoh_async(came[device].data(), memory[device], 1, streams[device]),
                CUDA_SUCCESS);
  };
  for (const std::size_t device : {0, 1}) {
    ASSERT_EQ(driver.ctx_push_current(contexts[device]), CUDA_SUCCESS);
    ASSERT_EQ(driver.mem_alloc(&memory[device], 64), CUDA_SUCCESS);
    ASSERT_EQ(driver.stream_create(&streams[device], 0), CUDA_SUCCESS);
    EXPECT_EQ(driver.stream_create(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
    ask(device);
  }
  EXPECT_NE(streams[0], streams[1]);
  EXPECT_EQ(driver.memcpy_htod_async(memory[1], nullptr, 1, streams[1]), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver.memcpy_dtoh_async(nullptr, memory[1], 1, streams[1]), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver.memcpy_htod_async(0, came.data(), 0, streams[1]), CUDA_SUCCESS) << "nothing";
  EXPECT_EQ(driver.mem_free(memory[1]), CUDA_SUCCESS);
  EXPECT_EQ(came, (std::array<std::array<char, 2>, 2>{{{0, 0}, {'\xa5', 0}}})) << "what nobody has written";
  EXPECT_EQ(driver.stream_query(streams[1]), CUDA_SUCCESS);
  for (int left = kPending; left > 0; --left)
    EXPECT_EQ(driver.stream_query(streams[0]), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(driver.stream_query(streams[0]), CUDA_SUCCESS);
  ask(0);
  EXPECT_EQ(driver.stream_destroy(streams[0]), CUDA_SUCCESS);
  EXPECT_EQ(driver.stream_destroy(streams[0]), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(driver.stream_synchronize(streams[0]), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(driver.primary_ctx_retain(&contexts[1], 1), CUDA_SUCCESS);
  EXPECT_EQ(driver.primary_ctx_release(1), CUDA_SUCCESS);
  EXPECT_EQ(driver.stream_query(streams[1]), CUDA_SUCCESS) << "somebody holds its device";
  for (const int other : {0, 1}) EXPECT_EQ(driver.ctx_pop_current(nullptr), CUDA_SUCCESS) << other;
  EXPECT_EQ(driver.primary_ctx_release(1), CUDA_SUCCESS);
  EXPECT_EQ(driver.primary_ctx_release(1), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(driver.stream_query(streams[1]), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(driver.primary_ctx_retain(&contexts[1], 1), CUDA_SUCCESS);
}

}  // namespace sharing_test
}  // namespace gdx::cuda
