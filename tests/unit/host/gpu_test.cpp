// Host pages shown to a GPU: what the kernel calls them, and how an endpoint's are mapped on the fake driver.
#include "host/gpu/gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/page_size.h"
#include "host/direct/peer_mapping.h"
#include "host/gpu/relaxed_stores.h"
#include "host/hca/hca.h"
#include "host/memory/memory.h"
#include "host/queue/endpoint.h"
#include "host/staging/staging_pool.h"
#include "tests/unit/cuda/io_page.h"
#include "tests/unit/host/handle_pointers.h"
#include "tests/unit/host/loopback.h"

// Stands for kernels by nvcc, of which this program has none: map_to moves words for these alone.
extern "C" const int gdx_kernels_are_cuda;
extern "C" const int gdx_kernels_are_cuda = 1;

namespace gdx {
namespace gpu_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// As Linux 6.1 prints them, most lines left out: a ConnectX's doorbell page between two ordinary areas.
constexpr char kSmaps[] =
    "55d000000000-55d000004000 rw-p 00000000 00:00 0                          [heap]\n"
    "Size:                 16 kB\n"
    "VmFlags: rd wr mr mw me ac sd \n"
    "55d000004000-55d000005000 rw-s 800010000 00:05 500                      /dev/infiniband/uverbs0\n"
    "Size:                  4 kB\n"
    "VmFlags: rd wr sh mr mw me ms pf io dc de dd sd \n"
    "55d000005000-55d000008000 rw-p 00000000 00:00 0 \n"
    "Size:                 12 kB\n"
    "VmFlags: rd wr mr mw me ac sd \n"
    "55d000008000-55d000009000 rw-p 00000000 00:00 0 \n"
    "VmFlags: rd wr mr mw me ac sd \n";

Result<PageKind> kind_of(std::uintptr_t first, std::size_t bytes) {
  std::istringstream smaps(kSmaps);
  return parse_page_kind(smaps, first, bytes);
}

TEST(PageKind, areas_are_told_apart_by_their_flags) {
  EXPECT_EQ(*kind_of(0x55d000000000, 0x4000), PageKind::kOrdinary);
  EXPECT_EQ(*kind_of(0x55d000004800, 64), PageKind::kDevice);
  EXPECT_EQ(*kind_of(0x55d000005000, 0x4000), PageKind::kOrdinary) << "two areas that touch";
}

TEST(PageKind, range_of_both_kinds_or_with_a_gap_is_refused) {
  EXPECT_THAT(kind_of(0x55d000003000, 0x2000).error().message, HasSubstr("partly device pages"));
  EXPECT_THAT(kind_of(0x55d000004000, 0x1001).error().message, HasSubstr("partly device pages"));
  EXPECT_THAT(kind_of(0x55d000008000, 0x2000).error().message, HasSubstr("not all mapped"));
  EXPECT_THAT(kind_of(0x1000, 64).error().message, HasSubstr("not all mapped"));
}

TEST(PageKind, this_process_has_ordinary_pages_and_a_kernels) {
  int local = 0;
  EXPECT_EQ(*page_kind(&local, sizeof local), PageKind::kOrdinary);
  void* const io = cuda::io_page();
  if (io == nullptr) GTEST_SKIP() << cuda::kNoIoPage;
  EXPECT_EQ(*page_kind(io, 4096), PageKind::kDevice);
}

TEST(MappingChoice, pages_decide_unless_forced) {
  const struct {
    PageKind pages;
    MappingChoice choice;
    MappingWay way;
  } table[] = {
      {PageKind::kOrdinary, MappingChoice::kAuto, MappingWay::kPlain},
      {PageKind::kDevice, MappingChoice::kAuto, MappingWay::kIoMemory},
      {PageKind::kOrdinary, MappingChoice::kPlain, MappingWay::kPlain},
      {PageKind::kDevice, MappingChoice::kPlain, MappingWay::kPlain},
      {PageKind::kOrdinary, MappingChoice::kIoMemory, MappingWay::kIoMemory},
      {PageKind::kDevice, MappingChoice::kIoMemory, MappingWay::kIoMemory},
  };
  for (const auto& row : table) EXPECT_EQ(choose_mapping(row.pages, row.choice), row.way);
}

TEST(MappingChoice, choice_from_the_environment_is_checked) {
  unsetenv(kGpuMappingVariable);
  EXPECT_EQ(*mapping_choice_from_environment(), MappingChoice::kAuto);
  setenv(kGpuMappingVariable, "plain", 1);
  EXPECT_EQ(*mapping_choice_from_environment(), MappingChoice::kPlain);
  setenv(kGpuMappingVariable, "iomemory", 1);
  EXPECT_EQ(*mapping_choice_from_environment(), MappingChoice::kIoMemory);
  setenv(kGpuMappingVariable, "yes", 1);
  EXPECT_THAT(mapping_choice_from_environment().error().message,
              HasSubstr("'yes': use auto, plain or iomemory"));
  unsetenv(kGpuMappingVariable);
}

class OnFakeGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {kGpuMappingVariable, "GDX_FAKE_CUDA_PEER_MAPPING"}) unsetenv(name);
    auto gpu = Gpu::open();
    ASSERT_TRUE(gpu) << gpu.error().message;
    gpu_ = std::make_unique<Gpu>(std::move(*gpu));
  }
  [[nodiscard]] const Gpu& gpu() const { return *gpu_; }
  // The driver's word: would it register these pages, or are they registered?
  [[nodiscard]] bool is_mapped(const void* address) const {
    CUdeviceptr seen = 0;
    return gpu_->run([&] {
      return gpu_->driver().call.mem_host_get_device_pointer(&seen, const_cast<void*>(address), 0);
    }) == CUDA_SUCCESS;
  }

 private:
  std::unique_ptr<Gpu> gpu_;
};

struct Pages {
  explicit Pages(std::size_t count)
      : bytes(count * page_bytes()),
        data(static_cast<std::byte*>(
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~Pages() { munmap(data, bytes); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::size_t bytes;
  std::byte* data;
};

TEST_F(OnFakeGpu, open_tells_what_it_is) {
  EXPECT_EQ(*Gpu::count(), 1);
  EXPECT_EQ(gpu().name(), "Fake GPU");
  EXPECT_EQ(gpu().pci_bus_id(), "0000:F0:00.0");
  EXPECT_EQ(gpu().compute_capability(), 90);
  const auto second = Gpu::open(1);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().status, Status::kNotFound);
  EXPECT_THAT(second.error().message, HasSubstr("cannot open GPU 1: CUDA_ERROR_INVALID_DEVICE"));
}

// A context takes hundreds of megabytes of a GPU: whoever only looks makes none.
TEST_F(OnFakeGpu, context_is_retained_by_the_first_mapping) {
  const cuda::Functions& call = gpu().driver().call;
  CUcontext primary = nullptr;
  ASSERT_EQ(call.primary_ctx_retain(&primary, 0), CUDA_SUCCESS);
  ASSERT_EQ(call.primary_ctx_release(0), CUDA_SUCCESS);
  EXPECT_EQ(call.ctx_push_current(primary), CUDA_ERROR_INVALID_CONTEXT) << "somebody else retains it";
  EXPECT_THAT(Gpu::in_use(), IsEmpty());
  Pages pages(1);
  const auto mapped = gpu().map(pages.data, pages.bytes);
  ASSERT_TRUE(mapped) << mapped.error().message;
  EXPECT_EQ(call.ctx_push_current(primary), CUDA_SUCCESS);
  EXPECT_EQ(call.ctx_pop_current(nullptr), CUDA_SUCCESS);
  EXPECT_THAT(Gpu::in_use(), ElementsAre("0000:F0:00.0"));
}

TEST_F(OnFakeGpu, mapping_lives_as_long_as_its_last_handle) {
  Pages pages(2);
  auto first = gpu().map(pages.data + 10, 100);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ((*first)->way(), MappingWay::kPlain);
  const auto other = Gpu::open();  // a handle of the same GPU knows of it
  auto second = other->map(pages.data, 4096);
  ASSERT_TRUE(second) << second.error().message;
  first->reset();
  EXPECT_TRUE(is_mapped(pages.data));
  second->reset();
  EXPECT_FALSE(is_mapped(pages.data));
  const auto again = gpu().map(pages.data, 4096);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_TRUE(is_mapped(pages.data));
}

TEST_F(OnFakeGpu, pages_of_another_mapping_are_refused) {
  Pages pages(2);
  const auto both = gpu().map(pages.data, pages.bytes);
  ASSERT_TRUE(both);
  const auto one = gpu().map(pages.data, 64);
  ASSERT_FALSE(one);
  EXPECT_THAT(one.error().message, HasSubstr("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"));
}

TEST_F(OnFakeGpu, way_forced_against_the_pages_says_to_leave_it_out) {
  Pages pages(1);
  const auto as_io = gpu().map(pages.data, 64, MappingChoice::kIoMemory);
  ASSERT_FALSE(as_io);
  EXPECT_THAT(as_io.error().message, AllOf(HasSubstr("IoMemory registration"), HasSubstr("ordinary pages"),
                                           HasSubstr("leave out GDX_GPU_MAPPING")));
  EXPECT_FALSE(is_mapped(pages.data));
}

TEST_F(OnFakeGpu, pages_that_it_sees_at_another_address_are_refused_and_not_kept) {
  Pages pages(1);
  setenv("GDX_FAKE_CUDA_HOST_OFFSET", "4096", 1);
  const auto elsewhere = gpu().map(pages.data, pages.bytes);
  unsetenv("GDX_FAKE_CUDA_HOST_OFFSET");
  ASSERT_FALSE(elsewhere);
  EXPECT_EQ(elsewhere.error().status, Status::kUnsupported);
  EXPECT_THAT(elsewhere.error().message, HasSubstr("CUDA_VISIBLE_DEVICES"));
  EXPECT_FALSE(is_mapped(pages.data));
  const auto again = gpu().map(pages.data, pages.bytes);
  EXPECT_TRUE(again) << again.error().message;
}

TEST_F(OnFakeGpu, device_pages_without_peer_mapping_name_the_module_option) {
  void* const io = cuda::io_page();
  if (io == nullptr) GTEST_SKIP() << cuda::kNoIoPage;
  {
    const auto mapped = gpu().map(io, 64);
    ASSERT_TRUE(mapped) << mapped.error().message;
    EXPECT_EQ((*mapped)->way(), MappingWay::kIoMemory);
  }
  setenv("GDX_FAKE_CUDA_PEER_MAPPING", "0", 1);
  const auto refused = gpu().map(io, 64);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr("CUDA_ERROR_NOT_PERMITTED"), HasSubstr("PeerMappingOverride=1")));
  const auto plain = gpu().map(io, 64, MappingChoice::kPlain);
  ASSERT_FALSE(plain);
  EXPECT_THAT(plain.error().message, HasSubstr("these are device pages"));
}

TEST(RelaxedStores, parameter_is_found_under_either_name) {
  const std::string strict =
      "EnableStreamMemOPs: 1\nEnablePCIERelaxedOrderingMode: 0\nRegistryDwords: \"PeerMappingOverride=1;\"\n";
  EXPECT_EQ(relaxed_ordering_in(strict), "");
  EXPECT_EQ(relaxed_ordering_in(""), "");
  EXPECT_EQ(relaxed_ordering_in("RegistryDwords: \"RmSetPCIERelaxedOrdering=0x0;\"\n"), "");
  EXPECT_EQ(relaxed_ordering_in("EnablePCIERelaxedOrderingMode: 1\n"), "EnablePCIERelaxedOrderingMode: 1");
  for (const char* line : {"RegistryDwords: \"A=1;RmSetPCIERelaxedOrdering=0x2;\"\n",
                           "RegistryDwordsPerDevice: \"pci=0000:3b:00.0;RmSetPCIERelaxedOrdering=0;"
                           "pci=0000:5e:00.0;RmSetPCIERelaxedOrdering=2\"\n"})
    EXPECT_EQ(relaxed_ordering_in(strict + line), "RmSetPCIERelaxedOrdering=2") << line;
}

// Files of the kernel below a folder.
class KernelFiles {
 public:
  KernelFiles() = default;
  ~KernelFiles() { std::filesystem::remove_all(root); }
  KernelFiles(const KernelFiles&) = delete;
  KernelFiles& operator=(const KernelFiles&) = delete;
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path, std::ios::binary) << text;
  }
  const std::string root = testing::TempDir() + "/kernel_files_" + std::to_string(getpid());
};

constexpr char kGpuConfig[] = "/sys/bus/pci/devices/0000:f0:00.0/config";
constexpr char kProcessors[] = "/proc/cpuinfo";
constexpr char kOfAMachine[] = "processor\t: 0\nflags\t\t: fpu sse2 nx\nbugs\t\t: hypervisor \n";
constexpr char kOfAVirtualMachine[] = "processor\t: 0\nflags\t\t: fpu sse2 hypervisor\nbugs\t\t:\n";

TEST(RelaxedStores, virtual_machine_is_told_by_the_flags_of_a_processor) {
  EXPECT_FALSE(may_be_virtual_machine(kOfAMachine));
  EXPECT_TRUE(may_be_virtual_machine(kOfAVirtualMachine));
  for (const char* const silent : {"processor\t: 0\nFeatures\t: fp asimd\n", ""})
    EXPECT_TRUE(may_be_virtual_machine(silent)) << "nothing says that it is none: " << silent;
}

// Only these GPUs' driver does as the hypervisor asks, which root can read and others must suppose.
TEST(RelaxedStores, hypervisor_may_ask_gpus_of_ampere_and_no_others) {
  const KernelFiles files;
  const auto cause = [&](int capability) {
    return relaxed_stores("0000:F0:00.0", capability, files.root).cause;
  };
  files.write(kProcessors, kOfAMachine);
  files.write(kGpuConfig, std::string(64, '\0'));
  for (const int capability : {80, 86, 90}) EXPECT_EQ(cause(capability), "") << "on no hypervisor";
  files.write(kProcessors, kOfAVirtualMachine);
  for (const int capability : {80, 86}) {
    EXPECT_THAT(cause(capability),
                AllOf(HasSubstr("a hypervisor that /proc/cpuinfo does not rule out"), HasSubstr(kGpuConfig)));
  }
  for (const int capability : {75, 87, 89, 90, 100}) EXPECT_EQ(cause(capability), "") << capability;
  std::string config(256, '\0');
  files.write(kGpuConfig, config);
  EXPECT_EQ(cause(80), "") << "root sees that it does not ask";
  config[0xe8] = 0x04;  // the speed of the root port
  files.write(kGpuConfig, config);
  EXPECT_EQ(cause(80), "");
  config[0xe8] = 0x14;
  files.write(kGpuConfig, config);
  EXPECT_EQ(cause(80), std::string("bit 4 at 0xe8 of ") + kGpuConfig);
  EXPECT_EQ(cause(90), "");
  files.write(kNvidiaParameters, "EnablePCIERelaxedOrderingMode: 1\n");
  EXPECT_EQ(cause(90), "EnablePCIERelaxedOrderingMode: 1 in /proc/driver/nvidia/params");
}

TEST_F(OnFakeGpu, relaxed_ordering_refuses_the_memory_of_the_nic_and_no_other) {
  const auto hca = Hca::open();
  ASSERT_TRUE(hca) << hca.error().message;
  auto nic = StagingPool::create(*hca);
  auto host = StagingPool::create(*hca, StagingOptions::in_host_memory());
  ASSERT_TRUE(nic && host);
  const KernelFiles files;
  files.write(kNvidiaParameters, "EnablePCIERelaxedOrderingMode: 1\n");
  const auto refused = nic->map_to(gpu(), files.root);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kUnsupported);
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr("EnablePCIERelaxedOrderingMode: 1 in /proc/driver/nvidia/params"),
                    HasSubstr("NVreg_EnablePCIERelaxedOrderingMode=0"), HasSubstr("another mode than push")));
  EXPECT_EQ(nic->map_if_allowed(gpu(), files.root), refused.error().message);
  EXPECT_FALSE(is_mapped(nic->base()));
  EXPECT_TRUE(host->map_to(gpu(), files.root));
  files.write(kNvidiaParameters, "EnablePCIERelaxedOrderingMode: 0\n");
  files.write(kProcessors, kOfAVirtualMachine);
  EXPECT_EQ(nic->map_if_allowed(gpu(), files.root), "");
  EXPECT_TRUE(is_mapped(nic->base()));
}

class OnFakeAmpere : public OnFakeGpu {
 protected:
  void SetUp() override {
    setenv("GDX_FAKE_CUDA_MAJOR", "8", 1);
    OnFakeGpu::SetUp();
    unsetenv("GDX_FAKE_CUDA_MAJOR");
  }
};

TEST_F(OnFakeAmpere, hypervisor_refuses_the_memory_of_the_nic_and_no_other) {
  const auto hca = Hca::open();
  ASSERT_TRUE(hca) << hca.error().message;
  auto nic = StagingPool::create(*hca);
  auto host = StagingPool::create(*hca, StagingOptions::in_host_memory());
  ASSERT_TRUE(nic && host);
  const KernelFiles files;
  files.write(kProcessors, kOfAVirtualMachine);
  EXPECT_THAT(nic->map_if_allowed(gpu(), files.root),
              AllOf(HasSubstr("cannot push: by a hypervisor"), HasSubstr("another mode than push")));
  EXPECT_FALSE(is_mapped(nic->base()));
  EXPECT_TRUE(host->map_to(gpu(), files.root));
  files.write(kProcessors, kOfAMachine);
  EXPECT_EQ(nic->map_if_allowed(gpu(), files.root), "");
  EXPECT_TRUE(is_mapped(nic->base()));
}

TEST_F(OnFakeGpu, endpoint_and_pool_mapped_their_pages_are_and_end_with_them) {
  const auto hca = Hca::open();
  ASSERT_TRUE(hca) << hca.error().message;
  auto pool = StagingPool::create(*hca);
  ASSERT_TRUE(pool) << pool.error().message;
  const auto pool_mapped = pool->map_to(gpu());
  ASSERT_TRUE(pool_mapped) << pool_mapped.error().message;
  EndpointHandle handle{};
  {
    auto endpoint = Endpoint::create(*hca, &*pool, {.slot_count = 4});
    ASSERT_TRUE(endpoint) << endpoint.error().message;
    const auto mapped = endpoint->map_to(gpu());
    ASSERT_TRUE(mapped) << mapped.error().message;
    handle = endpoint->handle();
    for (const void* const reached : pointers_of(handle)) {
      const bool of_the_gpu = reached == handle.state || reached == handle.staging.held;
      EXPECT_NE(is_mapped(reached), of_the_gpu) << reached;
    }
    EXPECT_EQ(endpoint->state().handle.state, handle.state) << "kernels read this copy";
  }
  EXPECT_FALSE(is_mapped(handle.send_queue));
  EXPECT_FALSE(is_mapped(handle.doorbell));
  EXPECT_TRUE(is_mapped(handle.staging.base)) << "the pool's, as long as the pool";
}

TEST_F(OnFakeGpu, peers_memory_is_mapped_as_long_as_the_mapping_and_ones_own_is_not) {
  const auto hca = Hca::open();
  ASSERT_TRUE(hca) << hca.error().message;
  std::vector<Memory> own;
  for (int region = 0; region < 4; ++region) {
    auto memory = allocate_shareable_memory(*hca, 100);
    ASSERT_TRUE(memory) << memory.error().message;
    own.push_back(std::move(*memory));
  }
  const test::LoopbackRoot root;
  test::run_ranks(2, [&](std::uint32_t rank) {
    auto world = World::join(root.options(rank, 2));
    ASSERT_TRUE(world) << world.error().message;
    const Memory* const offered[] = {&own[2 * rank], &own[2 * rank + 1]};
    std::optional<PeerMapping> mapping;
    {
      auto exchanged = PeerMapping::exchange(*world, offered, {.timeout_ns = test::kLongNs});
      ASSERT_TRUE(exchanged) << exchanged.error().message;
      mapping.emplace(std::move(*exchanged));
    }
    const std::vector<PeerWindow> theirs = mapping->windows(1 - rank);
    ASSERT_EQ(theirs.size(), 2u) << mapping->reason(1 - rank);
    EXPECT_FALSE(is_mapped(theirs[0].mapped));
    const auto mapped = mapping->map_to(gpu());
    EXPECT_TRUE(mapped) << mapped.error().message;
    for (int region = 0; region < 2; ++region) {
      EXPECT_TRUE(is_mapped(theirs[region].mapped));
      EXPECT_FALSE(is_mapped(offered[region]->data()));
    }
    ASSERT_TRUE(world->barrier(test::kLongNs)) << "no more pages come, which might have these addresses";
    mapping.reset();
    for (int region = 0; region < 2; ++region) EXPECT_FALSE(is_mapped(theirs[region].mapped));
  });
}

}  // namespace gpu_test
}  // namespace gdx
