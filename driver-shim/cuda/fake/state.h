// State of the fake driver in this process, and the one lock that guards all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "driver-shim/cuda/api.h"

namespace gdx::fake_cuda {

// Properties of the fake machine, from the environment at cuInit:
//   GDX_FAKE_CUDA_DEVICES=N        GPUs; default 1
//   GDX_FAKE_CUDA_VERSION=N        result of cuDriverGetVersion; default 13000, or 11040 for the old library
//   GDX_FAKE_CUDA_MAJOR=N          of the compute capability; default 9
//   GDX_FAKE_CUDA_DMABUF=0         the GPU exports no dmabuf, as under the closed kernel modules
//   GDX_FAKE_CUDA_DMABUF=2         a dmabuf holds other memory than its range, as under a faulty IOMMU
//   GDX_FAKE_CUDA_DMABUF_MAP=0     a CPU cannot map its dmabufs, as those of the real driver
//   GDX_FAKE_CUDA_DMABUF_PCIE=1    dmabufs are across PCIe where that is asked for, as on GB300; else refused
//   GDX_FAKE_CUDA_VMM=0            cuMemCreate makes no memory for GPUDirect RDMA
//   GDX_FAKE_CUDA_GRANULARITY=N    of cuMemCreate and cuMemAddressReserve; default 2 MiB
//   GDX_FAKE_CUDA_ONLY_VMM_RDMA=1  as on Grace: an HCA gets cuMemCreate's memory for GPUDirect RDMA, no other
//   GDX_FAKE_CUDA_WRITES_ORDERING=N  of GPUDirect RDMA: 0 as Ampere, 100 (default) as Hopper
//   GDX_FAKE_CUDA_HOST_ATOMICS=1   the GPU's atomics on host memory are atomic with those of processors
//   GDX_FAKE_CUDA_PEER_MAPPING=0   the kernel module was loaded without PeerMappingOverride; a software HCA's
//                                  pages count as a NIC's
//   GDX_FAKE_CUDA_HOST_OFFSET=N    the GPU sees registered host memory N bytes behind the host's addresses
//   GDX_FAKE_CUDA_PEER_ATOMICS=0   GPUs have no atomics on each other's memory
//   GDX_FAKE_CUDA_INIT=N           result of cuInit
[[nodiscard]] int setting(const char* name, int otherwise);

inline constexpr std::uintptr_t kPageBytes = 4096;

// Bytes of device memory, in a file. Copies reach them at an address of their own, and kernels of the CPU
// layer at another.
class DeviceBytes {
 public:
  // Makes a file that cannot shrink, with bytes that nobody has cleared; takes over a file of another
  // process. Null when there is no more memory.
  static std::unique_ptr<DeviceBytes> make(std::size_t bytes);
  static std::unique_ptr<DeviceBytes> adopt(int file, std::size_t bytes);
  ~DeviceBytes();
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  [[nodiscard]] int file() const { return file_; }
  [[nodiscard]] std::byte* seen_by_copies() const { return copies_; }
  [[nodiscard]] std::byte* seen_by_kernels() const { return kernels_; }
  // Returns a descriptor that stands for a dmabuf of the bytes from `offset` on; -1 without one. No process
  // makes a dmabuf by itself, so it is a memfd of that name; the buffer begins at its position.
  [[nodiscard]] int share(std::size_t offset) const;

 private:
  DeviceBytes(int file, std::size_t bytes) : file_(file), bytes_(bytes) {}
  [[nodiscard]] bool map();
  int file_;
  std::size_t bytes_;
  std::byte* copies_ = nullptr;
  std::byte* kernels_ = nullptr;
};

// Device memory of cuMemAlloc. Its address range exists and the host may not touch it.
class DeviceMemory {
 public:
  // Null when there is no more.
  static std::unique_ptr<DeviceMemory> allocate(CUdevice device, std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  [[nodiscard]] CUdevice device() const { return device_; }
  [[nodiscard]] std::uintptr_t address() const { return pages_ + offset_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] bool holds(std::uintptr_t at) const { return at >= address() && at - address() < bytes_; }
  [[nodiscard]] bool holds(std::uintptr_t at, std::size_t bytes) const {
    return holds(at) && bytes <= bytes_ - (at - address());
  }
  // Addresses of the byte at `at`, which this allocation holds, for copies and for kernels.
  [[nodiscard]] std::byte* seen_by_copies(std::uintptr_t at) const {
    return content_->seen_by_copies() + (at - pages_);
  }
  [[nodiscard]] std::byte* seen_by_kernels(std::uintptr_t at) const {
    return content_->seen_by_kernels() + (at - pages_);
  }
  // The file of its bytes, from its first page on.
  [[nodiscard]] int file() const { return content_->file(); }
  // As DeviceBytes::share, of [first, first + bytes); -1 unless they are whole pages of this allocation.
  [[nodiscard]] int share_pages(std::uintptr_t first, std::size_t bytes) const;

 private:
  explicit DeviceMemory(CUdevice device) : device_(device) {}
  CUdevice device_;
  std::unique_ptr<DeviceBytes> content_;
  std::uintptr_t pages_ = 0;
  std::size_t page_bytes_ = 0;
  std::size_t offset_ = 0;
  std::size_t bytes_ = 0;
};

// Kind of the pages of a range of this process, as the Linux kernel reports it.
enum class HostPages { kNone, kOrdinary, kIo };
[[nodiscard]] HostPages host_pages(std::uintptr_t first, std::size_t bytes);
// Returns whether the page is one of a software HCA, in place of a NIC's.
[[nodiscard]] bool of_software_hca(std::uintptr_t first);

struct HostRegistration {
  CUdevice device;
  std::size_t bytes;
  unsigned flags;
};

// Work of one stream, oldest first. It runs when the stream is queried, which is as late as a copy engine may
// be.
struct Stream {
  CUdevice device;
  std::deque<std::function<void()>> work;
  bool capturing = false;
  bool lost = false;  // after an error: its work never runs
};

struct State {
  std::mutex lock;
  bool initialized = false;
  int devices = 0;
  std::map<std::uintptr_t, std::unique_ptr<DeviceMemory>> allocations;
  std::map<std::uintptr_t, HostRegistration> registrations;
  std::map<CUstream, Stream> streams;
  std::uintptr_t next_stream = 0;
  std::size_t exported_bytes = 0;  // size of the newest dmabuf
  std::vector<int> retained;       // references to each device's primary context
};

State& state();

// Functions below need the lock to be held.

// The allocation that holds `at`, or null.
const DeviceMemory* device_memory_at(std::uintptr_t at);
// Returns whether one registration holds all of [at, at + bytes).
bool is_pinned(std::uintptr_t at, std::size_t bytes);
// Completes all work of the device's streams.
void finish_streams(CUdevice device);
// Returns the device of this thread's context; requires one.
CUdevice current_device();

// One call of the API: holds the lock.
class Call {
 public:
  Call() : guard_(state().lock) {}
  // Errors: CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_INVALID_CONTEXT.
  [[nodiscard]] CUresult refusal() const;
  [[nodiscard]] CUresult refusal_in_context() const;
  [[nodiscard]] CUresult refusal_of_device(CUdevice device) const;

 private:
  std::lock_guard<std::mutex> guard_;
};

}  // namespace gdx::fake_cuda
