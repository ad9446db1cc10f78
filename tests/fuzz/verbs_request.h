// One request under construction. Attributes are dropped, cut short or emptied as the input says. Canaries
// stand behind the request and behind what each output has room for.
#pragma once

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl_cmds.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "driver-shim/softhca/uverbs/methods.h"
#include "tests/fuzz/input.h"

namespace gdx::softhca::uverbs {

using fuzz::Input;

class Request {
 public:
  Request(std::uint16_t object, std::uint16_t method, Input& input) : input_(input) {
    header_.driver_id = RDMA_DRIVER_MLX5;
    header_.object_id = object;
    header_.method_id = method;
  }
  template <typename T>
  Request& in(std::uint16_t id, const T& value) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&value);
    return add(id, {bytes, bytes + sizeof value}, sizeof value <= 8);
  }
  Request& out(std::uint16_t id, std::size_t length) {
    add(id, std::vector<std::uint8_t>(length + fuzz::kCanaryBytes), false);
    attributes_.back().len = static_cast<std::uint16_t>(length);
    outputs_.push_back(data_.back());
    return *this;
  }
  Request& handle(std::uint16_t id, std::uint64_t value) {
    attributes_.push_back(
        {.attr_id = id, .len = 0, .flags = UVERBS_ATTR_F_MANDATORY, .attr_data = {}, .data = value});
    return *this;
  }
  Errno run(Context& context) {
    spoil();
    header_.num_attrs = static_cast<std::uint16_t>(attributes_.size());
    header_.length = static_cast<std::uint16_t>(sizeof header_ + attributes_.size() * sizeof(ib_uverbs_attr));
    whole_.assign(header_.length + fuzz::kCanaryBytes, fuzz::kCanary);
    std::memcpy(whole_.data(), &header_, sizeof header_);
    if (!attributes_.empty())
      std::memcpy(whole_.data() + sizeof header_, attributes_.data(), header_.length - sizeof header_);
    for (const auto output : outputs_) std::ranges::fill(behind(output), fuzz::kCanary);
    const Errno error = dispatch(context, reinterpret_cast<std::uintptr_t>(whole_.data()));
    for (const auto output : outputs_) fuzz::expect_canaries(behind(output), "an answer fits its attribute");
    fuzz::expect_canaries(std::span(whole_).subspan(header_.length),
                          "a request is not written beyond its end");
    return error;
  }
  // After run(): what the device wrote into an attribute itself, or behind it.
  std::uint64_t written(std::uint16_t id) const {
    const ib_uverbs_attr attribute = after(id);
    return attribute.len == 0 ? attribute.data : answer<std::uint64_t>(id);
  }
  // After run(): the answer behind an attribute, as much of it as there was room for.
  template <typename T>
  T answer(std::uint16_t id) const {
    const ib_uverbs_attr attribute = after(id);
    T value{};
    if (attribute.len != 0) {
      std::memcpy(&value, reinterpret_cast<const void*>(attribute.data),
                  std::min<std::size_t>(sizeof value, attribute.len));
    }
    return value;
  }
  // After run(): returns the attribute itself; zeros where the request has none.
  ib_uverbs_attr after(std::uint16_t id) const {
    ib_uverbs_attr attribute{};
    for (std::size_t at = sizeof header_; at < header_.length; at += sizeof attribute) {
      std::memcpy(&attribute, whole_.data() + at, sizeof attribute);
      if (attribute.attr_id == id) return attribute;
    }
    return {};
  }
  // Before run(): changes of an attribute. Its memory may be none.
  Request& redirect(std::uint16_t id, std::uint64_t address) {
    std::ranges::find(attributes_, id, &ib_uverbs_attr::attr_id)->data = address;
    return *this;
  }
  Request& resize(std::uint16_t id, std::size_t length) {
    std::ranges::find(attributes_, id, &ib_uverbs_attr::attr_id)->len = static_cast<std::uint16_t>(length);
    return *this;
  }
  Request& leave_out(std::uint16_t id) {
    std::erase_if(attributes_, [id](const ib_uverbs_attr& it) { return it.attr_id == id; });
    return *this;
  }

 private:
  Request& add(std::uint16_t id, std::vector<std::uint8_t> bytes, bool inside) {
    ib_uverbs_attr attribute{};
    attribute.attr_id = id;
    attribute.len = static_cast<std::uint16_t>(bytes.size());
    attribute.flags = UVERBS_ATTR_F_MANDATORY;
    if (inside) {
      std::uint64_t value = 0;
      std::memcpy(&value, bytes.data(), bytes.size());
      attribute.data = value;
    } else {
      attribute.data = reinterpret_cast<std::uintptr_t>(bytes.data());
    }
    attributes_.push_back(attribute);
    data_.push_back(std::move(bytes));  // its buffer stays where it is
    return *this;
  }
  // Returns the end of `output` for which no attribute gives room, now that the input has spoilt them.
  std::span<std::uint8_t> behind(std::span<std::uint8_t> output) const {
    std::size_t room = 0;
    for (const ib_uverbs_attr& attribute : attributes_) {
      if (attribute.data == reinterpret_cast<std::uintptr_t>(output.data()))
        room = std::max<std::size_t>(room, attribute.len);
    }
    return output.subspan(std::min(room, output.size()));
  }
  void spoil() {
    const auto how = input_.take<std::uint8_t>();
    if (how % 8 != 7 || attributes_.empty()) return;
    ib_uverbs_attr& victim = attributes_[input_.take<std::uint8_t>() % attributes_.size()];
    switch (how / 8 % 4) {
      case 0: victim.attr_id = static_cast<std::uint16_t>(victim.attr_id + 1); break;
      case 1: victim.len = static_cast<std::uint16_t>(victim.len / 2); break;
      case 2: victim.data = victim.len > 8 ? 0x10 : victim.data; break;
      default:
        victim = attributes_.back();
        attributes_.pop_back();
        break;
    }
  }

  Input& input_;
  std::vector<ib_uverbs_attr> attributes_;
  std::vector<std::vector<std::uint8_t>> data_;
  std::vector<std::span<std::uint8_t>> outputs_;  // whole, with their canaries
  std::vector<std::uint8_t> whole_;
  ib_uverbs_ioctl_hdr header_{};  // last: it ends in a flexible array
};

}  // namespace gdx::softhca::uverbs
