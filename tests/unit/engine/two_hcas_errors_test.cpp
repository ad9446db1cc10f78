// Two HCAs in one process: everything that should fail, and how.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "tests/unit/engine/node.h"

namespace gdx::softhca::test {
namespace two_hcas_errors_test {

using mlx5::CqeOpcode;
using mlx5::Syndrome;

constexpr int kEventQpFatal = 1;        // enum ib_event_type: IB_EVENT_QP_FATAL
constexpr int kEventQpAccessError = 3;  // IB_EVENT_QP_ACCESS_ERR

void expect_failure(const std::optional<Polled>& polled, std::uint16_t wqe_counter, Syndrome syndrome) {
  ASSERT_TRUE(polled) << "no completion";
  EXPECT_EQ(polled->opcode, CqeOpcode::kRequesterError);
  EXPECT_EQ(polled->wqe_counter, wqe_counter);
  EXPECT_EQ(polled->syndrome, syndrome) << mlx5::syndrome_name(polled->syndrome);
}

class FailingHcas : public testing::Test {
 protected:
  void SetUp() override {
    a.connect(b);
    b.connect(a);
    introduce(a, b);
  }
  [[nodiscard]] static QpState state(Node& node) { return node.hca->query_qp(node.qpn)->state; }

  Node a;
  Node b;
};

TEST_F(FailingHcas, wrong_rkey_is_a_remote_access_error_and_flushes_the_rest) {
  a.post_receive(a.local(0, 64));
  a.post_write(a.local(0, 64), {b.remote(0).address, b.mkey + 1});
  a.post_write(a.local(0, 64), b.remote(0), false);
  a.ring();
  expect_failure(await_send(a, b), 0, Syndrome::kRemoteAccess);
  expect_failure(await_send(a, b), 1, Syndrome::kFlushed);
  const std::optional<Polled> received = await_receive(a, b);
  ASSERT_TRUE(received);
  EXPECT_EQ(received->opcode, CqeOpcode::kResponderError);
  EXPECT_EQ(received->syndrome, Syndrome::kFlushed);
  EXPECT_EQ(state(a), QpState::kError);
  EXPECT_EQ(state(b), QpState::kError);
  EXPECT_EQ(b.events, std::vector<int>{kEventQpAccessError});

  a.post_write(a.local(0, 64), b.remote(0));
  a.post_write(a.local(0, 64), b.remote(0));
  a.ring();
  expect_failure(await_send(a, b), 2, Syndrome::kFlushed);
  expect_failure(await_send(a, b), 3, Syndrome::kFlushed);
  a.post_receive(a.local(0, 64));
  EXPECT_TRUE(await_receive(a, b)) << "posted in ERROR: flushed";
}

TEST_F(FailingHcas, wrong_rkey_flushes_a_whole_ring) {
  constexpr std::uint16_t kPosted = Node::kSendBlocks - 10;
  a.post_write(a.local(0, 64), {b.remote(0).address, b.mkey + 1});
  for (int i = 1; i < kPosted; ++i) a.post_write(a.local(0, 64), b.remote(0), false);
  a.ring();
  expect_failure(await_send(a, b), 0, Syndrome::kRemoteAccess);
  for (std::uint16_t i = 1; i < kPosted; ++i) expect_failure(await_send(a, b), i, Syndrome::kFlushed);
}

TEST_F(FailingHcas, range_past_the_region_is_refused) {
  a.post_write(a.local(0, 64), b.remote(b.memory.size() - 63));
  a.ring();
  expect_failure(await_send(a, b), 0, Syndrome::kRemoteAccess);
}

TEST_F(FailingHcas, bad_lkey_is_a_local_protection_error) {
  Local bad = a.local(0, 64);
  bad.lkey += 1;
  a.post_write(a.local(0, 64), b.remote(0));
  a.post_write(bad, b.remote(0));
  a.ring();
  ASSERT_EQ(await_send(a, b)->syndrome, Syndrome::kNone) << "the one before is not harmed";
  expect_failure(await_send(a, b), 1, Syndrome::kLocalProtection);
}

TEST_F(FailingHcas, read_into_a_bad_lkey_is_refused_before_it_is_sent) {
  Local bad = a.local(0, 64);
  bad.lkey += 1;
  a.post_read(bad, b.remote(0));
  a.ring();
  expect_failure(await_send(a, b), 0, Syndrome::kLocalProtection);
  EXPECT_EQ(b.hca->counters().transport.packets_received, 0u);
}

TEST_F(FailingHcas, malformed_wqe_completes_in_its_turn) {
  a.post_write(a.local(0, 64), b.remote(0));
  a.post_raw(mlx5::WqeOpcode::kUmr, {}, mlx5::kCompletionAlways);
  a.ring();
  ASSERT_EQ(await_send(a, b)->syndrome, Syndrome::kNone);
  expect_failure(await_send(a, b), 1, Syndrome::kLocalQpOperation);
}

TEST_F(FailingHcas, dead_peer_exceeds_the_retries) {
  QpAttributes hasty;
  hasty.timeout = Node::kHasty;
  ASSERT_EQ(a.hca->modify_qp(a.qpn, kQpTimeout, hasty), 0);
  b.hca.reset();
  a.post_write(a.local(0, 64), {0x1000, 7});
  a.ring();
  expect_failure(await_alone(a), 0, Syndrome::kRetryExceeded);
  EXPECT_GT(a.hca->counters().transport.timeouts, 0u);
}

// Queue pairs that DevX has made are in counter set 0 until their program says otherwise.
// A WRITE of 8 B may be payload, so of all signals an atomic alone is told from it.
TEST(StrictSignals, atomic_under_a_relaxed_key_is_named_once_and_executed) {
  for (const bool strict : {true, false}) {
    Node a;
    Node b(*wire::open_wire({}, {}), 1 << 20, {.strict = strict});
    a.connect(b);
    b.connect(a);
    const auto relaxed = b.hca->register_memory({.pd = b.pd,
                                                 .base = b.memory.data(),
                                                 .iova = b.remote(0).address,
                                                 .length_bytes = 4096,
                                                 .access = Node::kAllAccess | kRelaxedOrdering});
    ASSERT_TRUE(relaxed);
    const auto add_under = [&](std::uint32_t rkey) {
      a.post_fetch_add(a.local(0, 8), {b.remote(0).address, rkey}, 1);
      a.ring();
      ASSERT_EQ(await_send(a, b)->syndrome, Syndrome::kNone);
    };
    const auto warnings_of = [](const auto& act) {
      testing::internal::CaptureStderr();
      act();
      return testing::internal::GetCapturedStderr();
    };
    EXPECT_EQ(warnings_of([&] {
                a.post_write(a.local(0, 8), {b.remote(8).address, *relaxed});
                a.post_write(a.local(0, 64), {b.remote(64).address, *relaxed});
                a.post_read(a.local(0, 8), {b.remote(0).address, *relaxed});
                a.ring();
                for (int i = 0; i < 3; ++i) ASSERT_EQ(await_send(a, b)->syndrome, Syndrome::kNone);
                add_under(b.mkey);
              }),
              "");
    const std::string named = warnings_of([&] {
      for (int i = 0; i < 2; ++i) add_under(*relaxed);
    });
    const std::size_t first = named.find("got an atomic under key");
    EXPECT_EQ(first != std::string::npos, strict) << named;
    EXPECT_EQ(named.find("got an atomic", first + 1), std::string::npos) << named;
    std::uint64_t word = 0;
    std::memcpy(&word, b.memory.data(), sizeof word);
    EXPECT_EQ(word, 3u);
  }
}

TEST(StrictCounters, count_no_queue_pair_in_set_0) {
  for (const std::uint8_t set : {std::uint8_t{0}, kPortCounterSet}) {
    Node a(*wire::open_wire({}, {}), 1 << 20, {.strict = true});
    Node b;
    a.connect(b, 1, 0);
    QpAttributes attributes;
    attributes.counter_set = set;
    ASSERT_EQ(a.hca->modify_qp(a.qpn, kQpCounterSet, attributes), 0);
    b.hca.reset();
    a.post_write(a.local(0, 64), {0x1000, 7});
    a.ring();
    expect_failure(await_alone(a), 0, Syndrome::kRetryExceeded);
    EXPECT_EQ(a.hca->counters().transport.timeouts != 0, set == kPortCounterSet) << int{set};
  }
}

TEST(StrictCounters, requests_without_a_receive_count_likewise_by_set) {
  for (const std::uint8_t set : {std::uint8_t{0}, kPortCounterSet}) {
    Node a;
    Node b(*wire::open_wire({}, {}), 1 << 20, {.strict = true});
    a.connect(b);
    b.connect(a);
    QpAttributes attributes;
    attributes.counter_set = set;
    ASSERT_EQ(b.hca->modify_qp(b.qpn, kQpCounterSet, attributes), 0);
    a.post_send_inline(std::string_view("late"), 1);
    a.ring();
    drive(a, b, [&] { return a.hca->counters().transport.rnr_naks_received > 0; });
    EXPECT_EQ(b.hca->counters().transport.out_of_buffer != 0, set == kPortCounterSet) << int{set};
  }
}

TEST_F(FailingHcas, modify_to_error_flushes_and_reset_starts_again) {
  a.post_receive(a.local(0, 64));
  ASSERT_EQ(a.modify_to_error(), 0);
  const std::optional<Polled> received = a.poll_receive();
  ASSERT_TRUE(received);
  EXPECT_EQ(received->syndrome, Syndrome::kFlushed);
  EXPECT_EQ(a.modify_to_reset(), 0);
  EXPECT_EQ(b.modify_to_reset(), 0);
  EXPECT_EQ(state(a), QpState::kReset);

  a.connect(b);
  b.connect(a);
  a.post_receive(a.local(128, 64));
  b.post_send_inline("again", 7);
  b.ring();
  const std::optional<Polled> fresh = await_receive(a, b);
  ASSERT_TRUE(fresh) << "the receive is in the ring's first entry";
  EXPECT_EQ(fresh->wqe_counter, 0);
  EXPECT_EQ(std::memcmp(a.memory.data() + 128, "again", 5), 0);
}

// Everything is in use: PSNs, both rings, a staging slot, a receive that its message fills only in part.
TEST_F(FailingHcas, reset_amid_messages_forgets_them_and_starts_again) {
  constexpr std::uint32_t kLongBytes = 2 << 20;  // many times what one step takes
  a.post_write(a.local(0, 64), b.remote(0));
  b.post_receive(b.local(1 << 20, 64));
  a.post_send_inline("first", 1);
  a.ring();
  ASSERT_TRUE(await_send(a, b));
  ASSERT_TRUE(await_send(a, b));
  ASSERT_TRUE(await_receive(b, a));

  b.post_receive(b.local(1 << 20, kLongBytes));
  a.post_send(a.local(0, kLongBytes));
  a.ring();
  const auto arrived = [this] { return b.hca->counters().transport.packets_received; };
  const auto before = arrived();
  ASSERT_TRUE(drive(a, b, [&] { return arrived() > before; }));
  a.post_write(a.staging(0, 64), b.remote(0));
  a.ring();
  a.hca->progress();
  const auto sent = a.hca->counters().transport.packets_sent;
  const auto received = arrived();
  ASSERT_EQ(a.modify_to_reset(), 0);
  ASSERT_EQ(b.modify_to_reset(), 0);
  drive(
      a, b, [] { return false; }, 100);
  EXPECT_EQ(a.hca->counters().transport.packets_sent, sent);
  EXPECT_EQ(arrived(), received) << "RESET takes no packet";
  EXPECT_FALSE(a.poll_send());
  EXPECT_FALSE(b.poll_receive());
  EXPECT_EQ(a.hca->query_qp(a.qpn)->access, 0u);
  EXPECT_EQ(a.hca->query_qp(a.qpn)->send_psn, 0u);

  a.connect(b);
  b.connect(a);
  b.post_receive(b.local(128, 64));
  a.post_write(a.staging(0, 64), b.remote(0));
  a.post_send_inline("again", 7);
  a.ring();
  for (std::uint16_t index = 0; index < 2; ++index) {
    const std::optional<Polled> done = await_send(a, b);
    ASSERT_TRUE(done);
    EXPECT_EQ(done->syndrome, Syndrome::kNone) << mlx5::syndrome_name(done->syndrome);
    EXPECT_EQ(done->wqe_counter, index);
  }
  const std::optional<Polled> fresh = await_receive(b, a);
  ASSERT_TRUE(fresh);
  EXPECT_EQ(fresh->wqe_counter, 0);
  EXPECT_EQ(std::memcmp(b.memory.data() + 128, "again", 5), 0);
  EXPECT_EQ(a.hca->counters().staging_violations, 0u);
}

TEST_F(FailingHcas, communication_is_established_once_after_each_reset) {
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(a.modify_to_reset(), 0);
    ASSERT_EQ(b.modify_to_reset(), 0);
    a.connect(b);
    b.connect_to_rtr(a);
    a.post_write(a.local(0, 64), b.remote(0));
    a.ring();
    ASSERT_TRUE(await_send(a, b));
    EXPECT_EQ(b.events, std::vector<int>(round + 1, kEventCommunicationEstablished));
  }
}

TEST_F(FailingHcas, counters_of_a_queue_pair_outlive_it_and_its_number_names_nothing) {
  a.post_write(a.local(0, 64), b.remote(0));
  a.ring();
  ASSERT_TRUE(await_send(a, b));
  const auto sent = a.hca->counters().transport.packets_sent;
  EXPECT_GT(sent, 0u);
  EXPECT_EQ(a.hca->destroy_qp(a.qpn), 0);
  EXPECT_EQ(a.hca->counters().transport.packets_sent, sent);
  a.ring();
  a.hca->progress();
  EXPECT_EQ(a.hca->counters().bad_doorbells, 1u);
}

// A failed send of UC and UD ends sending only until the next RTS.
TEST(SendError, sending_goes_on_behind_it_and_so_do_psns_and_counters) {
  Node a({}, 4 << 20, wire::Carrier::kUdp, QpType::kUc);
  Node b({}, 4 << 20, wire::Carrier::kUdp, QpType::kUc);
  a.connect(b);
  b.connect(a);
  const std::uint32_t first_psn = a.hca->query_qp(a.qpn)->send_psn;
  Local bad = a.local(0, 64);
  bad.lkey += 1;
  for (std::uint16_t sent = 1; sent <= 3; ++sent) {
    const std::uint16_t good = a.post_write(a.local(0, 64), b.remote(0));
    const std::uint16_t failing = a.post_write(bad, b.remote(0));
    a.ring();
    ASSERT_EQ(await_send(a, b)->wqe_counter, good);
    expect_failure(await_send(a, b), failing, Syndrome::kLocalProtection);
    EXPECT_EQ(a.hca->query_qp(a.qpn)->state, QpState::kSqe);
    QpAttributes again;
    again.state = QpState::kRts;
    ASSERT_EQ(a.hca->modify_qp(a.qpn, kQpState, again), 0);
    EXPECT_EQ(a.hca->counters().transport.packets_sent, sent);
    EXPECT_EQ(a.hca->query_qp(a.qpn)->send_psn, first_psn + sent);
  }
}

TEST_F(FailingHcas, slot_sent_twice_without_its_credit_is_a_violation) {
  a.post_write(a.staging(0, 64), b.remote(0));
  a.post_write(a.staging(0, 64), b.remote(64));
  a.ring();
  ASSERT_TRUE(await_send(a, b));
  ASSERT_TRUE(await_send(a, b));
  EXPECT_EQ(a.hca->counters().staging_sends, 2u);
  EXPECT_EQ(a.hca->counters().staging_violations, 1u);
}

TEST_F(FailingHcas, store_to_a_slot_that_is_not_acknowledged_is_a_violation) {
  a.post_write(a.staging(128, 64), b.remote(0));
  a.ring();
  a.hca->progress();
  a.device_memory[128 / 8] = 1;
  ASSERT_TRUE(await_send(a, b));
  EXPECT_EQ(a.hca->counters().staging_violations, 1u);
}

TEST_F(FailingHcas, key_taken_back_before_its_wqe_is_sent_is_a_protection_error) {
  a.post_write(a.staging(128, 64), b.remote(0));
  a.ring();
  EXPECT_EQ(a.hca->deregister_memory(a.staging_key), 0);
  expect_failure(await_send(a, b), 0, Syndrome::kLocalProtection);
  EXPECT_EQ(a.hca->deregister_memory(a.staging_key), EINVAL);
}

TEST_F(FailingHcas, record_that_moves_backwards_is_fatal_to_the_queue_pair) {
  a.post_raw(mlx5::WqeOpcode::kNop, {}, mlx5::kCompletionAlways);
  a.post_raw(mlx5::WqeOpcode::kNop, {}, mlx5::kCompletionAlways);
  a.ring();
  a.hca->progress();
  EXPECT_EQ(state(a), QpState::kRts);
  a.write_record_as(1);
  a.ring_for(a.qpn);
  a.hca->progress();
  EXPECT_EQ(state(a), QpState::kError);
  EXPECT_EQ(a.hca->counters().wqes, 2u) << "nothing was fetched twice";
}

TEST_F(FailingHcas, queue_pair_that_fails_while_it_is_destroyed_leaves_nothing_behind) {
  a.post_receive(a.local(0, 64));  // its flush is on its way when the queue pair goes
  a.write_record_as(static_cast<std::uint16_t>(Node::kSendBlocks + 1));
  a.ring_for(a.qpn);
  ASSERT_EQ(a.hca->destroy_qp(a.qpn), 0);
  const std::optional<Polled> flushed = a.poll_receive();
  ASSERT_TRUE(flushed);
  EXPECT_EQ(flushed->syndrome, Syndrome::kFlushed);
  a.hca->progress();
}

TEST_F(FailingHcas, overrun_completion_queue_is_fatal_to_the_queue_pair) {
  const int rounds = (1 << Node::kLogCqEntries) / static_cast<int>(Node::kSendBlocks);
  const auto post_round = [this] {
    for (std::uint32_t i = 0; i < Node::kSendBlocks; ++i) {
      a.post_raw(mlx5::WqeOpcode::kNop, {}, mlx5::kCompletionAlways);
    }
    a.ring();
    for (int i = 0; i < 10; ++i) a.hca->progress();
  };
  for (int round = 0; round < rounds; ++round) post_round();
  EXPECT_EQ(state(a), QpState::kRts);
  EXPECT_TRUE(a.events.empty());
  post_round();
  EXPECT_EQ(state(a), QpState::kError);
  EXPECT_EQ(a.events, std::vector<int>{kEventQpFatal});
}

TEST_F(FailingHcas, record_beyond_the_send_queue_is_fatal_to_the_queue_pair_reset_or_not) {
  a.post_raw(mlx5::WqeOpcode::kNop, {}, mlx5::kCompletionAlways);
  a.ring();
  ASSERT_TRUE(await_send(a, b));
  ASSERT_EQ(a.modify_to_reset(), 0);
  a.connect(b);
  for (std::uint32_t i = 0; i <= Node::kSendBlocks; ++i) {
    a.post_raw(mlx5::WqeOpcode::kNop, {}, mlx5::kCompletionAlways);
  }
  for (int i = 0; i < 2; ++i) {
    a.ring();
    a.hca->progress();
    EXPECT_EQ(state(a), QpState::kError);
    EXPECT_EQ(a.events, std::vector<int>{kEventQpFatal}) << "once";
  }
}

// A call that only reads doorbells may fail a queue pair, whose completions must not wait for a reset.
TEST_F(FailingHcas, completions_of_before_a_reset_come_before_it) {
  a.post_receive(a.local(0, 64));
  for (std::uint32_t i = 0; i <= Node::kSendBlocks; ++i) {
    a.post_raw(mlx5::WqeOpcode::kNop, {}, mlx5::kCompletionAlways);
  }
  a.ring();
  EXPECT_EQ(a.hca->destroy_cq(0), EINVAL);
  EXPECT_EQ(state(a), QpState::kError);
  const std::optional<Polled> received = a.poll_receive();
  ASSERT_TRUE(received);
  EXPECT_EQ(received->syndrome, Syndrome::kFlushed);
  ASSERT_EQ(a.modify_to_reset(), 0);
  a.hca->progress();
  EXPECT_FALSE(a.poll_receive());
}

TEST_F(FailingHcas, packet_from_a_stranger_changes_nothing) {
  Node stranger;
  stranger.connect(b, 6, 1);  // claims b as its peer, but b's peer is a
  stranger.memory[0] = std::byte{1};
  stranger.post_write(stranger.local(0, 64), b.remote(0));
  stranger.ring();
  std::optional<Polled> polled = await_send(stranger, b);
  expect_failure(polled, 0, Syndrome::kRetryExceeded);
  EXPECT_EQ(b.memory[0], std::byte{0});
  EXPECT_GE(b.hca->counters().dropped_packets, 2u);
}

TEST_F(FailingHcas, objects_in_use_are_busy_and_unknown_ones_invalid) {
  EXPECT_EQ(a.hca->dealloc_pd(a.pd), EBUSY);
  for (const std::uint32_t cqn : {a.send_cqn, a.receive_cqn}) EXPECT_EQ(a.hca->destroy_cq(cqn), EBUSY);
  EXPECT_EQ(a.hca->destroy_cq(0), EINVAL);
  EXPECT_EQ(a.hca->destroy_qp(a.qpn + 1), EINVAL);
  EXPECT_EQ(a.hca->deregister_memory(0), EINVAL);
  EXPECT_EQ(a.hca->destroy_qp(a.qpn), 0);
  for (const std::uint32_t cqn : {a.send_cqn, a.receive_cqn}) EXPECT_EQ(a.hca->destroy_cq(cqn), 0);
  EXPECT_FALSE(a.hca->query_qp(a.qpn));
}

TEST_F(FailingHcas, specs_that_make_no_sense_are_refused) {
  QueuePairSpec spec;
  spec.pd = a.pd;
  EXPECT_EQ(a.hca->create_qp(spec).error(), EINVAL) << "no UAR, no CQ";
  EXPECT_EQ(a.hca->create_cq({}).error(), EINVAL);
  MemoryRegionSpec region{.pd = a.pd, .base = a.memory.data(), .iova = ~std::uint64_t{0}, .length_bytes = 2};
  EXPECT_EQ(a.hca->register_memory(region).error(), EINVAL) << "wraps";
  region = {.pd = a.pd, .base = a.memory.data(), .iova = 0, .length_bytes = 2, .device_memory = true};
  EXPECT_EQ(a.hca->register_memory(region).error(), EINVAL) << "not device memory";
}

// One sequence gives PDs, queues and queue pairs their numbers: it repeats none early, though each is free
// again, and its neighbours are far apart, so that a tenant's own tell no other's.
TEST_F(FailingHcas, numbers_that_are_free_again_do_not_return_and_tell_nothing_of_the_next) {
  constexpr std::uint32_t kDraws = 1u << 16;  // of which 128 would return, were each drawn alone
  constexpr std::uint32_t kNear = 1u << 16;   // 1 in 128 of unrelated ones
  std::set<std::uint32_t> numbers;
  std::uint32_t before = 0;
  std::uint32_t near = 0;
  for (std::uint32_t i = 0; i < kDraws; ++i) {
    const auto pd = b.hca->alloc_pd();
    ASSERT_TRUE(pd && b.hca->dealloc_pd(*pd) == 0);
    ASSERT_TRUE(*pd >= 2 && *pd < 0xffffff) << "0 and 1 are QP 0 and QP 1, the last is of multicast";
    ASSERT_TRUE(numbers.insert(*pd).second) << *pd;
    near += *pd - before + kNear < 2 * kNear ? 1 : 0;
    before = *pd;
  }
  EXPECT_LT(near, kDraws / 64);
}

// libmlx5 of rdma-core 53 and later takes a UAR page beyond 16 bits for one of a newer kernel.
TEST_F(FailingHcas, uar_pages_have_numbers_of_16_bits_until_none_is_left) {
  const UarSpec page{reinterpret_cast<std::byte*>(a.uar_page.data())};
  std::set<std::uint32_t> numbers;
  for (auto number = a.hca->add_uar(page); number; number = a.hca->add_uar(page)) {
    ASSERT_TRUE(numbers.insert(*number).second) << *number;
    ASSERT_LT(*number, 1u << 16);
  }
  EXPECT_EQ(numbers.size(), (1u << 16) - 3) << "0 and 1 are special, and the HCA has one";
  EXPECT_EQ(a.hca->add_uar(page).error(), ENOMEM);
  EXPECT_EQ(a.hca->remove_uar(*numbers.begin()), 0);
  EXPECT_EQ(a.hca->add_uar(page), *numbers.begin());
  for (const std::uint32_t number : numbers) EXPECT_EQ(a.hca->remove_uar(number), 0);
}

TEST(OpenHca, bad_mtu_and_taken_address_are_errors) {
  std::vector<std::uint64_t> device_memory(64);
  HcaConfig config;
  config.device_memory_bytes = 512;
  config.mtu_bytes = 1500;
  auto* base = reinterpret_cast<std::byte*>(device_memory.data());
  EXPECT_EQ(open_hca(config, base).error().status, Status::kInvalidArgument);
  config.mtu_bytes = 1024;
  const auto first = open_hca(config, base);
  ASSERT_TRUE(first);
  config.udp.address = (*first)->address().text();
  EXPECT_EQ(open_hca(config, base).error().status, Status::kBusy);
}

}  // namespace two_hcas_errors_test
}  // namespace gdx::softhca::test
