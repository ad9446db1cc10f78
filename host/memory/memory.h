// Memory that the HCA may read and write: payload buffers, signals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "host/hca/handles.h"
#include "host/hca/hca.h"
#include "host/memory/gpu_registration.h"
#include "proto/gpu/memory.h"

namespace gdx {

// Bit values are those of enum ibv_access_flags.
enum class Access : unsigned {
  kLocalRead = 0,
  kLocalWrite = 1,
  kRemoteWrite = 2,
  kRemoteRead = 4,
  kRemoteAtomic = 8,
  kAll = kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic,
};
constexpr Access operator|(Access a, Access b) {
  return static_cast<Access>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}

// A registered region; deregisters, and frees if it allocated, when it goes.
// Threads: const methods from any thread.
class Memory {
 public:
  Memory(Memory&&) noexcept = default;
  Memory& operator=(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] std::span<std::byte> span() const { return {data_, bytes_}; }
  [[nodiscard]] std::uint32_t lkey() const { return mr_->lkey; }
  [[nodiscard]] std::uint32_t rkey() const { return mr_->rkey; }
  [[nodiscard]] RegistrationWay registered_by() const { return way_; }
  // As kernels of this rank name it, and as a peer's do (exchanged at bootstrap).
  [[nodiscard]] LocalMemory local() const { return {data_, bytes_, lkey(), 0}; }
  [[nodiscard]] RemoteMemory remote() const {
    return {reinterpret_cast<std::uintptr_t>(data_), bytes_, rkey(), 0};
  }

 private:
  friend Result<Memory> register_memory(const Hca&, void*, std::size_t, Access);
  friend Result<Memory> allocate_memory(const Hca&, std::size_t, Access);
  struct FreePages {
    void operator()(std::byte* pages) const;
  };
  Memory() = default;

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::unique_ptr<std::byte, FreePages> owned_;  // before mr_: freed after it is deregistered
  MrHandle mr_;
  RegistrationWay way_ = RegistrationWay::kHostPages;
};

// Registers `bytes` at `address`, which the caller keeps alive as long as the result. Memory of a GPU is told
// from the host's by asking the CUDA driver, if anything in this process has loaded it, and is registered by
// the way that $GDX_GPU_REGISTRATION (auto, dmabuf, peermem) and host/memory/gpu_registration.h choose.
// Errors: kInvalidArgument (null, zero length, a range that wraps, remote write or atomic access
// without local write), kNoMemory (locked-memory limit), kUnsupported (GPU memory: with the reason for every
// way), kSystem.
[[nodiscard]] Result<Memory> register_memory(const Hca& hca, void* address, std::size_t bytes,
                                             Access access = Access::kAll);

// Page-aligned zeroed host memory, registered. Errors: as register_memory.
[[nodiscard]] Result<Memory> allocate_memory(const Hca& hca, std::size_t bytes, Access access = Access::kAll);

}  // namespace gdx
