// The invariant CRC of a RoCE v2 datagram; proto/roce/icrc.h defines its input.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gdx::softhca::wire {

// Returns the value to store little-endian after `bth_to_padding` (at least a BTH, else 0). The datagram must
// leave with DF set and with exactly this IP id. Addresses and port in host byte order.
// Threads: any. Source: see proto/roce/icrc.h.
[[nodiscard]] std::uint32_t icrc_ipv4(std::uint32_t source_host_order, std::uint32_t destination_host_order,
                                      std::uint16_t source_port, std::uint16_t ip_id,
                                      std::span<const std::byte> bth_to_padding);

// Returns the value over IPv6, which has no id. Addresses in the header's byte order.
[[nodiscard]] std::uint32_t icrc_ipv6(const std::array<std::uint8_t, 16>& source,
                                      const std::array<std::uint8_t, 16>& destination,
                                      std::uint16_t source_port, std::span<const std::byte> bth_to_padding);

// Compute the CRC in two steps. The result of begin depends on path, id and length alone, so that it can be
// kept for many datagrams. It is linear in the id: begin(id a ^ b) == begin(a) ^ begin(b) ^ begin(0).
[[nodiscard]] std::uint32_t begin_icrc_ipv4(std::uint32_t source_host_order,
                                            std::uint32_t destination_host_order, std::uint16_t source_port,
                                            std::uint16_t ip_id, std::size_t bth_to_padding_bytes);
[[nodiscard]] std::uint32_t begin_icrc_ipv6(const std::array<std::uint8_t, 16>& source,
                                            const std::array<std::uint8_t, 16>& destination,
                                            std::uint16_t source_port, std::size_t bth_to_padding_bytes);
[[nodiscard]] std::uint32_t finish_icrc(std::uint32_t begun, std::span<const std::byte> bth_to_padding);

}  // namespace gdx::softhca::wire
