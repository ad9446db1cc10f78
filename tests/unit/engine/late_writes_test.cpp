// WRITEs that later ones pass: under keys with relaxed ordering, and under all with the setting force_relax.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "driver-shim/softhca/engine/planted_fault.h"
#include "tests/unit/engine/node.h"

namespace gdx::softhca::test {
namespace late_writes_test {

using mlx5::Syndrome;

constexpr std::uint32_t kPayloadBytes = 64;
constexpr std::size_t kPayload = 4096;  // in the memory of the receiver
constexpr std::size_t kSignal = 8192;
constexpr std::byte kMark{0x5a};

class LateWritesTest : public testing::Test {
 protected:
  explicit LateWritesTest(bool strict = true) : b_(*wire::open_wire({}, {}), 1 << 20, {.strict = strict}) {
    a_.connect(b_);
    b_.connect(a_);
    relaxed_ =
        *b_.hca->register_memory({.pd = b_.pd,
                                  .base = b_.memory.data(),
                                  .iova = b_.remote(0).address,
                                  .length_bytes = b_.memory.size(),
                                  .access = kLocalWrite | kRemoteWrite | kRemoteRead | kRelaxedOrdering});
    std::fill_n(a_.memory.begin(), kPayloadBytes, kMark);
  }
  ~LateWritesTest() override { planted_fault = PlantedFault::kNone; }

  void put_payload(std::uint32_t rkey) {
    a_.post_write(a_.local(0, kPayloadBytes), {b_.remote(kPayload).address, rkey}, false);
  }
  void set_signal(std::uint32_t rkey) {
    a_.post_write(a_.local(0, 8), {b_.remote(kSignal).address, rkey}, false);
  }
  [[nodiscard]] bool payload_is_there() const {
    const auto first = b_.memory.begin() + kPayload;
    return std::all_of(first, first + kPayloadBytes, [](std::byte byte) { return byte == kMark; });
  }
  // Steps until the signal is there. Returns whether the payload was there as soon.
  [[nodiscard]] bool payload_comes_before_signal() {
    a_.ring();
    EXPECT_TRUE(drive(a_, b_, [&] { return b_.memory[kSignal] != std::byte{0}; }));
    return payload_is_there();
  }
  void expect_payload_at_last() {
    EXPECT_TRUE(drive(a_, b_, [&] { return payload_is_there(); }));
  }

  Node a_;
  Node b_;
  std::uint32_t relaxed_ = 0;
};

class LenientLateWritesTest : public LateWritesTest {
 protected:
  LenientLateWritesTest() : LateWritesTest(false) {}
};

TEST_F(LateWritesTest, set_signal_passes_payload_where_both_are_relaxed) {
  put_payload(relaxed_);
  set_signal(relaxed_);
  EXPECT_FALSE(payload_comes_before_signal());
  expect_payload_at_last();
}

TEST_F(LateWritesTest, set_signal_under_a_strict_key_passes_no_payload) {
  for (const std::uint32_t rkey : {relaxed_, b_.mkey}) {
    std::fill_n(b_.memory.begin() + kPayload, 2 * kSignal - kPayload, std::byte{0});
    put_payload(rkey);
    set_signal(b_.mkey);
    EXPECT_TRUE(payload_comes_before_signal());
  }
}

TEST_F(LenientLateWritesTest, nothing_is_late_without_the_setting_or_strictness) {
  put_payload(relaxed_);
  set_signal(relaxed_);
  EXPECT_TRUE(payload_comes_before_signal());
}

TEST_F(LenientLateWritesTest, force_relax_lets_a_set_signal_pass_payload_under_any_key) {
  planted_fault = PlantedFault::kForceRelax;
  put_payload(b_.mkey);
  set_signal(b_.mkey);
  EXPECT_FALSE(payload_comes_before_signal());
  expect_payload_at_last();
}

TEST_F(LenientLateWritesTest, atomics_reads_and_receives_pass_no_payload) {
  planted_fault = PlantedFault::kForceRelax;
  put_payload(b_.mkey);
  a_.post_fetch_add(a_.local(1024, 8), b_.remote(kSignal), 1);
  EXPECT_TRUE(payload_comes_before_signal());
  ASSERT_EQ(await_send(a_, b_)->syndrome, Syndrome::kNone);

  std::fill_n(b_.memory.begin() + kPayload, kPayloadBytes, std::byte{0});
  put_payload(b_.mkey);
  a_.post_read(a_.local(2048, kPayloadBytes), b_.remote(kPayload));
  a_.ring();
  ASSERT_EQ(await_send(a_, b_)->syndrome, Syndrome::kNone);
  EXPECT_EQ(std::memcmp(&a_.memory[2048], &a_.memory[0], kPayloadBytes), 0);

  std::fill_n(b_.memory.begin() + kPayload, kPayloadBytes, std::byte{0});
  b_.post_receive(b_.local(0, 64));
  put_payload(b_.mkey);
  a_.post_send(a_.local(0, 8));
  a_.ring();
  ASSERT_EQ(await_receive(b_, a_)->syndrome, Syndrome::kNone);
  EXPECT_TRUE(payload_is_there());
}

TEST_F(LenientLateWritesTest, deregistration_waits_for_what_is_late) {
  planted_fault = PlantedFault::kForceRelax;
  put_payload(relaxed_);
  set_signal(b_.mkey);
  EXPECT_FALSE(payload_comes_before_signal());
  ASSERT_EQ(b_.hca->deregister_memory(relaxed_), 0);
  EXPECT_TRUE(payload_is_there());
}

}  // namespace late_writes_test
}  // namespace gdx::softhca::test
