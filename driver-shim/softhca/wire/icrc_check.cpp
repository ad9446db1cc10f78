#include "driver-shim/softhca/wire/icrc_check.h"

#include <bit>
#include <vector>

#include "driver-shim/softhca/wire/icrc.h"
#include "proto/roce/headers.h"

namespace gdx::softhca::wire {

std::uint32_t icrc_between(const Address& source, const Address& destination, std::uint16_t source_port,
                           std::uint16_t ip_id, std::span<const std::byte> bth_to_padding) {
  if (source.is_ipv4()) {
    return icrc_ipv4(source.ipv4_host_order(), destination.ipv4_host_order(), source_port, ip_id,
                     bth_to_padding);
  }
  return icrc_ipv6(source.gid, destination.gid, source_port, bth_to_padding);
}

IcrcCalculator::IcrcCalculator() {
  const std::uint32_t base = begin_icrc_ipv4(0, 0, 0, 0, 0);
  for (std::size_t bit = 0; bit < kIdBits; ++bit) {
    id_bits_[bit] = base ^ begin_icrc_ipv4(0, 0, 0, static_cast<std::uint16_t>(1u << bit), 0);
  }
}

std::uint32_t IcrcCalculator::between(const Address& source, const Address& destination,
                                      std::uint16_t source_port, std::uint16_t ip_id,
                                      std::span<const std::byte> bth_to_padding) {
  const std::size_t length_bytes = bth_to_padding.size();
  // Lengths are multiples of four; peers differ in the last byte of their address.
  Begun& begun = begun_[(length_bytes / 4 ^ source.gid.back() ^ destination.gid.back()) % kKept];
  if (begun.length_bytes != length_bytes || begun.source_port != source_port ||
      begun.destination != destination || begun.source != source) {
    const std::uint32_t crc = source.is_ipv4()
                                  ? begin_icrc_ipv4(source.ipv4_host_order(), destination.ipv4_host_order(),
                                                    source_port, 0, length_bytes)
                                  : begin_icrc_ipv6(source.gid, destination.gid, source_port, length_bytes);
    begun = {source, destination, length_bytes, source_port, crc};
  }
  std::uint32_t crc = begun.crc;
  if (ip_id != 0 && source.is_ipv4()) {
    for (unsigned rest = ip_id; rest != 0; rest &= rest - 1) {
      crc ^= id_bits_[static_cast<std::size_t>(std::countr_zero(rest))];
    }
  }
  return finish_icrc(crc, bth_to_padding);
}

const IcrcChecker::BitDifferences& IcrcChecker::differences(std::size_t length_bytes) {
  const auto found = by_length_.find(length_bytes);
  if (found != by_length_.end()) return found->second;
  // Any datagram of this length will do: everything but the id cancels out.
  const std::vector<std::byte> blank(length_bytes);
  const std::uint32_t base = icrc_ipv4(0, 0, 0, 0, blank);
  BitDifferences made{};
  for (std::size_t bit = 0; bit < made.size(); ++bit) {
    made[bit] = base ^ icrc_ipv4(0, 0, 0, static_cast<std::uint16_t>(1u << bit), blank);
  }
  return by_length_.emplace(length_bytes, made).first->second;
}

std::optional<std::uint16_t> IcrcChecker::check(const Address& source, const Address& destination,
                                                std::uint16_t source_port, std::uint16_t likely_id,
                                                std::span<const std::byte> bth_to_padding,
                                                std::uint32_t icrc) {
  if (bth_to_padding.size() < roce::kBthBytes) return std::nullopt;
  const std::uint32_t expected =
      calculator_.between(source, destination, source_port, likely_id, bth_to_padding);
  if (expected == icrc) return likely_id;
  if (!source.is_ipv4()) return std::nullopt;
  const BitDifferences& bits = differences(bth_to_padding.size());
  for (std::uint16_t id = 0; id < kIpIds; ++id) {
    const unsigned changed = id ^ likely_id;
    std::uint32_t difference = 0;
    for (std::size_t bit = 0; bit < bits.size(); ++bit) {
      if (changed & (1u << bit)) difference ^= bits[bit];
    }
    if ((expected ^ difference) == icrc) return id;
  }
  return std::nullopt;
}

}  // namespace gdx::softhca::wire
