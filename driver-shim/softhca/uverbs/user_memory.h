// Copies to and from addresses that a program handed to an ioctl. A bad one answers EFAULT, as the
// kernel would, and not a crash.
#pragma once

#include <cstddef>
#include <cstdint>

#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca::uverbs {

// Threads: safe. Errors: EFAULT, or the errno of memfd_create(2).
Errno copy_from_user(void* to, std::uint64_t from, std::size_t length_bytes);
Errno copy_to_user(std::uint64_t to, const void* from, std::size_t length_bytes);

// Checks the rights of a memory region: those of enum ib_uverbs_access_flags. Errors: EOPNOTSUPP for paging
// on demand on a system without it; EINVAL.
// Source: Linux include/rdma/ib_verbs.h, ib_check_mr_access().
Errno check_rights(std::uint32_t access);
[[nodiscard]] bool may_be_written(std::uint32_t access);

// Checks that the device may use all of [address, address + length) in that way. Errors: EFAULT, EINVAL when
// the range wraps. The result holds for now only, because nothing pins the pages, unlike on hardware. What
// the program unmaps or protects before it deregisters it, the device finds gone at its next access.
enum class Use { kRead, kReadWrite };
Errno check_access(std::uint64_t address, std::uint64_t length_bytes, Use use);

}  // namespace gdx::softhca::uverbs
