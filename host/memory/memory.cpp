#include "host/memory/memory.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "base/page_size.h"
#include "base/trace.h"
#include "host/ipc/daemon.h"
#include "host/memory/memory_limits.h"
#include "host/memory/shared_file.h"
#include "host/memory/unregistered.h"

namespace gdx {
namespace {

constexpr std::size_t kMaxRegionBytes = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());

Result<void> check_region(const void* address, std::size_t bytes, Access access) {
  if (address == nullptr) return fail(Status::kInvalidArgument, "cannot register memory at a null address");
  if (bytes == 0) {
    return fail(Status::kInvalidArgument, "cannot register memory of zero length: give at least 1 byte");
  }
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  if (bytes > kMaxRegionBytes || first + bytes - 1 < first) {
    return fail(
        Status::kInvalidArgument,
        fmt::format("cannot register {} bytes at {}: the range leaves the address space", bytes, address));
  }
  return check_access(access);
}

// Returns the bytes of the pages of an allocation, if they can be had.
Result<std::size_t> whole_pages(std::size_t bytes) {
  if (bytes == 0) {
    return fail(Status::kInvalidArgument, "cannot allocate memory of zero length: give at least 1 byte");
  }
  if (bytes > kMaxRegionBytes - page_bytes()) {
    return fail(Status::kInvalidArgument,
                fmt::format("cannot allocate {} bytes: no machine has them", bytes));
  }
  const auto limits = memory_limits();
  const MemoryNeed need = memory_need(bytes, limits);
  GDX_TRY(check_memory(limits, std::span(&need, 1)));
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

Result<PointerFacts> whose_memory(const void* address) {
  const cuda::Driver* const driver = cuda::loaded_driver();
  return driver != nullptr ? describe_pointer(*driver, address) : PointerFacts{};
}

}  // namespace

Result<void> check_access(Access access) {
  const auto bits = static_cast<unsigned>(access);
  const auto remote_change = static_cast<unsigned>(Access::kRemoteWrite | Access::kRemoteAtomic);
  const auto relaxed_signals = static_cast<unsigned>(Access::kRelaxedOrdering | Access::kRemoteAtomic);
  if ((bits & remote_change) != 0 && (bits & static_cast<unsigned>(Access::kLocalWrite)) == 0) {
    return fail(Status::kInvalidArgument,
                "remote write or atomic access to memory needs local write access too");
  }
  if ((bits & relaxed_signals) == relaxed_signals) {
    return fail(Status::kInvalidArgument,
                "memory with relaxed ordering permits no remote atomics, because a signal there may pass its "
                "payload: give signals a region without Access::kRelaxedOrdering, and payload one without "
                "Access::kRemoteAtomic");
  }
  return {};
}

Memory& Memory::operator=(Memory&& other) noexcept {
  if (this == &other) return *this;
  // Assigned member by member, pages would go before the registration that pins them.
  std::destroy_at(this);
  return *std::construct_at(this, std::move(other));
}

void Memory::own(SharedFile shared) {
  owned_ = std::move(shared.pages);
  file_ = std::move(shared.file);
  listed_ = std::move(shared.listed);
}

Result<Memory> request_registration(const Hca& hca, const HostPages& pages, int file,
                                    std::uint64_t file_offset, ipc::Source source) {
  ipc::RegisterMemory request{};
  request.file_offset = file_offset;
  request.bytes = pages.bytes;
  request.iova = reinterpret_cast<std::uintptr_t>(pages.address);
  request.access = static_cast<std::uint32_t>(pages.access);
  request.source = static_cast<std::uint32_t>(source);
  const auto& daemon = hca.daemon();
  const auto reply = GDX_TRY(daemon->call<ipc::RegisterAnswer>(request, std::span(&file, 1)));
  Memory memory;
  memory.data_ = static_cast<std::byte*>(pages.address);
  memory.bytes_ = pages.bytes;
  memory.access_ = pages.access;
  memory.lkey_ = reply.answer.lkey;
  memory.rkey_ = reply.answer.rkey;
  memory.way_ = source == ipc::Source::kDmabuf ? RegistrationWay::kDmabuf : RegistrationWay::kHostPages;
  memory.remote_ = std::shared_ptr<void>(nullptr, [daemon, region = reply.answer.region](void*) {
    // gdxd ends the regions of a client that it has lost.
    (void)daemon->call<ipc::Done>(ipc::DeregisterMemory{region});
  });
  return memory;
}

Result<Memory> register_by_daemon(const Hca& hca, const HostPages& pages, const PointerFacts& pointer) {
  if (pointer.kind != PointerKind::kHost) {
    const auto facts = GDX_TRY(read_registration_facts(hca, pointer));
    const GpuRegion region{pages.address, pages.bytes, static_cast<int>(pages.access), pointer.gpu};
    const auto shared = GDX_TRY(share_gpu_region(hca, region, facts));
    return request_registration(hca, pages, shared.dmabuf.value(), shared.offset, ipc::Source::kDmabuf);
  }
  const auto found = find_shared(pages.address, pages.bytes);
  if (found) return request_registration(hca, pages, found->file, found->offset, ipc::Source::kFile);
  return fail(
      Status::kUnsupported,
      fmt::format("gdxd cannot register {} bytes at {}, because no file holds them: use allocate_memory, "
                  "or set {}=off",
                  pages.bytes, pages.address, ipc::kDaemonVariable));
}

Result<MrHandle> register_host_pages(const Hca& hca, const HostPages& pages) {
  MrHandle mr(
      ibv_reg_mr_iova(hca.pd(), pages.address, pages.bytes, pages.iova, static_cast<int>(pages.access)));
  if (mr) return mr;
  const int error = errno;
  const std::string what = fmt::format("HCA {} cannot register {} bytes at {}: {}", hca.name(), pages.bytes,
                                       pages.address, std::strerror(error));
  if (error == ENOMEM) {
    return fail(Status::kNoMemory, what + "; raise the locked-memory limit (ulimit -l)");
  }
  if (error == EFAULT) {
    return fail(Status::kInvalidArgument, what + "; the range must be mapped and writable");
  }
  return fail(Status::kSystem, what);
}

Result<Memory> register_memory(const Hca& hca, void* address, std::size_t bytes, Access access) {
  const TraceSpan span("register_memory");
  GDX_TRY(check_region(address, bytes, access));
  const auto pointer = GDX_TRY(whose_memory(address));
  if (hca.daemon()) return register_by_daemon(hca, {address, bytes, 0, access}, pointer);
  Memory memory;
  memory.data_ = static_cast<std::byte*>(address);
  memory.bytes_ = bytes;
  memory.access_ = access;
  if (pointer.kind != PointerKind::kHost) {
    const auto facts = GDX_TRY(read_registration_facts(hca, pointer));
    const GpuRegion region{address, bytes, static_cast<int>(access), pointer.gpu};
    const auto registered = GDX_TRY(register_gpu_region(hca_verbs(), hca, region, facts));
    memory.mr_.reset(registered.mr);
    memory.way_ = registered.way;
  } else {
    const auto iova = reinterpret_cast<std::uintptr_t>(address);
    memory.mr_ = GDX_TRY(register_host_pages(hca, {address, bytes, iova, access}));
  }
  memory.lkey_ = memory.mr_->lkey;
  memory.rkey_ = memory.mr_->rkey;
  return memory;
}

Result<Memory> allocate_memory(const Hca& hca, std::size_t bytes, Access access) {
  if (hca.daemon()) return allocate_shareable_memory(hca, bytes, access);
  const std::size_t rounded = GDX_TRY(whole_pages(bytes));
  auto pages = GDX_TRY(map_own_pages(rounded));
  auto memory = GDX_TRY(register_memory(hca, pages.get(), bytes, access));
  memory.owned_ = std::move(pages);
  return memory;
}

Result<Memory> UnregisteredMemory::of(void* address, std::size_t bytes) {
  GDX_TRY(check_region(address, bytes, Access::kAll));
  if (GDX_TRY(whose_memory(address)).kind != PointerKind::kHost) {
    return fail(Status::kUnsupported,
                fmt::format("{} bytes at {} are a GPU's: without an HCA use host memory", bytes, address));
  }
  Memory memory;
  memory.data_ = static_cast<std::byte*>(address);
  memory.bytes_ = bytes;
  memory.access_ = Access::kAll;
  return memory;
}

Result<Memory> allocate_shareable_memory(const Hca& hca, std::size_t bytes, Access access) {
  const auto whole = GDX_TRY(whole_pages(bytes));
  auto shared = GDX_TRY(make_shared_file(whole));
  auto memory = GDX_TRY(register_memory(hca, shared.pages.get(), bytes, access));
  memory.own(std::move(shared));
  return memory;
}

Result<Memory> UnregisteredMemory::allocate(std::size_t bytes) {
  const auto whole = GDX_TRY(whole_pages(bytes));
  auto shared = GDX_TRY(make_shared_file(whole));
  auto memory = GDX_TRY(of(shared.pages.get(), bytes));
  memory.own(std::move(shared));
  return memory;
}

}  // namespace gdx
