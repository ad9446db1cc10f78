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
  // one. Errors: EINVAL for an empty or a wrapping range.
  ErrnoOr<std::uint32_t> add(std::byte* base, std::uint64_t length_bytes);
  // Errors: ENOENT; EBUSY while a queue lies in it.
  Errno remove(std::uint32_t id);

  // Returns the address of [offset, offset + length) of umem `id`; null when it is not inside one.
  [[nodiscard]] std::byte* resolve(std::uint32_t id, std::uint64_t offset, std::uint64_t length_bytes) const;
  void hold(std::uint32_t id);
  void release(std::uint32_t id);

 private:
  struct Umem {
    std::byte* base;
    std::uint64_t length_bytes;
    std::uint32_t holders;
  };
  std::map<std::uint32_t, Umem> umems_;
  std::uint32_t next_id_ = 1;  // 0 comes from a client that leaves the field unset
};

}  // namespace gdx::softhca::devx
