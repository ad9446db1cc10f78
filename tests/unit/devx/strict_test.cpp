// Commands that a lenient HCA takes and a strict one refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "driver-shim/softhca/devx/limits.h"
#include "tests/unit/devx/commands_fixture.h"

namespace gdx::softhca::devx {
namespace strict_test {

using testing::_;
using testing::Return;

class StrictCommands : public DevxCommands {
 protected:
  StrictCommands() {
    ON_CALL(hca_, create_qp(_)).WillByDefault(Return(kQpn));
    ON_CALL(hca_, create_cq(_)).WillByDefault(Return(kQpn));
  }

  [[nodiscard]] prm::Mailbox<prm::kCreateQpInBytes> valid_qp() const {
    auto in = valid_create_qp();
    prm::set(in, prm::qp::kTimestampFormat, prm::qp::kDefaultTimestamps);
    return in;
  }
  [[nodiscard]] prm::Mailbox<prm::kCreateCqInBytes> valid_cq() const {
    prm::Mailbox<prm::kCreateCqInBytes> in{};
    prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::kCreateCq));
    prm::set(in, prm::cq::kLogSize, 4);
    prm::set(in, prm::cq::kEqn, kFirstEqn);
    prm::set(in, prm::cq::kDbrUmemId, umem_);
    prm::set(in, prm::cq::kUmemId, umem_);
    prm::set(in, prm::cq::kUmemOffset, 4096);
    return in;
  }

  // Lenient takes the command; strict refuses it so.
  template <typename Send>
  void expect_refused(Send send, prm::CommandStatus refusal, Syndrome syndrome, const char* what) {
    config_.strict = false;
    EXPECT_EQ(send(), 0) << what;
    config_.strict = true;
    EXPECT_EQ(send(), EREMOTEIO) << what;
    EXPECT_EQ(status(), refusal) << what;
    EXPECT_EQ(prm::get(out_, prm::kSyndrome), static_cast<std::uint32_t>(syndrome)) << what;
  }
  template <typename Mailbox>
  auto creating(const Mailbox& in) {
    return [this, in] {
      const auto created = commands_.create(in, out_);
      return created ? 0 : created.error();
    };
  }
};

TEST_F(StrictCommands, what_a_connectx_takes_is_taken) {
  config_.strict = true;
  EXPECT_TRUE(commands_.create(valid_qp(), out_));
  EXPECT_TRUE(commands_.create(valid_cq(), out_));
  auto in = valid_qp();
  prm::set(in, prm::qp::kUmemId, *umems_.add(memory_.data(), kUmemBytes));
  prm::set(in, prm::qp::kUmemOffset, 0);
  EXPECT_TRUE(commands_.create(in, out_)) << "at the beginning of a umem";
  prm::set(in, {0x10, 16}, 0x1234);
  EXPECT_TRUE(commands_.create(in, out_)) << "any uid, for Linux overwrites it";
}

TEST_F(StrictCommands, object_of_another_open_file_is_refused) {
  const auto refused = [this](const auto& in, Named kind, const char* what) {
    foreign_ = kind;
    expect_refused(creating(in), prm::CommandStatus::kBadResource, Syndrome::kNoSuchObject, what);
    foreign_.reset();
  };
  refused(valid_qp(), Named::kPd, "PD of a QP");
  refused(valid_qp(), Named::kUar, "UAR of a QP");
  refused(valid_qp(), Named::kCq, "CQ of a QP");
  auto in = valid_qp();
  prm::set(in, prm::qp::kRqType, prm::qp::kSharedReceiveQueue);
  prm::set(in, prm::qp::kSrqn, 12);
  refused(in, Named::kRmp, "RMP of a QP");
  auto queue = valid_cq();
  prm::set(queue, prm::cq::kUarPage, 8);
  refused(queue, Named::kUar, "UAR of a CQ");
}

TEST_F(StrictCommands, ring_inside_a_umem_needs_its_page_sizes_bounded) {
  auto in = valid_qp();
  const std::uint32_t unbounded = *umems_.add(memory_.data(), kUmemBytes);
  prm::set(in, prm::qp::kUmemId, unbounded);
  expect_refused(creating(in), prm::CommandStatus::kBadParameter, Syndrome::kUnsupportedPageOffset,
                 "page size not said");
  auto queue = valid_cq();
  prm::set(queue, prm::cq::kUmemId, unbounded);
  expect_refused(creating(queue), prm::CommandStatus::kBadParameter, Syndrome::kUnsupportedPageOffset,
                 "of a CQ");
  in = valid_qp();
  prm::set(in, prm::qp::kUmemOffset, 2048);
  expect_refused(creating(in), prm::CommandStatus::kBadParameter, Syndrome::kUnsupportedPageOffset,
                 "inside a page");
  prm::set(in, prm::qp::kUmemOffset, 4096);
  prm::set(in, prm::qp::kUmemId, *umems_.add(memory_.data(), kUmemBytes, ~std::uint64_t{4095}));
  expect_refused(creating(in), prm::CommandStatus::kBadParameter, Syndrome::kUnsupportedPageOffset,
                 "the kernel may choose pages of 16 KiB");
}

TEST_F(StrictCommands, reserved_field_that_is_not_zero_is_refused) {
  const auto refused = [this](auto in, prm::PrmField field, const char* what) {
    prm::set(in, field, 1);
    expect_refused(creating(in), prm::CommandStatus::kBadParameter, Syndrome::kReservedField, what);
  };
  refused(valid_qp(), {0x20, 16}, "header");
  refused(valid_qp(), {prm::qp::kContext + 0x24, 1}, "QP context, early");
  refused(valid_qp(), {prm::qp::kContext + 0x700, 32}, "QP context, late");
  refused(valid_qp(), {prm::qp::kPath + 0x60, 4}, "address path");
  refused(valid_cq(), {prm::cq::kContext + 0x0c, 1}, "CQ context, early");
  refused(valid_cq(), {prm::cq::kContext + 0x1a0, 32}, "CQ context, late");
}

TEST_F(StrictCommands, transition_with_a_reserved_field_or_an_unknown_counter_set_is_refused) {
  ON_CALL(hca_, modify_qp(_, _, _)).WillByDefault(Return(0));
  prm::Mailbox<prm::kModifyQpInBytes> valid{};
  prm::set(valid, prm::qp::kPathPort, 1);
  prm::set(valid, prm::qp::kPathMigrationState, prm::qp::kMigrated);
  const auto sending = [this](const auto& in) {
    return [this, in] { return modify(prm::Opcode::kRst2Init, QpState::kReset, in); };
  };
  auto in = valid;
  prm::set(in, {prm::qp::kContext + 0x3a0, 32}, 1);
  expect_refused(sending(in), prm::CommandStatus::kBadParameter, Syndrome::kReservedField, "reserved");
  in = valid;
  prm::set(in, prm::qp::kCounterSet, kPortCounterSet + 1);
  expect_refused(sending(in), prm::CommandStatus::kBadResource, Syndrome::kNoSuchCounterSet, "counter set");
  for (const unsigned set : {0u, 1u}) {
    prm::set(valid, prm::qp::kCounterSet, set);
    EXPECT_EQ(sending(valid)(), 0) << set;
  }
}

}  // namespace strict_test
}  // namespace gdx::softhca::devx
