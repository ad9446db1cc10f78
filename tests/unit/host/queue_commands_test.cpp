// The DevX mailboxes that make and connect a queue pair, byte for byte: a field one bit off is one that a
// ConnectX reads as something else. Offsets by hand. Source: Linux include/linux/mlx5/mlx5_ifc.h, struct
// create_cq_in with cqc, create_qp_in with qpc, rst2init_qp_in, init2rtr_qp_in and rtr2rts_qp_in with qpc and
// its ads.
#include "host/queue/queue_commands.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <initializer_list>
#include <string>
#include <vector>

namespace {
std::vector<std::uint8_t>& sent() {
  static std::vector<std::uint8_t> bytes;
  return bytes;
}
constexpr std::uint8_t kAnsweredNumber[] = {0x12, 0x34, 0x56};
int anything = 0;
struct Refusal {
  int error = 0;            // errno; 0: none
  std::uint8_t status = 0;  // of the HCA; 0: the kernel refuses, and the HCA gets nothing
} refusal;

void keep(const void* in, std::size_t length_bytes) {
  const auto* const bytes = static_cast<const std::uint8_t*>(in);
  sent().assign(bytes, bytes + length_bytes);
}
}  // namespace

// In place of libmlx5's: what would go to the kernel is kept.
extern "C" {
mlx5dv_devx_obj* mlx5dv_devx_obj_create(ibv_context*, const void* in, std::size_t in_bytes, void* out,
                                        std::size_t) {
  keep(in, in_bytes);
  if (refusal.error != 0) {
    *static_cast<std::uint8_t*>(out) = refusal.status;
    errno = refusal.error;
    return nullptr;
  }
  std::copy(std::begin(kAnsweredNumber), std::end(kAnsweredNumber), static_cast<std::uint8_t*>(out) + 9);
  return reinterpret_cast<mlx5dv_devx_obj*>(&anything);
}
int mlx5dv_devx_obj_modify(mlx5dv_devx_obj*, const void* in, std::size_t in_bytes, void*, std::size_t) {
  keep(in, in_bytes);
  return 0;
}
int mlx5dv_devx_obj_destroy(mlx5dv_devx_obj*) { return 0; }
}

namespace gdx::commands {
namespace {

constexpr std::size_t kMailboxBytes = 0x110;

struct Run {
  std::size_t offset;
  std::initializer_list<int> bytes;
};

// All that is not in `runs` must be zero.
void expect_sent(std::initializer_list<Run> runs) {
  std::vector<std::uint8_t> expected(kMailboxBytes);
  for (const Run& run : runs) {
    std::size_t at = run.offset;
    for (const int byte : run.bytes) expected.at(at++) = static_cast<std::uint8_t>(byte);
  }
  ASSERT_EQ(sent().size(), expected.size());
  for (std::size_t at = 0; at < expected.size(); ++at) {
    EXPECT_EQ(sent()[at], expected[at]) << "byte " << at;
  }
}

NumberedObject queue_pair() {
  NumberedObject object;
  object.number = 0xa1b2c3;
  return object;
}

TEST(QueueCommands, completion_queue_created_sends_the_prms_bytes) {
  const auto made = create_completion_queue(nullptr, {.eqn = 0x1122,
                                                      .uar_page = 0xabcdef,
                                                      .umem_id = 0x01020304,
                                                      .ring_offset = 0x1000,
                                                      .record_offset = 0x2040,
                                                      .log_entries = 9});
  ASSERT_TRUE(made);
  EXPECT_EQ(made->number, 0x123456u);
  expect_sent({
      {0x00, {0x04, 0x00}},
      {0x10, {0x02, 0x02}},              // dbr_umem_valid; oi
      {0x14, {0x01, 0x02, 0x03, 0x04}},  // dbr_umem_id
      {0x1c, {9, 0xab, 0xcd, 0xef}},     // log_cq_size, uar_page
      {0x24, {0, 0, 0x11, 0x22}},        // c_eqn
      {0x4e, {0x20, 0x40}},              // dbr_addr
      {0x56, {0x10, 0x00}},              // cq_umem_offset
      {0x58, {0x01, 0x02, 0x03, 0x04}},  // cq_umem_id
      {0x5c, {0x80}},                    // cq_umem_valid
  });
}

TEST(QueueCommands, queue_pair_created_sends_the_prms_bytes) {
  ASSERT_TRUE(create_queue_pair(nullptr, {.pdn = 0x111213,
                                          .cqn = 0x212223,
                                          .uar_page = 0xabcdef,
                                          .umem_id = 0x01020304,
                                          .ring_offset = 0x3000,
                                          .record_offset = 0x2080,
                                          .log_blocks = 6}));
  expect_sent({
      {0x00, {0x05, 0x00}},
      {0x1a, {0x18}},                    // pm_state MIGRATED; st is 0, RC
      {0x1d, {0x11, 0x12, 0x13}},        // pd
      {0x22, {6 << 3, 1 << 6}},          // log_sq_size; no_sq is 0; ts_format DEFAULT
      {0x25, {0xab, 0xcd, 0xef}},        // uar_page
      {0x29, {0xff, 0xff, 0xff}},        // user_index: none
      {0x95, {0x21, 0x22, 0x23}},        // cqn_snd
      {0xb5, {0x21, 0x22, 0x23}},        // cqn_rcv
      {0xbe, {0x20, 0x80}},              // dbr_addr
      {0xc4, {3}},                       // rq_type: no receive queue
      {0xe8, {0x10}},                    // dbr_umem_valid
      {0xfc, {0x01, 0x02, 0x03, 0x04}},  // dbr_umem_id
      {0x106, {0x30, 0x00}},             // wq_umem_offset
      {0x108, {0x01, 0x02, 0x03, 0x04}},
      {0x10c, {0x80}},  // wq_umem_valid
  });
}

TEST(QueueCommands, recording_keeps_what_was_sent_and_answered_while_it_lives) {
  std::vector<CommandRecord> records;
  {
    const CommandRecording recording(records);
    ASSERT_TRUE(create_queue_pair(nullptr, {.timestamp_format = 0}));
    ASSERT_TRUE(reset_to_init(queue_pair(), 1, 0, 0));
  }
  ASSERT_TRUE(reset_to_init(queue_pair(), 1, 0, 0));
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].name, "CREATE_QP");
  EXPECT_EQ(records[0].input.at(0x23), 0) << "ts_format";
  EXPECT_EQ(records[0].output.at(9), kAnsweredNumber[0]);
  EXPECT_EQ(records[0].error, 0);
  EXPECT_EQ(records[1].name, "RST2INIT_QP");
  EXPECT_EQ(records[1].input, sent());
}

TEST(QueueCommands, refusal_names_who_refused) {
  refusal = {EPERM, 0};
  EXPECT_EQ(create_queue_pair(nullptr, {}).error().message,
            "the kernel refused CREATE_QP: Operation not permitted");
  refusal = {EREMOTEIO, 0x03};
  EXPECT_EQ(create_queue_pair(nullptr, {}).error().message,
            "the HCA refused CREATE_QP: Remote I/O error (status 0x03, syndrome 0x0)");
  refusal = {};
}

TEST(QueueCommands, reset_to_init_sends_the_prms_bytes) {
  ASSERT_TRUE(reset_to_init(queue_pair(), 1, 0x1357, 0x2a));
  expect_sent({
      {0x00, {0x05, 0x02}},
      {0x09, {0xa1, 0xb2, 0xc3}},
      {0x1a, {0x18}},        // pm_state MIGRATED
      {0x24, {0x2a}},        // counter_set_id
      {0x32, {0x13, 0x57}},  // pkey_index
      {0x55, {1}},           // vhca_port_num
      {0xa9, {0x01, 0xe0}},  // atomic_mode; rre, rwe, rae
  });
}

TEST(QueueCommands, init_to_ready_to_receive_sends_the_prms_bytes) {
  ReceiveSpec spec;
  spec.remote_qpn = 0x313233;
  spec.mtu_bytes = 4096;
  spec.next_receive_psn = 0x414243;
  spec.min_rnr_timer = 12;
  spec.path.source_gid_index = 7;
  for (std::uint8_t i = 0; i < 16; ++i) spec.path.gid[i] = static_cast<std::uint8_t>(0xd0 + i);
  spec.path.mac = {0xe0, 0xe1, 0xe2, 0xe3, 0xe4, 0xe5};
  spec.path.hop_limit = 64;
  spec.path.traffic_class = 0x6a;
  spec.path.service_level = 5;
  spec.path.udp_source_port = 0xc123;
  spec.path.lag_port = 2;
  spec.any_order = spec.force_order = true;
  ASSERT_TRUE(init_to_ready_to_receive(queue_pair(), spec));
  expect_sent({
      {0x00, {0x05, 0x03}},
      {0x09, {0xa1, 0xb2, 0xc3}},
      {0x12, {0x80}},              // opt_param_mask: lag_tx_port_affinity
      {0x18, {2}},                 // lag_tx_port_affinity
      {0x1c, {3}},                 // dp_ordering_0, dp_ordering_force
      {0x20, {5 << 5 | 30}},       // mtu 4096, log_msg_max
      {0x2d, {0x31, 0x32, 0x33}},  // remote_qpn
      {0x39, {7, 0, 64}},          // src_addr_index, hop_limit
      {0x3c, {0x06, 0xa0}},        // tclass, in bits 27 to 20
      {0x40,
       {0xd0, 0xd1, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xdb, 0xdc, 0xdd, 0xde, 0xdf}},
      {0x51, {0x6a >> 2, 0xc1, 0x23}},                          // dscp, udp_sport
      {0x54, {5 << 4, 1, 0xe0, 0xe1, 0xe2, 0xe3, 0xe4, 0xe5}},  // eth_prio, vhca_port_num, rmac
      {0xa9, {4 << 5}},                                         // log_rra_max
      {0xac, {12, 0x41, 0x42, 0x43}},                           // min_rnr_nak, next_rcv_psn
  });
}

TEST(QueueCommands, init_to_ready_to_receive_on_infiniband_sends_lid_and_service_level) {
  ReceiveSpec spec;
  spec.remote_qpn = 0x313233;
  spec.mtu_bytes = 4096;
  spec.path.lid = 0x1234;
  spec.path.global = false;
  spec.path.service_level = 5;
  spec.path.hop_limit = 64;
  spec.path.traffic_class = 0x6a;
  spec.path.udp_source_port = 0xc123;
  ASSERT_TRUE(init_to_ready_to_receive(queue_pair(), spec));
  expect_sent({
      {0x00, {0x05, 0x03}},
      {0x09, {0xa1, 0xb2, 0xc3}},
      {0x20, {5 << 5 | 30}},
      {0x2d, {0x31, 0x32, 0x33}},
      {0x36, {0x12, 0x34}},  // rlid
      {0x54, {5, 1}},        // sl, vhca_port_num
      {0xa9, {4 << 5}},
  });
  spec.path.global = true;
  spec.path.source_gid_index = 7;
  spec.path.gid[15] = 9;
  ASSERT_TRUE(init_to_ready_to_receive(queue_pair(), spec));
  expect_sent({
      {0x00, {0x05, 0x03}},
      {0x09, {0xa1, 0xb2, 0xc3}},
      {0x20, {5 << 5 | 30}},
      {0x2d, {0x31, 0x32, 0x33}},
      {0x35, {0x80, 0x12, 0x34}},  // grh, rlid
      {0x39, {7, 0, 64}},
      {0x3c, {0x06, 0xa0}},
      {0x4f, {9}},
      {0x54, {5, 1}},
      {0xa9, {4 << 5}},
  });
}

TEST(QueueCommands, ready_to_receive_to_send_sends_the_prms_bytes) {
  ASSERT_TRUE(ready_to_receive_to_send(
      queue_pair(), {.next_send_psn = 0x515253, .ack_timeout = 14, .retry_count = 6, .rnr_retry = 5}));
  expect_sent({
      {0x00, {0x05, 0x04}},
      {0x09, {0xa1, 0xb2, 0xc3}},
      {0x38, {14 << 3}},                     // ack_timeout
      {0x88, {8 << 4, 4 << 5 | 6, 5 << 5}},  // log_ack_req_freq; log_sra_max, retry_count; rnr_retry
      {0x91, {0x51, 0x52, 0x53}},            // next_send_psn
  });
}

}  // namespace
}  // namespace gdx::commands
