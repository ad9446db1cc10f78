#include "driver-shim/softhca/transport/icrc.h"

#include <libdeflate.h>

#include <algorithm>

#include "proto/roce/icrc.h"

namespace gdx::softhca::transport {
namespace {

// Prefix and masked BTH in one block, so that the CRC runs over two buffers and not over four.
template <std::size_t kPrefixBytes>
std::uint32_t icrc(const std::array<std::byte, kPrefixBytes>& prefix,
                   std::span<const std::byte> bth_to_padding) {
  std::array<std::byte, kPrefixBytes + roce::kBthBytes> head;
  const auto bth = std::copy(prefix.begin(), prefix.end(), head.begin());
  std::copy_n(bth_to_padding.begin(), roce::kBthBytes, bth);
  bth[roce::kBthMaskedByte] = std::byte{0xff};
  const std::span<const std::byte> rest = bth_to_padding.subspan(roce::kBthBytes);
  return libdeflate_crc32(libdeflate_crc32(0, head.data(), head.size()), rest.data(), rest.size());
}

}  // namespace

std::uint32_t icrc_ipv4(std::uint32_t source_host_order, std::uint32_t destination_host_order,
                        std::uint16_t source_port, std::uint16_t ip_id,
                        std::span<const std::byte> bth_to_padding) {
  if (bth_to_padding.size() < roce::kBthBytes) return 0;
  return icrc(roce::icrc_prefix_ipv4(source_host_order, destination_host_order, source_port, ip_id,
                                     bth_to_padding.size()),
              bth_to_padding);
}

std::uint32_t icrc_ipv6(const std::array<std::uint8_t, 16>& source,
                        const std::array<std::uint8_t, 16>& destination, std::uint16_t source_port,
                        std::span<const std::byte> bth_to_padding) {
  if (bth_to_padding.size() < roce::kBthBytes) return 0;
  return icrc(roce::icrc_prefix_ipv6(source, destination, source_port, bth_to_padding.size()),
              bth_to_padding);
}

}  // namespace gdx::softhca::transport
