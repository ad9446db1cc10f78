#include "driver-shim/softhca/devx/umem_table.h"

#include <bit>
#include <cerrno>

namespace gdx::softhca::devx {
ErrnoOr<std::uint32_t> UmemTable::add(std::byte* base, std::uint64_t length_bytes, std::uint64_t page_sizes) {
  const auto start = reinterpret_cast<std::uintptr_t>(base);
  if (start == 0 || length_bytes == 0 || start + length_bytes < start) return refuse(EINVAL);
  const std::uint32_t id = next_id_++;
  // A page beyond the umem's length is no better than one that holds it whole.
  const std::uint64_t useful = page_sizes & (2 * std::bit_ceil(length_bytes) - 1);
  umems_.emplace(id, Umem{base, length_bytes, std::bit_floor(useful), 0});
  return id;
}

bool UmemTable::may_begin_at(std::uint32_t id, std::uint64_t offset) const {
  const auto found = umems_.find(id);
  if (found == umems_.end() || offset == 0) return true;
  return found->second.page_bytes != 0 && offset % found->second.page_bytes == 0;
}

Errno UmemTable::remove(std::uint32_t id) {
  const auto found = umems_.find(id);
  if (found == umems_.end()) return ENOENT;
  if (found->second.holders != 0) return EBUSY;
  umems_.erase(found);
  return 0;
}

std::byte* UmemTable::resolve(std::uint32_t id, std::uint64_t offset, std::uint64_t length_bytes) const {
  const auto found = umems_.find(id);
  if (found == umems_.end()) return nullptr;
  const Umem& umem = found->second;
  if (offset > umem.length_bytes || length_bytes > umem.length_bytes - offset) return nullptr;
  return umem.base + offset;
}

void UmemTable::hold(std::uint32_t id) {
  if (const auto found = umems_.find(id); found != umems_.end()) ++found->second.holders;
}

void UmemTable::release(std::uint32_t id) {
  if (const auto found = umems_.find(id); found != umems_.end()) --found->second.holders;
}

}  // namespace gdx::softhca::devx
