// Memory that the HCA may read and write: payload buffers, signals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/descriptor.h"
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
  // For payload alone, and not beside kRemoteAtomic: permits reordering of the HCA's writes to it on PCIe,
  // which is faster on some machines. A write to other memory passes none before it, unless the HCA's setting
  // PCI_WR_ORDERING is force_relax. So signals, also those that are set, never lie in memory with it. HCAs
  // without the feature ignore it.
  kRelaxedOrdering = 1 << 20,
  kAll = kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic,
};
constexpr Access operator|(Access a, Access b) {
  return static_cast<Access>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}

struct HostPages;
struct SharedFile;
namespace ipc {
enum class Source : std::uint32_t;
}

// A registered region. Its destructor deregisters it, and frees memory that it allocated.
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
  [[nodiscard]] std::uint32_t lkey() const { return lkey_; }
  [[nodiscard]] std::uint32_t rkey() const { return rkey_; }
  [[nodiscard]] RegistrationWay registered_by() const { return way_; }
  [[nodiscard]] Access access() const { return access_; }
  // Descriptor of the file that begins with the region, for processes of this node to map. -1 unless
  // allocate_shareable_memory made it, or allocate_memory through gdxd. It closes with the Memory; existing
  // mappings keep the pages.
  [[nodiscard]] int file() const { return file_.value(); }
  // Returns the region's name for kernels of this rank.
  // The pages of allocated memory, which stay mapped while a copy of this lives; null in registered memory.
  [[nodiscard]] const std::shared_ptr<std::byte>& pages() const { return owned_; }
  [[nodiscard]] LocalMemory local() const { return {data_, bytes_, lkey(), 0}; }
  // Returns the region's name for a peer's kernels, exchanged at bootstrap.
  [[nodiscard]] RemoteMemory remote() const {
    return {reinterpret_cast<std::uintptr_t>(data_), bytes_, rkey(), 0};
  }

 private:
  friend Result<Memory> register_memory(const Hca&, void*, std::size_t, Access);
  friend Result<Memory> allocate_memory(const Hca&, std::size_t, Access);
  friend Result<Memory> allocate_shareable_memory(const Hca&, std::size_t, Access);
  friend struct UnregisteredMemory;
  friend Result<Memory> request_registration(const Hca&, const HostPages&, int, std::uint64_t, ipc::Source);
  Memory() = default;
  void own(SharedFile shared);

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::shared_ptr<std::byte> owned_;  // declared before the registration, so that it is unmapped after it
  MrHandle mr_;
  std::shared_ptr<void> remote_;  // a registration by gdxd
  std::uint32_t lkey_ = 0;
  std::uint32_t rkey_ = 0;
  Descriptor file_;
  std::shared_ptr<void> listed_;  // taken from the list before the file is closed
  RegistrationWay way_ = RegistrationWay::kHostPages;
  Access access_ = Access::kLocalRead;
};

// Registers `bytes` at `address`, which the caller keeps alive as long as the result. The CUDA driver, if
// this process has loaded it, reports whether it is GPU memory. GPU memory is registered by the way of
// $GDX_GPU_REGISTRATION (auto, dmabuf, peermem) and host/memory/gpu_registration.h.
// Errors: kInvalidArgument (null, zero length, a wrapping range, remote write or atomics without local
// write, remote atomics with relaxed ordering), kNoMemory (locked-memory limit), kUnsupported (GPU memory:
// with the reason for every way), kSystem. Through gdxd also kUnsupported for host memory outside what
// allocate_memory made.
[[nodiscard]] Result<Memory> register_memory(const Hca& hca, void* address, std::size_t bytes,
                                             Access access = Access::kAll);

// Allocates and registers page-aligned zeroed host memory. Errors: those of register_memory and check_memory.
[[nodiscard]] Result<Memory> allocate_memory(const Hca& hca, std::size_t bytes, Access access = Access::kAll);

// Allocates and registers host memory in a file without a name, which never shrinks. Peers on this node can
// map it (host/direct/peer_mapping.h). Errors: those of allocate_memory.
[[nodiscard]] Result<Memory> allocate_shareable_memory(const Hca& hca, std::size_t bytes,
                                                       Access access = Access::kAll);

// Checks rights as IBA 10.6.3 does: what a peer may change, the local side may, too. Refuses atomics under
// relaxed ordering. Errors: kInvalidArgument. Source: NCCL issue 2210: with PCI_ATOMIC_MODE 4 such an atomic
// may pass the WRITEs before it.
[[nodiscard]] Result<void> check_access(Access access);

// Pages of this process under the address by which work requests name them.
struct HostPages {
  void* address;
  std::size_t bytes;
  std::uint64_t iova;
  Access access;
};

// Registers pages for a user whose address of them is `iova`. Errors: kNoMemory, kInvalidArgument, kSystem.
[[nodiscard]] Result<MrHandle> register_host_pages(const Hca& hca, const HostPages& pages);

}  // namespace gdx
