// Queues, payload and signals in GPU memory: of the fake driver, which faults where anybody touches it.
// Kernels are of the CPU layer; they reach that memory at other addresses, where the fake driver shows it to
// them. Each pointer from the host to a kernel is exchanged first. Host and HCA get no such help.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "device/endpoint.h"
#include "host/gdx.h"
#include "host/gpu/gpu_memory.h"

namespace gdx {
namespace gpu_memory_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kBufferBytes = 256 * 1024;
constexpr std::size_t kSignalAt = kBufferBytes - 64;
constexpr std::uint32_t kSlots = 16;

// Returns the address for kernels of memory at `address`; host memory keeps its address.
template <typename T>
T* seen_by_kernels(T* address) {
  using Seen = void* (*)(CUdeviceptr);
  static const Seen seen =
      reinterpret_cast<Seen>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "gdx_fake_cuda_seen_by_kernels"));
  if (seen == nullptr || address == nullptr) return address;
  void* const there = seen(reinterpret_cast<CUdeviceptr>(address));
  return there != nullptr ? static_cast<T*>(there) : address;
}

std::byte pattern(std::size_t i) { return static_cast<std::byte>(i * 7 + i / 251); }

struct GpuSide {
  std::unique_ptr<GpuMemory> buffer;
  std::unique_ptr<Memory> registered;
  std::unique_ptr<Endpoint> endpoint;
  RemoteMemory peer{};

  [[nodiscard]] LocalMemory local() const { return registered->local(); }
  // Returns memory that kernels load from themselves.
  [[nodiscard]] LocalMemory loadable() const {
    return {seen_by_kernels(registered->data()), kBufferBytes, registered->lkey(), 0};
  }
  [[nodiscard]] std::uint64_t* signal() const {
    return reinterpret_cast<std::uint64_t*>(seen_by_kernels(registered->data() + kSignalAt));
  }
  [[nodiscard]] std::vector<std::byte> bytes(std::size_t count) const {
    std::vector<std::byte> read(count);
    EXPECT_TRUE(buffer->read(0, read));
    return read;
  }
  // The handle as a kernel of the GPU would have it, and the copy in the queue's memory with it.
  [[nodiscard]] EndpointHandle handle() const {
    EndpointHandle handle = endpoint->handle();
    handle.send_queue = seen_by_kernels(handle.send_queue);
    handle.completion_queue = seen_by_kernels(handle.completion_queue);
    handle.send_record = seen_by_kernels(handle.send_record);
    handle.state = seen_by_kernels(handle.state);
    handle.owner = seen_by_kernels(handle.owner);
    handle.staging.held = seen_by_kernels(handle.staging.held);
    handle.bounce.held = seen_by_kernels(handle.bounce.held);
    handle.state->handle = handle;
    return handle;
  }
};

// By a dmabuf the software HCA maps the memory; by its address it must use copies.
struct Way {
  const char* name;
  RegistrationWay way;
};

class InGpuMemory : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    for (const char* name : {"GDX_FAKE_CUDA_DMABUF", "GDX_FAKE_CUDA_DMABUF_MAP", kGpuRegistrationVariable})
      unsetenv(name);
    setenv(kGpuRegistrationVariable, GetParam().name, 1);
    auto hca = Hca::open();
    ASSERT_TRUE(hca) << hca.error().message;
    hca_ = std::make_unique<Hca>(std::move(*hca));
    auto gpu = Gpu::open();
    ASSERT_TRUE(gpu) << gpu.error().message;
    gpu_ = std::make_unique<Gpu>(std::move(*gpu));
    auto staging = StagingPool::create(*hca_);
    ASSERT_TRUE(staging) << staging.error().message;
    staging_ = std::make_unique<StagingPool>(std::move(*staging));
    auto bounce = StagingPool::create(*hca_, StagingOptions::in_host_memory());
    ASSERT_TRUE(bounce) << bounce.error().message;
    bounce_ = std::make_unique<StagingPool>(std::move(*bounce));
  }

  [[nodiscard]] EndpointOptions options() const {
    EndpointOptions options;
    options.placement = Placement::kGpu;
    options.gpu = *gpu_;
    return options;
  }

  void connect(const EndpointOptions& chosen) {
    for (GpuSide* const side : {&a_, &b_}) {
      auto buffer = GpuMemory::allocate(*gpu_, kBufferBytes);
      ASSERT_TRUE(buffer) << buffer.error().message;
      ASSERT_TRUE(buffer->write(0, std::vector<std::byte>(kBufferBytes)));
      auto registered = register_memory(*hca_, buffer->address(), kBufferBytes);
      ASSERT_TRUE(registered) << registered.error().message;
      auto endpoint = Endpoint::create(*hca_, {staging_.get(), bounce_.get()}, chosen);
      ASSERT_TRUE(endpoint) << endpoint.error().message;
      side->buffer = std::make_unique<GpuMemory>(std::move(*buffer));
      side->registered = std::make_unique<Memory>(std::move(*registered));
      side->endpoint = std::make_unique<Endpoint>(std::move(*endpoint));
    }
    ASSERT_TRUE(a_.endpoint->connect(b_.endpoint->address()));
    ASSERT_TRUE(b_.endpoint->connect(a_.endpoint->address()));
    a_.peer = b_.registered->remote();
    b_.peer = a_.registered->remote();
  }

  void fill_a() {
    std::vector<std::byte> written(kSignalAt);
    for (std::size_t i = 0; i < written.size(); ++i) written[i] = pattern(i);
    ASSERT_TRUE(a_.buffer->write(0, written));
  }

  template <Scope S = Scope::kThread, typename Body>
  void in_kernel(const GpuSide& side, Body body, unsigned threads = 1) {
    const auto kernel = [&](EndpointHandle handle) {
      device::Endpoint<S, Placement::kGpu> endpoint(handle);
      body(endpoint);
    };
    ASSERT_EQ(exec::launch({.block = {threads}, .progress = progress}, kernel, side.handle()), Status::kOk);
  }

  // Puts and signals in mode M; the other side's kernel waits for the signal, and then all bytes must be
  // there.
  template <Mode M>
  void put_and_check(std::uint64_t bytes, std::uint64_t sequence) {
    fill_a();
    const LocalMemory from = M == Mode::kPull ? a_.local() : a_.loadable();
    in_kernel<Scope::kWarp>(
        a_,
        [&](auto& ep) {
          ASSERT_EQ(gdx_put_signal<M>(ep, a_.peer, from, bytes, a_.peer + kSignalAt, sequence), Status::kOk);
          ASSERT_EQ(gdx_flush(ep), Status::kOk);
        },
        kWarpThreads);
    in_kernel(
        b_, [&](auto& ep) { ASSERT_EQ(gdx_wait(ep, b_.signal(), Compare::kEqual, sequence), Status::kOk); });
    EXPECT_EQ(b_.bytes(bytes), a_.bytes(bytes));
    EXPECT_EQ(b_.bytes(bytes + 1).back(), std::byte{0}) << "and no more";
  }

  std::unique_ptr<Hca> hca_;
  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<StagingPool> staging_;
  std::unique_ptr<StagingPool> bounce_;
  GpuSide a_;
  GpuSide b_;
};

TEST_P(InGpuMemory, pull_and_signal_arrive) {
  connect(options());
  EXPECT_EQ(a_.endpoint->queues_registered_by(), GetParam().way);
  EXPECT_EQ(a_.registered->registered_by(), GetParam().way);
  put_and_check<Mode::kPull>(8, 1);
  put_and_check<Mode::kPull>(100'001, 2);
}

TEST_P(InGpuMemory, push_bounce_and_inline_arrive_and_counters_are_read_back) {
  EndpointOptions chosen = options();
  chosen.slot_count = kSlots;
  chosen.bounce_slot_count = kSlots;
  connect(chosen);
  put_and_check<Mode::kInline>(200, 1);
  put_and_check<Mode::kPush>(100'001, 2);
  put_and_check<Mode::kBounce>(200'001, 3);
  const QueueState state = a_.endpoint->state();
  EXPECT_EQ(state.messages, 6u) << "three puts and their signals";
  EXPECT_EQ(state.producer, state.completed);
  EXPECT_GE(state.staging.filled, 100'001u / staging_->slot_bytes());
  EXPECT_EQ(hca_->counter("softhca_staging_violations").value(), 0u);
}

// The doorbell that covers the pushes is of GPU scope by itself, and not in every round the same call's.
TEST_P(InGpuMemory, pushes_arrive_behind_one_doorbell_of_another_call) {
  constexpr std::uint64_t kPuts = 16;
  constexpr std::uint64_t kBytes = 1000;
  EndpointOptions chosen = options();
  chosen.slot_count = kPuts;
  connect(chosen);
  fill_a();
  for (std::uint64_t round = 1; round <= 4; ++round) {
    ASSERT_TRUE(b_.buffer->write(0, std::vector<std::byte>(kSignalAt)));
    in_kernel<Scope::kWarp>(
        a_,
        [&](auto& ep) {
          for (std::uint64_t i = 0; i < kPuts; ++i) {
            const LocalMemory from = a_.loadable() + i * kBytes;
            ASSERT_EQ(gdx_put<Mode::kPush>(ep, a_.peer + i * kBytes, from, kBytes, Doorbell::kDefer),
                      Status::kOk);
          }
          if (round % 2 == 0) {
            const LocalMemory rest = a_.local() + kPuts * kBytes;
            ASSERT_EQ(gdx_put<Mode::kPull>(ep, a_.peer + kPuts * kBytes, rest, 1), Status::kOk);
          }
          ASSERT_EQ(gdx_signal(ep, a_.peer + kSignalAt, round), Status::kOk);
          ASSERT_EQ(gdx_flush(ep), Status::kOk);
        },
        kWarpThreads);
    in_kernel(b_,
              [&](auto& ep) { ASSERT_EQ(gdx_wait(ep, b_.signal(), Compare::kEqual, round), Status::kOk); });
    EXPECT_EQ(b_.bytes(kPuts * kBytes), a_.bytes(kPuts * kBytes));
  }
  EXPECT_EQ(hca_->counter("softhca_staging_violations").value(), 0u);
}

TEST_P(InGpuMemory, ring_of_the_fewest_blocks_wraps_many_times) {
  EndpointOptions chosen = options();
  chosen.send_queue_blocks = kMinSendQueueBlocks;
  connect(chosen);
  in_kernel(a_, [&](auto& ep) {
    for (std::uint64_t i = 1; i <= 200; ++i) ASSERT_EQ(gdx_signal(ep, a_.peer + kSignalAt, i), Status::kOk);
    ASSERT_EQ(gdx_fetch_add(ep, a_.local() + 8, a_.peer + kSignalAt, 5), Status::kOk);
    ASSERT_EQ(gdx_flush(ep), Status::kOk);
  });
  EXPECT_EQ(*b_.signal(), 205u);
  std::uint64_t original = 0;
  ASSERT_TRUE(a_.buffer->read(8, std::as_writable_bytes(std::span(&original, 1))));
  EXPECT_EQ(original, 200u);
  EXPECT_EQ(a_.endpoint->state().completed, 201u);
}

TEST_P(InGpuMemory, wrong_key_is_a_fault_that_the_host_reads_back) {
  connect(options());
  RemoteMemory wrong = a_.peer;
  wrong.rkey = wrong.rkey ^ 0x10001u;
  EXPECT_EQ(a_.endpoint->fault().status, Status::kOk);
  in_kernel(a_, [&](auto& ep) {
    EXPECT_EQ(gdx_put<Mode::kPull>(ep, wrong, a_.local(), 64), Status::kOk);
    EXPECT_EQ(gdx_flush(ep), Status::kRemoteAccess);
  });
  EXPECT_EQ(a_.endpoint->fault().status, Status::kRemoteAccess);
  EXPECT_EQ(a_.endpoint->fault().syndrome, static_cast<std::uint8_t>(mlx5::Syndrome::kRemoteAccess));
  EXPECT_NE(a_.endpoint->describe_fault().find(": RDMA WRITE of "), std::string::npos);
}

TEST_P(InGpuMemory, abort_of_the_host_ends_a_wait) {
  connect(options());
  a_.endpoint->abort();
  in_kernel(a_,
            [&](auto& ep) { EXPECT_EQ(gdx_wait(ep, a_.signal(), Compare::kEqual, 1), Status::kAborted); });
}

TEST_P(InGpuMemory, threads_share_an_endpoint) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "kernels and the HCA see the fake's memory at two addresses each, and ThreadSanitizer "
                  "orders nothing "
                  "across them: preset cpu runs this";
#endif
  EndpointOptions chosen = options();
  chosen.sharing = Sharing::kShared;
  connect(chosen);
  const auto kernel = [&](EndpointHandle handle) {
    device::SharedEndpoint<Scope::kThread, Placement::kGpu> ep(handle);
    for (int i = 0; i < 4; ++i)
      ASSERT_EQ(gdx_signal(ep, a_.peer + kSignalAt, 1, SignalOp::kAdd), Status::kOk);
    ASSERT_EQ(gdx_flush(ep), Status::kOk);
  };
  ASSERT_EQ(exec::launch({.grid = {2}, .block = {40}, .progress = progress}, kernel, a_.handle()),
            Status::kOk);
  EXPECT_EQ(*b_.signal(), 2u * 40 * 4);
}

TEST_P(InGpuMemory, host_flushes_a_shared_endpoint_and_is_told_of_what_failed) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "kernels and the HCA see the fake's memory at two addresses each, and ThreadSanitizer "
                  "orders nothing across them: preset cpu runs this";
#endif
  constexpr std::uint32_t kSignals = 300;  // several laps of the queue
  EndpointOptions chosen = options();
  chosen.sharing = Sharing::kShared;
  connect(chosen);
  const auto deadline_ns = [] { return monotonic_ns() + 60'000'000'000; };
  const auto signal = [&](RemoteMemory to, std::uint32_t count) {
    const auto kernel = [&](EndpointHandle handle) {
      device::SharedEndpoint<Scope::kThread, Placement::kGpu> ep(handle);
      for (std::uint32_t i = 0; i < count; ++i) ASSERT_EQ(gdx_signal(ep, to, 1, SignalOp::kAdd), Status::kOk);
    };
    ASSERT_EQ(exec::launch({.block = {1}, .progress = progress}, kernel, a_.handle()), Status::kOk);
  };
  EXPECT_TRUE(a_.endpoint->flush(0)) << "nothing was posted";
  signal(a_.peer + kSignalAt, kSignals);
  ASSERT_TRUE(a_.endpoint->flush(deadline_ns()));
  EXPECT_EQ(*b_.signal(), kSignals);
  RemoteMemory wrong = a_.peer + kSignalAt;
  wrong.rkey = wrong.rkey ^ 0x10001u;
  signal(wrong, 1);
  signal(a_.peer + kSignalAt, 1);
  const auto failed = a_.endpoint->flush(deadline_ns());
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().status, Status::kRemoteAccess) << failed.error().message;
}

TEST_P(InGpuMemory, endpoint_of_a_gpu_has_its_queues_there_and_serves_kernels_of_either_placement) {
  EndpointOptions named;
  named.gpu = *gpu_;
  connect(named);
  EXPECT_EQ(a_.endpoint->handle().placement, Placement::kGpu);
  EXPECT_EQ(a_.endpoint->queues_registered_by(), GetParam().way);
  fill_a();
  const auto kernel = [&](EndpointHandle handle) {
    device::Endpoint<Scope::kThread, Placement::kHost> ep(handle);
    EXPECT_EQ(gdx_put<Mode::kPull>(ep, a_.peer, a_.local(), 4000), Status::kOk);
    EXPECT_EQ(gdx_flush(ep), Status::kOk);
  };
  ASSERT_EQ(exec::launch({.progress = progress}, kernel, a_.handle()), Status::kOk);
  EXPECT_EQ(b_.bytes(4000), a_.bytes(4000));
}

TEST_P(InGpuMemory, endpoint_of_a_gpu_that_the_hca_cannot_be_shown_has_its_queues_in_host_memory) {
  setenv(kGpuRegistrationVariable, "dmabuf", 1);
  setenv("GDX_FAKE_CUDA_DMABUF_MAP", "0", 1);
  EndpointOptions named;
  named.gpu = *gpu_;
  const auto endpoint = Endpoint::create(*hca_, {staging_.get(), bounce_.get()}, named);
  ASSERT_TRUE(endpoint) << endpoint.error().message;
  EXPECT_EQ(endpoint->handle().placement, Placement::kHost);
  EXPECT_EQ(endpoint->queues_registered_by(), RegistrationWay::kHostPages);
}

// The machine of the test has the first GPU far from the HCA and the second one near.
TEST_P(InGpuMemory, endpoint_of_a_gpu_goes_by_its_distance_wherever_the_queues_are) {
  const auto near = Gpu::open(1);
  ASSERT_TRUE(near) << near.error().message;
  const auto modes_of = [&](const EndpointOptions& chosen) {
    const auto endpoint = Endpoint::create(*hca_, {staging_.get(), bounce_.get()}, chosen);
    EXPECT_TRUE(endpoint) << endpoint.error().message;
    return endpoint ? endpoint->handle().modes : ModeTable{};
  };
  setenv(kGpuRegistrationVariable, "dmabuf", 1);
  setenv("GDX_FAKE_CUDA_DMABUF_MAP", "0", 1);
  // Without slots every path has the same modes.
  EndpointOptions named{.slot_count = 4, .bounce_slot_count = 4};
  EndpointOptions in_host = named;
  in_host.placement = Placement::kHost;
  ModeTable last{};
  for (const auto& [gpu, path] :
       {std::pair{*gpu_, PathClass::kSys}, {*near, PathClass::kPix}, {*gpu_, PathClass::kSys}}) {
    named.gpu = gpu;
    in_host.auto_modes.path = path;
    const ModeTable modes = modes_of(in_host);
    EXPECT_NE(modes, last) << "nothing tells the paths apart";
    EXPECT_EQ(modes_of(named), modes) << name(path);
    last = modes;
  }
}

TEST_P(InGpuMemory, hca_that_can_be_shown_none_refuses_the_queues_with_every_reason) {
  setenv(kGpuRegistrationVariable, "dmabuf", 1);
  setenv("GDX_FAKE_CUDA_DMABUF_MAP", "0", 1);
  const auto refused = Endpoint::create(*hca_, nullptr, options());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kUnsupported);
  EXPECT_THAT(refused.error().message, AllOf(HasSubstr("bytes of GPU memory"), HasSubstr("dmabuf: HCA"),
                                             HasSubstr("nvidia_peermem: excluded")));
}

TEST_P(InGpuMemory, queues_map_the_host_s_part_to_their_own_gpu_only) {
  connect(options());
  EXPECT_TRUE(a_.endpoint->map_to(*gpu_));
  const auto other = Gpu::open(1);
  ASSERT_TRUE(other) << other.error().message;
  const auto refused = a_.endpoint->map_to(*other);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("memory of GPU 0"));
}

// As where the nvidia module has no PeerMappingOverride.
TEST_P(InGpuMemory, denied_mapping_of_the_doorbell_leaves_the_ringing_to_the_host) {
  EndpointOptions chosen = options();
  chosen.doorbell = DoorbellKind::kBlueFlame;
  connect(chosen);
  const std::uint64_t* const doorbell = a_.endpoint->handle().doorbell;
  EXPECT_FALSE(a_.endpoint->host_rings());
  setenv("GDX_FAKE_CUDA_PEER_MAPPING", "0", 1);
  ::testing::internal::CaptureStderr();
  for (const GpuSide* const side : {&a_, &b_}) {
    const auto mapped = side->endpoint->map_to(*gpu_);
    ASSERT_TRUE(mapped) << mapped.error().message;
    EXPECT_TRUE(side->endpoint->host_rings());
    EXPECT_TRUE(side->endpoint->map_to(*gpu_)) << "again";
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  static bool first = true;
  if (std::exchange(first, false)) {
    EXPECT_THAT(said, AllOf(HasSubstr("a thread of this process rings"), HasSubstr("PeerMappingOverride=1")));
  }
  EXPECT_EQ(staging_->map_to(*gpu_).error().status, Status::kSystem) << "no thread can push for a kernel";
  unsetenv("GDX_FAKE_CUDA_PEER_MAPPING");

  EXPECT_NE(a_.endpoint->handle().doorbell, doorbell);
  EXPECT_EQ(a_.endpoint->handle().blueflame_half_bytes, 0u);
  put_and_check<Mode::kPull>(100'001, 1);
  in_kernel(a_, [&](auto& ep) {
    for (std::uint64_t i = 2; i <= 300; ++i) ASSERT_EQ(gdx_signal(ep, a_.peer + kSignalAt, i), Status::kOk);
    ASSERT_EQ(gdx_flush(ep), Status::kOk);
  });
  EXPECT_EQ(*b_.signal(), 300u);
}

// One side's queues in GPU memory and the other's in host memory, payload in both.
TEST_P(InGpuMemory, get_and_put_between_gpu_memory_and_the_host_s) {
  connect(options());
  auto in_host = allocate_memory(*hca_, 4096);
  ASSERT_TRUE(in_host) << in_host.error().message;
  fill_a();
  in_kernel(a_, [&](auto& ep) {
    ASSERT_EQ(gdx_put<Mode::kPull>(ep, in_host->remote(), a_.local(), 4000), Status::kOk);
    ASSERT_EQ(gdx_flush(ep), Status::kOk);
    ASSERT_EQ(gdx_get(ep, a_.local() + 8192, in_host->remote(), 4000), Status::kOk);
    ASSERT_EQ(gdx_flush(ep), Status::kOk);
  });
  const std::vector<std::byte> all = a_.bytes(8192 + 4000);
  EXPECT_TRUE(std::equal(in_host->data(), in_host->data() + 4000, all.begin()));
  EXPECT_TRUE(std::equal(in_host->data(), in_host->data() + 4000, all.begin() + 8192));
}

INSTANTIATE_TEST_SUITE_P(Ways, InGpuMemory,
                         ::testing::Values(Way{"dmabuf", RegistrationWay::kDmabuf},
                                           Way{"peermem", RegistrationWay::kPeermem}),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace gpu_memory_test
}  // namespace gdx
