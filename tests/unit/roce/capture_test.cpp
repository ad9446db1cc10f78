// The codecs and the invariant CRC against what Linux Soft-RoCE put on the wire.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <ostream>
#include <string>
#include <vector>

#include "driver-shim/softhca/wire/icrc.h"
#include "proto/roce/codec.h"
#include "proto/roce/icrc.h"
#include "tests/unit/roce/pcap_reader.h"

namespace gdx::roce {
namespace capture_test {

using test::CapturedPacket;

struct Capture {
  const char* name;
  std::size_t packets;  // RoCE datagrams in it: a reader that skips some must not pass
};
// Test names show it; as bytes it would be an address, another in every build.
void PrintTo(const Capture& capture, std::ostream* out) { *out << capture.name; }

std::vector<CapturedPacket> load(const Capture& capture) {
  return test::read_roce_pcap(std::string(GDX_ROCE_VECTORS) + "/" + capture.name);
}

std::uint32_t icrc_of(const CapturedPacket& packet, std::span<const std::byte> datagram) {
  return packet.ipv6 ? softhca::wire::icrc_ipv6(packet.source_ipv6, packet.destination_ipv6,
                                                packet.source_port, datagram)
                     : softhca::wire::icrc_ipv4(packet.source_ipv4, packet.destination_ipv4,
                                                packet.source_port, packet.ip_id, datagram);
}

class RoceCapture : public testing::TestWithParam<Capture> {};

TEST_P(RoceCapture, every_packet_decodes_and_encodes_back_to_its_bytes) {
  const auto packets = load(GetParam());
  ASSERT_EQ(packets.size(), GetParam().packets);
  for (std::size_t i = 0; i < packets.size(); ++i) {
    SCOPED_TRACE(i);
    const auto decoded = decode(packets[i].datagram);
    ASSERT_TRUE(decoded);
    std::array<std::byte, kMaxHeaderBytes> bytes{};
    const std::size_t length = encode(decoded->headers, bytes);
    ASSERT_EQ(length, header_bytes(decoded->headers.bth.opcode));
    auto expected = packets[i].datagram;
    expected[kBthMaskedByte] &= std::byte{0x7f};  // FECN is accepted and ignored
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + length, expected.begin()));
    EXPECT_EQ(decoded->headers.bth.pad_count, pad_count_for(decoded->payload.size()));
    EXPECT_EQ(length + decoded->payload.size() + decoded->headers.bth.pad_count, packets[i].datagram.size());
  }
}

TEST_P(RoceCapture, every_icrc_recomputed_equals_the_wire) {
  const auto packets = load(GetParam());
  ASSERT_FALSE(packets.empty());
  for (std::size_t i = 0; i < packets.size(); ++i) {
    EXPECT_TRUE(packets[i].dont_fragment);
    EXPECT_EQ(icrc_of(packets[i], packets[i].datagram), packets[i].icrc) << "packet " << i;
  }
}

TEST_P(RoceCapture, one_flipped_bit_changes_the_icrc) {
  const auto packets = load(GetParam());
  ASSERT_FALSE(packets.empty());
  for (std::size_t i = 0; i < packets.size(); ++i) {
    auto datagram = packets[i].datagram;
    // Walks through the packets' bytes from one packet to the next.
    const std::size_t at = i * 7 % datagram.size();
    datagram[at] ^= static_cast<std::byte>(1u << (i % 8));
    if (at == kBthMaskedByte) {
      EXPECT_EQ(icrc_of(packets[i], datagram), packets[i].icrc) << "this byte is masked";
    } else {
      EXPECT_NE(icrc_of(packets[i], datagram), packets[i].icrc) << "packet " << i << " byte " << at;
    }
  }
}

TEST_P(RoceCapture, every_truncation_is_refused_or_stays_inside) {
  for (const CapturedPacket& packet : load(GetParam())) {
    for (std::size_t length = 0; length < packet.datagram.size(); ++length) {
      const std::vector<std::byte> cut(packet.datagram.begin(), packet.datagram.begin() + length);
      const auto decoded = decode(cut);
      if (decoded) {
        EXPECT_LE(decoded->payload.size(), length - kBthBytes);
      } else {
        EXPECT_LT(length, header_bytes(static_cast<Opcode>(packet.datagram[0])) + 4);
      }
      (void)icrc_of(packet, cut);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(SoftRoce, RoceCapture,
                         testing::Values(Capture{"rxe_write.pcap", 53}, Capture{"rxe_long256.pcap", 153},
                                         Capture{"ipv6_write.pcap", 20}, Capture{"tcp_write_bw.pcap", 20},
                                         Capture{"tcp_write_lat.pcap", 20}, Capture{"tcp_rcpp.pcap", 12},
                                         Capture{"rxe_err_badrkey.pcap", 4}, Capture{"rxe_err_oob.pcap", 2},
                                         Capture{"rxe_err_rcvlen.pcap", 2}, Capture{"rx_dropreq.pcap", 37},
                                         Capture{"rx_dropack.pcap", 39},
                                         Capture{"rx_dropread_first.pcap", 57},
                                         Capture{"rx_dropread_mid.pcap", 51}, Capture{"rx_partial.pcap", 50}),
                         [](const auto& capture) {
                           std::string name = capture.param.name;
                           name.resize(name.find('.'));
                           return name;
                         });

}  // namespace capture_test
}  // namespace gdx::roce
