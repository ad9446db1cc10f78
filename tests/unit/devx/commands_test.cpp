#include "driver-shim/softhca/devx/commands.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>

#include "driver-shim/softhca/devx/limits.h"
#include "tests/expected_text.h"
#include "tests/unit/devx/commands_fixture.h"

namespace gdx::softhca::devx {
namespace commands_test {

using testing::_;
using testing::DoAll;
using testing::Return;
using testing::SaveArg;

TEST_F(DevxCommands, create_qp_takes_the_timestamps_that_the_capability_offers) {
  EXPECT_CALL(hca_, create_qp(_)).WillRepeatedly(Return(kQpn));
  for (const bool strict : {false, true}) {
    config_.strict = strict;
    prm::Mailbox<prm::kShortCommandBytes> ask{};
    prm::set(ask, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::kQueryHcaCap));
    prm::set(ask, prm::kOpMod, prm::cap::op_mod_current(prm::cap::kRoce));
    prm::Mailbox<prm::kQueryHcaCapOutBytes> told{};
    ASSERT_EQ(commands_.general(ask, told), 0);
    EXPECT_EQ(prm::get(told, prm::cap::kQpTimestamps),
              strict ? prm::cap::kRealTimeOnly : prm::cap::kFreeRunningOnly);
    for (const auto format : {prm::qp::kFreeRunning, prm::qp::kDefaultTimestamps, prm::qp::kRealTime}) {
      const bool offered = format != (strict ? prm::qp::kFreeRunning : prm::qp::kRealTime);
      auto in = valid_create_qp();
      prm::set(in, prm::qp::kTimestampFormat, format);
      EXPECT_EQ(commands_.create(in, out_).has_value(), offered) << format;
      if (offered) continue;
      EXPECT_EQ(prm::get(out_, prm::kSyndrome),
                static_cast<std::uint32_t>(Syndrome::kUnsupportedTimestampFormat));
    }
  }
}

TEST_F(DevxCommands, create_qp_with_rings_beyond_the_umem_is_refused_with_a_syndrome) {
  EXPECT_CALL(hca_, create_qp(_)).Times(0);
  auto in = valid_create_qp();
  prm::set(in, prm::qp::kUmemOffset, kUmemBytes - 1024);
  EXPECT_EQ(commands_.create(in, out_).error(), EREMOTEIO);
  EXPECT_EQ(status(), prm::CommandStatus::kBadParameter);
  EXPECT_EQ(prm::get(out_, prm::kSyndrome), static_cast<std::uint32_t>(Syndrome::kBadUmem));
  prm::set(in, prm::qp::kUmemOffset, ~std::uint64_t{0});
  EXPECT_EQ(commands_.create(in, out_).error(), EREMOTEIO);
}

// A umem may begin anywhere in a page, so an offset alone says nothing of where it leads.
TEST_F(DevxCommands, create_qp_with_rings_or_record_astride_is_refused) {
  const ErrnoOr<std::uint32_t> odd = umems_.add(memory_.data() + 2, kUmemBytes - 2);
  ASSERT_TRUE(odd);
  EXPECT_CALL(hca_, create_qp(_)).WillOnce(Return(kQpn));
  auto in = valid_create_qp();
  prm::set(in, prm::qp::kUmemId, *odd);
  EXPECT_EQ(commands_.create(in, out_).error(), EREMOTEIO);
  EXPECT_EQ(prm::get(out_, prm::kSyndrome), static_cast<std::uint32_t>(Syndrome::kBadUmem));
  in = valid_create_qp();
  prm::set(in, prm::qp::kDbrUmemId, *odd);
  EXPECT_EQ(commands_.create(in, out_).error(), EREMOTEIO);
  prm::set(in, prm::qp::kDbrAddress, 62);
  EXPECT_TRUE(commands_.create(in, out_));
}

TEST_F(DevxCommands, create_qp_without_a_send_queue_takes_room_for_its_receives_alone) {
  constexpr std::uint64_t kReceiveBytes = 8 * 32;
  QueuePairSpec spec;
  EXPECT_CALL(hca_, create_qp(_)).WillOnce(DoAll(SaveArg<0>(&spec), Return(kQpn)));
  auto in = valid_create_qp();
  prm::set(in, prm::qp::kNoSq, 1);
  prm::set(in, prm::qp::kUmemOffset, kUmemBytes - kReceiveBytes);
  EXPECT_TRUE(commands_.create(in, out_));
  EXPECT_EQ(spec.send_blocks, 0u);
  EXPECT_EQ(spec.receive_entries, 8u);
  prm::set(in, prm::qp::kUmemOffset, kUmemBytes - kReceiveBytes + mlx5::kWqeBasicBlockBytes);
  EXPECT_EQ(commands_.create(in, out_).error(), EREMOTEIO);
}

TEST_F(DevxCommands, umem_of_a_live_queue_is_held_until_the_queue_goes) {
  EXPECT_CALL(hca_, create_qp(_)).WillOnce(Return(kQpn));
  const ErrnoOr<Object> object = commands_.create(valid_create_qp(), out_);
  ASSERT_TRUE(object);
  EXPECT_EQ(umems_.remove(umem_), EBUSY);
  EXPECT_CALL(hca_, destroy_qp(kQpn)).WillOnce(Return(EBUSY)).WillOnce(Return(0));
  EXPECT_EQ(commands_.destroy(*object), EBUSY);
  EXPECT_EQ(umems_.remove(umem_), EBUSY) << "the queue is still there";
  EXPECT_EQ(commands_.destroy(*object), 0);
  EXPECT_EQ(umems_.remove(umem_), 0);
}

TEST_F(DevxCommands, command_for_another_object_answers_einval) {
  prm::Mailbox<prm::kModifyQpInBytes> in{};
  prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::k2Err));
  prm::set(in, prm::kObjectId, kQpn + 1);
  EXPECT_EQ(commands_.modify({ObjectKind::kQp, kQpn, {}}, in, out_), EINVAL);
  EXPECT_EQ(commands_.modify({ObjectKind::kCq, kQpn + 1, {}}, in, out_), EINVAL);
}

TEST_F(DevxCommands, buffers_too_short_for_a_header_answer_einval) {
  const std::array<std::uint8_t, 8> in{};
  EXPECT_EQ(commands_.general(in, out_), EINVAL);
  EXPECT_EQ(commands_.create(in, out_).error(), EINVAL);
  EXPECT_EQ(commands_.general(out_, {}), EINVAL);
}

TEST_F(DevxCommands, umem_empty_or_wrapping_is_refused) {
  EXPECT_EQ(umems_.add(memory_.data(), 0).error(), EINVAL);
  EXPECT_EQ(umems_.add(memory_.data(), ~std::uint64_t{0}).error(), EINVAL);
  EXPECT_EQ(umems_.remove(999), ENOENT);
}

// A CREATE_RMP as UCX sends it: cyclic, 16 WQEs of 32 B.
prm::Mailbox<prm::kCreateRmpInBytes> valid_create_rmp(std::uint32_t umem) {
  prm::Mailbox<prm::kCreateRmpInBytes> in{};
  prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::kCreateRmp));
  prm::set(in, prm::rmp::kState, prm::rmp::kReady);
  prm::set(in, prm::rmp::kQueueType, prm::rmp::kCyclic);
  prm::set(in, prm::rmp::kPd, 7);
  prm::set(in, prm::rmp::kLogStride, 5);
  prm::set(in, prm::rmp::kLogSize, 4);
  prm::set(in, prm::rmp::kDbrUmemId, umem);
  prm::set(in, prm::rmp::kDbrAddress, 128);
  prm::set(in, prm::rmp::kUmemId, umem);
  prm::set(in, prm::rmp::kUmemOffset, 4096);
  return in;
}

TEST_F(DevxCommands, create_rmp_makes_a_cyclic_shared_queue_and_destroy_ends_it) {
  SharedReceiveQueueSpec spec;
  EXPECT_CALL(hca_, create_srq(_)).WillOnce(DoAll(SaveArg<0>(&spec), Return(0x77)));
  const ErrnoOr<Object> object = commands_.create(valid_create_rmp(umem_), out_);
  ASSERT_TRUE(object);
  EXPECT_EQ(prm::get(out_, prm::kObjectId), 0x77u);
  EXPECT_TRUE(spec.cyclic);
  EXPECT_EQ(spec.pd, 7u);
  EXPECT_EQ(spec.entries, 16u);
  EXPECT_EQ(spec.stride_bytes, 32u);
  EXPECT_EQ(spec.ring, memory_.data() + 4096);
  EXPECT_EQ(reinterpret_cast<std::byte*>(spec.doorbell_record), memory_.data() + 128);
  EXPECT_EQ(umems_.remove(umem_), EBUSY);
  EXPECT_CALL(hca_, destroy_srq(0x77)).WillOnce(Return(0));
  EXPECT_EQ(commands_.destroy(*object), 0);
  EXPECT_EQ(umems_.remove(umem_), 0);
}

TEST_F(DevxCommands, create_rmp_of_a_kind_not_offered_is_refused) {
  EXPECT_CALL(hca_, create_srq(_)).Times(0);
  auto in = valid_create_rmp(umem_);
  prm::set(in, prm::rmp::kQueueType, 3);  // striding
  EXPECT_EQ(commands_.create(in, out_).error(), EREMOTEIO);
  EXPECT_EQ(prm::get(out_, prm::kSyndrome), static_cast<std::uint32_t>(Syndrome::kUnsupportedQueueType));
  in = valid_create_rmp(umem_);
  prm::set(in, prm::rmp::kBasicCyclicWqe, 1);
  EXPECT_EQ(commands_.create(in, out_).error(), EREMOTEIO);
  in = valid_create_rmp(umem_);
  prm::set(in, prm::rmp::kLogSize, 16);
  EXPECT_EQ(commands_.create(in, out_).error(), EREMOTEIO);
  EXPECT_EQ(prm::get(out_, prm::kSyndrome), static_cast<std::uint32_t>(Syndrome::kBadQueueSize));
}

using MkeyMailbox = prm::Mailbox<prm::mkey::kEntriesByte + 2 * prm::mkey::kEntryBytes>;

// A CREATE_MKEY as UCX sends it: two pieces of 1 MiB that follow on each other.
MkeyMailbox valid_create_mkey() {
  MkeyMailbox in{};
  prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::kCreateMkey));
  prm::set(in, prm::mkey::kAccessMode, prm::mkey::kModeFixedSize);
  prm::set(in, prm::mkey::kAtomic, 1);
  prm::set(in, prm::mkey::kRemoteRead, 1);
  prm::set(in, prm::mkey::kTag, 0x5a);
  prm::set(in, prm::mkey::kPd, 7);
  prm::set(in, prm::mkey::kStartAddress, 0x7f0000000468);
  prm::set(in, prm::mkey::kLengthBytes, 0x180000);
  prm::set(in, prm::mkey::kLogEntityBytes, 20);
  prm::set(in, prm::mkey::kEntries, 2);
  for (std::uint32_t i = 0; i < 2; ++i) {
    const auto entry = std::span(in).subspan(prm::mkey::kEntriesByte + i * prm::mkey::kEntryBytes);
    prm::set(entry, prm::mkey::kEntryMkey, 0x1234500 + i);
    prm::set(entry, prm::mkey::kEntryAddress, 0x7f0000000000 + i * 0x100000);
  }
  return in;
}

// As mlx5dv_create_mkey sends it.
MkeyMailbox create_mkey_for_umr() {
  MkeyMailbox in{};
  prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::kCreateMkey));
  prm::set(in, prm::mkey::kAccessMode, prm::mkey::kModeAnySize);
  prm::set(in, prm::mkey::kFree, 1);
  prm::set(in, prm::mkey::kUmrEnabled, 1);
  prm::set(in, prm::mkey::kPd, 7);
  prm::set(in, prm::mkey::kMaxEntries, 12);
  return in;
}

TEST_F(DevxCommands, create_mkey_for_umr_makes_a_free_key_with_room_for_its_entries) {
  MemoryRegionSpec spec;
  EXPECT_CALL(hca_, register_memory(_)).WillOnce(DoAll(SaveArg<0>(&spec), Return(0xabcdef00)));
  auto in = create_mkey_for_umr();
  prm::set(in, prm::mkey::kRemoteInvalidate, 1);
  const ErrnoOr<Object> object = commands_.create(in, out_);
  ASSERT_TRUE(object);
  EXPECT_EQ(prm::get(out_, prm::kObjectId), 0xabcdefu);
  ASSERT_TRUE(spec.umr);
  EXPECT_TRUE(spec.umr->free);
  EXPECT_FALSE(spec.umr->window);
  EXPECT_TRUE(spec.umr->peer_may_invalidate);
  EXPECT_EQ(spec.umr->max_entries, 12u);
  EXPECT_EQ(spec.key_tag, 0);
  EXPECT_TRUE(spec.pieces.empty());
}

TEST_F(DevxCommands, create_mkey_over_continuous_pieces_answers_the_key_without_its_tag) {
  MemoryRegionSpec spec;
  EXPECT_CALL(hca_, register_memory(_)).WillOnce(DoAll(SaveArg<0>(&spec), Return(0xabcdef5a)));
  const ErrnoOr<Object> object = commands_.create(valid_create_mkey(), out_);
  ASSERT_TRUE(object);
  EXPECT_EQ(prm::get(out_, prm::kObjectId), 0xabcdefu);
  EXPECT_EQ(spec.base, nullptr);
  EXPECT_EQ(spec.iova, 0x7f0000000468u);
  EXPECT_EQ(spec.length_bytes, 0x180000u);
  EXPECT_EQ(spec.access, kRemoteRead | kRemoteAtomic);
  EXPECT_EQ(spec.key_tag, 0x5a);
  ASSERT_EQ(spec.pieces.size(), 2u);
  EXPECT_EQ(spec.pieces[1].mkey, 0x1234501u);
  EXPECT_EQ(spec.pieces[1].address, 0x7f0000100000u);
  EXPECT_EQ(spec.pieces[0].start_bytes, 0u);
  EXPECT_EQ(spec.pieces[1].start_bytes, 0x100000u);
  EXPECT_FALSE(spec.umr);
  EXPECT_CALL(hca_, deregister_memory(0xabcdef5a)).WillOnce(Return(0));
  EXPECT_EQ(commands_.destroy(*object), 0);
}

TEST_F(DevxCommands, create_mkey_that_nothing_below_could_follow_is_refused) {
  EXPECT_CALL(hca_, register_memory(_)).Times(0);
  const auto refused_with = [this](const MkeyMailbox& in) {
    EXPECT_EQ(commands_.create(in, out_).error(), EREMOTEIO);
    return static_cast<Syndrome>(prm::get(out_, prm::kSyndrome));
  };
  auto in = valid_create_mkey();
  prm::set(in, prm::mkey::kAccessMode, 2);
  EXPECT_EQ(refused_with(in), Syndrome::kUnsupportedMkey) << "pieces of various sizes";
  in = valid_create_mkey();
  prm::set(in, prm::mkey::kUmrEnabled, 1);
  EXPECT_EQ(refused_with(in), Syndrome::kUnsupportedMkey);
  in = valid_create_mkey();
  prm::set(in, prm::mkey::kLengthBytes, 0x200001);
  EXPECT_EQ(refused_with(in), Syndrome::kUnsupportedMkey) << "longer than its pieces";
  in = create_mkey_for_umr();
  prm::set(in, prm::mkey::kSignature, 1);
  EXPECT_EQ(refused_with(in), Syndrome::kUnsupportedMkey) << "with block signatures";
  in = create_mkey_for_umr();
  prm::set(in, prm::mkey::kCrypto, 1);
  EXPECT_EQ(refused_with(in), Syndrome::kUnsupportedMkey);
  in = create_mkey_for_umr();
  prm::set(in, prm::mkey::kMaxEntries, 0);
  EXPECT_EQ(refused_with(in), Syndrome::kUnsupportedMkey);
  in = create_mkey_for_umr();
  prm::set(in, prm::mkey::kMaxEntries, (1u << kLogMaxTranslations) + 1);
  EXPECT_EQ(refused_with(in), Syndrome::kUnsupportedMkey);
  in = valid_create_mkey();
  prm::set(in, prm::mkey::kEntries, 3);
  EXPECT_EQ(refused_with(in), Syndrome::kUnsupportedMkey);
  EXPECT_EQ(status(), prm::CommandStatus::kBadInputLength);
}

TEST_F(DevxCommands, command_the_driver_passes_on_is_refused_by_status_and_others_by_errno) {
  prm::Mailbox<prm::kShortCommandBytes> in{};
  constexpr std::uint64_t kCreateDct = 0x710;
  constexpr std::uint64_t kCreateEq = 0x301;
  constexpr std::uint64_t kNop = 0x80d;
  prm::set(in, prm::kOpcode, kCreateDct);
  EXPECT_EQ(commands_.create(in, out_).error(), EREMOTEIO);
  EXPECT_EQ(status(), prm::CommandStatus::kBadOperation);
  EXPECT_EQ(commands_.general(in, out_), EINVAL);
  prm::set(in, prm::kOpcode, kCreateEq);
  EXPECT_EQ(commands_.create(in, out_).error(), EINVAL);
  prm::set(in, prm::kOpcode, kNop);
  EXPECT_EQ(commands_.general(in, out_), EREMOTEIO);
  EXPECT_EQ(status(), prm::CommandStatus::kBadOperation);
}

TEST_F(DevxCommands, event_of_a_queue_reaches_who_subscribed_to_it_only) {
  QueuePairSpec spec;
  EXPECT_CALL(hca_, create_qp(_)).WillOnce(DoAll(SaveArg<0>(&spec), Return(kQpn)));
  const ErrnoOr<Object> object = commands_.create(valid_create_qp(), out_);
  ASSERT_TRUE(object);
  int last_wqe = 0;
  int fatal = 0;
  object->events->subscribe(0x13, [&last_wqe] { ++last_wqe; });
  object->events->subscribe(0x05, [&fatal] { ++fatal; });
  spec.on_event(16);  // IB_EVENT_QP_LAST_WQE_REACHED
  EXPECT_EQ(last_wqe, 1);
  EXPECT_EQ(fatal, 0);
}

TEST_F(DevxCommands, overrun_of_a_cq_reaches_who_subscribed_to_its_error) {
  CompletionQueueSpec spec;
  EXPECT_CALL(hca_, create_cq(_)).WillOnce(DoAll(SaveArg<0>(&spec), Return(10u)));
  prm::Mailbox<prm::kCreateCqInBytes> in{};
  prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::kCreateCq));
  prm::set(in, prm::cq::kLogSize, 4);
  prm::set(in, prm::cq::kUarPage, 8);
  prm::set(in, prm::cq::kEqn, kFirstEqn);
  prm::set(in, prm::cq::kDbrUmemId, umem_);
  prm::set(in, prm::cq::kUmemId, umem_);
  prm::set(in, prm::cq::kUmemOffset, 4096);
  const ErrnoOr<Object> object = commands_.create(in, out_);
  ASSERT_TRUE(object);
  EXPECT_EQ(spec.uar, 8u);
  int errors = 0;
  object->events->subscribe(0x04, [&errors] { ++errors; });
  ASSERT_TRUE(spec.on_overrun);
  spec.on_overrun();
  EXPECT_EQ(errors, 1);
}

TEST(DevxEvents, each_kind_of_object_raises_its_own_only) {
  const std::map<ObjectKind, std::set<std::uint16_t>> raised = {
      {ObjectKind::kCq, {0x00, 0x04}},
      {ObjectKind::kQp, {0x02, 0x05, 0x10, 0x11, 0x13}},
      {ObjectKind::kRmp, {}},
      {ObjectKind::kMkey, {}},
  };
  for (const auto& [kind, events] : raised) {
    for (std::uint16_t event = 0; event <= 0xff; ++event) {
      EXPECT_EQ(is_raised_here(kind, event), events.contains(event))
          << "kind " << static_cast<int>(kind) << " event " << event;
    }
  }
}

// Outcome of a command for each of its bits: all that reaches the engine, or the refusal.
class CommandBits : public DevxCommands {
 protected:
  CommandBits() {
    ON_CALL(hca_, create_cq(_)).WillByDefault([this](const CompletionQueueSpec& it) {
      return told("ring {}, record {}, log {}, of {} B, collapsed {}, ignore {}, uar {}", place(it.ring),
                  place(it.doorbell_record), it.log_entries, it.entry_bytes, it.collapsed, it.ignore_overrun,
                  it.uar.value_or(0));
    });
    ON_CALL(hca_, create_qp(_)).WillByDefault([this](const QueuePairSpec& it) {
      return told(
          "type {}, pd {}, uar {}, send cq {}, receive cq {}, srq {}, user {}, sends {}, at {}, receives {}, "
          "of {} B, at {}, record {}",
          static_cast<int>(it.type), it.pd, it.uar, it.send_cqn, it.receive_cqn, it.srqn, it.user_index,
          it.send_blocks, place(it.send_ring), it.receive_entries, it.receive_stride_bytes,
          place(it.receive_ring), place(it.doorbell_record));
    });
    ON_CALL(hca_, create_srq(_)).WillByDefault([this](const SharedReceiveQueueSpec& it) {
      return told("pd {}, ring {}, entries {}, of {} B, record {}, user {}, cyclic {}", it.pd, place(it.ring),
                  it.entries, it.stride_bytes, place(it.doorbell_record), it.user_index, it.cyclic);
    });
    ON_CALL(hca_, register_memory(_)).WillByDefault([this](const MemoryRegionSpec& it) {
      std::string rest;
      for (const IndirectPiece& piece : it.pieces)
        rest += fmt::format(", {:#x} at {:#x} from {:#x}", piece.mkey, piece.address, piece.start_bytes);
      if (it.umr) {
        rest += fmt::format(", umr of {}, invalidate {}", it.umr->max_entries, it.umr->peer_may_invalidate);
      }
      return told("pd {}, iova {:#x}, of {:#x} B, access {:#x}, tag {:#x}{}", it.pd, it.iova, it.length_bytes,
                  it.access, it.key_tag.value_or(0), rest);
    });
    ON_CALL(hca_, modify_qp(kQpn, _, _))
        .WillByDefault([this](auto, std::uint32_t mask, const QpAttributes& it) {
          told(
              "mask {:#x}, state {}, access {:#x}, remote {}, qp {:#x}, mtu {}, message {:#x}, timeout {}, "
              "retries {}, rnr {}, timer {}, reads {}, served {}, psn {:#x}, receive psn {:#x}, counters {}",
              mask, static_cast<int>(it.state), it.access, it.remote.text(), it.remote_qpn, it.mtu_bytes,
              it.max_message_bytes, it.timeout, it.retry_count, it.rnr_retry, it.min_rnr_timer,
              it.max_rd_atomic, it.max_dest_rd_atomic, it.send_psn, it.receive_psn, it.counter_set);
          return 0;
        });
  }
  std::int64_t place(const void* at) const {
    return at == nullptr ? -1 : static_cast<const std::byte*>(at) - memory_.data();
  }
  template <typename... Values>
  ErrnoOr<std::uint32_t> told(fmt::format_string<Values...> form, Values&&... values) {
    told_ = fmt::format(form, std::forward<Values>(values)...);
    return kQpn;
  }
  std::string outcome(Errno error) const {
    if (error == 0) return told_;
    if (error != EREMOTEIO) return fmt::format("errno {}", error);
    return fmt::format("status {:#x} syndrome {:#x}", prm::get(out_, prm::kStatus),
                       prm::get(out_, prm::kSyndrome));
  }
  // The fields of `now` that are not as in `whole`; all where they are other fields.
  static std::string difference(const std::string& now, const std::string& whole) {
    if (std::ranges::count(now, ',') != std::ranges::count(whole, ',')) return now;
    std::istringstream nows(now);
    std::istringstream wholes(whole);
    std::string different;
    for (std::string one, other; std::getline(nows, one, ',') && std::getline(wholes, other, ',');) {
      if (one != other) different += one;
    }
    return different.empty() ? "as it is" : different;
  }
  // Tells of the command as it is, of those with one bit changed, and of those that are cut short.
  template <typename Mailbox, typename Send>
  void sweep(const std::string& what, const Mailbox& valid, Send send) {
    const std::string whole = outcome(send(Input(valid)));
    text_ += fmt::format("{}\n  {}\n", what, whole);
    std::string before = whole;
    const auto tell = [&](std::size_t at, const char* unit, const std::string& now) {
      if (now != before) text_ += fmt::format("  {:#x}{}: {}\n", at, unit, difference(now, whole));
      before = now;
    };
    for (std::size_t bit = 0; bit < 8 * valid.size(); ++bit) {
      Mailbox changed = valid;
      changed[bit / 8] = static_cast<std::uint8_t>(changed[bit / 8] ^ 0x80 >> bit % 8);
      tell(bit, "", outcome(send(Input(changed))));
    }
    for (std::size_t bytes = valid.size(); bytes-- > 0;)
      tell(bytes, " bytes", outcome(send(Input(valid).first(bytes))));
  }
  template <typename Mailbox>
  void sweep_create(const std::string& what, const Mailbox& valid) {
    sweep(what, valid, [this](Input in) {
      const auto made = commands_.create(in, out_);
      if (made) told_ += fmt::format(", noted under pd {} with {:#x}", made->pd, made->extent);
      return made ? 0 : made.error();
    });
  }

  std::string told_;
  std::string text_;
  // So long that no size of a queue is too much.
  const std::uint32_t long_umem_ = *umems_.add(memory_.data(), std::uint64_t{1} << 40);
};

TEST_F(CommandBits, of_creation_reach_the_engine_or_are_refused) {
  prm::Mailbox<prm::kCreateCqInBytes> cq{};
  prm::set(cq, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::kCreateCq));
  prm::set(cq, prm::cq::kLogSize, kLogMaxCqEntries);
  prm::set(cq, prm::cq::kUarPage, 8);
  prm::set(cq, prm::cq::kEqn, kFirstEqn);
  prm::set(cq, prm::cq::kDbrUmemId, long_umem_);
  prm::set(cq, prm::cq::kUmemId, long_umem_);
  prm::set(cq, prm::cq::kUmemOffset, 4096);
  sweep_create("CREATE_CQ", cq);
  auto qp = valid_create_qp();
  prm::set(qp, prm::qp::kDbrUmemId, long_umem_);
  prm::set(qp, prm::qp::kUmemId, long_umem_);
  sweep_create("CREATE_QP", qp);
  prm::set(qp, prm::qp::kReceiveCqn, 0);
  for (const auto type :
       {prm::qp::kOwnReceiveQueue, prm::qp::kSharedReceiveQueue, prm::qp::kNoReceiveQueue}) {
    prm::set(qp, prm::qp::kRqType, type);
    prm::set(qp, prm::qp::kSrqn, 12);
    text_ += fmt::format("receive queue of type {}, without its CQ\n", static_cast<int>(type));
    const auto made = commands_.create(qp, out_);
    text_ += fmt::format("  {}\n", outcome(made ? 0 : made.error()));
  }
  auto rmp = valid_create_rmp(long_umem_);
  prm::set(rmp, prm::rmp::kLogSize, kLogMaxSrqEntries);
  sweep_create("CREATE_RMP", rmp);
  auto mkey = valid_create_mkey();
  prm::set(mkey, prm::mkey::kLengthBytes, 0x200000);  // as long as its pieces
  sweep_create("CREATE_MKEY", mkey);
  sweep_create("CREATE_MKEY for UMR", create_mkey_for_umr());
  expect_text("creations.txt", text_);
}

TEST_F(CommandBits, of_transitions_reach_the_engine_or_are_refused) {
  prm::Mailbox<prm::kModifyQpInBytes> in{};
  prm::set(in, prm::kObjectId, kQpn);
  prm::set(in, prm::qp::kMtu, 4);
  prm::set(in, prm::qp::kLogMaxMessage, kLogMaxMessage);
  prm::set(in, prm::qp::kLogSraMax, kLogMaxReads);
  prm::set(in, prm::qp::kLogRraMax, kLogMaxReads);
  prm::set(in, prm::qp::kAtomicMode, 1);
  prm::set(in, prm::qp::kPathPort, 1);
  prm::set(in, prm::qp::kPathMigrationState, 3);
  prm::set(in, prm::qp::kPathHopLimit, 1);
  prm::set(in, prm::qp::kPathUdpSourcePort, 0xc001);
  prm::set(in, prm::qp::kPathRemoteLid, 0x203);
  prm::set(in, prm::qp::kPathRemoteMacHigh, 0x0267);
  prm::set(in, prm::qp::kPathRemoteMacLow, 0x7f000009);
  const wire::Address peer = wire::Address::ipv4(0x7f000009);
  std::copy(peer.gid.begin(), peer.gid.end(), in.begin() + prm::qp::kPathRemoteGidByte);
  const std::tuple<const char*, prm::Opcode, QpState, std::uint32_t> transitions[] = {
      {"RST2INIT", prm::Opcode::kRst2Init, QpState::kReset, 0},
      {"INIT2INIT", prm::Opcode::kInit2Init, QpState::kInit, 0xe},
      {"INIT2RTR", prm::Opcode::kInit2Rtr, QpState::kInit, 0xe},
      {"RTR2RTS", prm::Opcode::kRtr2Rts, QpState::kRtr, 0x44e},
      {"RTS2RTS", prm::Opcode::kRts2Rts, QpState::kRts, 0x744e},
      {"2ERR", prm::Opcode::k2Err, QpState::kRts, 0},
      {"2RST", prm::Opcode::k2Rst, QpState::kRts, 0}};
  for (const bool infiniband : {false, true}) {
    config_.infiniband = infiniband;
    for (const auto& [name, opcode, from, optional] : transitions) {
      QpAttributes current;
      current.state = from;
      current.access = kRemoteWrite | kRemoteAtomic;
      ON_CALL(hca_, query_qp(kQpn)).WillByDefault(Return(current));
      prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(opcode));
      prm::set(in, prm::kOptParamMask, optional);
      sweep(fmt::format("{} of {}", name, infiniband ? "InfiniBand" : "Ethernet"), in, [this](Input box) {
        return commands_.modify({ObjectKind::kQp, kQpn, {}}, box, out_);
      });
    }
  }
  expect_text("transitions.txt", text_);
}

}  // namespace commands_test
}  // namespace gdx::softhca::devx
