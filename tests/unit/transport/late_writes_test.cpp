// WRITEs of a queue pair that keeps no order: what may see them missing, and what may not.
#include "driver-shim/softhca/transport/late_writes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "driver-shim/softhca/transport/responder.h"
#include "tests/unit/transport/recording_ports.h"

namespace gdx::softhca::transport {
namespace late_writes_test {

using roce::Opcode;
using test::kAddress;
using test::kRkey;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

// Any seed.
class AnyOrder : public testing::TestWithParam<std::uint64_t> {
 protected:
  static constexpr std::uint32_t kBytes = 64;

  AnyOrder() {
    RcConfig config = test::make_config();
    config.late_writes_seed = GetParam();
    responder_.emplace(config, port_);
  }
  void receive(Opcode opcode, std::uint32_t psn, std::uint64_t address, std::size_t payload_bytes) {
    roce::Headers headers;
    headers.bth.opcode = opcode;
    headers.bth.psn = psn;
    headers.bth.ack_request = true;
    headers.reth = {address, kRkey, static_cast<std::uint32_t>(payload_bytes)};
    headers.atomic = {kAddress, kRkey, 7, 0};
    const std::vector<std::byte> payload(payload_bytes, std::byte{0xee});
    responder_->on_packet(0, headers, payload);
  }
  // WRITE number `place` from PSN 100 on, to a place of its own.
  void write(std::uint32_t place) {
    receive(Opcode::kRcWriteOnly, 100 + place, kAddress + place * kBytes, kBytes);
  }
  void pump() { responder_->pump(0, test::kAll); }
  [[nodiscard]] bool landed(std::uint32_t place) const {
    return port_.memory[place * kBytes] != std::byte{0};
  }
  [[nodiscard]] bool is_late() const { return responder_->next_deadline_ns() != kNever; }
  [[nodiscard]] std::vector<std::pair<std::uint32_t, int>> answers() const {
    std::vector<std::pair<std::uint32_t, int>> list;
    for (const roce::Headers& headers : port_.sent) list.push_back({headers.bth.psn, headers.aeth.syndrome});
    return list;
  }

  test::RecordingResponderPort port_;
  std::optional<Responder> responder_;
};

// The acknowledgement waits for both, and the deadline ends all waits.
TEST_P(AnyOrder, write_is_acknowledged_once_it_has_landed) {
  write(0);
  write(1);
  EXPECT_EQ(is_late(), !(landed(0) && landed(1)));
  EXPECT_EQ(responder_->can_send(), !is_late());
  if (is_late()) {
    EXPECT_LE(responder_->next_deadline_ns(), kMostLateNs);
    pump();
    EXPECT_THAT(answers(), IsEmpty());
    responder_->on_timer();
  }
  EXPECT_TRUE(landed(0) && landed(1));
  EXPECT_FALSE(is_late());
  pump();
  EXPECT_THAT(answers(), ElementsAre(Pair(101, roce::kAethAck)));
}

TEST_P(AnyOrder, what_follows_a_write_in_order_lets_it_land_first) {
  port_.receives = 2;
  const std::pair<Opcode, std::size_t> followers[] = {{Opcode::kRcFetchAdd, 0},
                                                      {Opcode::kRcSendOnly, 8},
                                                      {Opcode::kRcWriteOnlyImmediate, 8},
                                                      {Opcode::kRcReadRequest, 0}};
  std::uint32_t place = 1;  // the first has the followers' word
  std::uint32_t psn = 100;
  for (const auto& [follower, bytes] : followers) {
    receive(Opcode::kRcWriteOnly, psn++, kAddress + place * kBytes, kBytes);
    receive(follower, psn++, kAddress, bytes);
    EXPECT_TRUE(landed(place++)) << static_cast<int>(follower);
    pump();
  }
}

TEST_P(AnyOrder, write_whose_memory_has_gone_is_refused_and_not_acknowledged) {
  write(0);
  if (!is_late()) return;
  port_.memory_writable = false;
  responder_->on_timer();
  pump();
  EXPECT_THAT(answers(), ElementsAre(Pair(100, roce::kNakRemoteAccess)));
}

INSTANTIATE_TEST_SUITE_P(Seeds, AnyOrder, testing::Range<std::uint64_t>(1, 17));

TEST(LateWrites, later_write_lands_first_under_some_seed_and_under_none_without_one) {
  std::size_t overtaken = 0;
  for (std::uint64_t seed = 1; seed <= 64; ++seed) {
    test::RecordingResponderPort port;
    LateWrites late(seed);
    const std::array<std::byte, 1> payload{std::byte{1}};
    const bool first_is_late = late.keep(0, {100, kRkey, kAddress, payload});
    const bool second_is_late = late.keep(0, {101, kRkey, kAddress + 1, payload});
    overtaken += first_is_late && !second_is_late ? 1 : 0;
    EXPECT_EQ(late.land(port), std::nullopt);
  }
  EXPECT_GT(overtaken, 0u);
  LateWrites none(0);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(none.keep(0, {100, kRkey, kAddress, {}}));
}

}  // namespace late_writes_test
}  // namespace gdx::softhca::transport
