#include "driver-shim/softhca/wire/icrc_check.h"

#include <vector>

#include "driver-shim/softhca/transport/icrc.h"
#include "proto/roce/headers.h"

namespace gdx::softhca::wire {

std::uint32_t icrc_between(const Address& source, const Address& destination, std::uint16_t source_port,
                           std::uint16_t ip_id, std::span<const std::byte> bth_to_padding) {
  if (source.is_ipv4()) {
    return transport::icrc_ipv4(source.ipv4_host_order(), destination.ipv4_host_order(), source_port, ip_id,
                                bth_to_padding);
  }
  return transport::icrc_ipv6(source.gid, destination.gid, source_port, bth_to_padding);
}

const IcrcChecker::BitDifferences& IcrcChecker::differences(std::size_t length_bytes) {
  const auto found = by_length_.find(length_bytes);
  if (found != by_length_.end()) return found->second;
  // Any datagram of this length will do: everything but the id cancels out.
  const std::vector<std::byte> blank(length_bytes);
  const std::uint32_t base = transport::icrc_ipv4(0, 0, 0, 0, blank);
  BitDifferences made{};
  for (std::size_t bit = 0; bit < made.size(); ++bit) {
    made[bit] = base ^ transport::icrc_ipv4(0, 0, 0, static_cast<std::uint16_t>(1u << bit), blank);
  }
  return by_length_.emplace(length_bytes, made).first->second;
}

std::optional<std::uint16_t> IcrcChecker::check(const Address& source, const Address& destination,
                                                std::uint16_t source_port, std::uint16_t likely_id,
                                                std::span<const std::byte> bth_to_padding,
                                                std::uint32_t icrc) {
  if (bth_to_padding.size() < roce::kBthBytes) return std::nullopt;
  const std::uint32_t expected = icrc_between(source, destination, source_port, likely_id, bth_to_padding);
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
