#include "driver-shim/softhca/devx/umem_table.h"

#include <cerrno>

namespace gdx::softhca::devx {
ErrnoOr<std::uint32_t> UmemTable::add(std::byte* base, std::uint64_t length_bytes) {
  const auto start = reinterpret_cast<std::uintptr_t>(base);
  if (start == 0 || length_bytes == 0 || start + length_bytes < start) return refuse(EINVAL);
  const std::uint32_t id = next_id_++;
  umems_.emplace(id, Umem{base, length_bytes, 0});
  return id;
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
