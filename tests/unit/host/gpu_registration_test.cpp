// Registration of GPU memory: the whole table of choices, and the ways on the fake driver and the software
// HCA. The HCA takes dmabufs that a CPU can map, and all GPU memory by address. Requests to an HCA are
// recorded as well.
#include "host/memory/gpu_registration.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "host/gpu/gpu.h"
#include "host/gpu/gpu_memory.h"
#include "host/memory/memory.h"

namespace gdx {
namespace gpu_registration_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kHostPages = RegistrationWay::kHostPages;
constexpr auto kDataDirect = RegistrationWay::kDataDirect;
constexpr auto kDmabuf = RegistrationWay::kDmabuf;
constexpr auto kPeermem = RegistrationWay::kPeermem;
constexpr auto kRefused = RegistrationWay::kRefused;

// Rows for device memory: GPU exports, HCA imports, nvidia_peermem loaded; with choice auto, dmabuf, peermem.
struct Row {
  bool exports, imports, peermem;
  RegistrationWay by_choice[3];
};
constexpr Row kTable[] = {
    {false, false, false, {kRefused, kRefused, kRefused}},
    {false, false, true, {kPeermem, kRefused, kPeermem}},
    {false, true, false, {kRefused, kRefused, kRefused}},
    {false, true, true, {kPeermem, kRefused, kPeermem}},
    {true, false, false, {kRefused, kRefused, kRefused}},
    {true, false, true, {kPeermem, kRefused, kPeermem}},
    {true, true, false, {kDmabuf, kDmabuf, kRefused}},
    {true, true, true, {kDmabuf, kDmabuf, kPeermem}},
};
constexpr RegistrationChoice kChoices[] = {RegistrationChoice::kAuto, RegistrationChoice::kDmabuf,
                                           RegistrationChoice::kPeermem};

RegistrationFacts facts_of(const Row& row, PointerKind pointer, RegistrationChoice choice) {
  RegistrationFacts facts;
  facts.pointer = pointer;
  facts.gpu_exports_dmabuf = row.exports;
  facts.hca_imports_dmabuf = row.imports;
  facts.peermem_loaded = row.peermem;
  facts.choice = choice;
  return facts;
}

TEST(GpuRegistrationTable, every_row_decides_as_written) {
  for (const Row& row : kTable) {
    for (std::size_t i = 0; i < 3; ++i) {
      SCOPED_TRACE(::testing::Message() << row.exports << row.imports << row.peermem << " choice " << i);
      const auto device = facts_of(row, PointerKind::kDevice, kChoices[i]);
      EXPECT_EQ(decide_registration(device), row.by_choice[i]);
      EXPECT_EQ(decide_registration(facts_of(row, PointerKind::kHost, kChoices[i])), kHostPages);
      EXPECT_EQ(decide_registration(facts_of(row, PointerKind::kManaged, kChoices[i])), kRefused);
      if (row.by_choice[i] == kRefused) {
        EXPECT_NE(refusal_advice(device), "");
      }
    }
  }
}

TEST(GpuRegistrationTable, way_that_failed_gives_way_to_the_next) {
  for (const Row& row : kTable) {
    for (std::size_t i = 0; i < 3; ++i) {
      auto facts = facts_of(row, PointerKind::kDevice, kChoices[i]);
      facts.dmabuf_failed = true;
      EXPECT_EQ(decide_registration(facts), row.peermem && i != 1 ? kPeermem : kRefused);
      facts.peermem_failed = true;
      EXPECT_EQ(decide_registration(facts), kRefused);
    }
  }
}

TEST(GpuRegistrationTable, memory_whose_writes_come_out_of_order_is_for_reads_alone) {
  for (const Row& row : kTable) {
    for (std::size_t i = 0; i < 3; ++i) {
      auto facts = facts_of(row, PointerKind::kDevice, kChoices[i]);
      facts.write_order = WriteOrder::kBelowOwner;
      EXPECT_EQ(decide_registration(facts), row.by_choice[i]);
      facts.hca_writes = true;
      EXPECT_EQ(decide_registration(facts), kRefused);
      EXPECT_THAT(refusal_advice(facts), HasSubstr("WRITES_ORDERING below OWNER"));
    }
  }
}

TEST(GpuRegistrationTable, data_direct_is_for_what_the_hca_only_reads) {
  for (const Row& row : kTable) {
    for (std::size_t i = 0; i < 3; ++i) {
      auto facts = facts_of(row, PointerKind::kDevice, kChoices[i]);
      facts.hca_has_data_direct = true;
      const bool offered = row.exports && kChoices[i] == RegistrationChoice::kAuto;
      EXPECT_EQ(decide_registration(facts), offered ? kDataDirect : row.by_choice[i]);
      facts.hca_writes = true;
      EXPECT_EQ(decide_registration(facts), row.by_choice[i]) << "on another way than what announces it";
      facts.hca_writes = false;
      facts.data_direct_failed = true;
      EXPECT_EQ(decide_registration(facts), row.by_choice[i]);
    }
  }
}

TEST(GpuRegistrationTable, refusal_advises_on_each_way_that_was_not_tried) {
  RegistrationFacts facts{PointerKind::kDevice};
  EXPECT_THAT(refusal_advice(facts),
              AllOf(HasSubstr("open kernel modules"), HasSubstr("modprobe nvidia_peermem")));
  facts.gpu_exports_dmabuf = true;
  EXPECT_THAT(refusal_advice(facts),
              AllOf(HasSubstr("the HCA takes none"), HasSubstr("modprobe nvidia_peermem")));
  facts.choice = RegistrationChoice::kDmabuf;
  EXPECT_THAT(refusal_advice(facts), HasSubstr("nvidia_peermem: excluded by $GDX_GPU_REGISTRATION"));
  facts.choice = RegistrationChoice::kPeermem;
  EXPECT_THAT(refusal_advice(facts), HasSubstr("dmabuf: excluded by $GDX_GPU_REGISTRATION"));
  facts.pointer = PointerKind::kManaged;
  EXPECT_THAT(refusal_advice(facts), HasSubstr("use cudaMalloc"));
}

TEST(GpuRegistrationTable, choice_from_the_environment_is_checked) {
  unsetenv(kGpuRegistrationVariable);
  EXPECT_EQ(*registration_choice_from_environment(), RegistrationChoice::kAuto);
  for (const auto& [text, choice] : {std::pair{"auto", RegistrationChoice::kAuto},
                                     {"dmabuf", RegistrationChoice::kDmabuf},
                                     {"peermem", RegistrationChoice::kPeermem}}) {
    setenv(kGpuRegistrationVariable, text, 1);
    EXPECT_EQ(*registration_choice_from_environment(), choice) << text;
  }
  setenv(kGpuRegistrationVariable, "magic", 1);
  const auto unknown = registration_choice_from_environment();
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message, HasSubstr("'magic': use auto, dmabuf or peermem"));
  unsetenv(kGpuRegistrationVariable);
}

TEST(GpuRegistrationTable, peermem_is_seen_among_the_modules_under_either_name) {
  char folder[] = "/tmp/gdx_modules_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  EXPECT_FALSE(peermem_loaded(folder));
  for (const char* module : {"/nvidia_peermem", "/nv_peer_mem"}) {
    const std::string path = folder + std::string(module);
    ASSERT_EQ(mkdir(path.c_str(), 0755), 0);
    EXPECT_TRUE(peermem_loaded(folder)) << module;
    ASSERT_EQ(rmdir(path.c_str()), 0);
  }
  rmdir(folder);
}

// The last call to an HCA that would take dmabufs, and what it answers.
struct Recorded {
  std::uint64_t offset = 0;
  std::size_t bytes = 0;
  std::uint64_t iova = 0;
  bool descriptor_open = false;
  int access = 0;
  int error = 0;
  int peermem_calls = 0;
};
Recorded recorded;
ibv_mr recorded_mr{};

ibv_mr* record_dmabuf(ibv_pd*, std::uint64_t offset, std::size_t bytes, std::uint64_t iova, int descriptor,
                      int access) {
  struct stat file {};
  recorded.offset = offset;
  recorded.access = access;
  recorded.bytes = bytes;
  recorded.iova = iova;
  recorded.descriptor_open = fstat(descriptor, &file) == 0;
  errno = recorded.error;
  return recorded.error == 0 ? &recorded_mr : nullptr;
}
ibv_mr* record_peermem(ibv_pd*, void*, std::size_t, int) {
  ++recorded.peermem_calls;
  return &recorded_mr;
}
mlx5dv_devx_umem* record_umem(ibv_context*, void*, std::size_t, std::uint32_t) {
  ++recorded.peermem_calls;
  return nullptr;
}
mlx5dv_devx_umem* record_dmabuf_umem(ibv_context*, std::uint64_t offset, std::size_t bytes, int descriptor,
                                     std::uint32_t) {
  static_cast<void>(record_dmabuf(nullptr, offset, bytes, 0, descriptor, 0));
  errno = recorded.error;
  return nullptr;
}
constexpr RegistrationVerbs kRecordingVerbs{record_peermem, record_dmabuf, nullptr, record_umem,
                                            record_dmabuf_umem};

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// One HCA (software) and one GPU (the fake driver), both found by their names.
TEST(GpuRegistrationTable, order_of_writes_over_c2c_depends_on_the_way_to_the_hca) {
  for (const PathClass path : kPathClasses) {
    const bool beside = path == PathClass::kPix || path == PathClass::kPxb;
    EXPECT_EQ(write_order(true, true, path), beside ? WriteOrder::kTwoWays : WriteOrder::kKept) << name(path);
    EXPECT_EQ(write_order(true, false, path), WriteOrder::kKept) << name(path);
    EXPECT_EQ(write_order(false, false, path), WriteOrder::kBelowOwner) << name(path);
  }
  EXPECT_EQ(write_order(true, true, std::nullopt), WriteOrder::kTwoWays) << "a path that is not known";
  EXPECT_EQ(write_order(true, false, std::nullopt), WriteOrder::kKept);
  RegistrationFacts facts{.pointer = PointerKind::kDevice,
                          .gpu_exports_dmabuf = true,
                          .hca_imports_dmabuf = true,
                          .write_order = WriteOrder::kTwoWays};
  EXPECT_EQ(decide_registration(facts), RegistrationWay::kDmabuf) << "to be read";
  facts.hca_writes = true;
  EXPECT_EQ(decide_registration(facts), RegistrationWay::kRefused);
  EXPECT_THAT(refusal_advice(facts), HasSubstr("by C2C, and to the HCA by a PCIe switch"));
}

constexpr char kOnlyVmm[] = "GDX_FAKE_CUDA_ONLY_VMM_RDMA";

class RegisteredGpuMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"GDX_FAKE_CUDA_WRITES_ORDERING", "GDX_FAKE_CUDA_DMABUF",
                             "GDX_FAKE_CUDA_DMABUF_MAP", kOnlyVmm, kGpuRegistrationVariable})
      unsetenv(name);
    recorded = {};
    auto hca = Hca::open();
    ASSERT_TRUE(hca) << hca.error().message;
    hca_ = std::make_unique<Hca>(std::move(*hca));
  }
  void open_gpu() {
    auto gpu = Gpu::open();
    ASSERT_TRUE(gpu) << gpu.error().message;
    gpu_ = std::make_unique<Gpu>(std::move(*gpu));
  }
  void* allocate(std::size_t bytes) {
    if (!gpu_) open_gpu();
    CUdeviceptr address = 0;
    EXPECT_EQ(gpu_->run([&] { return gpu_->driver().call.mem_alloc(&address, bytes); }), CUDA_SUCCESS);
    return reinterpret_cast<void*>(address);
  }
  [[nodiscard]] RegistrationFacts facts() const {
    const auto read = read_registration_facts(*hca_, {PointerKind::kDevice, 0});
    EXPECT_TRUE(read) << read.error().message;
    return *read;
  }
  [[nodiscard]] const Hca& hca() const { return *hca_; }

  std::unique_ptr<Hca> hca_;
  std::unique_ptr<Gpu> gpu_;
};

TEST_F(RegisteredGpuMemory, facts_of_software_hca_and_fake_driver_are_read) {
  open_gpu();
  const auto read = facts();
  EXPECT_TRUE(read.gpu_exports_dmabuf);
  EXPECT_TRUE(read.hca_imports_dmabuf);
  EXPECT_TRUE(read.peermem_loaded) << "the software HCA stands for it";
  EXPECT_FALSE(read.hca_has_data_direct);
}

TEST_F(RegisteredGpuMemory, driver_that_exports_no_dmabuf_is_seen) {
  setenv("GDX_FAKE_CUDA_DMABUF", "0", 1);
  open_gpu();
  EXPECT_FALSE(facts().gpu_exports_dmabuf);
  const auto exported = gpu_->export_dmabuf(0x10000, 4096);
  ASSERT_FALSE(exported);
  EXPECT_EQ(exported.error().status, Status::kUnsupported);
}

TEST_F(RegisteredGpuMemory, host_memory_beside_a_driver_registered_as_host_pages) {
  open_gpu();
  const auto memory = allocate_memory(hca(), 4096);
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_EQ(memory->registered_by(), kHostPages);
}

TEST_F(RegisteredGpuMemory, pointer_of_a_thread_without_context_is_known) {
  void* const address = allocate(4096);
  const auto device = describe_pointer(gpu_->driver(), static_cast<char*>(address) + 4095);
  ASSERT_TRUE(device) << device.error().message;
  EXPECT_EQ(device->kind, PointerKind::kDevice);
  EXPECT_EQ(device->gpu, 0);
  int local = 0;
  EXPECT_EQ(describe_pointer(gpu_->driver(), &local)->kind, PointerKind::kHost);
}

TEST_F(RegisteredGpuMemory, no_way_register_memory_gives_every_reason) {
  setenv("GDX_FAKE_CUDA_DMABUF_MAP", "0", 1);
  setenv(kGpuRegistrationVariable, "dmabuf", 1);
  const auto memory = register_memory(hca(), allocate(8192), 8192);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().status, Status::kUnsupported);
  EXPECT_THAT(memory.error().message,
              AllOf(HasSubstr("cannot register 8192 bytes of GPU memory"), HasSubstr("dmabuf: HCA"),
                    HasSubstr("not supported"), HasSubstr("nvidia_peermem: excluded"), Not(HasSubstr("\n"))));
}

TEST_F(RegisteredGpuMemory, hca_that_refuses_the_dmabuf_reason_is_kept_and_peermem_next) {
  setenv("GDX_FAKE_CUDA_DMABUF_MAP", "0", 1);
  auto said = facts_of({true, true, false, {}}, PointerKind::kDevice, RegistrationChoice::kAuto);
  const GpuRegion region{allocate(4096), 4096, 0, 0};
  const auto refused = register_gpu_region(hca_verbs(), hca(), region, said);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, AllOf(HasSubstr("dmabuf: HCA"), HasSubstr("not supported"),
                                             HasSubstr("nvidia_peermem: not loaded")));
  const auto memory = register_memory(hca(), region.address, region.bytes);
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_EQ(memory->registered_by(), kPeermem);
}

// As on Grace. Both ways to the HCA lead to memory that was made for it, and to no other.
TEST_F(RegisteredGpuMemory, memory_of_gdx_serves_hcas_that_get_none_of_cumemalloc) {
  setenv(kOnlyVmm, "1", 1);
  void* const plain = allocate(1 << 16);
  for (const GpuUse use : {GpuUse::kShared, GpuUse::kPrivate}) {
    const auto made = GpuMemory::allocate(*gpu_, 1 << 16, use);
    ASSERT_TRUE(made) << made.error().message;
    const GpuRegion region{made->address(), made->bytes(), IBV_ACCESS_LOCAL_WRITE, 0};
    for (const auto& [name, way] : {std::pair{"dmabuf", kDmabuf}, {"peermem", kPeermem}}) {
      setenv(kGpuRegistrationVariable, name, 1);
      const auto taken = register_memory(hca(), made->address(), made->bytes());
      ASSERT_TRUE(taken) << taken.error().message;
      EXPECT_EQ(taken->registered_by(), way);
      const auto queues = register_gpu_umem(hca_verbs(), hca(), region, facts());
      ASSERT_TRUE(queues) << queues.error().message;
      EXPECT_EQ(queues->way, way);
      const auto refused = register_memory(hca(), plain, 1 << 16);
      ASSERT_FALSE(refused);
      EXPECT_THAT(refused.error().message, HasSubstr("make it by cuMemCreate with gpuDirectRDMACapable = 1"));
    }
  }
  const auto shared = share_gpu_region(hca(), {plain, 1 << 16, 0, 0},
                                       facts_of(kTable[7], PointerKind::kDevice, RegistrationChoice::kAuto));
  ASSERT_FALSE(shared);
  EXPECT_THAT(shared.error().message, HasSubstr("make it by cuMemCreate"));
}

TEST_F(RegisteredGpuMemory, range_beyond_the_allocation_gets_no_pages) {
  setenv(kGpuRegistrationVariable, "peermem", 1);
  constexpr std::size_t kBytes = 64 * 1024;
  auto* const first = static_cast<std::byte*>(allocate(kBytes));
  for (const std::size_t skipped : {0u, 4096u}) {
    EXPECT_TRUE(register_memory(hca(), first + skipped, kBytes - skipped)) << skipped;
    const auto refused = register_memory(hca(), first + skipped, kBytes - skipped + 1);
    ASSERT_FALSE(refused) << skipped;
    EXPECT_THAT(refused.error().message, AllOf(HasSubstr("nvidia_peermem: HCA"), HasSubstr("Bad address")));
  }
}

TEST_F(RegisteredGpuMemory, hca_that_takes_dmabufs_gets_pages_and_the_offset_within) {
  const auto address = reinterpret_cast<std::uintptr_t>(allocate(10'000)) + 100;
  const auto all = facts_of({true, true, true, {}}, PointerKind::kDevice, RegistrationChoice::kAuto);
  const std::size_t before = open_descriptors();
  const GpuRegion region{reinterpret_cast<void*>(address), 9'000, 0, 0};
  const auto done = register_gpu_region(kRecordingVerbs, hca(), region, all);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(done->way, kDmabuf);
  EXPECT_EQ(recorded.offset, address % 4096);
  EXPECT_EQ(recorded.bytes, 9'000u);
  EXPECT_EQ(recorded.iova, address);
  EXPECT_TRUE(recorded.descriptor_open);
  EXPECT_EQ(recorded.peermem_calls, 0);
  EXPECT_EQ(open_descriptors(), before) << "the registration holds its own reference";
}

std::size_t exported_bytes() {
  const auto ask = reinterpret_cast<std::size_t (*)()>(
      dlsym(dlopen("libcuda.so.1", RTLD_NOW), "gdx_fake_cuda_exported_bytes"));
  EXPECT_NE(ask, nullptr);
  return ask == nullptr ? 0 : ask();
}

// The first page to the last that the range touches, and none beyond.
TEST_F(RegisteredGpuMemory, ranges_of_any_alignment_get_the_pages_that_they_touch) {
  constexpr std::size_t kPage = 4096;
  const auto all = facts_of({true, true, true, {}}, PointerKind::kDevice, RegistrationChoice::kAuto);
  const auto start = reinterpret_cast<std::uintptr_t>(allocate(8 * kPage));
  const std::uintptr_t base = (start + kPage - 1) / kPage * kPage;
  for (const std::size_t skipped : {0, 1, 100, 4000, 4095, 4096, 8000}) {
    for (const std::size_t bytes : {1, 2, 96, 97, 4095, 4096, 4097, 8192, 10000}) {
      SCOPED_TRACE(::testing::Message() << bytes << " bytes at " << skipped);
      const GpuRegion region{reinterpret_cast<void*>(base + skipped), bytes, 0, 0};
      const std::size_t touched = (skipped + bytes - 1) / kPage - skipped / kPage + 1;
      ASSERT_TRUE(register_gpu_region(kRecordingVerbs, hca(), region, all));
      EXPECT_EQ(recorded.offset, skipped % kPage);
      EXPECT_EQ(recorded.bytes, bytes);
      EXPECT_EQ(exported_bytes(), touched * kPage);
      static_cast<void>(register_gpu_umem(kRecordingVerbs, hca(), region, all));
      EXPECT_EQ(recorded.offset, skipped % kPage);
      EXPECT_EQ(exported_bytes(), touched * kPage);
    }
  }
}

TEST_F(RegisteredGpuMemory, range_beyond_the_allocation_is_refused_by_the_driver) {
  const auto all = facts_of({true, true, false, {}}, PointerKind::kDevice, RegistrationChoice::kAuto);
  const GpuRegion region{allocate(4096), 1 << 20, 0, 0};
  const auto refused = register_gpu_region(kRecordingVerbs, hca(), region, all);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("CUDA_ERROR_INVALID_VALUE"));
}

TEST_F(RegisteredGpuMemory, hca_out_of_memory_tries_no_other_way) {
  const auto all = facts_of({true, true, true, {}}, PointerKind::kDevice, RegistrationChoice::kAuto);
  recorded.error = ENOMEM;
  const auto refused = register_gpu_region(kRecordingVerbs, hca(), {allocate(4096), 4096, 0, 0}, all);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kNoMemory);
  EXPECT_EQ(recorded.peermem_calls, 0);
}

// As of a chipset that the driver does not know, without a common switch.
TEST_F(RegisteredGpuMemory, driver_that_does_not_attach_the_hca_is_named_with_its_parameter) {
  auto facts = facts_of({true, true, false, {}}, PointerKind::kDevice, RegistrationChoice::kAuto);
  recorded.error = 524;
  const auto refused = register_gpu_region(kRecordingVerbs, hca(), {allocate(4096), 4096, 0, 0}, facts);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kUnsupported);
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr(kDmabufDetached), HasSubstr("NVreg_GrdmaPciTopoCheckOverride=1"),
                    HasSubstr("needs MLNX_OFED's peer-memory calls"), Not(HasSubstr("\n"))));
}

TEST_F(RegisteredGpuMemory, forced_way_is_obeyed_by_register_memory) {
  setenv(kGpuRegistrationVariable, "dmabuf", 1);
  void* const address = allocate(4096);
  const auto memory = register_memory(hca(), address, 4096);
  ASSERT_TRUE(memory) << memory.error().message;
  EXPECT_EQ(memory->registered_by(), kDmabuf);
  EXPECT_EQ(memory->remote().address, reinterpret_cast<std::uintptr_t>(address))
      << "peers name it as kernels do";
  setenv(kGpuRegistrationVariable, "peermem", 1);
  const auto by_address = register_memory(hca(), address, 4096);
  ASSERT_TRUE(by_address) << by_address.error().message;
  EXPECT_EQ(by_address->registered_by(), kPeermem);
}

TEST_F(RegisteredGpuMemory, order_of_writes_is_asked_and_decides_what_the_hca_may_write) {
  open_gpu();
  EXPECT_TRUE(gpu_->orders_rdma_writes());
  gpu_.reset();
  setenv("GDX_FAKE_CUDA_WRITES_ORDERING", "0", 1);
  open_gpu();
  EXPECT_FALSE(gpu_->orders_rdma_writes());
  EXPECT_EQ(facts().write_order, WriteOrder::kKept) << "the software HCA writes through the driver";
  auto of_hardware = facts();
  of_hardware.write_order = WriteOrder::kBelowOwner;
  void* const address = allocate(128 * 1024);
  const auto queues =
      register_gpu_umem(hca_verbs(), hca(), {address, 8192, IBV_ACCESS_LOCAL_WRITE, 0}, of_hardware);
  ASSERT_FALSE(queues);
  EXPECT_EQ(queues.error().status, Status::kUnsupported);
  EXPECT_THAT(queues.error().message, HasSubstr("WRITES_ORDERING below OWNER"));
  const auto source = register_gpu_region(hca_verbs(), hca(), {address, 8192, 0, 0}, of_hardware);
  ASSERT_TRUE(source) << source.error().message;
  ibv_dereg_mr(source->mr);
  unsetenv("GDX_FAKE_CUDA_WRITES_ORDERING");
}

TEST_F(RegisteredGpuMemory, relaxed_ordering_is_the_hcas_and_only_where_asked_for) {
  static_assert(static_cast<int>(Access::kRelaxedOrdering) == IBV_ACCESS_RELAXED_ORDERING);
  const auto all = facts_of({true, true, true, {}}, PointerKind::kDevice, RegistrationChoice::kAuto);
  void* const address = allocate(4096);
  const Access payload = Access::kLocalWrite | Access::kRemoteWrite | Access::kRemoteRead;
  for (const Access access : {Access::kAll, payload | Access::kRelaxedOrdering}) {
    const GpuRegion region{address, 4096, static_cast<int>(access), 0};
    ASSERT_TRUE(register_gpu_region(kRecordingVerbs, hca(), region, all));
    EXPECT_EQ(recorded.access, static_cast<int>(access));
  }
  EXPECT_TRUE(register_memory(hca(), address, 4096, payload | Access::kRelaxedOrdering));
  EXPECT_TRUE(allocate_memory(hca(), 4096, payload | Access::kRelaxedOrdering));
  const Access both = Access::kAll | Access::kRelaxedOrdering;
  for (const auto& refused : {register_memory(hca(), address, 4096, both), allocate_memory(hca(), 4096, both),
                              allocate_shareable_memory(hca(), 4096, both)}) {
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, HasSubstr("relaxed ordering permits no remote atomics"));
  }
}

TEST_F(RegisteredGpuMemory, umem_goes_the_same_ways) {
  const auto all = facts_of({true, true, true, {}}, PointerKind::kDevice, RegistrationChoice::kAuto);
  const auto address = reinterpret_cast<std::uintptr_t>(allocate(128 * 1024));
  const GpuRegion region{reinterpret_cast<void*>(address), 8192, IBV_ACCESS_LOCAL_WRITE, 0};
  const auto made = register_gpu_umem(hca_verbs(), hca(), region, all);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->way, kDmabuf);
  EXPECT_NE(made->umem->umem_id, 0u);
  recorded.error = EOPNOTSUPP;
  const auto refused = register_gpu_umem(kRecordingVerbs, hca(), region, all);
  ASSERT_FALSE(refused);
  EXPECT_EQ(recorded.offset, address % 4096);
  EXPECT_EQ(recorded.bytes, 8192u);
  EXPECT_TRUE(recorded.descriptor_open);
  EXPECT_EQ(recorded.peermem_calls, 1) << "the second way";
  EXPECT_THAT(refused.error().message, AllOf(HasSubstr("dmabuf: HCA"), HasSubstr("nvidia_peermem: HCA")));
}

}  // namespace gpu_registration_test
}  // namespace gdx
