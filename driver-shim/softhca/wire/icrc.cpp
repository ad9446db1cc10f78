#include "driver-shim/softhca/wire/icrc.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <cstring>

#include "proto/roce/icrc.h"

namespace gdx::softhca::wire {
namespace {

std::uint32_t crc32(std::uint32_t crc, const std::byte* data, std::size_t length_bytes) {
  return crc32_gzip_refl(crc, reinterpret_cast<const unsigned char*>(data), length_bytes);
}

}  // namespace

std::uint32_t begin_icrc_ipv4(std::uint32_t source_host_order, std::uint32_t destination_host_order,
                              std::uint16_t source_port, std::uint16_t ip_id,
                              std::size_t bth_to_padding_bytes) {
  const auto prefix = roce::icrc_prefix_ipv4(source_host_order, destination_host_order, source_port, ip_id,
                                             bth_to_padding_bytes);
  return crc32(0, prefix.data(), prefix.size());
}

std::uint32_t begin_icrc_ipv6(const std::array<std::uint8_t, 16>& source,
                              const std::array<std::uint8_t, 16>& destination, std::uint16_t source_port,
                              std::size_t bth_to_padding_bytes) {
  const auto prefix = roce::icrc_prefix_ipv6(source, destination, source_port, bth_to_padding_bytes);
  return crc32(0, prefix.data(), prefix.size());
}

// Masks small datagrams whole in a copy, because one call costs less than two.
std::uint32_t finish_icrc(std::uint32_t begun, std::span<const std::byte> bth_to_padding) {
  if (bth_to_padding.size() < roce::kBthBytes) return 0;
  std::array<std::byte, 64> head;
  const std::size_t head_bytes = std::min(head.size(), bth_to_padding.size());
  std::memcpy(head.data(), bth_to_padding.data(), head_bytes);
  head[roce::kBthMaskedByte] = std::byte{0xff};
  const std::uint32_t crc = crc32(begun, head.data(), head_bytes);
  const std::span<const std::byte> rest = bth_to_padding.subspan(head_bytes);
  return rest.empty() ? crc : crc32(crc, rest.data(), rest.size());
}

std::uint32_t icrc_ipv4(std::uint32_t source_host_order, std::uint32_t destination_host_order,
                        std::uint16_t source_port, std::uint16_t ip_id,
                        std::span<const std::byte> bth_to_padding) {
  return finish_icrc(
      begin_icrc_ipv4(source_host_order, destination_host_order, source_port, ip_id, bth_to_padding.size()),
      bth_to_padding);
}

std::uint32_t icrc_ipv6(const std::array<std::uint8_t, 16>& source,
                        const std::array<std::uint8_t, 16>& destination, std::uint16_t source_port,
                        std::span<const std::byte> bth_to_padding) {
  return finish_icrc(begin_icrc_ipv6(source, destination, source_port, bth_to_padding.size()),
                     bth_to_padding);
}

}  // namespace gdx::softhca::wire
