// Reports of the shared-memory wire about itself, over a UDP wire of the test's own.
#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <memory>

#include "driver-shim/softhca/wire/shared_memory_wire.h"

namespace gdx::softhca::wire {
namespace shared_memory_choices_test {

class NarrowUdp final : public Wire {
 public:
  static constexpr std::size_t kWindowBytes = 100'000;

  const Address& local() const override { return local_; }
  std::size_t room(const Address& /*destination*/) override { return 1; }
  std::span<std::byte> begin_packet(const Address& /*destination*/) override { return packet_; }
  void commit_packet(const Address& /*destination*/, std::size_t /*length_bytes*/) override {}
  void flush() override {}
  std::size_t receive(std::size_t /*max_packets*/, const Sink& /*sink*/) override { return 0; }
  int poll_fd() const override { return -1; }
  bool arm() override { return true; }
  const WireCounters& counters() const override { return counters_; }
  std::size_t window_bytes() const override { return kWindowBytes; }
  std::size_t socket_bytes() const override { return 2 * kWindowBytes; }
  std::uint32_t mtu_bytes() const override { return 512; }

 private:
  Address local_ = Address::ipv4(0x7f000001);
  std::array<std::byte, kMaxPacketBytes> packet_{};
  WireCounters counters_;
};

std::unique_ptr<SharedMemoryWire> make(bool udp_carries, const FaultConfig& faults = {}) {
  return std::make_unique<SharedMemoryWire>(
      SharedMemoryWire::Parts{.udp = std::make_unique<NarrowUdp>(),
                              .udp_carries = udp_carries,
                              .capture = nullptr,
                              .listener = Descriptor(),
                              .epoll = Descriptor(epoll_create1(EPOLL_CLOEXEC))},
      faults);
}

// Any destination may turn out to be one for UDP.
TEST(SharedMemoryChoices, window_is_udps_where_packets_may_take_udp) {
  EXPECT_EQ(make(true)->window_bytes(), NarrowUdp::kWindowBytes);
  EXPECT_EQ(make(false)->window_bytes(), std::size_t{2} << 20);
  for (const bool carries : {false, true}) {
    const auto wire = make(carries);
    const Address nobody = Address::ipv4(0x7ffffffe);
    EXPECT_EQ(wire->mtu_bytes(), carries ? 512u : 4096u);
    EXPECT_EQ(wire->socket_bytes(), carries ? 2 * NarrowUdp::kWindowBytes : 0u);
    EXPECT_EQ(wire->room(nobody), carries ? 1u : SIZE_MAX);
    EXPECT_FALSE(wire->holds_back(nobody));
    EXPECT_TRUE(wire->holds_back(wire->local()));
  }
}

TEST(SharedMemoryChoices, payload_is_streamed_where_it_goes_into_the_ring_and_is_not_looked_at_again) {
  const auto streams = [](const std::unique_ptr<SharedMemoryWire>& wire, const Address& destination) {
    static_cast<void>(wire->begin_packet(destination));
    const bool streamed = wire->streams();
    wire->commit_packet(destination, 20);
    return streamed;
  };
  const auto peer_wire = open_wire(Carrier::kSharedMemory, {});
  ASSERT_TRUE(peer_wire) << peer_wire.error().message;
  const Address peer = (*peer_wire)->local();
  EXPECT_TRUE(streams(make(false), peer));
  EXPECT_FALSE(streams(make(false, {.corrupt = 0.5}), peer)) << "its ICRC is computed from it";
  EXPECT_FALSE(streams(make(false, {.loss = 0.5}), peer)) << "it is copied again";
  EXPECT_FALSE(streams(make(false), Address::ipv4(0x7f000001))) << "this thread reads it";
  EXPECT_FALSE(streams(make(true), Address::ipv4(0x7ffffffe))) << "it goes to UDP";
}

}  // namespace shared_memory_choices_test
}  // namespace gdx::softhca::wire
