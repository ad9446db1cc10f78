// Whole courses of queue pairs of each service, in virtual time: every packet, completion, event and counter
// of both ends, and the flight records, as text.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "proto/mlx5/doorbell.h"
#include "tests/expected_text.h"
#include "tests/hca_text.h"
#include "tests/unit/engine/virtual_pair.h"

namespace gdx::softhca::test {
namespace course_test {

using mlx5::WqeOpcode;

class Course : public testing::Test {
 protected:
  void start(QpType type) {
    pair.emplace(HcaConfig{}, HcaConfig{}, VirtualPair::kPatient, type);
    began_ns = pair->now_ns;
    for (Node* const node : {&pair->a, &pair->b}) {
      for (std::size_t i = 0; i < 0x4000; ++i) node->memory[i] = static_cast<std::byte>(i * 7);
    }
    pair->loses = [this] {
      const bool lost = ++sent == lost_one;
      if (lost) line("the next packet is lost");
      return lost;
    };
    counted = {pair->a.hca->counters(), pair->b.hca->counters()};
  }
  void line(const std::string& what) {
    text += fmt::format("  {} {}\n", (pair->now_ns - began_ns) / 1000, what);
  }
  void tell(const char* way, const Node& receiver, const VirtualPacket& packet) {
    const std::uint64_t origin = receiver.remote(0).address;
    line(fmt::format("{} {}", way, packet_text(packet.datagram, [origin](auto) { return origin; })));
  }
  void tell(const char* whose, const char* queue, const std::optional<Polled>& polled) {
    line(fmt::format("{} {} wqe {} {}: {}", whose, queue, polled->wqe_counter,
                     mlx5::syndrome_name(polled->syndrome), hex(std::as_bytes(std::span(&polled->cqe, 1)))));
  }
  void step(Node& node, const char* name, Node& other, MemoryWire::Inbox& out) {
    const std::size_t before = out.size();
    node.hca->progress();
    EXPECT_STREQ(static_cast<Engine&>(*node.hca).check_invariants(), nullptr);
    for (std::size_t i = before; i < out.size(); ++i) tell(name, other, out[i]);
    while (const auto polled = node.poll_send()) tell(name, "send", polled);
    while (const auto polled = node.poll_receive()) tell(name, "receive", polled);
    for (; node.completion_events > 0; --node.completion_events)
      line(fmt::format("{} completion event", name));
    for (const int event : node.events) line(fmt::format("{} event {}", name, event));
    node.events.clear();
  }
  // Steps both ends until neither expects anything, and tells by how much the counters have grown.
  void run(const std::string& what, int most_steps = 20'000) {
    text += what + '\n';
    constexpr std::uint64_t kForLong = 1'000'000'000;  // told by an HCA without work
    std::uint64_t idle_ns = 0;
    for (int i = 0; idle_ns < kForLong && i < most_steps; ++i) {
      step(pair->a, "a", pair->b, pair->to_b);
      step(pair->b, "b", pair->a, pair->to_a);
      idle_ns = std::min(pair->a.hca->idle_ns(), pair->b.hca->idle_ns());
      if (idle_ns < kForLong) pair->now_ns += std::max<std::uint64_t>(idle_ns, 1'000);
    }
    for (const std::size_t end : {0u, 1u}) {
      const HcaCounters now = (end == 0 ? pair->a : pair->b).hca->counters();
      text += fmt::format("  {}:{}\n", end == 0 ? "a" : "b", counters_text(now, counted[end]));
      counted[end] = now;
    }
  }
  void ring_and_run(const std::string& what, int most_steps = 20'000) {
    pair->a.ring();
    run(what, most_steps);
  }
  void tell_flights() {
    for (Node* const node : {&pair->a, &pair->b}) {
      FlightRecord record = node->hca->read_flight(node->qpn).value_or(FlightRecord{});
      for (FlightEvent& event : record.events) event.time_ns -= began_ns;
      text += encode_flight(record);
    }
  }

  std::optional<VirtualPair> pair;
  std::string text;
  std::array<HcaCounters, 2> counted{};
  std::uint64_t began_ns = 0;
  int sent = 0;
  int lost_one = 0;
};

constexpr std::size_t kTarget = 0x10000;

TEST_F(Course, of_a_reliable_connection) {
  start(QpType::kRc);
  Node& a = pair->a;
  Node& b = pair->b;
  a.post_write(a.local(0, 64), b.remote(kTarget));
  a.post_write(a.local(1, 10'001), b.remote(kTarget + 3), false);
  a.post_write(a.local(0, 1), b.remote(kTarget));
  ring_and_run("writes of 64, 10001 and 1 bytes, the second without a completion");
  b.post_receive(b.local(kTarget, 16));
  b.arm(b.receive_cqn);
  a.arm(a.send_cqn);
  a.post_write_immediate(a.local(5, 4099), b.remote(kTarget), 0x12345678);
  ring_and_run("write with an immediate, both completion queues armed");
  a.post_read(a.local(kTarget, 9000), b.remote(0));
  a.post_read(a.local(kTarget, 1), b.remote(0));
  ring_and_run("reads of 9000 bytes and of 1");
  a.post_fetch_add(a.local(kTarget, 8), b.remote(kTarget), 0x55);
  a.post_compare_swap(a.local(kTarget, 8), b.remote(kTarget), 7, 8);
  a.post_masked_fetch_add(a.local(kTarget, 4), b.remote(kTarget), 3, 0x10);
  a.post_masked_compare_swap(
      a.local(kTarget, 8), b.remote(kTarget + 8),
      {.swap_or_add = 1, .compare = 0x5b, .swap_mask_or_boundaries = 3, .compare_mask = 0xff});
  ring_and_run("atomics");
  a.post_send_inline(std::string_view("seven B"), 0xabcd);
  ring_and_run("send for which there is no receive", 6);
  for (int i = 0; i < 2; ++i) b.post_receive(b.local(kTarget, 64));
  run("two receives");
  a.post_send(a.local(8, 61));
  ring_and_run("send of 61 bytes");
  for (const std::uint32_t offset : {0u, 1024u, 1024u})
    a.post_write(a.staging(offset, 512), b.remote(kTarget));
  ring_and_run("writes from device memory, the last from a place that is held");
  for (const bool torn : {false, true}) {
    const std::uint16_t index = a.post_write(a.local(0, 16), b.remote(kTarget));
    a.ring_blueflame(index, mlx5::kUarBlueFlame, 1, [torn](auto words) { words[5] ^= torn ? 1 : 0; });
    run(torn ? "BlueFlame, torn" : "BlueFlame");
  }
  a.ring_for(a.qpn + 1);
  run("doorbell of no queue");
  tell_flights();
  expect_text("course_rc.txt", text);
}

TEST_F(Course, of_a_reliable_connection_that_meets_marks_losses_and_its_end) {
  start(QpType::kRc);
  Node& a = pair->a;
  Node& b = pair->b;
  const auto write = [&](std::uint32_t bytes) { a.post_write(a.local(0, bytes), b.remote(kTarget)); };
  pair->marks = true;
  write(12'000);
  ring_and_run("marked");
  pair->marks = false;
  write(12'000);
  ring_and_run("no longer marked");
  const std::pair<int, const char*> losses[] = {{2, "a write's second packet is lost"},
                                                {3, "a write's last packet is lost"},
                                                {4, "a write's acknowledgement is lost"},
                                                {6, "a read's first answer is lost"}};
  for (const auto& [packet, what] : losses) {
    sent = 0;
    lost_one = packet;
    write(12'000);
    if (packet == 6) a.post_read(a.local(kTarget, 12'000), b.remote(0));
    ring_and_run(what);
  }
  for (int i = 0; i < 2; ++i) b.post_receive(b.local(kTarget, 16));
  b.post_write(b.local(0, 8), {a.remote(kTarget).address, a.mkey + 0x100});
  b.post_write(b.local(0, 8), a.remote(kTarget), false);
  b.ring();
  write(8);
  ring_and_run("write to a key that is none, beside one to the failing end");
  tell_flights();
  for (Node* const node : {&a, &b}) ASSERT_EQ(node->modify_to_reset(), 0);
  a.connect(b, VirtualPair::kPatient);
  b.connect(a, VirtualPair::kPatient);
  write(8);
  ring_and_run("reset and connected again");
  a.post_send(a.local(0, 17));
  b.post_receive(b.local(kTarget, 16));
  ring_and_run("send that is longer than its receive");
  for (Node* const node : {&a, &b}) ASSERT_EQ(node->hca->destroy_qp(node->qpn), 0);
  a.post_write(a.local(0, 8), b.remote(kTarget));
  ring_and_run("destroyed, and rung once more");
  expect_text("course_faults.txt", text);
}

TEST_F(Course, of_an_unreliable_connection) {
  start(QpType::kUc);
  Node& a = pair->a;
  Node& b = pair->b;
  a.post_write(a.local(0, 10'001), b.remote(kTarget));
  ring_and_run("write");
  for (int i = 0; i < 3; ++i) b.post_receive(b.local(kTarget, 64));
  a.post_write_immediate(a.local(0, 2), b.remote(kTarget), 0x1234);
  a.post_send(a.local(0, 64));  // as long as its receive
  ring_and_run("write with an immediate, and a send");
  sent = 0;
  lost_one = 2;
  a.post_write_immediate(a.local(0, 10'001), b.remote(kTarget), 0x1235);
  ring_and_run("of a write the second packet is lost");
  a.post_write(a.local(0, 8), {b.remote(kTarget).address, b.mkey + 0x100});
  ring_and_run("write to a key that is none");
  a.post_send(a.local(0, 65));
  ring_and_run("send that is longer than its receive");
  Local wrong = a.local(0, 8);
  ++wrong.lkey;
  a.post_write(wrong, b.remote(kTarget));
  a.post_write(a.local(0, 8), b.remote(kTarget));
  ring_and_run("write from a key that is none, and one behind it");
  tell_flights();
  expect_text("course_uc.txt", text);
}

TEST_F(Course, of_datagrams) {
  start(QpType::kUd);
  const auto post = [this](std::uint32_t qpn, std::uint32_t qkey, std::uint32_t bytes) {
    struct {
      mlx5::AddressVector vector{};
      mlx5::DataSegment data;
    } wqe{{}, {bytes, pair->a.mkey, pair->a.local(0, 0).address}};
    wqe.vector.qkey = qkey;
    wqe.vector.destination_qpn = mlx5::kExtendedAddressVector | qpn;
    std::ranges::copy(pair->b.hca->address().gid, wqe.vector.remote_gid);
    pair->a.post_raw(WqeOpcode::kSend, std::as_bytes(std::span(&wqe, 1)),
                     mlx5::kCompletionAlways | mlx5::kSolicited);
  };
  const std::uint32_t qpn = pair->b.qpn;
  for (const std::uint32_t room : {64u, 8192u}) pair->b.post_receive(pair->b.local(kTarget, room));
  post(qpn, Node::kQkey, 24);
  post(qpn, Node::kQkey, 4096);
  ring_and_run("datagrams of 24 and 4096 bytes");
  post(qpn, Node::kQkey + 1, 8);
  post(qpn + 1, Node::kQkey, 8);
  ring_and_run("another Q_Key, and no such queue pair");
  post(qpn, Node::kQkey, 5);
  ring_and_run("without a receive");
  pair->b.post_receive(pair->b.local(kTarget, 40));
  post(qpn, Node::kQkey, 1);
  ring_and_run("a byte more than the receive has room for");
  post(qpn, Node::kQkey, 4097);
  post(qpn, Node::kQkey, 8);
  ring_and_run("longer than a packet, and one behind it");
  tell_flights();
  expect_text("course_ud.txt", text);
}

}  // namespace course_test
}  // namespace gdx::softhca::test
