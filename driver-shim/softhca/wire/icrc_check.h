// The ICRC between two addresses, and its check by a receiver without the IPv4 id that it covers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>

#include "driver-shim/softhca/wire/wire.h"

namespace gdx::softhca::wire {

// Returns the ICRC. Both addresses are of one family. `ip_id` counts for IPv4 only.
[[nodiscard]] std::uint32_t icrc_between(const Address& source, const Address& destination,
                                         std::uint16_t source_port, std::uint16_t ip_id,
                                         std::span<const std::byte> bth_to_padding);

// Computes icrc_between() for many packets: keeps the part that depends on the path and the length alone.
class IcrcCalculator {
 public:
  IcrcCalculator();
  [[nodiscard]] std::uint32_t between(const Address& source, const Address& destination,
                                      std::uint16_t source_port, std::uint16_t ip_id,
                                      std::span<const std::byte> bth_to_padding);

 private:
  static constexpr std::size_t kKept = 16;  // a power of two
  static constexpr std::size_t kIdBits = 16;
  struct Begun {
    Address source;
    Address destination;
    std::size_t length_bytes = 0;
    std::uint16_t source_port = 0;
    std::uint32_t crc = 0;  // up to the BTH, of id 0
  };

  std::array<Begun, kKept> begun_{};
  std::array<std::uint32_t, kIdBits> id_bits_{};  // change of the ICRC by each bit of an id, on any path
};

// Tries the possible ids, because a UDP socket hides the IPv4 id of a received packet. With DF set, Linux
// numbers the segments of one GSO send 0, 1, ... and other packets 0. Only kIpIds values are therefore
// possible. CRC is linear, so an id's part of the ICRC depends on the id and on the length alone.
class IcrcChecker {
 public:
  static constexpr std::uint16_t kIpIds = 64;

  // Returns whether the ICRC is right with this id. `icrc` as of check().
  [[nodiscard]] bool is_right(const Address& source, const Address& destination, std::uint16_t source_port,
                              std::uint16_t ip_id, std::span<const std::byte> bth_to_padding,
                              std::uint32_t icrc) {
    return calculator_.between(source, destination, source_port, ip_id, bth_to_padding) == icrc;
  }
  // Returns the id with which the ICRC is right, trying `likely_id` first, or nullopt without one. `icrc` as
  // read little-endian after the padding.
  [[nodiscard]] std::optional<std::uint16_t> check(const Address& source, const Address& destination,
                                                   std::uint16_t source_port, std::uint16_t likely_id,
                                                   std::span<const std::byte> bth_to_padding,
                                                   std::uint32_t icrc);

 private:
  using BitDifferences = std::array<std::uint32_t, 6>;
  const BitDifferences& differences(std::size_t length_bytes);

  IcrcCalculator calculator_;
  std::unordered_map<std::size_t, BitDifferences> by_length_;
};

}  // namespace gdx::softhca::wire
