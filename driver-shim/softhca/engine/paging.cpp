#include "driver-shim/softhca/engine/paging.h"

#include <sys/mman.h>

#include <cerrno>

namespace gdx::softhca {
namespace {

constexpr std::uintptr_t kPageBytes = 4096;
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
    alignas(kPageBytes) static std::byte page[kPageBytes];
    return page_in(page, sizeof page, true);
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

}  // namespace gdx::softhca
