#include "driver-shim/softhca/engine/paging.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "driver-shim/softhca/engine/dma.h"

namespace gdx::softhca {
namespace {

constexpr std::uintptr_t kPageBytes = 4096;
constexpr std::size_t kWordBytes = sizeof(std::uint64_t);
constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, MADV_POPULATE_WRITE: newer than some libc's headers
constexpr int kPopulateWrite = 23;

bool populate(std::uintptr_t first, std::uintptr_t length_bytes, int advice) {
  int result = 0;
  do {
    result = madvise(reinterpret_cast<void*>(first), length_bytes, advice);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  return result == 0;
}

}  // namespace

bool can_page_in() {
  static const bool can = [] {
    alignas(kPageBytes) static std::array<std::byte, kPageBytes> page;
    std::byte copy{};
    return page_in(page.data(), page.size(), true) && paged_load(&copy, page.data(), 1) &&
           paged_store(page.data(), &copy, 1);
  }();
  return can;
}

bool page_in(const std::byte* first, std::uint64_t length_bytes, bool written) {
  if (length_bytes == 0) return true;
  const auto begin = reinterpret_cast<std::uintptr_t>(first);
  const std::uintptr_t last = begin + (length_bytes - 1);
  if (last < begin) return false;
  const std::uintptr_t page = begin & ~(kPageBytes - 1);
  return populate(page, (last | (kPageBytes - 1)) - page + 1, written ? kPopulateWrite : kPopulateRead);
}

// Reads the pid each time, because a child is another process.
bool paged_load(std::byte* to, const std::byte* from, std::size_t length_bytes) {
  const iovec own{to, length_bytes};
  const iovec paged{const_cast<std::byte*>(from), length_bytes};
  return process_vm_readv(getpid(), &own, 1, &paged, 1, 0) == static_cast<ssize_t>(length_bytes);
}

// Depends on the kernel's order: it takes the list's parts one after the other.
bool paged_store(std::byte* to, const std::byte* from, std::size_t length_bytes) {
  const bool has_tail = length_bytes > kWordBytes && is_aligned(to + length_bytes, kWordBytes);
  const std::size_t head_bytes = has_tail ? length_bytes - kWordBytes : length_bytes;
  const iovec own{const_cast<std::byte*>(from), length_bytes};
  const std::array<iovec, 2> paged{iovec{to, head_bytes}, iovec{to + head_bytes, kWordBytes}};
  return process_vm_writev(getpid(), &own, 1, paged.data(), has_tail ? 2 : 1, 0) ==
         static_cast<ssize_t>(length_bytes);
}

}  // namespace gdx::softhca
