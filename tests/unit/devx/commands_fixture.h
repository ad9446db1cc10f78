// Commands of a software HCA above an engine that is a mock.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "driver-shim/softhca/devx/commands.h"

namespace gdx::softhca::devx {

namespace prm = mlx5::prm;

class MockHca : public Hca {
 public:
  MOCK_METHOD(const HcaConfig&, config, (), (const, override));
  MOCK_METHOD(const wire::Address&, address, (), (const, override));
  MOCK_METHOD(ErrnoOr<std::uint32_t>, alloc_pd, (), (override));
  MOCK_METHOD(Errno, dealloc_pd, (std::uint32_t), (override));
  MOCK_METHOD(ErrnoOr<std::uint32_t>, register_memory, (const MemoryRegionSpec&), (override));
  MOCK_METHOD(Errno, deregister_memory, (std::uint32_t), (override));
  MOCK_METHOD(Errno, replace_memory, (std::uint32_t, const MemoryRegionSpec&), (override));
  MOCK_METHOD(Errno, prefetch, (std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t, Prefetch),
              (override));
  MOCK_METHOD(ErrnoOr<std::uint32_t>, add_uar, (const UarSpec&), (override));
  MOCK_METHOD(Errno, remove_uar, (std::uint32_t), (override));
  MOCK_METHOD(ErrnoOr<std::uint32_t>, create_cq, (const CompletionQueueSpec&), (override));
  MOCK_METHOD(Errno, resize_cq, (std::uint32_t, std::byte*, std::uint32_t), (override));
  MOCK_METHOD(Errno, destroy_cq, (std::uint32_t), (override));
  MOCK_METHOD(ErrnoOr<std::uint32_t>, create_srq, (const SharedReceiveQueueSpec&), (override));
  MOCK_METHOD(Errno, set_srq_limit, (std::uint32_t, std::uint32_t), (override));
  MOCK_METHOD(ErrnoOr<std::uint32_t>, srq_limit, (std::uint32_t), (override));
  MOCK_METHOD(Errno, destroy_srq, (std::uint32_t), (override));
  MOCK_METHOD(ErrnoOr<std::uint32_t>, create_qp, (const QueuePairSpec&), (override));
  MOCK_METHOD(Errno, modify_qp, (std::uint32_t, std::uint32_t, const QpAttributes&), (override));
  MOCK_METHOD(ErrnoOr<QpAttributes>, query_qp, (std::uint32_t), (override));
  MOCK_METHOD(Errno, destroy_qp, (std::uint32_t), (override));
  MOCK_METHOD(int, progress, (), (override));
  MOCK_METHOD(std::uint64_t, idle_ns, (), (override));
  MOCK_METHOD(std::uint64_t, rung_at_ns, (), (const, override));
  MOCK_METHOD(int, poll_fd, (), (const, override));
  MOCK_METHOD(HcaCounters, counters, (), (override));
};

struct PrmFieldValue {
  prm::PrmField field;
  std::uint64_t value;
};

inline constexpr std::uint32_t kQpn = 0x4321;
inline constexpr std::size_t kUmemBytes = 4 * 4096;

class DevxCommands : public testing::Test {
 protected:
  DevxCommands() {
    ON_CALL(hca_, config).WillByDefault(testing::ReturnRef(config_));
    ON_CALL(hca_, address).WillByDefault(testing::ReturnRef(address_));
    umem_ = *umems_.add(memory_.data(), kUmemBytes, 4096);
  }

  // A CREATE_QP that a device accepts: 8 receive WQEs of 32 B, then 16 WQEBBs.
  prm::Mailbox<prm::kCreateQpInBytes> valid_create_qp() const {
    prm::Mailbox<prm::kCreateQpInBytes> in{};
    prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::kCreateQp));
    prm::set(in, prm::qp::kPd, 7);
    prm::set(in, prm::qp::kUarPage, 8);
    prm::set(in, prm::qp::kUserIndex, 9);
    prm::set(in, prm::qp::kSendCqn, 10);
    prm::set(in, prm::qp::kReceiveCqn, 11);
    prm::set(in, prm::qp::kLogRqSize, 3);
    prm::set(in, prm::qp::kLogRqStride, 1);
    prm::set(in, prm::qp::kLogSqSize, 4);
    prm::set(in, prm::qp::kDbrUmemId, umem_);
    prm::set(in, prm::qp::kDbrAddress, 64);
    prm::set(in, prm::qp::kUmemId, umem_);
    prm::set(in, prm::qp::kUmemOffset, 4096);
    return in;
  }

  Errno modify(prm::Opcode opcode, QpState from, prm::Mailbox<prm::kModifyQpInBytes> in,
               std::uint32_t access = 0) {
    QpAttributes current;
    current.state = from;
    current.access = access;
    ON_CALL(hca_, query_qp(kQpn)).WillByDefault(testing::Return(current));
    prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(opcode));
    prm::set(in, prm::kObjectId, kQpn);
    return commands_.modify({ObjectKind::kQp, kQpn, {}}, in, out_);
  }
  prm::CommandStatus status() const { return static_cast<prm::CommandStatus>(prm::get(out_, prm::kStatus)); }

  alignas(4096) std::array<std::byte, kUmemBytes> memory_{};
  HcaConfig config_;
  wire::Address address_ = wire::Address::ipv4(0x7f000005);
  testing::NiceMock<MockHca> hca_;
  UmemTable umems_;
  std::optional<Named> foreign_;  // kind of object that another file made
  Commands commands_{hca_, umems_, [this](Named kind, std::uint32_t) { return kind != foreign_; }};
  std::uint32_t umem_ = 0;
  prm::Mailbox<prm::kShortCommandBytes> out_{};
};

}  // namespace gdx::softhca::devx
