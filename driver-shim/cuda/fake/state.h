// What the fake driver knows. One process, one lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "driver-shim/cuda/api.h"

namespace gdx::fake_cuda {

// What kind of machine it stands for, from the environment at cuInit:
//   GDX_FAKE_CUDA_DEVICES=N        GPUs; default 1
//   GDX_FAKE_CUDA_VERSION=N        as cuDriverGetVersion says it; default 13000, or 11040 for the old library
//   GDX_FAKE_CUDA_DMABUF=0         the GPU exports no dmabuf, as under the closed kernel modules
//   GDX_FAKE_CUDA_PEER_MAPPING=0   the kernel module was loaded without PeerMappingOverride
//   GDX_FAKE_CUDA_PEER_ATOMICS=0   GPUs have no atomics on each other's memory
//   GDX_FAKE_CUDA_INIT=N           what cuInit answers
[[nodiscard]] int setting(const char* name, int otherwise);

inline constexpr std::uintptr_t kPageBytes = 4096;

// Device memory. Its address range exists and the host may not touch it; the bytes are in `file`.
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
  // A descriptor of [first, first + bytes), whole pages of this allocation; -1 when they are not.
  [[nodiscard]] int share_pages(std::uintptr_t first, std::size_t bytes) const;

 private:
  explicit DeviceMemory(CUdevice device) : device_(device) {}
  CUdevice device_;
  std::uintptr_t pages_ = 0;
  std::size_t page_bytes_ = 0;
  std::size_t offset_ = 0;
  std::size_t bytes_ = 0;
  int file_ = -1;
};

// What pages a range of this process has, by the kernel's own account.
enum class HostPages { kNone, kOrdinary, kIo };
[[nodiscard]] HostPages host_pages(std::uintptr_t first, std::size_t bytes);

struct HostRegistration {
  CUdevice device;
  std::size_t bytes;
  unsigned flags;
};

struct State {
  std::mutex lock;
  bool initialized = false;
  int devices = 0;
  std::map<std::uintptr_t, std::unique_ptr<DeviceMemory>> allocations;
  std::map<std::uintptr_t, HostRegistration> registrations;
  std::vector<int> retained;  // of each device's primary context
};

State& state();

}  // namespace gdx::fake_cuda
