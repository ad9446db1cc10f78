// Doorbells of several queue pairs of one page: which of them a doorbell serves, and how far.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "driver-shim/softhca/engine/planted_fault.h"
#include "proto/mlx5/doorbell.h"
#include "tests/unit/engine/node.h"
#include "tests/unit/engine/still_wire.h"

namespace gdx::softhca::test {
namespace doorbells_test {

constexpr std::size_t kFirst = mlx5::kUarBlueFlame;
constexpr std::size_t kSecond = kFirst + mlx5::kBlueFlameRegisterBytes;
constexpr std::uint32_t kBlocks = 8;

// A queue pair in error: it fetches what is announced, and flushes it without a peer.
struct Queue {
  alignas(64) std::array<mlx5::WqeBasicBlock, kBlocks> ring{};
  std::array<Be32, 2> record{};
  std::uint32_t qpn = 0;
};

class Doorbells : public testing::Test {
 protected:
  explicit Doorbells(RecordUse use = RecordUse::kRead)
      : node(std::make_unique<StillWire>(), 4 << 20, {.record = use}) {
    uar = hca().add_uar({reinterpret_cast<std::byte*>(page.data())}).value();
    for (Queue& queue : {std::ref(a), std::ref(b)}) make(queue);
  }
  ~Doorbells() override { planted_fault = PlantedFault::kNone; }

  Hca& hca() { return *node.hca; }
  void make(Queue& queue) {
    QueuePairSpec spec;
    spec.pd = node.pd;
    spec.uar = uar;
    spec.send_cqn = node.send_cqn;
    spec.receive_cqn = node.receive_cqn;
    spec.send_ring = queue.ring[0].bytes;
    spec.send_blocks = kBlocks;
    spec.doorbell_record = queue.record.data();
    queue.qpn = hca().create_qp(spec).value();
    QpAttributes attributes;
    attributes.state = QpState::kError;
    ASSERT_EQ(hca().modify_qp(queue.qpn, kQpState, attributes), 0);
  }
  // Writes a NOP at `index`.
  static void post(Queue& queue, std::uint16_t index) {
    mlx5::ControlSegment nop{};
    nop.opmod_index_opcode = std::uint32_t{index} << 8 | static_cast<std::uint32_t>(mlx5::WqeOpcode::kNop);
    nop.qpn_ds = queue.qpn << mlx5::kQpnShift | 1;
    std::memcpy(queue.ring[index % kBlocks].bytes, &nop, sizeof nop);
  }
  static void announce(Queue& queue, std::uint32_t end) { queue.record[mlx5::kSendRecord] = end; }
  void ring(const Queue& queue, std::uint16_t index, std::size_t at = kFirst, std::uint32_t segments = 1) {
    mlx5::ControlSegment control{};
    control.opmod_index_opcode = std::uint32_t{index} << 8;
    control.qpn_ds = queue.qpn << mlx5::kQpnShift | segments;
    std::uint64_t value = 0;
    std::memcpy(&value, &control, sizeof value);
    std::atomic_ref(page[at / sizeof value]).store(value, std::memory_order_release);
  }
  // Posts the WQE at `index`, tells the record of it, and rings.
  void put(Queue& queue, std::uint16_t index, std::size_t at = kFirst) {
    post(queue, index);
    announce(queue, std::uint32_t{index} + 1);
    ring(queue, index, at);
  }
  // Returns the WQEs that one step takes.
  std::uint64_t taken() {
    const std::uint64_t before = hca().counters().wqes;
    hca().progress();
    return hca().counters().wqes - before;
  }

  std::vector<std::uint64_t> page = std::vector<std::uint64_t>(mlx5::kUarPageBytes / 8);
  Queue a;
  Queue b;
  Node node;
  std::uint32_t uar = 0;
};

TEST_F(Doorbells, serve_no_queue_that_rings_in_another_register) {
  put(a, 0, kFirst);
  put(b, 0, kSecond);
  EXPECT_EQ(taken(), 2u);
  post(a, 1);
  announce(a, 2);
  for (std::uint16_t index = 1; index < 4; ++index) {
    put(b, index, kSecond);
    EXPECT_EQ(taken(), 1u) << "a was not rung";
  }
  ring(a, 1, kFirst);
  EXPECT_EQ(taken(), 1u);
}

TEST_F(Doorbells, that_others_may_have_overwritten_are_served) {
  put(a, 0);
  put(b, 0);  // in its place
  EXPECT_EQ(taken(), 2u) << "a was never seen to ring, so it may have";
  put(a, 1);
  EXPECT_EQ(taken(), 1u);
  put(a, 2);
  put(b, 1);
  EXPECT_EQ(taken(), 2u) << "both ring there";
}

TEST_F(Doorbells, by_halves_of_one_register_are_of_the_same) {
  put(a, 0, kFirst);
  put(b, 0, kFirst);
  EXPECT_EQ(taken(), 2u);
  put(a, 1, kFirst + mlx5::kBlueFlameBufferBytes);
  put(b, 1, kFirst + mlx5::kBlueFlameBufferBytes);
  EXPECT_EQ(taken(), 2u);
}

TEST_F(Doorbells, that_merge_by_a_planted_fault_leave_one) {
  planted_fault = PlantedFault::kMergedDoorbells;
  put(a, 0);
  put(b, 0);
  EXPECT_EQ(taken(), 1u) << "in one register";
  put(a, 1, kFirst);
  put(b, 1, kSecond);
  EXPECT_EQ(taken(), 2u) << "in registers of their own: both of a";
  ring(b, 1, kSecond);
  EXPECT_EQ(taken(), 1u);
}

TEST_F(Doorbells, before_their_record_announce_nothing) {
  post(a, 0);
  ring(a, 0);
  EXPECT_EQ(taken(), 0u);
  announce(a, 1);
  EXPECT_EQ(taken(), 0u) << "a record alone serves nothing";
  ring(a, 0);
  EXPECT_EQ(taken(), 1u);
  EXPECT_EQ(hca().counters().pcie.record_reads, 2u);
}

TEST_F(Doorbells, that_repeat_are_lost_by_a_planted_fault) {
  planted_fault = PlantedFault::kDeafToRepeats;
  post(a, 0);
  ring(a, 0);
  EXPECT_EQ(taken(), 0u);
  announce(a, 1);
  ring(a, 0);
  EXPECT_EQ(taken(), 0u);
  put(a, 1);
  EXPECT_EQ(taken(), 2u);
}

class UnreadRecords : public Doorbells {
 protected:
  UnreadRecords() : Doorbells(RecordUse::kUnread) {}
};

TEST_F(UnreadRecords, let_a_doorbell_announce_all_up_to_its_wqe) {
  for (std::uint16_t index = 0; index < 5; ++index) post(a, index);
  ring(a, 1);
  EXPECT_EQ(taken(), 2u) << "the last of two";
  ring(a, 3, kFirst, 0);
  EXPECT_EQ(taken(), 1u) << "the next one, without a length";
  ring(a, 2);
  EXPECT_EQ(taken(), 0u) << "again";
  announce(a, 2);
  ring(a, 3);
  EXPECT_EQ(taken(), 1u) << "a record that comes late takes nothing back";
  EXPECT_EQ(hca().counters().pcie.record_reads, 0u);
}

TEST_F(UnreadRecords, still_serve_what_an_older_doorbell_or_anothers_has_overwritten) {
  for (std::uint16_t index = 0; index < 2; ++index) post(a, index);
  announce(a, 2);
  ring(a, 1);
  ring(a, 0);  // in its place
  EXPECT_EQ(taken(), 2u);
  put(a, 2);
  put(b, 0);
  EXPECT_EQ(taken(), 2u);
}

TEST_F(UnreadRecords, count_the_blocks_of_a_long_wqe) {
  post(a, 0);
  mlx5::ControlSegment nop{};
  std::memcpy(&nop, a.ring[0].bytes, sizeof nop);
  nop.qpn_ds = a.qpn << mlx5::kQpnShift | 5;
  std::memcpy(a.ring[0].bytes, &nop, sizeof nop);
  ring(a, 0, kFirst, 5);
  EXPECT_EQ(taken(), 1u);
  post(a, 2);
  ring(a, 3, kFirst, 0);
  EXPECT_EQ(taken(), 1u);
}

}  // namespace doorbells_test
}  // namespace gdx::softhca::test
