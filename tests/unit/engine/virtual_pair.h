// Two HCAs on a wire of memory, in time that the test counts: no socket, no clock, and no loss but the
// test's.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tests/unit/engine/node.h"

namespace gdx::softhca::test {

struct VirtualPacket {
  wire::Address source;
  std::vector<std::byte> datagram;
  bool marked = false;  // by a switch that is congested
};

// One end of the wire: what the other one sends is in its inbox at once.
class MemoryWire final : public wire::Wire {
 public:
  using Inbox = std::deque<VirtualPacket>;
  // `marks`: whether what it sends now gets marked on its way; `loses`, unless empty: whether it gets lost.
  MemoryWire(const wire::Address& local, Inbox& own, Inbox& peers, const bool& marks,
             const std::function<bool()>& loses)
      : local_(local), own_(own), peers_(peers), marks_(marks), loses_(loses) {}

  const wire::Address& local() const override { return local_; }
  std::size_t room(const wire::Address& /*destination*/) override { return SIZE_MAX; }
  std::span<std::byte> begin_packet(const wire::Address& /*destination*/) override { return packet_; }
  void commit_packet(const wire::Address& /*destination*/, std::size_t length_bytes) override {
    ++counters_.packets_sent;
    if (loses_ && loses_()) return;
    const auto end = packet_.begin() + static_cast<std::ptrdiff_t>(length_bytes);
    peers_.push_back({local_, {packet_.begin(), end}, marks_});
  }
  void flush() override {}
  std::size_t receive(std::size_t max_packets, const Sink& sink) override {
    std::size_t taken = 0;
    for (; taken < max_packets && !own_.empty(); ++taken) {
      const VirtualPacket packet = std::move(own_.front());
      own_.pop_front();
      ++counters_.packets_received;
      marked_ = packet.marked;
      sink(packet.source, packet.datagram);
    }
    return taken;
  }
  bool arrival_is_marked() const override { return marked_; }
  int poll_fd() const override { return -1; }
  bool arm() override { return own_.empty(); }
  const wire::WireCounters& counters() const override { return counters_; }

 private:
  wire::Address local_;
  Inbox& own_;
  Inbox& peers_;
  const bool& marks_;
  const std::function<bool()>& loses_;
  bool marked_ = false;
  wire::WireCounters counters_;
  std::vector<std::byte> packet_ = std::vector<std::byte>(wire::kMaxPacketBytes);
};

class VirtualPair {
 public:
  static constexpr std::uint8_t kPatient = 20;  // local ACK timeout code: 4 s
  explicit VirtualPair(const HcaConfig& of_a = {}, const HcaConfig& of_b = {},
                       std::uint8_t timeout = kPatient, QpType type = QpType::kRc)
      : a(
            std::make_unique<MemoryWire>(wire::Address::ipv4(0x0a000001), to_a, to_b, marks, loses),
            kMemoryBytes, of_a, [this] { return now_ns; }, type),
        b(
            std::make_unique<MemoryWire>(wire::Address::ipv4(0x0a000002), to_b, to_a, marks, loses),
            kMemoryBytes, of_b, [this] { return now_ns; }, type) {
    a.connect(b, timeout);
    b.connect(a, timeout);
  }

  // Steps both until `done`, a microsecond a step. Returns whether it was within `limit_ns`, and no step
  // broke an invariant.
  bool run(const std::function<bool()>& done, std::uint64_t limit_ns = 10'000'000'000) {
    const std::uint64_t end_ns = now_ns + limit_ns;
    while (!done()) {
      if (now_ns >= end_ns) return false;
      for (const Node* const node : {&a, &b}) {
        node->hca->progress();
        const char* const broken = static_cast<Engine&>(*node->hca).check_invariants();
        EXPECT_STREQ(broken, nullptr);
        if (broken != nullptr) return false;
      }
      now_ns += 1'000;
    }
    return true;
  }
  [[nodiscard]] std::uint64_t packets_of_a() const { return a.hca->counters().wire.packets_sent; }

 private:
  static constexpr std::size_t kMemoryBytes = 16 << 20;

 public:
  std::uint64_t now_ns = 1'000'000'000;
  bool marks = false;  // every packet, both ways
  std::function<bool()> loses;
  MemoryWire::Inbox to_a;
  MemoryWire::Inbox to_b;
  Node a;
  Node b;
};

}  // namespace gdx::softhca::test
