// User memory registered through DevX, by the number that commands carry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca::devx {

// Threads: the caller serialises.
class UmemTable {
 public:
  // Adds a umem at any base: the kernel registers whole pages and gives the device the offset in the first
  // one. page_sizes: each bit is a size that the kernel may choose; 0: the client did not say.
  // Errors: EINVAL for an empty or a wrapping range.
  ErrnoOr<std::uint32_t> add(std::byte* base, std::uint64_t length_bytes, std::uint64_t page_sizes = 0);
  // Errors: ENOENT; EBUSY while a queue lies in it.
  Errno remove(std::uint32_t id);

  // Returns the address of [offset, offset + length) of umem `id`; null when it is not inside one.
  [[nodiscard]] std::byte* resolve(std::uint32_t id, std::uint64_t offset, std::uint64_t length_bytes) const;
  // Returns whether a ring may begin there, whatever page size the kernel has chosen: at 0, or where the
  // client has bounded it. Source: Linux drivers/infiniband/hw/mlx5/devx.c, devx_umem_reg_cmd_alloc.
  [[nodiscard]] bool may_begin_at(std::uint32_t id, std::uint64_t offset) const;
  void hold(std::uint32_t id);
  void release(std::uint32_t id);

 private:
  struct Umem {
    std::byte* base;
    std::uint64_t length_bytes;
    std::uint64_t page_bytes;  // the largest that may be chosen; 0: any
    std::uint32_t holders;
  };
  std::map<std::uint32_t, Umem> umems_;
  std::uint32_t next_id_ = 1;  // 0 comes from a client that leaves the field unset
};

}  // namespace gdx::softhca::devx
