// Packets committed to a wire arrive byte for byte, once and in order, however one flush is put together. RC
// would mend, and so hide, a fault here.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "driver-shim/softhca/wire/wire.h"
#include "tests/unit/roce/pcap_reader.h"
#include "tests/unit/wire/packets.h"

namespace gdx::softhca::wire {
namespace every_byte_test {

constexpr std::size_t kSmallest = 16;
constexpr std::size_t kLargest = 4156;

// The lengths of the packets of one flush. More than 64 runs of one length each, or few long runs.
struct Pattern {
  const char* name;
  std::size_t packets;
  std::size_t (*bytes_of)(std::size_t packet);
};
constexpr Pattern kPatterns[] = {
    {"growing", 80, [](std::size_t packet) { return kSmallest + 4 * packet; }},
    {"growing_by_far", 80, [](std::size_t packet) { return kSmallest + 51 * packet; }},
    {"shrinking", 80, [](std::size_t packet) { return kSmallest + 4 * (80 - packet); }},
    {"equal", 200, [](std::size_t) { return std::size_t{1024}; }},
    {"equal_and_small", 200, [](std::size_t) { return std::size_t{100}; }},
    {"alternating", 200, [](std::size_t packet) { return packet % 2 == 0 ? kSmallest : std::size_t{512}; }},
    {"any", 200, [](std::size_t packet) {
       std::mt19937 random(static_cast<unsigned>(packet));
       return kSmallest + random() % (kLargest - kSmallest);
     }}};

// Changes to packets on their way out. None of them loses a packet.
struct Passage {
  const char* name;
  FaultConfig faults;
  std::size_t copies;
};
const Passage passages[] = {
    {"clean", {}, 1}, {"marked", {.mark = 0.5, .seed = 3}, 1}, {"twice", {.duplicate = 1}, 2}};

Bytes content(std::size_t packet, std::size_t length_bytes) {
  Bytes bytes(length_bytes);
  for (std::size_t i = 0; i < length_bytes; ++i)
    bytes[i] = static_cast<std::byte>(packet * 131 + i * 7 + (i >> 8) * 13);
  return as_packet(std::move(bytes));
}

using Flush = std::tuple<Carrier, Pattern, Passage>;

class EveryByte : public testing::TestWithParam<Flush> {
 protected:
  void SetUp() override {
    a_ = open({.address = {}, .pcap_path = path_, .faults = std::get<Passage>(GetParam()).faults});
    b_ = open({});
    c_ = open({});
    introduce(*a_, *b_);
    introduce(*a_, *c_);
    // The kernel charges for a datagram's buffer, of a power of two, and what describes it. Nothing is read
    // before all is sent.
    constexpr std::size_t kDescription = 512;
    const auto& pattern = std::get<Pattern>(GetParam());
    std::size_t needed = 0;
    for (std::size_t packet = 0; packet < pattern.packets; ++packet)
      needed += std::bit_ceil(pattern.bytes_of(packet) + kDescription) + kDescription;
    needed *= std::get<Passage>(GetParam()).copies;
    if (std::get<Carrier>(GetParam()) == Carrier::kUdp && b_->window_bytes() < needed / 2) {
      GTEST_SKIP()
          << "a flush does not fit into the receive buffer of a socket: run as root, or as root first "
             "sysctl -w net.core.rmem_max="
          << needed;
    }
  }
  void TearDown() override { std::filesystem::remove(path_); }

  static std::unique_ptr<Wire> open(const UdpConfig& config) {
    Result<std::unique_ptr<Wire>> wire = open_wire(std::get<Carrier>(GetParam()), config);
    EXPECT_TRUE(wire) << (wire ? "" : wire.error().message);
    return wire ? std::move(*wire) : nullptr;
  }
  void send(const Address& to, std::size_t packet) {
    const Bytes bytes = content(packet, std::get<Pattern>(GetParam()).bytes_of(packet));
    std::ranges::copy(bytes, a_->begin_packet(to).begin());
    a_->commit_packet(to, bytes.size());
  }
  // Of the pattern's packets, each `step`th from `first` on.
  static void expect_arrivals(Wire& wire, std::size_t first, std::size_t step) {
    const auto& pattern = std::get<Pattern>(GetParam());
    const std::size_t copies = std::get<Passage>(GetParam()).copies;
    const std::vector<Bytes> arrivals = receive_all(wire);
    std::size_t next = 0;
    for (std::size_t packet = first; packet < pattern.packets; packet += step) {
      for (std::size_t copy = 0; copy < copies; ++copy, ++next) {
        ASSERT_LT(next, arrivals.size()) << "packet " << packet << " is lost";
        ASSERT_EQ(arrivals[next], content(packet, pattern.bytes_of(packet))) << "packet " << packet;
      }
    }
    EXPECT_EQ(arrivals.size(), next);
    EXPECT_EQ(wire.counters().icrc_errors, 0u);
    EXPECT_EQ(wire.counters().packets_received, next);
  }

  const std::string path_ = testing::TempDir() + "gdx_every_byte_" + std::to_string(::getpid()) + ".pcap";
  std::unique_ptr<Wire> a_;
  std::unique_ptr<Wire> b_;
  std::unique_ptr<Wire> c_;
};

TEST_P(EveryByte, of_a_flush_to_one_peer_arrives) {
  const auto& [carrier, pattern, passage] = GetParam();
  for (std::size_t packet = 0; packet < pattern.packets; ++packet) send(b_->local(), packet);
  a_->flush();
  expect_arrivals(*b_, 0, 1);
  EXPECT_EQ(a_->counters().send_errors, 0u);
  a_.reset();
  // A capture shows what was sent, in the same order.
  const auto captured = gdx::test::read_roce_pcap(path_);
  ASSERT_EQ(captured.size(), pattern.packets * passage.copies);
  for (std::size_t i = 0; i < captured.size(); ++i) {
    const std::size_t packet = i / passage.copies;
    ASSERT_EQ(captured[i].datagram, content(packet, pattern.bytes_of(packet))) << "captured packet " << i;
  }
}

TEST_P(EveryByte, of_a_flush_to_two_peers_in_turn_arrives) {
  const auto& pattern = std::get<Pattern>(GetParam());
  for (std::size_t packet = 0; packet < pattern.packets; ++packet)
    send(packet % 2 == 0 ? b_->local() : c_->local(), packet);
  a_->flush();
  expect_arrivals(*b_, 0, 2);
  expect_arrivals(*c_, 1, 2);
  EXPECT_EQ(a_->counters().send_errors, 0u);
}

std::string name_of(const testing::TestParamInfo<Flush>& flush) {
  const auto& [carrier, pattern, passage] = flush.param;
  return std::string(carrier == Carrier::kUdp ? "udp_" : "shm_") + pattern.name + "_" + passage.name;
}

INSTANTIATE_TEST_SUITE_P(Wires, EveryByte,
                         testing::Combine(testing::Values(Carrier::kUdp, Carrier::kSharedMemory),
                                          testing::ValuesIn(kPatterns), testing::ValuesIn(passages)),
                         name_of);

}  // namespace every_byte_test
}  // namespace gdx::softhca::wire
