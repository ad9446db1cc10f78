// What can be judged without an HCA: an endpoint's options, and an address that a peer sent.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "host/queue/endpoint.h"
#include "proto/mlx5/cqe.h"

namespace gdx {
namespace {

constexpr std::uint32_t kNumberLimit = 1u << 24;  // of QPNs and PSNs

tl::unexpected<Error> refuse_option(const char* option, std::uint64_t value, const char* wanted) {
  return fail(Status::kInvalidArgument,
              fmt::format("endpoint option {} = {}: use {}", option, value, wanted));
}

// A device adds it to a clock, so it must not reach the clock's end.
Result<void> check_duration(const char* option, std::uint64_t duration_ns) {
  if (duration_ns != 0 && duration_ns <= kMaxWaitNs) return {};
  return refuse_option(option, duration_ns, "1 to 3600000000000 (an hour)");
}

constexpr bool is_mtu(std::uint32_t bytes) {
  return std::has_single_bit(bytes) && bytes >= 256 && bytes <= 4096;
}

}  // namespace

Result<void> check_endpoint_options(const EndpointOptions& options) {
  if (options.placement != Placement::kHost && options.placement != Placement::kGpu) {
    return refuse_option("placement", static_cast<std::uint64_t>(options.placement), "host (0) or gpu (1)");
  }
  const bool in_gpu = options.placement == Placement::kGpu;
  if (in_gpu != options.gpu.has_value()) {
    return fail(
        Status::kInvalidArgument,
        in_gpu ? "endpoint option placement = gpu: say with option gpu whose memory the queues are to be in"
               : "endpoint option gpu is set: use placement = gpu with it, or leave it out");
  }
  // It fills the ring of held slots from the host.
  if (in_gpu && options.unsafe_push_without_credits) {
    return fail(Status::kInvalidArgument,
                "endpoint option unsafe_push_without_credits: use it with placement = host");
  }
  if (!std::has_single_bit(options.send_queue_blocks) || options.send_queue_blocks < kMinSendQueueBlocks ||
      options.send_queue_blocks > kMaxSendQueueBlocks) {
    return refuse_option("send_queue_blocks", options.send_queue_blocks, "a power of two, 16 to 32768");
  }
  if (options.sharing == Sharing::kShared && options.send_queue_blocks < kMinSharedQueueBlocks) {
    return refuse_option("send_queue_blocks", options.send_queue_blocks,
                         "at least 64 where the endpoint is shared: a warp posts 32 at once");
  }
  if (options.sharing == Sharing::kShared && options.slot_count != 0) {
    return refuse_option("slot_count", options.slot_count, "0 where the endpoint is shared: it cannot push");
  }
  if (options.sharing == Sharing::kShared && options.bounce_slot_count != 0) {
    return refuse_option("bounce_slot_count", options.bounce_slot_count,
                         "0 where the endpoint is shared: it cannot bounce");
  }
  if (auto checked = check_duration("timeout_ns", options.timeout_ns); !checked) return checked;
  if (auto checked = check_duration("probe_after_ns", options.probe_after_ns); !checked) return checked;
  // 0 would mean "wait for ever" on the wire: a dead peer would never be noticed.
  if (options.ack_timeout == 0 || options.ack_timeout > 31) {
    return refuse_option("ack_timeout", options.ack_timeout, "1 to 31 (4.096 us * 2^n)");
  }
  if (options.retry_count > 7) return refuse_option("retry_count", options.retry_count, "0 to 7");
  if (options.rnr_retry > 7) return refuse_option("rnr_retry", options.rnr_retry, "0 to 7");
  if (options.min_rnr_timer > 31) return refuse_option("min_rnr_timer", options.min_rnr_timer, "0 to 31");
  if (options.hop_limit == 0) return refuse_option("hop_limit", 0, "1 to 255");
  return {};
}

Result<void> check_endpoint_address(const EndpointAddress& address) {
  if (address.version != kEndpointAddressVersion) {
    return fail(
        Status::kVersionMismatch,
        fmt::format("the peer's endpoint address has layout version {}, this side has {}: run the same "
                    "gdx on both",
                    address.version, kEndpointAddressVersion));
  }
  if (address.qpn == 0 || address.qpn >= kNumberLimit) {
    return fail(Status::kInvalidArgument,
                fmt::format("the peer's endpoint address has the impossible QPN {:#x}", address.qpn));
  }
  if (address.psn >= kNumberLimit) {
    return fail(Status::kInvalidArgument,
                fmt::format("the peer's endpoint address has the impossible PSN {:#x}", address.psn));
  }
  if (!is_mtu(address.mtu_bytes)) {
    return fail(Status::kInvalidArgument,
                fmt::format("the peer's endpoint address has the impossible MTU {}", address.mtu_bytes));
  }
  if (std::all_of(std::begin(address.gid), std::end(address.gid),
                  [](std::uint8_t byte) { return byte == 0; })) {
    return fail(Status::kInvalidArgument, "the peer's endpoint address has no GID");
  }
  return {};
}

std::string Endpoint::describe(const EndpointFault& fault) {
  if (fault.status == Status::kOk) return "ok";
  if (fault.syndrome == 0) return status_name(fault.status);
  return fmt::format("{}, syndrome {:#04x} ({}), vendor {:#04x}, WQE {}", status_name(fault.status),
                     fault.syndrome, mlx5::syndrome_name(static_cast<mlx5::Syndrome>(fault.syndrome)),
                     fault.vendor_syndrome, fault.wqe_counter);
}

}  // namespace gdx
