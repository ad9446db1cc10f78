#include "driver-shim/softhca/uverbs/dmabuf.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <string_view>

#include "base/holes.h"
#include "driver-shim/softhca/uverbs/page_file.h"

namespace gdx::softhca::uverbs {
namespace {

constexpr auto kDmabufMagic = 0x444d4142;  // DMA_BUF_MAGIC of linux/magic.h
constexpr std::string_view kStandIn = "/memfd:dmabuf (deleted)";
constexpr std::string_view kAcrossPcie = "/memfd:dmabuf across PCIe (deleted)";
constexpr Errno kNotSupported = 524;  // ENOTSUPP, which no header of user space has

// Returns the start of the buffer in its file. Errors: EBADF, EINVAL, ENOTSUPP.
ErrnoOr<std::uint64_t> find_start(int descriptor) {
  struct statfs file {};
  if (fstatfs(descriptor, &file) != 0) return refuse(errno);
  if (file.f_type == kDmabufMagic) return 0;
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  std::array<char, 64> target{};
  const ssize_t length = readlink(link.c_str(), target.data(), target.size());
  if (length < 0) return refuse(EINVAL);
  const std::string_view name(target.data(), static_cast<std::size_t>(length));
  // A kind for Data Direct alone, which this HCA has not. Source: UCX pull request 11571.
  if (name == kAcrossPcie) return refuse(kNotSupported);
  if (name != kStandIn) return refuse(EINVAL);
  return static_cast<std::uint64_t>(lseek(descriptor, 0, SEEK_CUR));
}

// Returns the file's size, and leaves its position at `position`. Errors: EINVAL.
ErrnoOr<std::uint64_t> file_bytes(int descriptor, std::uint64_t position) {
  const off_t end = lseek(descriptor, 0, SEEK_END);
  if (end < 0 || lseek(descriptor, static_cast<off_t>(position), SEEK_SET) < 0) return refuse(EINVAL);
  return static_cast<std::uint64_t>(end);
}

// Returns whether a stand-in has no hole now. A real dmabuf gets none later, so neither may that.
bool has_all_pages(int descriptor) {
  struct stat facts {};
  return fstat(descriptor, &facts) == 0 && present_bytes(facts) >= static_cast<std::uint64_t>(facts.st_size);
}

}  // namespace

ErrnoOr<DmabufMapping> DmabufMapping::map(int descriptor, std::uint64_t offset, std::uint64_t length_bytes,
                                          bool written) {
  const ErrnoOr<std::uint64_t> start = find_start(descriptor);
  if (!start) return refuse(start.error());
  const ErrnoOr<std::uint64_t> end = file_bytes(descriptor, *start);
  if (!end) return refuse(end.error());
  if (*start > *end) return refuse(EINVAL);
  const std::uint64_t buffer_bytes = *end - *start;
  if (length_bytes == 0 || offset > buffer_bytes || length_bytes > buffer_bytes - offset)
    return refuse(EINVAL);
  const std::uint64_t at = *start + offset;
  const std::uint64_t within = at % kPageBytes;
  const std::size_t mapped_bytes = within + length_bytes;
  const int protection = PROT_READ | (written ? PROT_WRITE : 0);
  void* const pages =
      mmap(nullptr, mapped_bytes, protection, MAP_SHARED, descriptor, static_cast<off_t>(at - within));
  if (pages == MAP_FAILED) return refuse(errno == ENOMEM ? ENOMEM : EOPNOTSUPP);
  auto* const first = static_cast<std::byte*>(pages);
  if (has_all_pages(descriptor))
    refuse_holes(pages, (mapped_bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
  return DmabufMapping(MappedPages(first, Unmap{mapped_bytes}), first + within);
}

}  // namespace gdx::softhca::uverbs
