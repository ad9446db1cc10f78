#include "driver-shim/softhca/wire/mortal_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/unit/wire/shared_memory_ends.h"

namespace gdx::softhca::wire {
namespace mortal_wire_test {

std::size_t take(Wire& wire) {
  std::size_t taken = 0;
  for (int tries = 0; tries < 200; ++tries) {
    wire.receive(64, [&](const Address&, std::span<const std::byte>) { ++taken; });
  }
  return taken;
}

struct Life {
  std::size_t left;
  std::string said;
  bool operator==(const Life&) const = default;
};

// Returns how many of 300 packets leave before the death, and what is said of it. After it none arrives here.
Life live(Carrier carrier, std::uint64_t seed) {
  constexpr std::size_t kPackets = 300;
  const auto peer = open(carrier);
  testing::internal::CaptureStderr();
  MortalWire wire(open(carrier), {.death = 0.02, .seed = seed});
  introduce(*peer, wire);
  send(*peer, wire.local(), 1, 64);
  peer->flush();
  EXPECT_EQ(take(wire), 1u) << "it lives";
  std::size_t arrived = 0;
  for (std::size_t i = 0; i < kPackets; ++i) {
    send(wire, peer->local(), static_cast<std::uint8_t>(i), 64);
    wire.flush();
    if (i % 32 == 0) arrived += take(*peer);
  }
  arrived += take(*peer);
  EXPECT_EQ(wire.counters().packets_sent, arrived);
  EXPECT_EQ(wire.counters().faults_lost, kPackets - arrived);
  send(*peer, wire.local(), 1, 64);
  peer->flush();
  EXPECT_EQ(take(wire), 0u) << "it is dead";
  const std::string said = testing::internal::GetCapturedStderr();
  return {arrived, said.substr(said.find("is dead"))};
}

TEST(MortalWire, dies_at_a_packet_by_seed_and_says_so) {
  for (const Carrier carrier : {Carrier::kUdp, Carrier::kAuto, Carrier::kSharedMemory}) {
    const Life first = live(carrier, 5);
    EXPECT_EQ(first, live(carrier, 5)) << "another life of that seed";
    EXPECT_NE(first.left, live(carrier, 6).left) << "a life of another seed";
    EXPECT_GT(first.left, 0u);
    EXPECT_EQ(first.said,
              "is dead from its packet " + std::to_string(first.left + 1) + " on: GDX_SOFTHCA_DEATH\n");
  }
}

}  // namespace mortal_wire_test
}  // namespace gdx::softhca::wire
