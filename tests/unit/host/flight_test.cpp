// The past of a queue pair as memory still holds it, and as text.
#include "host/queue/flight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "proto/mlx5/doorbell.h"

namespace gdx {
namespace flight_test {

constexpr std::uint32_t kBlocks = 64;

class Rings : public ::testing::Test {
 protected:
  void SetUp() override {
    auto memory = QueueMemory::allocate(kBlocks, 0);
    ASSERT_TRUE(memory);
    memory_.emplace(std::move(*memory));
  }
  void post(std::uint16_t index, mlx5::WqeOpcode opcode, std::uint32_t bytes) {
    mlx5::PutWqe wqe{};
    wqe.control.opmod_index_opcode = std::uint32_t{index} << 8 | static_cast<std::uint32_t>(opcode);
    wqe.control.qpn_ds = 0x45u << mlx5::kQpnShift | mlx5::kPutSegments;
    wqe.data.byte_count = bytes;
    std::memcpy(memory_->send_queue()[index % kBlocks].bytes, &wqe, sizeof wqe);
    memory_->control()->queue_pair_record[mlx5::kSendRecord] = static_cast<std::uint16_t>(index + 1);
  }
  // `position`: cumulative, of the entry.
  void complete(std::uint32_t position, std::uint16_t index, mlx5::Syndrome syndrome) {
    mlx5::Cqe64 cqe{};
    cqe.wqe_counter = index;
    const bool failed = syndrome != mlx5::Syndrome::kNone;
    const auto opcode = failed ? mlx5::CqeOpcode::kRequesterError : mlx5::CqeOpcode::kRequester;
    cqe.op_own = static_cast<std::uint8_t>(static_cast<unsigned>(opcode) << mlx5::kCqeOpcodeShift |
                                           (position / kBlocks & 1));
    if (failed) {
      auto error = std::bit_cast<mlx5::ErrorCqe>(cqe);
      error.syndrome = static_cast<std::uint8_t>(syndrome);
      cqe = std::bit_cast<mlx5::Cqe64>(error);
    }
    memory_->completion_queue()[position % kBlocks] = cqe;
  }
  [[nodiscard]] std::vector<std::string> read() const {
    const auto record = read_rings(*memory_, kBlocks);
    std::vector<std::string> lines;
    if (!record) return {record.error().message};
    EXPECT_EQ(record->source, "rings");
    lines.reserve(record->events.size());
    for (const FlightEvent& event : record->events)
      lines.push_back(std::string(event_name(event)) + ' ' + event_text(event));
    return lines;
  }

  std::optional<QueueMemory> memory_;
};

TEST_F(Rings, that_were_never_used_tell_of_nothing) {
  EXPECT_EQ(read(), std::vector<std::string>{"doorbell up to WQE 0"});
}

TEST_F(Rings, tell_a_failure_before_a_kernel_has_seen_it_and_no_flush) {
  post(0, mlx5::WqeOpcode::kRdmaWrite, 64);
  post(1, mlx5::WqeOpcode::kRdmaRead, mlx5::kInlineFlag | 8);
  complete(0, 0, mlx5::Syndrome::kRemoteAccess);
  complete(1, 1, mlx5::Syndrome::kFlushed);
  EXPECT_EQ(read(), (std::vector<std::string>{"doorbell up to WQE 2", "fetch WQE 0: RDMA WRITE of 64 B",
                                              "fetch WQE 1: RDMA READ of 8 B",
                                              "complete WQE 0: syndrome 0x13 (remote access error)"}));
}

// A kernel that has drained the queue leaves the entry that failed far behind.
TEST_F(Rings, tell_the_wqe_that_failed_whatever_is_posted_behind) {
  for (std::uint16_t i = 0; i < kBlocks; ++i) {
    post(i, mlx5::WqeOpcode::kRdmaWrite, 64);
    complete(i, i, i == 3 ? mlx5::Syndrome::kRemoteAccess : mlx5::Syndrome::kFlushed);
  }
  QueueState& state = memory_->control()->state;
  state.cq_consumer = kBlocks;
  state.fault = {Status::kRemoteAccess, static_cast<std::uint8_t>(mlx5::Syndrome::kRemoteAccess), 0, 3};
  EXPECT_EQ(read(),
            (std::vector<std::string>{"doorbell up to WQE 64", "fetch WQE 0: RDMA WRITE of 64 B",
                                      "fetch WQE 1: RDMA WRITE of 64 B", "fetch WQE 2: RDMA WRITE of 64 B",
                                      "fetch WQE 3: RDMA WRITE of 64 B",
                                      "complete WQE 3: syndrome 0x13 (remote access error)"}));
}

// The index wraps with 16 bits, the ring with its size; blocks of data and old laps are no WQEs.
TEST_F(Rings, tell_the_newest_wqes_across_both_wraps) {
  for (std::uint32_t i = 65536 - 3 * kBlocks; i < 65536 + 2; ++i)
    post(static_cast<std::uint16_t>(i), mlx5::WqeOpcode::kRdmaWrite, 8);
  std::memset(memory_->send_queue()[(65535) % kBlocks].bytes, 0x11, sizeof(mlx5::WqeBasicBlock));
  const std::vector<std::string> lines = read();
  ASSERT_EQ(lines.size(), 1 + 31u);
  EXPECT_EQ(lines[0], "doorbell up to WQE 2");
  EXPECT_EQ(lines[1], "fetch WQE 65506: RDMA WRITE of 8 B");
  EXPECT_EQ(lines[29], "fetch WQE 65534: RDMA WRITE of 8 B");
  EXPECT_EQ(lines[30], "fetch WQE 0: RDMA WRITE of 8 B");
}

// Taken ones and new ones around the consumer, which is at the start of a pass; the others are of the pass
// before.
TEST_F(Rings, tell_completions_of_their_own_pass_alone) {
  for (std::uint32_t i = 0; i < 2 * kBlocks; ++i)
    complete(i, static_cast<std::uint16_t>(i), mlx5::Syndrome::kNone);
  complete(2 * kBlocks, 500, mlx5::Syndrome::kNone);
  memory_->control()->state.cq_consumer = 2 * kBlocks;
  std::vector<std::string> expected{"doorbell up to WQE 0"};
  for (std::uint32_t i = 2 * kBlocks - 16; i < 2 * kBlocks; ++i)
    expected.push_back("complete WQE " + std::to_string(i));
  expected.emplace_back("complete WQE 500");
  EXPECT_EQ(read(), expected);
}

TEST_F(Rings, of_a_shared_endpoint_have_an_entry_for_each_wqe) {
  complete(20, 20, mlx5::Syndrome::kNone);
  memory_->control()->state.shared.completed = 21;
  memory_->control()->state.handle.sharing = Sharing::kShared;
  EXPECT_EQ(read(), (std::vector<std::string>{"doorbell up to WQE 0", "complete WQE 20"}));
}

// The operands stand before the local memory.
TEST_F(Rings, tell_the_bytes_of_atomics) {
  post(0, mlx5::WqeOpcode::kAtomicFetchAdd, 0x1234);
  mlx5::WqeBasicBlock& block = memory_->send_queue()[0];
  const mlx5::DataSegment result{8, 1, 2};
  std::memcpy(block.bytes + sizeof(mlx5::PutWqe), &result, sizeof result);
  EXPECT_EQ(read()[1], "fetch WQE 0: atomic fetch-and-add of 8 B");
}

TEST(FlightFile, that_is_not_there_is_hardware_and_any_other_trouble_is_an_error) {
  EXPECT_EQ(read_flight_file("/nowhere", 5).error().status, Status::kNotFound);
  const auto refused = read_flight_file("/proc/version", 5);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kSystem);
  EXPECT_EQ(refused.error().message,
            "cannot read the events of QP 0x5 from /proc/version/softhca_flight/0x5: Not a directory");
}

TEST(FlightText, has_a_line_for_each_event) {
  FlightRecord record{"test", 0, {}};
  record.events.push_back({.time_ns = 70'000'000'002, .kind = FlightKind::kResend, .code = 2, .word = 0xabc});
  record.events.push_back({.time_ns = 70'000'000'003, .kind = FlightKind::kGrant, .code = 1, .word = 7});
  record.events.push_back({.time_ns = 70'000'000'004, .kind = FlightKind::kFlush, .wqe = 9, .word = 3});
  EXPECT_EQ(flight_text(record),
            "        70.000000002 resend    from PSN 0xabc: ACK timeout\n"
            "        70.000000003 grant     slot 7 of host memory\n"
            "        70.000000004 flush     3 WQEs flushed, up to WQE 9\n");
}

std::ptrdiff_t lines_of(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

// Returned credits come behind, and as many as there are.
TEST(FaultText, ends_with_the_failure) {
  FlightRecord record{"test", 0, {}};
  for (std::uint16_t wqe = 0; wqe < 30; ++wqe)
    record.events.push_back({.time_ns = wqe, .kind = FlightKind::kFetch, .wqe = wqe});
  record.events.push_back({.time_ns = 30, .kind = FlightKind::kCompletion, .code = 5, .wqe = 0});
  EXPECT_EQ(lines_of(fault_text(record)), 16);
  EXPECT_TRUE(fault_text(record).ends_with("complete  WQE 0: syndrome 0x05 (work request flushed)\n"));
  record.events.push_back({.time_ns = 31, .kind = FlightKind::kCompletion, .code = 0x13, .wqe = 1});
  for (std::uint64_t slot = 0; slot < 40; ++slot)
    record.events.push_back({.time_ns = 40 + slot, .kind = FlightKind::kReturn, .word = slot});
  const std::string text = fault_text(record);
  EXPECT_EQ(lines_of(text), 16);
  EXPECT_TRUE(text.ends_with("complete  WQE 1: syndrome 0x13 (remote access error)\n")) << text;
  EXPECT_EQ(fault_text(fail(Status::kSystem, "no file")), "no file");
  EXPECT_EQ(fault_text(FlightRecord{}), "");
}

// Bytes of another machine may say anything.
TEST(FlightText, of_unknown_codes_is_text) {
  for (std::size_t kind = 0; kind < kFlightKinds; ++kind)
    EXPECT_NE(event_text({.kind = static_cast<FlightKind>(kind), .code = 255}), "");
}

}  // namespace flight_test
}  // namespace gdx
