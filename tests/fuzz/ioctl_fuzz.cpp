// A request of RDMA_VERBS_IOCTL: header and attributes, with lengths and addresses that lie.
#include <rdma/ib_user_ioctl_verbs.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "driver-shim/softhca/uverbs/attributes.h"
#include "tests/fuzz/input.h"

namespace {

using gdx::softhca::uverbs::Attributes;

constexpr std::size_t kMaxRequestBytes = 4096;
constexpr std::size_t kUserBytes = 1 << 16;  // reach of a 16-bit attribute length
constexpr std::uint64_t kUnmapped = 0x10;
constexpr std::uint64_t kNeverMapped = 1ull << 63;  // the upper half is the kernel's

// Data outside of an attribute lies in `user`, or nowhere: writes elsewhere would be the program's own doing.
void place_data(std::vector<std::uint8_t>& request, std::vector<std::uint8_t>& user) {
  for (std::size_t at = sizeof(ib_uverbs_ioctl_hdr); at + sizeof(ib_uverbs_attr) <= request.size();
       at += sizeof(ib_uverbs_attr)) {
    ib_uverbs_attr attribute;
    std::memcpy(&attribute, request.data() + at, sizeof attribute);
    if (attribute.len == 0) continue;
    const bool mapped = attribute.data % 4 != 0;
    if (attribute.len > sizeof attribute.data || mapped) {
      attribute.data = mapped ? reinterpret_cast<std::uintptr_t>(user.data()) : kUnmapped;
    } else {
      attribute.data |= kNeverMapped;  // a small value, unless the method takes it for an address to write to
    }
    std::memcpy(request.data() + at, &attribute, sizeof attribute);
  }
}

// Values outside of the request lie in `user`, which begins with the answer to each attribute.
void exercise(Attributes& request, std::vector<std::uint8_t>& user) {
  constexpr std::size_t kValueBytes = 48;
  for (std::uint16_t id = 0; id < 8; ++id) {
    (void)request.handle(id);
    (void)request.constant(id);
    (void)request.raw_descriptor(id);
    std::vector<std::uint8_t> value(kValueBytes + gdx::fuzz::kCanaryBytes, gdx::fuzz::kCanary);
    (void)request.read_bytes(id, value.data(), kValueBytes, 0);
    gdx::fuzz::expect_canaries(std::span(value).subspan(kValueBytes), "a value is cut to what is asked for");
    const auto blob = request.blob(id);
    gdx::fuzz::expect(!blob || blob->size() == request.length(id), "a blob is as long as its attribute");
    if (request.length(id) > 0) {
      std::fill_n(user.begin(), kUserBytes, gdx::fuzz::kCanary);
      (void)request.write(id, std::array<std::uint8_t, kValueBytes>{});
      gdx::fuzz::expect_canaries(std::span(user).subspan(request.length(id)), "an answer fits its attribute");
    }
    (void)request.write_handle(id, 7);
  }
  (void)request.check({0, 1, 2, 3});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gdx::fuzz::Input input(data, size);
  const bool repair_length = input.take<std::uint8_t>() % 8 != 0;
  const auto bytes = input.take_bytes(kMaxRequestBytes);
  // A whole header at least: what the kernel reads past the end of a mapping answers EFAULT elsewhere.
  std::vector<std::uint8_t> request(kUserBytes);
  std::copy(bytes.begin(), bytes.end(), request.begin());
  std::vector<std::uint8_t> user(kUserBytes + gdx::fuzz::kCanaryBytes, gdx::fuzz::kCanary);
  ib_uverbs_ioctl_hdr header;
  std::memcpy(&header, request.data(), sizeof header);
  if (repair_length) {
    header.num_attrs %= 9;
    header.length = static_cast<std::uint16_t>(sizeof header + header.num_attrs * sizeof(ib_uverbs_attr));
    header.reserved1 = 0;
    header.reserved2 = 0;
    header.driver_id = RDMA_DRIVER_MLX5;
    std::memcpy(request.data(), &header, sizeof header);
  }
  place_data(request, user);
  auto parsed = Attributes::read(reinterpret_cast<std::uintptr_t>(request.data()));
  if (!parsed) return 0;
  std::memcpy(&header, request.data(), sizeof header);
  std::fill(request.begin() + header.length, request.end(), gdx::fuzz::kCanary);
  exercise(*parsed, user);
  gdx::fuzz::expect_canaries(std::span(request).subspan(header.length),
                             "a request is not written beyond its end");
  return 0;
}
