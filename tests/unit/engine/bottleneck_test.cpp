// Flows of different HCAs through one queue of a switch that marks: production DCQCN, pacing, turns and
// transport, in time that the test counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <ostream>

#include "tests/sim/random.h"
#include "tests/unit/engine/node.h"

namespace gdx::softhca::test {
namespace bottleneck_test {

constexpr std::uint64_t kMillisecondNs = 1'000'000;
constexpr std::uint64_t kStepNs = 1'000;
constexpr std::uint64_t kLatencyNs = 4'000;  // each way
constexpr std::uint32_t kFrameBytes =
    62;  // Ethernet, IP, UDP, ICRC, preamble and gap, beside BTH and payload
constexpr std::uint64_t kBufferBytes = 2 << 20;
constexpr std::uint32_t kWriteBytes = 16 << 10;
constexpr int kCredits = 8;  // of a flow, a write each: the 128 KiB of staging that a put may have under way
constexpr std::size_t kMemoryBytes = 1 << 20;
constexpr std::uint8_t kPatient = 20;  // local ACK timeout code: 4 s

// Marks as RED with the DCQCN paper's parameters (Zhu et al., section 5.2).
struct Marking {
  double least_bytes = 5e3;
  double most_bytes = 200e3;
  double most_chance = 0.01;
};

struct Packet {
  std::uint64_t due_ns = 0;
  wire::Address source;
  std::vector<std::byte> datagram;
  bool marked = false;
};

// Senders are 0 to flows - 1; flow i goes to HCA flows + i. What senders send shares one link and its queue.
class Bottleneck {
 public:
  Bottleneck(std::size_t flows, double rate_gbps)
      : delivered_bytes(flows), inboxes_(2 * flows), flows_(flows), ns_per_byte_(8 / rate_gbps) {}

  void send(std::size_t from, std::span<const std::byte> datagram) {
    const std::size_t to = from < flows_ ? from + flows_ : from - flows_;
    Packet packet{now_ns + kLatencyNs, address_of(from), {datagram.begin(), datagram.end()}};
    if (from < flows_ && !pass_queue(from, packet)) return;
    inboxes_[to].push_back(std::move(packet));
  }
  std::deque<Packet>& inbox(std::size_t of) { return inboxes_[of]; }
  static wire::Address address_of(std::size_t node) {
    return wire::Address::ipv4(0x0a000001 + static_cast<std::uint32_t>(node));
  }

  std::uint64_t now_ns = 1'000'000'000;
  std::vector<std::uint64_t> delivered_bytes;  // by flow, on the link
  std::uint64_t dropped = 0;
  std::uint64_t longest_bytes = 0;
  Marking marking;

 private:
  bool pass_queue(std::size_t flow, Packet& packet) {
    const double now = static_cast<double>(now_ns);
    const double waiting_bytes = std::max(busy_until_ns_ - now, 0.0) / ns_per_byte_;
    longest_bytes = std::max(longest_bytes, static_cast<std::uint64_t>(waiting_bytes));
    const std::uint64_t bytes = packet.datagram.size() + kFrameBytes;
    if (waiting_bytes + static_cast<double>(bytes) > kBufferBytes) {
      ++dropped;
      return false;
    }
    const double depth = (waiting_bytes - marking.least_bytes) / (marking.most_bytes - marking.least_bytes);
    packet.marked = depth >= 1 || random_.chance(std::max(depth, 0.0) * marking.most_chance);
    busy_until_ns_ = std::max(busy_until_ns_, now) + static_cast<double>(bytes) * ns_per_byte_;
    packet.due_ns = static_cast<std::uint64_t>(busy_until_ns_) + kLatencyNs;
    delivered_bytes[flow] += bytes;
    return true;
  }

  sim::Random random_{1};
  std::vector<std::deque<Packet>> inboxes_;
  std::size_t flows_;
  double ns_per_byte_;
  double busy_until_ns_ = 0;
};

class BottleneckWire final : public wire::Wire {
 public:
  BottleneckWire(Bottleneck& network, std::size_t number)
      : network_(network), number_(number), local_(Bottleneck::address_of(number)) {}

  const wire::Address& local() const override { return local_; }
  std::size_t room(const wire::Address& /*destination*/) override { return SIZE_MAX; }
  std::span<std::byte> begin_packet(const wire::Address& /*destination*/) override { return packet_; }
  void commit_packet(const wire::Address& /*destination*/, std::size_t length_bytes) override {
    ++counters_.packets_sent;
    network_.send(number_, std::span(packet_).first(length_bytes));
  }
  void flush() override {}
  std::size_t receive(std::size_t max_packets, const Sink& sink) override {
    std::deque<Packet>& inbox = network_.inbox(number_);
    std::size_t taken = 0;
    for (; taken < max_packets && !inbox.empty() && inbox.front().due_ns <= network_.now_ns; ++taken) {
      const Packet packet = std::move(inbox.front());
      inbox.pop_front();
      marked_ = packet.marked;
      sink(packet.source, packet.datagram);
    }
    return taken;
  }
  bool arrival_is_marked() const override { return marked_; }
  int poll_fd() const override { return -1; }
  bool arm() override { return true; }
  const wire::WireCounters& counters() const override { return counters_; }

 private:
  Bottleneck& network_;
  std::size_t number_;
  wire::Address local_;
  bool marked_ = false;
  wire::WireCounters counters_;
  std::vector<std::byte> packet_ = std::vector<std::byte>(wire::kMaxPacketBytes);
};

class Flows {
 public:
  // All links have the same rate.
  Flows(std::size_t flows, double rate_gbps, CongestionControl control = CongestionControl::kDcqcn)
      : network_(flows, rate_gbps) {
    HcaConfig config;
    config.rate_gbps = rate_gbps;
    config.congestion_control = control;
    for (std::size_t i = 0; i < 2 * flows; ++i) {
      nodes_.push_back(std::make_unique<Node>(std::make_unique<BottleneckWire>(network_, i), kMemoryBytes,
                                              config, [this] { return network_.now_ns; }));
    }
    for (std::size_t i = 0; i < flows; ++i) {
      nodes_[i]->connect(*nodes_[flows + i], kPatient);
      nodes_[flows + i]->connect(*nodes_[i], kPatient);
      for (int k = 0; k < kCredits; ++k) post(i);
    }
  }

  // Gb/s of each flow on the shared link, over the next `span_ns`. HCA `asleep` does nothing meanwhile.
  std::vector<double> run(std::uint64_t span_ns, std::size_t asleep = SIZE_MAX) {
    const std::vector<std::uint64_t> before = network_.delivered_bytes;
    for (const std::uint64_t end_ns = network_.now_ns + span_ns; network_.now_ns < end_ns;
         network_.now_ns += kStepNs) {
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        if (i != asleep) nodes_[i]->hca->progress();
      }
      for (std::size_t i = 0; i < flows(); ++i) {
        while (nodes_[i]->poll_send()) post(i);
      }
    }
    std::vector<double> gbps(flows());
    for (std::size_t i = 0; i < flows(); ++i) {
      const auto bits = static_cast<double>(8 * (network_.delivered_bytes[i] - before[i]));
      gbps[i] = bits / static_cast<double>(span_ns);
    }
    return gbps;
  }

  [[nodiscard]] std::size_t flows() const { return nodes_.size() / 2; }
  Bottleneck& network() { return network_; }
  HcaCounters counters(std::size_t node) { return nodes_[node]->hca->counters(); }

 private:
  void post(std::size_t i) {
    nodes_[i]->post_write(nodes_[i]->local(0, kWriteBytes), nodes_[flows() + i]->remote(0));
    nodes_[i]->ring();
  }

  Bottleneck network_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

constexpr std::uint64_t kCreditBytes = std::uint64_t{kCredits} * kWriteBytes;

struct Case {
  std::size_t flows;
  double rate_gbps;
  double least_utilisation;
};
void PrintTo(const Case& shape, std::ostream* out) {
  *out << shape.flows << "_flows_at_" << shape.rate_gbps << "_gbps";
}

double sum(const std::vector<double>& rates) { return std::accumulate(rates.begin(), rates.end(), 0.0); }

// The bar: a cut is half of alpha, some per cent here, and flows are cut at different times.
void expect_fair(const std::vector<double>& gbps, double rate_gbps) {
  const double fair = rate_gbps / static_cast<double>(gbps.size());
  for (const double rate : gbps) EXPECT_NEAR(rate, fair, 0.2 * fair);
}

class SharedQueue : public testing::TestWithParam<Case> {};

TEST_P(SharedQueue, flows_converge_to_equal_shares_of_a_full_link_and_drop_nothing) {
  const auto [count, rate_gbps, least_utilisation] = GetParam();
  Flows flows(count, rate_gbps);
  (void)flows.run(40 * kMillisecondNs);
  flows.network().longest_bytes = 0;
  const std::vector<double> gbps = flows.run(60 * kMillisecondNs);
  EXPECT_GE(sum(gbps), least_utilisation * rate_gbps);
  expect_fair(gbps, rate_gbps);
  EXPECT_LT(flows.network().longest_bytes, rate_gbps < 40 ? 400'000u : 250'000u);

  // One peer sleeps: the others have what it leaves, as fast as additive increase goes, 0.7 Gb/s in 1 ms.
  (void)flows.run(80 * kMillisecondNs, count);
  const std::vector<double> without = flows.run(20 * kMillisecondNs, count);
  EXPECT_LT(without[0], 0.01 * rate_gbps);
  EXPECT_GE(sum(without), least_utilisation * rate_gbps);
  (void)flows.run(100 * kMillisecondNs);
  const std::vector<double> again = flows.run(60 * kMillisecondNs);
  EXPECT_GE(sum(again), least_utilisation * rate_gbps);
  expect_fair(again, rate_gbps);

  EXPECT_EQ(flows.network().dropped, 0u);
  for (std::size_t i = 0; i < count; ++i) {
    // The peer that slept was sent its tail again, and nothing else.
    const auto& transport = flows.counters(i).transport;
    EXPECT_EQ(transport.retransmitted_packets, i == 0 ? transport.tail_resends : 0u);
    EXPECT_GT(flows.counters(i).notifications_heeded, 10u);
  }
}

// 40 Gb/s is the link of the paper's parameters, which are absolute. On a slower one an increase is a larger
// part of the rate. A queue of so many bytes lasts for several notifications: cuts are deeper than the queue.
INSTANTIATE_TEST_SUITE_P(Congestion, SharedQueue,
                         testing::Values(Case{2, 40, 0.95}, Case{4, 40, 0.95}, Case{8, 40, 0.95},
                                         Case{4, 10, 0.8}));

// Effect of credits alone: nothing is dropped either, and all of them lie in the queue.
TEST(SharedQueueWithoutDcqcn, holds_every_credit) {
  Flows flows(8, 40, CongestionControl::kNone);
  (void)flows.run(20 * kMillisecondNs);
  EXPECT_GT(flows.network().longest_bytes, 8 * kCreditBytes * 9 / 10);
  EXPECT_EQ(flows.network().dropped, 0u);
  EXPECT_EQ(flows.counters(0).notifications_heeded, 0u);
}

}  // namespace bottleneck_test
}  // namespace gdx::softhca::test
