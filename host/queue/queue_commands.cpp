#include "host/queue/queue_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <span>

#include "proto/mlx5/prm.h"

namespace gdx::commands {
namespace {

namespace prm = mlx5::prm;
using ShortOutput = prm::Mailbox<prm::kShortCommandBytes>;

constexpr std::uint32_t kNoUserIndex = 0xffffff;
constexpr std::uint32_t kLogMaxMessageBytes = 30;
constexpr std::uint32_t kLogAckRequestFrequency = 8;  // an ACK is asked for every 256 packets at least
constexpr std::uint32_t kSmallestMtuBytes = 128;      // unit of the MTU field, which counts doublings

thread_local std::vector<CommandRecord>* recorded = nullptr;

void record(const char* command, std::span<const std::uint8_t> input, std::span<const std::uint8_t> output,
            int error) {
  if (recorded == nullptr) return;
  recorded->push_back({command, {input.begin(), input.end()}, {output.begin(), output.end()}, error});
}

Error command_error(const char* command, int error, std::span<const std::uint8_t> output) {
  const auto status = static_cast<prm::CommandStatus>(prm::get32(output, prm::kStatus));
  Status kind = Status::kSystem;
  if (status == prm::CommandStatus::kNoResources || status == prm::CommandStatus::kLimitExceeded ||
      error == ENOMEM) {
    kind = Status::kNoMemory;
  }
  // A refusal by the HCA has a status; a command without one did not reach it.
  if (status == prm::CommandStatus::kOk)
    return {kind, fmt::format("the kernel refused {}: {}", command, std::strerror(error))};
  return {kind, fmt::format("the HCA refused {}: {} (status {:#04x}, syndrome {:#x})", command,
                            std::strerror(error), prm::get32(output, prm::kStatus),
                            prm::get32(output, prm::kSyndrome))};
}

void set_opcode(std::span<std::uint8_t> input, prm::Opcode opcode) {
  prm::set(input, prm::kOpcode, static_cast<std::uint16_t>(opcode));
}

Result<NumberedObject> create(ibv_context* context, const char* command,
                              std::span<const std::uint8_t> input) {
  ShortOutput output{};
  NumberedObject created;
  created.object.reset(
      mlx5dv_devx_obj_create(context, input.data(), input.size(), output.data(), output.size()));
  const int error = created.object ? 0 : errno;
  record(command, input, output, error);
  if (!created.object) return tl::unexpected(command_error(command, error, output));
  created.number = prm::get32(output, prm::kObjectId);
  return created;
}

Result<void> modify(const NumberedObject& queue_pair, const char* command,
                    std::span<const std::uint8_t> input) {
  ShortOutput output{};
  const int error = mlx5dv_devx_obj_modify(queue_pair.object.get(), input.data(), input.size(), output.data(),
                                           output.size());
  record(command, input, output, error);
  if (error != 0) return tl::unexpected(command_error(command, error, output));
  return {};
}

void set_path(std::span<std::uint8_t> input, const RemotePath& path) {
  prm::set(input, prm::qp::kPathPort, path.port);
  if (path.lid != 0) {
    prm::set(input, prm::qp::kPathRemoteLid, path.lid);
    prm::set(input, prm::qp::kPathServiceLevel, path.service_level);
    prm::set(input, prm::qp::kPathGrh, path.global);
    if (!path.global) return;
    prm::set(input, prm::qp::kPathSourceGidIndex, path.source_gid_index);
    prm::set(input, prm::qp::kPathHopLimit, path.hop_limit);
    prm::set(input, prm::qp::kPathTrafficClass, path.traffic_class);
    std::copy(path.gid.begin(), path.gid.end(), input.begin() + prm::qp::kPathRemoteGidByte);
    return;
  }
  prm::set(input, prm::qp::kPathSourceGidIndex, path.source_gid_index);
  prm::set(input, prm::qp::kPathHopLimit, path.hop_limit);
  prm::set(input, prm::qp::kPathTrafficClass, path.traffic_class);
  prm::set(input, prm::qp::kPathEthernetPriority, path.service_level);
  prm::set(input, prm::qp::kPathDscp, path.traffic_class >> 2);
  prm::set(input, prm::qp::kPathUdpSourcePort, path.udp_source_port);
  std::copy(path.gid.begin(), path.gid.end(), input.begin() + prm::qp::kPathRemoteGidByte);
  std::uint64_t mac = 0;
  for (const std::uint8_t byte : path.mac) mac = mac << 8 | byte;
  prm::set(input, prm::qp::kPathRemoteMacHigh, mac >> 32);
  prm::set(input, prm::qp::kPathRemoteMacLow, mac & 0xffffffffu);
}

}  // namespace

CommandRecording::CommandRecording(std::vector<CommandRecord>& records) {
  assert(recorded == nullptr);  // recordings of a thread do not nest
  recorded = &records;
}
CommandRecording::~CommandRecording() { recorded = nullptr; }

Result<NumberedObject> create_completion_queue(ibv_context* context, const CompletionQueueSpec& spec) {
  prm::Mailbox<prm::kCreateCqInBytes> input{};
  set_opcode(input, prm::Opcode::kCreateCq);
  // Disables the overrun check. The HCA cannot check, because it never gets the consumer index. Overrun is
  // impossible, because there is an entry for every block.
  prm::set(input, prm::cq::kOverrunIgnore, 1);
  prm::set(input, prm::cq::kLogSize, spec.log_entries);
  prm::set(input, prm::cq::kUarPage, spec.uar_page);
  prm::set(input, prm::cq::kEqn, spec.eqn);
  prm::set(input, prm::cq::kDbrUmemValid, 1);
  prm::set(input, prm::cq::kDbrUmemId, spec.umem_id);
  prm::set(input, prm::cq::kDbrAddress, spec.record_offset);
  prm::set(input, prm::cq::kUmemValid, 1);
  prm::set(input, prm::cq::kUmemId, spec.umem_id);
  prm::set(input, prm::cq::kUmemOffset, spec.ring_offset);
  return create(context, "CREATE_CQ", input);
}

Result<NumberedObject> create_queue_pair(ibv_context* context, const QueuePairSpec& spec) {
  prm::Mailbox<prm::kCreateQpInBytes> input{};
  set_opcode(input, prm::Opcode::kCreateQp);
  prm::set(input, prm::qp::kServiceType, prm::qp::kRc);
  prm::set(input, prm::qp::kPathMigrationState, prm::qp::kMigrated);
  prm::set(input, prm::qp::kPd, spec.pdn);
  // Free-running, which is 0, a ConnectX-6 Dx refuses whose clock is a real-time one (UCX pull request 8267).
  prm::set(input, prm::qp::kTimestampFormat, spec.timestamp_format);
  prm::set(input, prm::qp::kUarPage, spec.uar_page);
  prm::set(input, prm::qp::kUserIndex, kNoUserIndex);
  prm::set(input, prm::qp::kSendCqn, spec.cqn);
  prm::set(input, prm::qp::kReceiveCqn, spec.cqn);
  prm::set(input, prm::qp::kLogSqSize, spec.log_blocks);
  prm::set(input, prm::qp::kRqType, prm::qp::kNoReceiveQueue);
  prm::set(input, prm::qp::kDbrUmemValid, 1);
  prm::set(input, prm::qp::kDbrUmemId, spec.umem_id);
  prm::set(input, prm::qp::kDbrAddress, spec.record_offset);
  prm::set(input, prm::qp::kUmemValid, 1);
  prm::set(input, prm::qp::kUmemId, spec.umem_id);
  prm::set(input, prm::qp::kUmemOffset, spec.ring_offset);
  return create(context, "CREATE_QP", input);
}

Result<void> reset_to_init(const NumberedObject& queue_pair, std::uint8_t port, std::uint16_t pkey_index,
                           std::uint8_t counter_set) {
  prm::Mailbox<prm::kModifyQpInBytes> input{};
  set_opcode(input, prm::Opcode::kRst2Init);
  prm::set(input, prm::kObjectId, queue_pair.number);
  prm::set(input, prm::qp::kPathPort, port);
  prm::set(input, prm::qp::kPathPkeyIndex, pkey_index);
  prm::set(input, prm::qp::kPathMigrationState, prm::qp::kMigrated);
  prm::set(input, prm::qp::kCounterSet, counter_set);
  prm::set(input, prm::qp::kRemoteWrite, 1);
  prm::set(input, prm::qp::kRemoteRead, 1);
  prm::set(input, prm::qp::kRemoteAtomic, 1);
  prm::set(input, prm::qp::kAtomicMode, prm::qp::kAtomicModeIbSpec);
  return modify(queue_pair, "RST2INIT_QP", input);
}

Result<void> init_to_ready_to_receive(const NumberedObject& queue_pair, const ReceiveSpec& spec) {
  prm::Mailbox<prm::kModifyQpInBytes> input{};
  set_opcode(input, prm::Opcode::kInit2Rtr);
  prm::set(input, prm::kObjectId, queue_pair.number);
  prm::set(input, prm::qp::kMtu, std::countr_zero(spec.mtu_bytes / kSmallestMtuBytes));
  prm::set(input, prm::qp::kLogMaxMessage, kLogMaxMessageBytes);
  prm::set(input, prm::qp::kRemoteQpn, spec.remote_qpn);
  prm::set(input, prm::qp::kNextReceivePsn, spec.next_receive_psn);
  prm::set(input, prm::qp::kMinRnrNak, spec.min_rnr_timer);
  prm::set(input, prm::qp::kLogRraMax, kLogReadsInFlight);
  prm::set(input, prm::qp::kOrderingLow, spec.any_order);
  prm::set(input, prm::qp::kOrderingForce, spec.force_order);
  if (spec.path.lag_port != 0) {
    prm::set(input, prm::kOptParamMask, prm::kOptLagPortAffinity);
    prm::set(input, prm::qp::kLagPortAffinity, spec.path.lag_port);
  }
  set_path(input, spec.path);
  return modify(queue_pair, "INIT2RTR_QP", input);
}

Result<void> ready_to_receive_to_send(const NumberedObject& queue_pair, const SendSpec& spec) {
  prm::Mailbox<prm::kModifyQpInBytes> input{};
  set_opcode(input, prm::Opcode::kRtr2Rts);
  prm::set(input, prm::kObjectId, queue_pair.number);
  prm::set(input, prm::qp::kNextSendPsn, spec.next_send_psn);
  prm::set(input, prm::qp::kPathAckTimeout, spec.ack_timeout);
  prm::set(input, prm::qp::kRetryCount, spec.retry_count);
  prm::set(input, prm::qp::kRnrRetry, spec.rnr_retry);
  prm::set(input, prm::qp::kLogSraMax, kLogReadsInFlight);
  prm::set(input, prm::qp::kLogAckRequestFrequency, kLogAckRequestFrequency);
  return modify(queue_pair, "RTR2RTS_QP", input);
}

Result<prm::Mailbox<prm::kQueryQpOutBytes>> query_queue_pair(const NumberedObject& queue_pair) {
  prm::Mailbox<prm::kShortCommandBytes> input{};
  prm::Mailbox<prm::kQueryQpOutBytes> output{};
  set_opcode(input, prm::Opcode::kQueryQp);
  prm::set(input, prm::kObjectId, queue_pair.number);
  const int error = mlx5dv_devx_obj_query(queue_pair.object.get(), input.data(), input.size(), output.data(),
                                          output.size());
  record("QUERY_QP", input, output, error);
  if (error != 0) return tl::unexpected(command_error("QUERY_QP", error, output));
  return output;
}

Result<std::vector<std::uint8_t>> query_capability(ibv_context* context, prm::cap::Capability capability) {
  prm::Mailbox<prm::kShortCommandBytes> input{};
  std::vector<std::uint8_t> output(prm::kQueryHcaCapOutBytes);
  set_opcode(input, prm::Opcode::kQueryHcaCap);
  prm::set(input, prm::kOpMod, prm::cap::op_mod_current(capability));
  const int error =
      mlx5dv_devx_general_cmd(context, input.data(), input.size(), output.data(), output.size());
  record("QUERY_HCA_CAP", input, output, error);
  if (error != 0) return tl::unexpected(command_error("QUERY_HCA_CAP", error, output));
  return output;
}

}  // namespace gdx::commands
