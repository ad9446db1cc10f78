#include "host/memory/memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "base/page_size.h"
#include "base/trace.h"

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
  // IBA 10.6.3: what a peer may change, the local side must be allowed to change.
  const auto bits = static_cast<unsigned>(access);
  const auto remote_change = static_cast<unsigned>(Access::kRemoteWrite | Access::kRemoteAtomic);
  if ((bits & remote_change) != 0 && (bits & static_cast<unsigned>(Access::kLocalWrite)) == 0) {
    return fail(Status::kInvalidArgument,
                "remote write or atomic access to memory needs local write access too");
  }
  return {};
}

// Returns the bytes of the pages of an allocation.
Result<std::size_t> whole_pages(std::size_t bytes) {
  if (bytes == 0) {
    return fail(Status::kInvalidArgument, "cannot allocate memory of zero length: give at least 1 byte");
  }
  if (bytes > kMaxRegionBytes - page_bytes()) {
    return fail(Status::kInvalidArgument,
                fmt::format("cannot allocate {} bytes: no machine has them", bytes));
  }
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

// Makes a file of zeroes. Its pages are allocated at once, so that no store fails for lack of memory. Its
// length is final, so that mappings of it stay valid.
Result<Descriptor> make_sealed_file(std::size_t bytes) {
  Descriptor file = Descriptor::keep(memfd_create("gdx memory", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return fail(Status::kSystem, fmt::format("cannot make a memory file: {}", std::strerror(errno)));
  if (const int error = posix_fallocate(file.value(), 0, static_cast<off_t>(bytes)); error != 0) {
    return fail(Status::kNoMemory,
                fmt::format("no memory for a shareable buffer of {} bytes: {}", bytes, std::strerror(error)));
  }
  if (fcntl(file.value(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return fail(Status::kSystem, fmt::format("cannot seal a memory file: {}", std::strerror(errno)));
  }
  return file;
}

Result<PointerFacts> whose_memory(const void* address) {
  const cuda::Driver* const driver = cuda::loaded_driver();
  return driver != nullptr ? describe_pointer(*driver, address) : PointerFacts{};
}

}  // namespace

void Memory::FreePages::operator()(std::byte* pages) const {
  if (mapped_bytes != 0) {
    munmap(pages, mapped_bytes);
  } else {
    std::free(pages);
  }
}

Memory& Memory::operator=(Memory&& other) noexcept {
  if (this == &other) return *this;
  // Assigned member by member, pages would go before the registration that pins them.
  std::destroy_at(this);
  return *std::construct_at(this, std::move(other));
}

Result<Memory> register_memory(const Hca& hca, void* address, std::size_t bytes, Access access) {
  const TraceSpan span("register_memory");
  GDX_TRY(check_region(address, bytes, access));
  Memory memory;
  memory.data_ = static_cast<std::byte*>(address);
  memory.bytes_ = bytes;
  memory.access_ = access;
  const auto pointer = GDX_TRY(whose_memory(address));
  if (pointer.kind != PointerKind::kHost) {
    const auto facts = GDX_TRY(read_registration_facts(hca, pointer));
    const GpuRegion region{address, bytes, static_cast<int>(access), pointer.gpu};
    const auto registered = GDX_TRY(register_gpu_region(hca_verbs(), hca, region, facts));
    memory.mr_.reset(registered.mr);
    memory.way_ = registered.way;
    return memory;
  }
  memory.mr_.reset(ibv_reg_mr(hca.pd(), address, bytes, static_cast<int>(access)));
  if (memory.mr_) return memory;
  const int error = errno;
  const std::string what = fmt::format("HCA {} cannot register {} bytes at {}: {}", hca.name(), bytes,
                                       address, std::strerror(error));
  if (error == ENOMEM) {
    return fail(Status::kNoMemory, what + "; raise the locked-memory limit (ulimit -l)");
  }
  if (error == EFAULT) {
    return fail(Status::kInvalidArgument, what + "; the range must be mapped and writable");
  }
  return fail(Status::kSystem, what);
}

Result<Memory> allocate_memory(const Hca& hca, std::size_t bytes, Access access) {
  const std::size_t rounded = GDX_TRY(whole_pages(bytes));
  std::unique_ptr<std::byte, Memory::FreePages> pages(
      static_cast<std::byte*>(std::aligned_alloc(page_bytes(), rounded)));
  if (!pages) return fail(Status::kNoMemory, fmt::format("no memory for a buffer of {} bytes", bytes));
  std::memset(pages.get(), 0, rounded);
  auto memory = register_memory(hca, pages.get(), bytes, access);
  if (memory) memory->owned_ = std::move(pages);
  return memory;
}

Result<Memory> allocate_shareable_memory(const Hca& hca, std::size_t bytes, Access access) {
  const auto whole = GDX_TRY(whole_pages(bytes));
  auto file = make_sealed_file(whole);
  if (!file) return tl::unexpected(file.error());
  void* const mapped = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, file->value(), 0);
  if (mapped == MAP_FAILED) {
    return fail(Status::kNoMemory,
                fmt::format("cannot map a shareable buffer of {} bytes: {}", bytes, std::strerror(errno)));
  }
  std::unique_ptr<std::byte, Memory::FreePages> pages(static_cast<std::byte*>(mapped),
                                                      Memory::FreePages(whole));
  auto memory = register_memory(hca, pages.get(), bytes, access);
  if (!memory) return memory;
  memory->owned_ = std::move(pages);
  memory->file_ = std::move(*file);
  return memory;
}

}  // namespace gdx
