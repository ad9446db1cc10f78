#include "driver-shim/softhca/engine/wqe_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <random>

#include "driver-shim/softhca/engine/hca.h"
#include "proto/mlx5/umr.h"
#include "proto/mlx5/wqe.h"

namespace gdx::softhca {
namespace wqe_parser_test {

using mlx5::Syndrome;
using mlx5::WqeOpcode;

constexpr std::uint32_t kQpn = 0xabcdef;
constexpr std::size_t kBlocks = 16;

// Returns one that differs from a new one in every part, as a slot of a send queue may.
SendWqe used_wqe() {
  SendWqe wqe;
  wqe.blocks = 7;
  wqe.fault = Syndrome::kRetryExceeded;
  wqe.pieces = {{1, 2, 3, true}};
  wqe.inline_bytes.resize(2);
  wqe.global = false;
  wqe.umr = std::make_unique<UmrRequest>();
  wqe.atomic_part = SendWqe::AtomicPart::kHighHalf;
  wqe.request.compare_mask = wqe.request.swap_or_add = wqe.request.length_bytes = 9;
  wqe.reason = "an earlier one";
  return wqe;
}

// Names every member, because the binding must: a new one does not compile.
void expect_equal(const SendWqe& wqe, const SendWqe& fresh) {
  const auto& [blocks, fault, pieces, inline_bytes, destination, global, umr, atomic_part] =
      static_cast<const SendBody&>(wqe);
  EXPECT_EQ(blocks, fresh.blocks);
  EXPECT_EQ(fault, fresh.fault);
  EXPECT_EQ(pieces, fresh.pieces);
  EXPECT_EQ(inline_bytes, fresh.inline_bytes);
  EXPECT_EQ(destination, fresh.destination);
  EXPECT_EQ(global, fresh.global);
  EXPECT_EQ(umr == nullptr, fresh.umr == nullptr);
  EXPECT_EQ(atomic_part, fresh.atomic_part);
  EXPECT_TRUE(wqe.request == fresh.request);
  EXPECT_STREQ(wqe.reason, fresh.reason);
}

class WqeParser : public testing::Test {
 protected:
  // Starts a WQE; put() appends segments, wrapping at the ring's end.
  void begin(std::uint16_t index, WqeOpcode opcode, std::uint32_t segments, std::uint32_t opmod = 0) {
    index_ = index;
    at_ = index % kBlocks * mlx5::kWqeBasicBlockBytes;
    mlx5::ControlSegment control{};
    control.opmod_index_opcode = opmod << 24 | std::uint32_t{index} << 8 | static_cast<std::uint32_t>(opcode);
    control.qpn_ds = kQpn << 8 | segments;
    control.fm_ce_se = mlx5::kCompletionAlways | mlx5::kSolicited;
    control.immediate = 0x11223344;
    put(control);
  }
  template <typename T>
  void put(const T& value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    for (std::size_t i = 0; i < sizeof value; ++i) ring_[(at_ + i) % ring_.size()] = bytes[i];
    at_ += sizeof value;
  }
  // Parses into a used WQE, and expects the content of a new one.
  const SendWqe& parse(std::uint32_t available = kBlocks) {
    wqe_ = used_wqe();
    parse_send_wqe(ring_, index_, available, kQpn, vectors_, wqe_);
    SendWqe fresh;
    parse_send_wqe(ring_, index_, available, kQpn, vectors_, fresh);
    expect_equal(wqe_, fresh);
    EXPECT_EQ(wqe_.reason == nullptr, wqe_.fault == Syndrome::kNone);
    return wqe_;
  }

  std::array<std::byte, kBlocks * mlx5::kWqeBasicBlockBytes> ring_{};
  AddressVectorUse vectors_ = AddressVectorUse::kNone;
  std::uint16_t index_ = 0;
  std::size_t at_ = 0;
  SendWqe wqe_;
};

constexpr mlx5::RemoteAddressSegment kRemote{0x1122334455667788, 0x99aabbcc, 0};

TEST_F(WqeParser, write_with_two_segments_decodes_every_field) {
  begin(5, WqeOpcode::kRdmaWrite, 4);
  put(kRemote);
  put(mlx5::DataSegment{1000, 0x77, 0x5000});
  put(mlx5::DataSegment{24, 0x78, 0x6000});
  const SendWqe& wqe = parse();
  EXPECT_EQ(wqe.fault, Syndrome::kNone);
  EXPECT_EQ(wqe.blocks, 1u);
  EXPECT_EQ(wqe.request.opcode, WqeOpcode::kRdmaWrite);
  EXPECT_EQ(wqe.request.wqe_counter, 5);
  EXPECT_EQ(wqe.request.fm_ce_se, mlx5::kCompletionAlways | mlx5::kSolicited);
  EXPECT_EQ(wqe.request.immediate, 0x11223344u);
  EXPECT_EQ(wqe.request.length_bytes, 1024u);
  EXPECT_EQ(wqe.request.remote_address, 0x1122334455667788u);
  EXPECT_EQ(wqe.request.rkey, 0x99aabbccu);
  EXPECT_THAT(wqe.pieces, testing::ElementsAre(DataPiece{0x77, 1000, 0x5000}, DataPiece{0x78, 24, 0x6000}));
}

TEST_F(WqeParser, wqe_that_wraps_at_the_ring_end_is_read_whole) {
  begin(kBlocks + 15, WqeOpcode::kRdmaWrite, 6);
  put(kRemote);
  for (std::uint32_t i = 0; i < 4; ++i) put(mlx5::DataSegment{i + 1, i, i});
  const SendWqe& wqe = parse();
  EXPECT_EQ(wqe.fault, Syndrome::kNone);
  EXPECT_EQ(wqe.blocks, 2u);
  EXPECT_EQ(wqe.request.length_bytes, 10u);
}

TEST_F(WqeParser, inline_data_is_copied_and_padded) {
  begin(0, WqeOpcode::kSend, 4);
  put(Be32(mlx5::kInlineFlag | 13));
  put(std::array<char, 28>{"hello, world"});
  put(mlx5::DataSegment{7, 0x77, 0x5000});
  const SendWqe& wqe = parse();
  EXPECT_EQ(wqe.fault, Syndrome::kNone);
  EXPECT_EQ(wqe.request.length_bytes, 20u);
  ASSERT_EQ(wqe.pieces.size(), 2u);
  EXPECT_TRUE(wqe.pieces[0].is_inline);
  EXPECT_EQ(wqe.pieces[1], (DataPiece{0x77, 7, 0x5000}));
  EXPECT_STREQ(reinterpret_cast<const char*>(wqe.inline_bytes.data()), "hello, world");
}

TEST_F(WqeParser, atomics_take_operands_and_eight_bytes) {
  begin(0, WqeOpcode::kAtomicCompareSwap, 4);
  put(kRemote);
  put(mlx5::AtomicSegment{41, 42});
  put(mlx5::DataSegment{8, 0x77, 0x5000});
  EXPECT_EQ(parse().fault, Syndrome::kNone);
  EXPECT_EQ(wqe_.request.swap_or_add, 41u);
  EXPECT_EQ(wqe_.request.compare, 42u);

  begin(0, WqeOpcode::kAtomicFetchAdd, 4);
  put(kRemote);
  put(mlx5::AtomicSegment{1, 0});
  put(mlx5::DataSegment{4, 0x77, 0x5000});
  EXPECT_EQ(parse().fault, Syndrome::kLocalLength);

  begin(0, WqeOpcode::kAtomicFetchAdd, 4, 8);
  EXPECT_EQ(parse().fault, Syndrome::kLocalQpOperation) << "only masked atomics have other sizes";
}

TEST_F(WqeParser, masked_atomics_on_eight_bytes_take_their_masks) {
  begin(0, WqeOpcode::kAtomicMaskedCompareSwap, 5, 9);
  put(kRemote);
  put(mlx5::AtomicSegment{1, 2});
  put(mlx5::AtomicMaskSegment{3, 4});
  put(mlx5::DataSegment{8, 0x77, 0x5000});
  EXPECT_EQ(parse().fault, Syndrome::kNone);
  EXPECT_EQ(wqe_.blocks, 2u);
  EXPECT_EQ(wqe_.request.remote_address, 0x1122334455667788u);
  EXPECT_EQ(wqe_.request.swap_or_add, 1u);
  EXPECT_EQ(wqe_.request.compare, 2u);
  EXPECT_EQ(wqe_.request.swap_mask_or_boundaries, 3u);
  EXPECT_EQ(wqe_.request.compare_mask, 4u);
  EXPECT_EQ(wqe_.atomic_part, SendWqe::AtomicPart::kWhole);

  begin(0, WqeOpcode::kAtomicMaskedFetchAdd, 4, 9);
  put(kRemote);
  put(mlx5::AtomicSegment{5, 0x8080});
  put(mlx5::DataSegment{8, 0x77, 0x5000});
  EXPECT_EQ(parse().fault, Syndrome::kNone);
  EXPECT_EQ(wqe_.request.swap_or_add, 5u);
  EXPECT_EQ(wqe_.request.swap_mask_or_boundaries, 0x8080u);
}

TEST_F(WqeParser, masked_atomics_on_four_bytes_become_half_of_eight) {
  begin(0, WqeOpcode::kAtomicMaskedCompareSwap, 4, 8);
  put(mlx5::RemoteAddressSegment{0x100c, 1, 0});
  put(mlx5::AtomicSegment32{1, 2, 3, 4});
  put(mlx5::DataSegment{4, 0x77, 0x5000});
  EXPECT_EQ(parse().fault, Syndrome::kNone);
  EXPECT_EQ(wqe_.atomic_part, SendWqe::AtomicPart::kHighHalf);
  EXPECT_EQ(wqe_.request.remote_address, 0x1008u);
  EXPECT_EQ(wqe_.request.swap_or_add, std::uint64_t{1} << 32);
  EXPECT_EQ(wqe_.request.compare, std::uint64_t{2} << 32);
  EXPECT_EQ(wqe_.request.swap_mask_or_boundaries, std::uint64_t{3} << 32);
  EXPECT_EQ(wqe_.request.compare_mask, std::uint64_t{4} << 32);

  begin(0, WqeOpcode::kAtomicMaskedFetchAdd, 4, 8);
  put(mlx5::RemoteAddressSegment{0x1008, 1, 0});
  put(mlx5::AtomicSegment32{7, 0x80, 0, 0});
  put(mlx5::DataSegment{4, 0x77, 0x5000});
  EXPECT_EQ(parse().fault, Syndrome::kNone);
  EXPECT_EQ(wqe_.atomic_part, SendWqe::AtomicPart::kLowHalf);
  EXPECT_EQ(wqe_.request.remote_address, 0x1008u);
  EXPECT_EQ(wqe_.request.swap_or_add, 7u);
  EXPECT_EQ(wqe_.request.swap_mask_or_boundaries, 0x80000080u) << "nothing is carried into the other half";

  begin(0, WqeOpcode::kAtomicMaskedFetchAdd, 4, 8);
  put(mlx5::RemoteAddressSegment{0x100a, 1, 0});
  put(mlx5::AtomicSegment32{7, 0, 0, 0});
  put(mlx5::DataSegment{4, 0x77, 0x5000});
  EXPECT_EQ(parse().request.remote_address, 0x100au) << "left for the responder to refuse";
}

TEST_F(WqeParser, masked_atomics_of_other_shapes_are_faults) {
  for (const std::uint32_t opmod : {0u, 1u, 7u, 10u, 0xffu}) {
    begin(0, WqeOpcode::kAtomicMaskedFetchAdd, 4, opmod);
    put(kRemote);
    put(mlx5::AtomicSegment{5, 0});
    put(mlx5::DataSegment{8, 0x77, 0x5000});
    EXPECT_EQ(parse().fault, Syndrome::kLocalQpOperation) << "opmod " << opmod;
  }
  begin(0, WqeOpcode::kAtomicMaskedFetchAdd, 4, 8);
  put(kRemote);
  put(mlx5::AtomicSegment32{5, 0, 0, 0});
  put(mlx5::DataSegment{8, 0x77, 0x5000});
  EXPECT_EQ(parse().fault, Syndrome::kLocalLength) << "8 bytes for a result of 4";
  begin(0, WqeOpcode::kAtomicMaskedCompareSwap, 3, 9);
  put(kRemote);
  put(mlx5::AtomicSegment{5, 0});
  EXPECT_EQ(parse().fault, Syndrome::kLocalQpOperation) << "no masks";
  begin(0, WqeOpcode::kAtomicMaskedCompareSwap, 2, 8);
  put(kRemote);
  EXPECT_EQ(parse().fault, Syndrome::kLocalQpOperation) << "no operands";
}

TEST_F(WqeParser, nop_and_empty_write_need_nothing_more) {
  begin(0, WqeOpcode::kNop, 1);
  EXPECT_EQ(parse().fault, Syndrome::kNone);
  begin(1, WqeOpcode::kRdmaWrite, 2);
  put(kRemote);
  EXPECT_EQ(parse().fault, Syndrome::kNone);
  EXPECT_EQ(wqe_.request.length_bytes, 0u);
}

TEST_F(WqeParser, byte_count_of_zero_is_two_gibibytes_and_too_long_to_send) {
  begin(0, WqeOpcode::kSend, 2);
  put(mlx5::DataSegment{0, 0x77, 0x5000});
  EXPECT_EQ(parse().fault, Syndrome::kLocalLength);

  const std::array<mlx5::DataSegment, 2> list{mlx5::DataSegment{0, 0x77, 0x5000},
                                              mlx5::DataSegment{0, mlx5::kInvalidLkey, 0}};
  std::vector<DataPiece> pieces;
  EXPECT_EQ(parse_scatter_list(std::as_bytes(std::span(list)), pieces), std::uint64_t{1} << 31);
}

TEST_F(WqeParser, datagram_send_says_where_it_goes) {
  vectors_ = AddressVectorUse::kByGid;
  mlx5::AddressVector vector{};
  vector.qkey = 0x11223344;
  vector.destination_qpn = mlx5::kExtendedAddressVector | 0x55;
  const wire::Address destination = wire::Address::ipv4(0x7f000102);
  std::copy(destination.gid.begin(), destination.gid.end(), vector.remote_gid);
  begin(15, WqeOpcode::kSend, 5);
  put(vector);
  put(mlx5::DataSegment{24, 0x78, 0x6000});
  EXPECT_EQ(parse().fault, Syndrome::kNone);
  EXPECT_EQ(wqe_.blocks, 2u);
  EXPECT_EQ(wqe_.request.qkey, 0x11223344u);
  EXPECT_EQ(wqe_.request.destination_qpn, 0x55u);
  EXPECT_EQ(wqe_.destination, destination);
  EXPECT_TRUE(wqe_.global);
  EXPECT_EQ(wqe_.request.length_bytes, 24u);

  vector.remote_lid_or_udp_source_port = 0x0304;
  vectors_ = AddressVectorUse::kByLid;
  begin(0, WqeOpcode::kSend, 5);
  put(vector);
  put(mlx5::DataSegment{24, 0x78, 0x6000});
  EXPECT_EQ(parse().fault, Syndrome::kNone);
  EXPECT_EQ(wqe_.destination, wire::Address::ipv4(0x7f000304));
  EXPECT_FALSE(wqe_.global);
  vector.grh_gid_flow = 1u << 30;
  begin(0, WqeOpcode::kSend, 5);
  put(vector);
  put(mlx5::DataSegment{24, 0x78, 0x6000});
  EXPECT_EQ(parse().fault, Syndrome::kNone);
  EXPECT_TRUE(wqe_.global);

  vector.destination_qpn = 0x55;
  vector.remote_lid_or_udp_source_port = 0x0305;
  begin(0, WqeOpcode::kSend, 3);
  std::array<std::byte, mlx5::kSegmentBytes> short_form;
  std::memcpy(short_form.data(), &vector, short_form.size());
  put(short_form);
  put(mlx5::DataSegment{24, 0x78, 0x6000});
  EXPECT_EQ(parse().fault, Syndrome::kNone);
  EXPECT_EQ(wqe_.request.destination_qpn, 0x55u);
  EXPECT_EQ(wqe_.destination, wire::Address::ipv4(0x7f000305));
  EXPECT_FALSE(wqe_.global);
  EXPECT_EQ(wqe_.request.length_bytes, 24u);
  vectors_ = AddressVectorUse::kByGid;
  EXPECT_EQ(parse().fault, Syndrome::kLocalQpOperation) << "no GID";
  begin(0, WqeOpcode::kSend, 2);
  EXPECT_EQ(parse().fault, Syndrome::kLocalQpOperation) << "no address vector";
  vectors_ = AddressVectorUse::kByLid;
  begin(0, WqeOpcode::kSend, 1);
  EXPECT_EQ(parse().fault, Syndrome::kLocalQpOperation) << "no address vector of either form";
}

TEST_F(WqeParser, malformed_wqes_are_faults) {
  begin(0, WqeOpcode::kRdmaWrite, 0);
  EXPECT_EQ(parse().fault, Syndrome::kLocalQpOperation) << "no size";
  begin(0, WqeOpcode::kRdmaWrite, 1);
  EXPECT_EQ(parse().fault, Syndrome::kLocalQpOperation) << "no remote address";
  begin(0, static_cast<WqeOpcode>(0x7e), 1);
  EXPECT_EQ(parse().fault, Syndrome::kLocalQpOperation) << "unknown opcode";
  begin(0, WqeOpcode::kNop, 5);
  EXPECT_EQ(parse(1).fault, Syndrome::kLocalQpOperation) << "larger than what is posted";
  EXPECT_EQ(wqe_.blocks, 1u);

  begin(0, WqeOpcode::kSend, 2);
  put(Be32(mlx5::kInlineFlag | 13));
  EXPECT_EQ(parse().fault, Syndrome::kLocalLength) << "inline data past the WQE";
  begin(0, WqeOpcode::kRdmaRead, 3);
  put(kRemote);
  put(Be32(mlx5::kInlineFlag | 4));
  EXPECT_EQ(parse().fault, Syndrome::kLocalQpOperation) << "reading into inline data";

  begin(0, WqeOpcode::kRdmaWrite, 4);
  put(kRemote);
  put(mlx5::DataSegment{mlx5::kMaxMessageBytes, 0, 0});
  put(mlx5::DataSegment{1, 0, 0});
  EXPECT_EQ(parse().fault, Syndrome::kLocalLength) << "longer than 1 GiB";
}

TEST_F(WqeParser, stale_control_segment_is_a_fault) {
  begin(3, WqeOpcode::kNop, 1);
  index_ = 3 + kBlocks;  // the next pass: nothing new was written here
  EXPECT_EQ(parse().fault, Syndrome::kLocalQpOperation);
}

TEST_F(WqeParser, random_bytes_never_go_out_of_bounds) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 20000; ++round) {
    for (std::byte& byte : ring_) byte = static_cast<std::byte>(random());
    static constexpr std::array kOpcodes{WqeOpcode::kSend,
                                         WqeOpcode::kRdmaWrite,
                                         WqeOpcode::kRdmaRead,
                                         WqeOpcode::kAtomicFetchAdd,
                                         WqeOpcode::kAtomicMaskedCompareSwap,
                                         WqeOpcode::kAtomicMaskedFetchAdd};
    begin(static_cast<std::uint16_t>(random()), kOpcodes[round % kOpcodes.size()], random() & 0x3f,
          8 + (random() & 1));
    const SendWqe& wqe = parse();
    ASSERT_FALSE(HasFailure());
    ASSERT_GE(wqe.blocks, 1u);
    for (const DataPiece& piece : wqe.pieces) {
      if (piece.is_inline) {
        ASSERT_LE(piece.address + piece.length_bytes, wqe.inline_bytes.size());
      }
    }
  }
}

TEST_F(WqeParser, umr_decodes_every_field) {
  begin(3, WqeOpcode::kUmr, 9);
  mlx5::UmrControlSegment control{};
  control.flags = mlx5::kUmrInline | mlx5::kUmrCheckFree;
  control.translation_octowords = 1;
  control.mkey_mask = mlx5::kMkeyMaskLength | mlx5::kMkeyMaskFree;
  put(control);
  mlx5::MkeyContextSegment context{};
  context.access_flags = mlx5::kMkeyRemoteWrite | mlx5::kMkeyLocalWrite;
  context.qpn_tag = kQpn << 8 | 0x5a;
  context.start_address = 0x1000;
  context.length_bytes = 0x2000;
  put(context);
  put(mlx5::DataSegment{0x2000, 0x77, 0x5000});
  const SendWqe& wqe = parse();
  ASSERT_EQ(wqe.fault, Syndrome::kNone) << wqe.reason;
  ASSERT_NE(wqe.umr, nullptr);
  EXPECT_EQ(wqe.request.immediate, 0x11223344u);
  EXPECT_EQ(wqe.request.length_bytes, 0u);
  EXPECT_TRUE(wqe.umr->check_free);
  EXPECT_FALSE(wqe.umr->check_qpn);
  EXPECT_FALSE(wqe.umr->free);
  EXPECT_EQ(wqe.umr->tag, 0x5a);
  EXPECT_EQ(wqe.umr->qpn, kQpn);
  EXPECT_EQ(wqe.umr->access, kRemoteWrite | kLocalWrite);
  EXPECT_EQ(wqe.umr->start_address, 0x1000u);
  EXPECT_EQ(wqe.umr->length_bytes, 0x2000u);
  ASSERT_EQ(wqe.pieces.size(), 1u);
  EXPECT_TRUE(wqe.pieces[0].is_inline);
  EXPECT_EQ(wqe.inline_bytes.size(), sizeof(mlx5::DataSegment));
}

TEST_F(WqeParser, umr_cut_off_or_beyond_what_keys_have_is_a_fault) {
  const auto fault_of = [this](std::uint32_t segments, const mlx5::UmrControlSegment& control) {
    begin(0, WqeOpcode::kUmr, segments);
    put(control);
    put(mlx5::MkeyContextSegment{});
    return parse().fault;
  };
  mlx5::UmrControlSegment control{};
  EXPECT_EQ(fault_of(8, control), Syndrome::kNone);
  EXPECT_EQ(fault_of(7, control), Syndrome::kLocalQpOperation);
  EXPECT_EQ(fault_of(3, control), Syndrome::kLocalQpOperation);
  control.translation_octowords = 1;
  EXPECT_EQ(fault_of(8, control), Syndrome::kLocalQpOperation) << "no data segment";
  control.flags = mlx5::kUmrInline;
  EXPECT_EQ(fault_of(8, control), Syndrome::kLocalLength);
  EXPECT_EQ(parse().umr, nullptr);
  control = {};
  control.mkey_mask = 1u << 12;  // block signatures
  EXPECT_EQ(fault_of(8, control), Syndrome::kMemoryWindowBind);
  control = {};
  control.translation_offset = 1;
  EXPECT_EQ(fault_of(8, control), Syndrome::kMemoryWindowBind);
  control = {};
  control.flags = 1;
  EXPECT_EQ(fault_of(8, control), Syndrome::kMemoryWindowBind);
}

}  // namespace wqe_parser_test
}  // namespace gdx::softhca
