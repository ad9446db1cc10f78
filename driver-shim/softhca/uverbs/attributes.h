// One RDMA_VERBS_IOCTL request: header and attributes, checked against the bounds that the kernel checks.
// Source: Linux include/uapi/rdma/rdma_user_ioctl_cmds.h, drivers/infiniband/core/uverbs_ioctl.c.
#pragma once

#include <rdma/rdma_user_ioctl_cmds.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca::uverbs {

class Attributes {
 public:
  // Copies the request at `address`. Errors: EFAULT, EINVAL for a length that disagrees with the count.
  static ErrnoOr<Attributes> read(std::uint64_t address);

  [[nodiscard]] std::uint16_t object() const { return object_; }
  [[nodiscard]] std::uint16_t method() const { return method_; }
  [[nodiscard]] bool has(std::uint16_t id) const { return find(id) != nullptr; }
  // Length in bytes of the attribute; 0 when absent.
  [[nodiscard]] std::size_t length(std::uint16_t id) const;
  // Errors: EPROTONOSUPPORT for one that is none of `known` and mandatory, EINVAL for a known one that comes
  // twice.
  [[nodiscard]] Errno check(std::initializer_list<std::uint16_t> known) const;

  // An input of at least `minimum` bytes into `value`; what the program did not send stays zero.
  // Errors: ENOENT absent, EINVAL too short, EFAULT.
  [[nodiscard]] Errno read_bytes(std::uint16_t id, void* value, std::size_t length_bytes,
                                 std::size_t minimum) const;
  template <typename T>
  [[nodiscard]] ErrnoOr<T> value(std::uint16_t id) const {
    T result{};
    const Errno error = read_bytes(id, &result, sizeof result, sizeof result);
    if (error != 0) return refuse(error == ENOENT ? EINVAL : error);
    return result;
  }
  // A constant: sent as 8 bytes, of which the value fills as many as it needs.
  [[nodiscard]] ErrnoOr<std::uint64_t> constant(std::uint16_t id) const;
  [[nodiscard]] ErrnoOr<std::vector<std::uint8_t>> blob(std::uint16_t id) const;
  // A handle or a file descriptor of uverbs' own: carried in the attribute itself.
  [[nodiscard]] ErrnoOr<std::uint32_t> handle(std::uint16_t id) const;
  // A descriptor of any file, or of none: likewise, or as an input of 4 bytes, which libibverbs 44 sends
  // both.
  [[nodiscard]] ErrnoOr<int> raw_descriptor(std::uint16_t id) const;

  // Outputs. A shorter one of the program's is filled as far as it goes; an absent one is no error.
  Errno write_bytes(std::uint16_t id, const void* value, std::size_t length_bytes);
  template <typename T>
  Errno write(std::uint16_t id, const T& value) {
    return write_bytes(id, &value, sizeof value);
  }
  // The number of a new object or file descriptor. Errors: EINVAL when the program left no place for it.
  Errno write_handle(std::uint16_t id, std::uint32_t number);

 private:
  [[nodiscard]] const ib_uverbs_attr* find(std::uint16_t id) const;
  Errno mark_written(const ib_uverbs_attr& attribute);

  std::uint64_t address_ = 0;
  std::uint16_t object_ = 0;
  std::uint16_t method_ = 0;
  std::vector<ib_uverbs_attr> attributes_;
};

}  // namespace gdx::softhca::uverbs
