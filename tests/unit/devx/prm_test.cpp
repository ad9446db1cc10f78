#include <gtest/gtest.h>

#include "proto/mlx5/prm.h"

namespace gdx::mlx5::prm {
namespace {

TEST(PrmField, empty_buffer_set_touches_only_the_fields_bits) {
  Mailbox<8> box;
  box.fill(0xff);
  set(box, PrmField{36, 5}, 0);
  EXPECT_EQ(box, (Mailbox<8>{0xff, 0xff, 0xff, 0xff, 0xf0, 0x7f, 0xff, 0xff}));
}

TEST(PrmField, value_wider_than_the_field_set_is_cut_to_it) {
  Mailbox<4> box{};
  set(box, PrmField{8, 8}, 0x1234);
  EXPECT_EQ(box, (Mailbox<4>{0, 0x34, 0, 0}));
}

TEST(PrmField, field_of_64_bits_set_reads_back_big_endian) {
  Mailbox<16> box{};
  set(box, PrmField{32, 64}, 0x0102030405060708u);
  EXPECT_EQ(box[4], 1);
  EXPECT_EQ(box[11], 8);
  EXPECT_EQ(get(box, PrmField{32, 64}), 0x0102030405060708u);
}

TEST(PrmField, short_buffer_read_gives_zero_and_written_stays) {
  Mailbox<6> box;
  box.fill(0xff);
  EXPECT_EQ(get(box, PrmField{32, 8}), 0u);
  EXPECT_EQ(get(box, PrmField{0, 64}), 0u);
  set(box, PrmField{32, 8}, 0);
  EXPECT_EQ(box[4], 0xff);
}

// Places that independent sources give in bytes or bits: DevX clients and the PRM.
TEST(PrmField, contexts_lie_where_devx_clients_put_them) {
  EXPECT_EQ(qp::kUmemOffset.bit_offset, 0x100u * 8);
  EXPECT_EQ(qp::kUmemId.bit_offset, 0x840u);
  EXPECT_EQ(qp::kUmemValid.bit_offset, 0x860u);
  EXPECT_EQ(qp::kServiceType.bit_offset, 0x18u * 8 + 8);
  EXPECT_EQ(cq::kUmemOffset.bit_offset, 0x280u);
  EXPECT_EQ(cq::kUmemId.bit_offset, 0x2c0u);
  EXPECT_EQ(kObjectId.bit_offset, 2u * 32 + 8);
}

}  // namespace
}  // namespace gdx::mlx5::prm
