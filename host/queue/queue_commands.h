// The DevX commands that make and connect a queue pair, one function each.
// Source: PRM "Command Reference"; field layouts in proto/mlx5/prm.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/hca/handles.h"
#include "proto/mlx5/prm.h"

namespace gdx::commands {

// READs and atomics in flight, each way, that INIT2RTR_QP and RTR2RTS_QP ask for.
inline constexpr std::uint32_t kLogReadsInFlight = 4;

struct CompletionQueueSpec {
  std::uint32_t eqn = 0;
  std::uint32_t uar_page = 0;
  std::uint32_t umem_id = 0;
  std::uint64_t ring_offset = 0;    // in the umem, page-aligned
  std::uint64_t record_offset = 0;  // in the umem
  std::uint32_t log_entries = 0;
};

struct QueuePairSpec {
  std::uint32_t pdn = 0;
  std::uint32_t cqn = 0;
  std::uint32_t uar_page = 0;
  std::uint32_t umem_id = 0;
  std::uint64_t ring_offset = 0;    // in the umem, page-aligned
  std::uint64_t record_offset = 0;  // in the umem
  std::uint32_t log_blocks = 0;
  std::uint32_t timestamp_format = mlx5::prm::qp::kDefaultTimestamps;
};

struct RemotePath {
  std::uint8_t port = 1;
  std::uint16_t lid = 0;  // InfiniBand; 0: Ethernet
  bool global = true;     // on InfiniBand: packets carry a GRH, which routers need
  std::uint8_t source_gid_index = 0;
  std::array<std::uint8_t, 16> gid{};
  std::array<std::uint8_t, 6> mac{};
  std::uint8_t hop_limit = 0;
  std::uint8_t traffic_class = 0;
  std::uint8_t service_level = 0;  // the VLAN priority of Ethernet
  std::uint16_t udp_source_port = 0;
  std::uint8_t lag_port = 0;  // port of a bond, from 1; 0: the HCA chooses
};

struct ReceiveSpec {  // set by INIT2RTR
  std::uint32_t remote_qpn = 0;
  std::uint32_t mtu_bytes = 0;
  std::uint32_t next_receive_psn = 0;
  std::uint8_t min_rnr_timer = 0;
  bool any_order = false;    // the peer's data may land in any order
  bool force_order = false;  // any_order holds, whatever the HCA's administrator set
  RemotePath path;
};

struct SendSpec {  // set by RTR2RTS
  std::uint32_t next_send_psn = 0;
  std::uint8_t ack_timeout = 0;
  std::uint8_t retry_count = 0;
  std::uint8_t rnr_retry = 0;
};

struct NumberedObject {
  DevxHandle object;
  std::uint32_t number = 0;  // cqn or qpn
};

// A command as the HCA got it, and its answer.
struct CommandRecord {
  std::string name;
  std::vector<std::uint8_t> input;
  std::vector<std::uint8_t> output;
  int error = 0;  // errno; 0: done

  [[nodiscard]] std::uint32_t status() const { return mlx5::prm::get32(output, mlx5::prm::kStatus); }
  [[nodiscard]] std::uint32_t syndrome() const { return mlx5::prm::get32(output, mlx5::prm::kSyndrome); }
};

// Appends the commands below that its thread sends to `records`, while this object lives. A thread may have
// one such object at a time.
class CommandRecording {
 public:
  explicit CommandRecording(std::vector<CommandRecord>& records);
  CommandRecording(const CommandRecording&) = delete;
  CommandRecording& operator=(const CommandRecording&) = delete;
  ~CommandRecording();
};

// All of them. Errors: kNoMemory when the HCA says so, else kSystem; the message names
// the command, its status and syndrome. Threads: any.
[[nodiscard]] Result<NumberedObject> create_completion_queue(ibv_context* context,
                                                             const CompletionQueueSpec& spec);
[[nodiscard]] Result<NumberedObject> create_queue_pair(ibv_context* context, const QueuePairSpec& spec);
[[nodiscard]] Result<void> reset_to_init(const NumberedObject& queue_pair, std::uint8_t port,
                                         std::uint16_t pkey_index, std::uint8_t counter_set);
[[nodiscard]] Result<void> init_to_ready_to_receive(const NumberedObject& queue_pair,
                                                    const ReceiveSpec& spec);
[[nodiscard]] Result<void> ready_to_receive_to_send(const NumberedObject& queue_pair, const SendSpec& spec);

// The whole output, as the HCA has it now.
[[nodiscard]] Result<mlx5::prm::Mailbox<mlx5::prm::kQueryQpOutBytes>> query_queue_pair(
    const NumberedObject& queue_pair);
[[nodiscard]] Result<std::vector<std::uint8_t>> query_capability(ibv_context* context,
                                                                 mlx5::prm::cap::Capability capability);

}  // namespace gdx::commands
