#include "driver-shim/softhca/uverbs/attributes.h"

#include <rdma/ib_user_ioctl_verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "driver-shim/softhca/uverbs/user_memory.h"

namespace gdx::softhca::uverbs {
namespace {
constexpr std::size_t kMaxRequestBytes = 4096;
}

ErrnoOr<Attributes> Attributes::read(std::uint64_t address) {
  Attributes request;
  request.address_ = address;
  ib_uverbs_ioctl_hdr header{};
  if (const Errno error = copy_from_user(&header, address, sizeof header)) return refuse(error);
  if (header.length > kMaxRequestBytes) return refuse(EINVAL);
  if (header.length != sizeof header + header.num_attrs * sizeof(ib_uverbs_attr)) return refuse(EINVAL);
  if (header.reserved1 != 0 || header.reserved2 != 0) return refuse(EPROTONOSUPPORT);
  if (header.driver_id != RDMA_DRIVER_MLX5) return refuse(EINVAL);
  request.object_ = header.object_id;
  request.method_ = header.method_id;
  request.attributes_.resize(header.num_attrs);
  const Errno error = copy_from_user(request.attributes_.data(), address + sizeof header,
                                     header.num_attrs * sizeof(ib_uverbs_attr));
  if (error != 0) return refuse(error);
  return request;
}

const ib_uverbs_attr* Attributes::find(std::uint16_t id) const {
  const auto found = std::ranges::find(attributes_, id, &ib_uverbs_attr::attr_id);
  return found == attributes_.end() ? nullptr : &*found;
}

std::size_t Attributes::length(std::uint16_t id) const {
  const ib_uverbs_attr* const attribute = find(id);
  return attribute == nullptr ? 0 : attribute->len;
}

Errno Attributes::check(std::initializer_list<std::uint16_t> known) const {
  for (auto attribute = attributes_.begin(); attribute != attributes_.end(); ++attribute) {
    if (std::ranges::find(known, attribute->attr_id) == known.end()) {
      if ((attribute->flags & UVERBS_ATTR_F_MANDATORY) != 0) return EPROTONOSUPPORT;
    } else if (std::ranges::find(attribute + 1, attributes_.end(), attribute->attr_id,
                                 &ib_uverbs_attr::attr_id) != attributes_.end()) {
      return EINVAL;
    }
  }
  return 0;
}

Errno Attributes::read_bytes(std::uint16_t id, void* value, std::size_t length_bytes,
                             std::size_t minimum) const {
  const ib_uverbs_attr* const attribute = find(id);
  if (attribute == nullptr) return ENOENT;
  if (attribute->len < minimum) return EINVAL;
  if (attribute->len == 0) return 0;
  const std::size_t taken = std::min<std::size_t>(attribute->len, length_bytes);
  if (attribute->len <= sizeof attribute->data) {  // small values travel inside the attribute
    std::memcpy(value, &attribute->data, taken);
    return 0;
  }
  return copy_from_user(value, attribute->data, taken);
}

ErrnoOr<std::uint64_t> Attributes::constant(std::uint16_t id) const {
  std::uint64_t value = 0;
  const Errno error = read_bytes(id, &value, sizeof value, sizeof(std::uint32_t));
  if (error != 0) return refuse(error == ENOENT ? EINVAL : error);
  return value;
}

ErrnoOr<std::vector<std::uint8_t>> Attributes::blob(std::uint16_t id) const {
  if (!has(id)) return refuse(EINVAL);
  std::vector<std::uint8_t> bytes(length(id));
  if (const Errno error = read_bytes(id, bytes.data(), bytes.size(), 0)) return refuse(error);
  return bytes;
}

ErrnoOr<std::uint32_t> Attributes::handle(std::uint16_t id) const {
  const ib_uverbs_attr* const attribute = find(id);
  if (attribute == nullptr || attribute->len != 0 || attribute->data > UINT32_MAX) return refuse(EINVAL);
  return static_cast<std::uint32_t>(attribute->data);
}

ErrnoOr<int> Attributes::raw_descriptor(std::uint16_t id) const {
  const ib_uverbs_attr* const attribute = find(id);
  if (attribute == nullptr) return refuse(EINVAL);
  if (attribute->len == sizeof(std::uint32_t))
    return static_cast<int>(static_cast<std::uint32_t>(attribute->data));
  const std::int64_t number = attribute->data_s64;
  if (attribute->len != 0 || number < INT32_MIN || number > INT32_MAX) return refuse(EINVAL);
  return static_cast<int>(number);
}

Errno Attributes::mark_written(const ib_uverbs_attr& attribute) {
  const auto index = static_cast<std::size_t>(&attribute - attributes_.data());
  const auto flags = static_cast<std::uint16_t>(attribute.flags | UVERBS_ATTR_F_VALID_OUTPUT);
  const std::uint64_t at =
      address_ + sizeof(ib_uverbs_ioctl_hdr) + index * sizeof attribute + offsetof(ib_uverbs_attr, flags);
  return copy_to_user(at, &flags, sizeof flags);
}

Errno Attributes::write_bytes(std::uint16_t id, const void* value, std::size_t length_bytes) {
  const ib_uverbs_attr* const attribute = find(id);
  if (attribute == nullptr) return 0;
  const std::size_t given = std::min<std::size_t>(attribute->len, length_bytes);
  if (const Errno error = copy_to_user(attribute->data, value, given)) return error;
  return mark_written(*attribute);
}

Errno Attributes::write_handle(std::uint16_t id, std::uint32_t number) {
  const ib_uverbs_attr* const attribute = find(id);
  if (attribute == nullptr) return EINVAL;
  const auto index = static_cast<std::size_t>(attribute - attributes_.data());
  const std::uint64_t value = number;
  return copy_to_user(
      address_ + sizeof(ib_uverbs_ioctl_hdr) + index * sizeof *attribute + offsetof(ib_uverbs_attr, data),
      &value, sizeof value);
}

}  // namespace gdx::softhca::uverbs
