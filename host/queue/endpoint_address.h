// Address of an endpoint, by which its peer connects to it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/result.h"

namespace gdx {

inline constexpr std::uint16_t kEndpointAddressVersion = 3;

// Order in which an endpoint's HCA lets a peer's WRITEs land.
enum class DataOrder : std::uint8_t {
  kAny = 0,   // perhaps that of the peer's calls, and perhaps not
  kKept = 1,  // that of the peer's calls
};

// Address of an endpoint for its peer; exchanged at bootstrap, hence checked by connect().
struct EndpointAddress {
  std::uint16_t version;
  DataOrder data_order;
  std::uint8_t grh_required;  // 1: the port drops packets without a GRH
  std::uint32_t qpn;          // 24 bits
  std::uint32_t psn;          // 24 bits: the first PSN that this side will send
  std::uint16_t mtu_bytes;
  std::uint16_t lid;  // LID of an InfiniBand port; 0: the port is Ethernet's
  std::uint8_t gid[16];
  std::uint16_t pkey = 0xffff;  // key of its partition; bit 15: a full member
  std::uint8_t reserved[2] = {};
  std::uint32_t node = 0;  // node_word() of whoever opened the HCA; 0: unknown

  bool operator==(const EndpointAddress&) const = default;
};
static_assert(sizeof(EndpointAddress) == 40 && std::is_trivially_copyable_v<EndpointAddress>);

// Validates a peer's address. Errors: kVersionMismatch, kInvalidArgument naming the impossible field.
[[nodiscard]] Result<void> check_endpoint_address(const EndpointAddress& address);

}  // namespace gdx
