// Netlink messages: one that is put together, and the attributes of one that has come.
// Source: Linux include/uapi/linux/netlink.h.
#pragma once

#include <linux/netlink.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace gdx::softhca::uverbs {

class NetlinkMessage {
 public:
  NetlinkMessage(std::uint16_t type, std::uint16_t flags, std::uint32_t sequence, std::uint32_t port) {
    nlmsghdr header{};
    header.nlmsg_type = type;
    header.nlmsg_flags = flags;
    header.nlmsg_seq = sequence;
    header.nlmsg_pid = port;
    append(&header, sizeof header);
  }

  // Bytes behind the header that are no attribute.
  void append(const void* bytes, std::size_t length_bytes) {
    bytes_.append(static_cast<const char*>(bytes), length_bytes);
    bytes_.resize(NLMSG_ALIGN(bytes_.size()));
  }
  template <typename T>
  void put(std::uint16_t attribute, T value) {
    const std::size_t at = begin(attribute);
    append(&value, sizeof value);
    end(at, sizeof value);
  }
  void put_text(std::uint16_t attribute, std::string_view text) {
    const std::size_t at = begin(attribute);
    append(std::string(text).c_str(), text.size() + 1);
    end(at, text.size() + 1);
  }
  // An attribute that holds others: all that `fill` puts.
  template <typename Fill>
  void nest(std::uint16_t attribute, Fill fill) {
    const std::size_t at = begin(attribute);
    fill();
    end(at, bytes_.size() - at - NLA_HDRLEN);
  }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  [[nodiscard]] std::string finish() {
    const auto length = static_cast<std::uint32_t>(bytes_.size());
    std::memcpy(bytes_.data() + offsetof(nlmsghdr, nlmsg_len), &length, sizeof length);
    return std::move(bytes_);
  }

 private:
  std::size_t begin(std::uint16_t attribute) {
    const std::size_t at = bytes_.size();
    const nlattr header{0, attribute};
    append(&header, sizeof header);
    return at;
  }
  void end(std::size_t at, std::size_t value_bytes) {
    const auto length = static_cast<std::uint16_t>(NLA_HDRLEN + value_bytes);
    std::memcpy(bytes_.data() + at, &length, sizeof length);
  }

  std::string bytes_;
};

// Attributes by number; of two with one number, the last. A rest after the last whole attribute is ignored,
// as in the kernel.
using NetlinkAttributes = std::map<std::uint16_t, std::span<const std::byte>>;
inline NetlinkAttributes netlink_attributes(std::span<const std::byte> bytes) {
  NetlinkAttributes found;
  while (bytes.size() >= sizeof(nlattr)) {
    nlattr header{};
    std::memcpy(&header, bytes.data(), sizeof header);
    if (header.nla_len < sizeof header || header.nla_len > bytes.size()) break;
    found[static_cast<std::uint16_t>(header.nla_type & NLA_TYPE_MASK)] =
        bytes.subspan(sizeof header, header.nla_len - sizeof header);
    bytes = bytes.subspan(std::min<std::size_t>(NLA_ALIGN(header.nla_len), bytes.size()));
  }
  return found;
}

}  // namespace gdx::softhca::uverbs
