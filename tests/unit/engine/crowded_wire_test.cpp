// Wires with little room: what an HCA still sends on them.
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "tests/unit/engine/node.h"

namespace gdx::softhca::test {
namespace crowded_wire_test {

class CrowdedWire final : public wire::Wire {
 public:
  static constexpr std::size_t kWindowPackets = 40;

  CrowdedWire(std::unique_ptr<Wire> below, const bool& crowded)
      : below_(std::move(below)), crowded_(crowded) {}

  const wire::Address& local() const override { return below_->local(); }
  std::size_t room(const wire::Address& destination) override {
    return crowded_ ? 0 : below_->room(destination);
  }
  std::span<std::byte> begin_packet(const wire::Address& destination) override {
    return below_->begin_packet(destination);
  }
  void commit_packet(const wire::Address& destination, std::size_t length_bytes) override {
    below_->commit_packet(destination, length_bytes);
  }
  void flush() override { below_->flush(); }
  std::size_t receive(std::size_t max_packets, const Sink& sink) override {
    return below_->receive(max_packets, sink);
  }
  bool awaits(const wire::Address& destination) override { return below_->awaits(destination); }
  int poll_fd() const override { return below_->poll_fd(); }
  bool arm() override { return below_->arm(); }
  const wire::WireCounters& counters() const override { return below_->counters(); }
  std::size_t window_bytes() const override { return kWindowPackets * 4096; }

 private:
  std::unique_ptr<Wire> below_;
  const bool& crowded_;
};

std::unique_ptr<wire::Wire> make_crowded(const bool& crowded) {
  Result<std::unique_ptr<wire::Wire>> below = wire::open_udp({});
  if (!below) {
    ADD_FAILURE() << below.error().message;
    std::abort();
  }
  return std::make_unique<CrowdedWire>(std::move(*below), crowded);
}

// Acknowledgements must pass full rings, or two HCAs that write to each other would wait for each other's.
TEST(CrowdedHca, acknowledges_writes_and_holds_its_own_back) {
  bool crowded = false;
  Node a;
  Node b(make_crowded(crowded));
  a.connect(b);
  b.connect(a);
  crowded = true;
  b.post_write(b.local(0, 64), a.remote(0));
  b.ring();
  a.post_write(a.local(0, 8192), b.remote(0));
  a.ring();
  const std::optional<Polled> acknowledged = await_send(a, b);
  ASSERT_TRUE(acknowledged) << "no completion";
  EXPECT_EQ(acknowledged->syndrome, mlx5::Syndrome::kNone);
  EXPECT_EQ(a.hca->counters().transport.retransmitted_packets, 0u);
  EXPECT_FALSE(b.poll_send());
  crowded = false;
  EXPECT_TRUE(await_send(b, a));
}

// No time goes by, because nothing is to be sent again.
TEST(CrowdedHca, sends_no_more_than_the_wires_window_before_an_acknowledgement) {
  const bool crowded = false;
  Node a(make_crowded(crowded), 4 << 20, {}, [] { return std::uint64_t{1'000'000'000}; });
  Node b;
  a.connect(b);
  b.connect(a);
  introduce(a, b);
  a.post_write(a.local(0, 1 << 20), b.remote(0));
  a.ring();
  for (int i = 0; i < 10; ++i) a.hca->progress();
  EXPECT_EQ(a.hca->counters().transport.packets_sent, CrowdedWire::kWindowPackets);
  EXPECT_TRUE(await_send(a, b));
}

}  // namespace crowded_wire_test
}  // namespace gdx::softhca::test
