// Memory of a GPU between processes, and its registration, for allocations that cuMemAlloc did not make:
// mapped ranges (VMM) of one or more allocations, and stream-ordered pools. On the fake driver, with two
// GPUs.
#include "host/direct/gpu_sharing.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "driver-shim/cuda/sharing.h"
#include "host/gpu/gpu.h"
#include "host/gpu/gpu_memory.h"
#include "host/hca/hca.h"
#include "host/memory/gpu_registration.h"
#include "tests/open_files.h"

namespace gdx {
namespace gpu_sharing_test {

using test::open_files;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kChunk = 2u << 20;  // an allocation's granularity

// Allocations mapped one after another, as a program that grows a buffer maps them.
class Range {
 public:
  Range(const Gpu& gpu, std::size_t reserved_chunks) : gpu_(gpu), reserved_(reserved_chunks * kChunk) {
    EXPECT_EQ(call().mem_address_reserve(&base_, reserved_, 0, 0, 0), CUDA_SUCCESS);
  }
  ~Range() {
    CUdeviceptr at = base_;
    for (const std::size_t bytes : parts_) {
      EXPECT_EQ(call().mem_unmap(at, bytes), CUDA_SUCCESS);
      at += bytes;
    }
    EXPECT_EQ(call().mem_address_free(base_, reserved_), CUDA_SUCCESS);
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

  void add(std::size_t chunks, int device = 0, bool shareable = true) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes =
        shareable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    CUmemGenericAllocationHandle handle = 0;
    ASSERT_EQ(call().mem_create(&handle, chunks * kChunk, &properties, 0), CUDA_SUCCESS);
    ASSERT_EQ(call().mem_map(base_ + mapped_, chunks * kChunk, 0, handle, 0), CUDA_SUCCESS);
    ASSERT_EQ(call().mem_release(handle), CUDA_SUCCESS);  // the mapping keeps it
    parts_.push_back(chunks * kChunk);
    mapped_ += chunks * kChunk;
  }
  [[nodiscard]] CUdeviceptr base() const { return base_; }
  [[nodiscard]] void* at(std::size_t offset) const { return reinterpret_cast<void*>(base_ + offset); }
  [[nodiscard]] static const cuda::SharingFunctions& call() { return **cuda::sharing(); }

 private:
  Gpu gpu_;
  std::size_t reserved_;
  CUdeviceptr base_ = 0;
  std::size_t mapped_ = 0;
  std::vector<std::size_t> parts_;
};

// Returns the file in which the fake driver keeps the bytes at `address`; 0: nothing is mapped there.
ino_t file_behind(CUdeviceptr address) {
  CUmemGenericAllocationHandle handle = 0;
  if (Range::call().mem_retain_allocation_handle(&handle, reinterpret_cast<void*>(address)) != CUDA_SUCCESS)
    return 0;
  int file = -1;
  EXPECT_EQ(Range::call().mem_export_to_shareable_handle(&file, handle,
                                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(Range::call().mem_release(handle), CUDA_SUCCESS);
  const Descriptor closing(file);
  struct stat found {};
  EXPECT_EQ(fstat(file, &found), 0);
  return found.st_ino;
}

class GpuSharing : public ::testing::Test {
 protected:
  void SetUp() override {
    unsetenv("GDX_FAKE_CUDA_PEER_ATOMICS");
    for (int ordinal : {0, 1}) {
      auto gpu = Gpu::open(ordinal);
      ASSERT_TRUE(gpu) << gpu.error().message;
      gpus_.push_back(std::move(*gpu));
    }
  }
  [[nodiscard]] const Gpu& gpu(std::size_t ordinal = 0) const { return gpus_[ordinal]; }
  // Offer to a peer of `bytes` at `address`.
  struct Offered {
    peer::Offer offer{};
    Result<std::vector<Descriptor>> files;
  };
  static Offered offer(const void* address, std::size_t bytes) {
    peer::Offer offer{};
    offer.region = {reinterpret_cast<std::uintptr_t>(address), bytes, 7, 0};
    auto files = offer_gpu_memory(address, bytes, offer);
    return {offer, std::move(files)};
  }

 private:
  std::vector<Gpu> gpus_;
};

TEST_F(GpuSharing, range_of_several_allocations_is_mapped_by_the_peer_in_one_piece) {
  Range range(gpu(), 8);
  range.add(1);
  range.add(3);
  range.add(2);
  const std::size_t before = open_files();
  {
    auto offered = offer(range.at(kChunk / 2 + 8), 4 * kChunk);
    ASSERT_TRUE(offered.files) << offered.files.error().message;
    EXPECT_EQ(offered.offer.kind, peer::OfferKind::kGpuParts);
    EXPECT_EQ(offered.offer.offset, kChunk / 2 + 8);
    ASSERT_EQ(offered.offer.part_count, 3u);
    for (const Descriptor& file : *offered.files) EXPECT_NE(fcntl(file.value(), F_GETFD) & FD_CLOEXEC, 0);
    auto mapped = map_gpu_memory(gpu(), offered.offer, *offered.files);
    ASSERT_TRUE(mapped) << mapped.error().message;
    offered.files->clear();  // mapped memory needs no file
    const auto first = reinterpret_cast<CUdeviceptr>(mapped->first);
    EXPECT_NE(first, range.base() + kChunk / 2 + 8);
    for (const std::size_t at : {std::size_t{0}, kChunk, 3 * kChunk, 4 * kChunk - 1}) {
      EXPECT_NE(file_behind(first + at), 0u);
      EXPECT_EQ(file_behind(first + at), file_behind(range.base() + kChunk / 2 + 8 + at)) << at;
    }
    mapped->pages.reset();
    EXPECT_EQ(file_behind(first), 0u) << "unmapped with its last user";
  }
  EXPECT_EQ(open_files(), before);
}

TEST_F(GpuSharing, memory_of_gdx_is_shared_by_its_file_unless_it_is_private) {
  auto memory = GpuMemory::allocate(gpu(), 3 * kChunk);
  ASSERT_TRUE(memory) << memory.error().message;
  auto offered = offer(memory->address(), memory->bytes());
  ASSERT_TRUE(offered.files) << offered.files.error().message;
  EXPECT_EQ(offered.offer.kind, peer::OfferKind::kGpuParts);
  EXPECT_EQ(offered.offer.part_count, 1u);
  const auto mapped = map_gpu_memory(gpu(1), offered.offer, *offered.files);
  ASSERT_TRUE(mapped) << mapped.error().message;
  EXPECT_EQ(file_behind(reinterpret_cast<CUdeviceptr>(mapped->first)),
            file_behind(reinterpret_cast<CUdeviceptr>(memory->address())));
  const auto queues = GpuMemory::allocate(gpu(), 1, GpuUse::kPrivate);
  ASSERT_TRUE(queues) << queues.error().message;
  EXPECT_THAT(offer(queues->address(), 1).files.error().message, HasSubstr("POSIX_FILE_DESCRIPTOR"));
}

TEST_F(GpuSharing, memory_outlives_its_owner) {
  auto range = std::make_unique<Range>(gpu(), 1);
  range->add(1);
  auto offered = offer(range->at(0), kChunk);
  ASSERT_TRUE(offered.files);
  const auto mapped = map_gpu_memory(gpu(), offered.offer, *offered.files);
  ASSERT_TRUE(mapped);
  const ino_t file = file_behind(range->base());
  range.reset();
  EXPECT_EQ(file_behind(reinterpret_cast<CUdeviceptr>(mapped->first)), file);
}

TEST_F(GpuSharing, what_cannot_be_shared_is_refused_with_advice) {
  Range range(gpu(), 12);
  range.add(1, 0, false);
  EXPECT_THAT(offer(range.at(0), kChunk).files.error().message,
              HasSubstr("POSIX_FILE_DESCRIPTOR: ask for it"));
  CUdeviceptr pooled = 0;
  ASSERT_EQ(gpu().run([&] { return Range::call().mem_alloc_async(&pooled, kChunk, nullptr); }), CUDA_SUCCESS);
  EXPECT_THAT(offer(reinterpret_cast<void*>(pooled), kChunk).files.error().message,
              AllOf(HasSubstr("stream-ordered pool"), HasSubstr("use cudaMalloc")));
  ASSERT_EQ(gpu().run([&] { return Range::call().mem_free_async(pooled, nullptr); }), CUDA_SUCCESS);
  Range many(gpu(), peer::kMaxParts + 1);
  for (std::size_t i = 0; i <= peer::kMaxParts; ++i) many.add(1);
  EXPECT_TRUE(offer(many.at(0), peer::kMaxParts * kChunk).files);
  EXPECT_THAT(offer(many.at(0), peer::kMaxParts * kChunk + 1).files.error().message, HasSubstr("in pieces"));
  Range hole(gpu(), 2);
  hole.add(1);
  EXPECT_THAT(offer(hole.at(0), kChunk + 1).files.error().message, HasSubstr("nothing is mapped"));
}

TEST_F(GpuSharing, what_no_honest_peer_offers_is_refused_and_leaves_nothing) {
  Range range(gpu(), 2);
  range.add(2);
  auto offered = offer(range.at(0), 2 * kChunk);
  ASSERT_TRUE(offered.files);
  const std::size_t before = open_files();
  const auto refusal = [&](auto change) {
    peer::Offer bad = offered.offer;
    change(bad);
    const auto mapped = map_gpu_memory(gpu(), bad, *offered.files);
    return mapped ? std::string("mapped") : mapped.error().message;
  };
  EXPECT_EQ(refusal([](peer::Offer&) {}), "mapped");
  EXPECT_THAT(refusal([](peer::Offer& o) { o.region.bytes += 1; }), HasSubstr("longer than its parts"));
  EXPECT_THAT(refusal([](peer::Offer& o) { o.offset = 1; }), HasSubstr("longer than its parts"));
  EXPECT_THAT(refusal([](peer::Offer& o) { o.offset = ~std::uint64_t{0}; }),
              HasSubstr("longer than its parts"));
  EXPECT_THAT(refusal([](peer::Offer& o) { o.part_bytes[0] = 0; }), HasSubstr("a part's length"));
  EXPECT_THAT(refusal([](peer::Offer& o) { o.part_bytes[0] += kChunk; }),
              HasSubstr("CUDA_ERROR_INVALID_VALUE"))
      << "more than its file has";
  EXPECT_THAT(refusal([](peer::Offer& o) {
                o.part_bytes[0] -= 4096;
                o.region.bytes = 8;
              }),
              HasSubstr("CUDA_ERROR_INVALID_VALUE"));
  EXPECT_THAT(refusal([](peer::Offer& o) { o.kind = peer::OfferKind::kGpuIpc; }),
              HasSubstr("IPC with files"));
  std::vector<Descriptor> other;
  other.emplace_back(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_THAT(map_gpu_memory(gpu(), offered.offer, other).error().message,
              HasSubstr("does not take its memory"));
  EXPECT_THAT(map_gpu_memory(gpu(), offered.offer, {}).error().message, HasSubstr("number of parts"));
  other.clear();
  EXPECT_EQ(open_files(), before);
}

TEST_F(GpuSharing, other_gpus_memory_is_mapped_only_where_atomics_reach_it) {
  Range range(gpu(1), 1);
  range.add(1, 1);
  auto offered = offer(range.at(0), kChunk);
  ASSERT_TRUE(offered.files) << offered.files.error().message;
  EXPECT_TRUE(map_gpu_memory(gpu(0), offered.offer, *offered.files));
  setenv("GDX_FAKE_CUDA_PEER_ATOMICS", "0", 1);
  const auto refused = map_gpu_memory(gpu(0), offered.offer, *offered.files);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("GPUs 0 and 1 have no atomics between them"));
  EXPECT_TRUE(map_gpu_memory(gpu(1), offered.offer, *offered.files));
  unsetenv("GDX_FAKE_CUDA_PEER_ATOMICS");
}

TEST_F(GpuSharing, ipc_handle_of_ones_own_process_is_refused_by_the_driver) {
  CUdeviceptr address = 0;
  ASSERT_EQ(gpu().run([&] { return gpu().driver().call.mem_alloc(&address, 10'000); }), CUDA_SUCCESS);
  const auto offered = offer(reinterpret_cast<void*>(address + 100), 9'900);
  ASSERT_TRUE(offered.files) << offered.files.error().message;
  EXPECT_EQ(offered.offer.kind, peer::OfferKind::kGpuIpc);
  EXPECT_EQ(offered.offer.offset, 100u);
  EXPECT_THAT(map_gpu_memory(gpu(), offered.offer, {}).error().message,
              HasSubstr("CUDA_ERROR_INVALID_CONTEXT"));
}

// A process that has an allocation, offers it, and keeps it until told. Made before this process knows of a
// GPU.
class Owner {
 public:
  Owner() {
    int up[2];
    int down[2];
    EXPECT_EQ(pipe2(up, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(down, O_CLOEXEC), 0);
    child_ = fork();
    if (child_ == 0) {
      close(down[1]);
      own(up[1], down[0]);
    }
    close(up[1]);
    close(down[0]);
    EXPECT_EQ(read(up[0], &offer_, sizeof offer_), static_cast<ssize_t>(sizeof offer_));
    close(up[0]);
    until_ = Descriptor(down[1]);
  }
  ~Owner() {
    until_.close();
    int status = 0;
    EXPECT_EQ(waitpid(child_, &status, 0), child_);
    EXPECT_EQ(status, 0);
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  [[nodiscard]] const peer::Offer& offer() const { return offer_; }

 private:
  [[noreturn]] static void own(int up, int down) {
    const auto gpu = Gpu::open();
    CUdeviceptr address = 0;
    if (!gpu || gpu->run([&] { return gpu->driver().call.mem_alloc(&address, 10'000); }) != CUDA_SUCCESS)
      _exit(1);
    peer::Offer offer{};
    offer.region = {address + 100, 9'900, 7, 0};
    if (!offer_gpu_memory(reinterpret_cast<void*>(address + 100), 9'900, offer)) _exit(2);
    if (write(up, &offer, sizeof offer) != static_cast<ssize_t>(sizeof offer)) _exit(3);
    char byte = 0;
    _exit(read(down, &byte, 1) == 0 ? 0 : 4);
  }

  pid_t child_ = -1;
  peer::Offer offer_{};
  Descriptor until_;
};

TEST(GpuIpc, allocation_of_another_process_is_opened_once_and_closed_with_its_last_user) {
  const Owner owner;
  const auto gpu = Gpu::open();
  ASSERT_TRUE(gpu) << gpu.error().message;
  const std::size_t before = open_files();
  auto first = map_gpu_memory(*gpu, owner.offer(), {});
  ASSERT_TRUE(first) << first.error().message;
  auto second = map_gpu_memory(*gpu, owner.offer(), {});
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_EQ(first->first, second->first);
  EXPECT_EQ(describe_pointer(gpu->driver(), first->first)->kind, PointerKind::kDevice);
  first->pages.reset();
  EXPECT_EQ(describe_pointer(gpu->driver(), second->first)->kind, PointerKind::kDevice);
  second->pages.reset();
  EXPECT_EQ(describe_pointer(gpu->driver(), second->first)->kind, PointerKind::kHost) << "it is nobody's";
  EXPECT_EQ(open_files(), before);
  peer::Offer bad = owner.offer();
  bad.region.bytes += 1;
  EXPECT_THAT(map_gpu_memory(*gpu, bad, {}).error().message, HasSubstr("longer than its allocation"));
  bad.ipc_handle[0] ^= 1;
  EXPECT_THAT(map_gpu_memory(*gpu, bad, {}).error().message, HasSubstr("CUDA_ERROR_INVALID_VALUE"));
}

// The last call to an HCA that takes dmabufs.
struct Asked {
  std::uint64_t offset = 0;
  std::size_t bytes = 0;
  std::uint64_t iova = 0;
  int by_peermem = 0;
};
Asked asked;
ibv_mr answer{};
constexpr RegistrationVerbs kRecordingVerbs{
    [](ibv_pd*, void*, std::size_t, int) {
      ++asked.by_peermem;
      return &answer;
    },
    [](ibv_pd*, std::uint64_t offset, std::size_t bytes, std::uint64_t iova, int descriptor, int) {
      struct stat found {};
      EXPECT_EQ(fstat(descriptor, &found), 0);
      asked.offset = offset;
      asked.bytes = bytes;
      asked.iova = iova;
      return &answer;
    },
    nullptr, nullptr, nullptr};  // no Data Direct and no umems here

TEST_F(GpuSharing, mapped_ranges_and_pools_go_through_the_registration_table) {
  const auto hca = Hca::open();
  ASSERT_TRUE(hca) << hca.error().message;
  RegistrationFacts facts;
  facts.pointer = PointerKind::kDevice;
  facts.gpu_exports_dmabuf = facts.hca_imports_dmabuf = true;
  const auto registered = [&](void* address, std::size_t bytes) {
    asked = {};
    EXPECT_EQ(describe_pointer(gpu().driver(), address)->kind, PointerKind::kDevice);
    return register_gpu_region(kRecordingVerbs, *hca, {address, bytes, 0, 0}, facts);
  };
  Range range(gpu(), 4);
  range.add(1);
  range.add(2);
  const auto whole = registered(range.at(100), 3 * kChunk - 200);
  ASSERT_TRUE(whole) << whole.error().message;
  EXPECT_EQ(whole->way, RegistrationWay::kDmabuf);
  EXPECT_EQ(asked.offset, 100u);
  EXPECT_EQ(asked.bytes, 3 * kChunk - 200);
  EXPECT_EQ(asked.iova, range.base() + 100);
  EXPECT_THAT(registered(range.at(0), 4 * kChunk).error().message, HasSubstr("CUDA_ERROR_INVALID_VALUE"))
      << "a hole";
  range.add(1, 0, false);
  EXPECT_THAT(registered(range.at(0), 4 * kChunk).error().message, HasSubstr("CUDA_ERROR_INVALID_VALUE"))
      << "allocations that are not alike";

  CUdeviceptr pooled = 0;
  ASSERT_EQ(gpu().run([&] { return Range::call().mem_alloc_async(&pooled, kChunk, nullptr); }), CUDA_SUCCESS);
  const auto refused = registered(reinterpret_cast<void*>(pooled), kChunk);
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr("dmabuf: GPU 0 exports no dmabuf"), HasSubstr("nvidia_peermem: not loaded")));
  facts.peermem_loaded = true;
  const auto by_peermem = registered(reinterpret_cast<void*>(pooled), kChunk);
  ASSERT_TRUE(by_peermem) << by_peermem.error().message;
  EXPECT_EQ(by_peermem->way, RegistrationWay::kPeermem);
  EXPECT_EQ(asked.by_peermem, 1);
  ASSERT_EQ(gpu().run([&] { return Range::call().mem_free_async(pooled, nullptr); }), CUDA_SUCCESS);
}

}  // namespace gpu_sharing_test
}  // namespace gdx
