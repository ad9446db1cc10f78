// Checks without an HCA: an endpoint's options, and an address that a peer sent.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "base/environment.h"
#include "base/parse_number.h"
#include "host/queue/endpoint.h"
#include "proto/mlx5/cqe.h"
#include "proto/roce/headers.h"

namespace gdx {
namespace {

constexpr std::uint32_t kNumberLimit = 1u << 24;  // QPNs and PSNs are below it
constexpr std::uint16_t kLargestLid = 0xbfff;     // those above are of groups
constexpr std::uint64_t kNsPerSecond = 1'000'000'000;
constexpr std::uint8_t kMaxAckTimeout = 31;
constexpr std::uint8_t kMaxRetryCount = 7;
constexpr std::uint8_t kMaxServiceLevel = 15;  // highest service level of InfiniBand
constexpr std::uint8_t kMaxVlanPriority = 7;

// Defaults of an HCA's endpoints. Hardware's ACK timeout and retries are those of UCX, because its networks
// pause: 8 tries of 4 * 1.07 s and the silence before a probe are 34.9 s, which end before a call does.
struct Defaults {
  std::uint64_t timeout_ns;
  std::uint8_t ack_timeout;
  std::uint8_t retry_count;
};
constexpr Defaults kOnHardware{40 * kNsPerSecond, 18, 7};
constexpr Defaults kOnSoftware{5 * kNsPerSecond, 14, 5};

tl::unexpected<Error> refuse_option(const char* option, std::uint64_t value, const char* wanted) {
  return fail(Status::kInvalidArgument,
              fmt::format("endpoint option {} = {}: use {}", option, value, wanted));
}

// A device adds it to a clock, so it must not reach the clock's end.
Result<void> check_duration(const char* option, std::uint64_t duration_ns) {
  if (duration_ns != 0 && duration_ns <= kMaxWaitNs) return {};
  return refuse_option(option, duration_ns, "1 to 3600000000000 (an hour)");
}

// Sets an absent option to the variable's value, in units of `unit`, or else to the default.
template <typename T>
Result<void> resolve_option(std::optional<T>& option, const char* variable, std::uint64_t least,
                            std::uint64_t most, T usual, std::uint64_t unit = 1) {
  if (option) return {};
  const auto given = GDX_TRY(number_from_environment(variable, least, most));
  option = given ? static_cast<T>(*given * unit) : usual;
  return {};
}

// Sets an absent option to the variable's value, or else to plain.
Result<void> resolve_doorbell(std::optional<DoorbellKind>& option) {
  if (option) return {};
  option = GDX_TRY(choice_from_environment<DoorbellKind>(
      kDoorbellVariable, {{name(DoorbellKind::kPlain), DoorbellKind::kPlain},
                          {name(DoorbellKind::kBlueFlame), DoorbellKind::kBlueFlame}}));
  return {};
}

// Takes the variable as sysfs and subnet managers write P_Keys.
Result<void> resolve_pkey(std::optional<std::uint16_t>& option) {
  const char* const text = std::getenv(kPkeyVariable);
  if (option || text == nullptr) return {};
  const auto value = parse_hexadecimal(text);
  if (!value || *value > UINT16_MAX || (*value & roce::kPartitionMask) == 0) {
    return fail(Status::kInvalidArgument,
                fmt::format("{} = '{}': use a P_Key of the port's table, such as 0x8001; gdx info shows them",
                            kPkeyVariable, text));
  }
  option = static_cast<std::uint16_t>(*value);
  return {};
}

constexpr bool is_mtu(std::uint32_t bytes) {
  return std::has_single_bit(bytes) && bytes >= 256 && bytes <= 4096;
}

Placement placement_of(const EndpointOptions& options) {
  return options.placement.value_or(options.gpu ? Placement::kGpu : Placement::kHost);
}

}  // namespace

Result<void> check_endpoint_options(const EndpointOptions& options) {
  const Placement placement = placement_of(options);
  if (placement != Placement::kHost && placement != Placement::kGpu) {
    return refuse_option("placement", static_cast<std::uint64_t>(placement), "host (0) or gpu (1)");
  }
  const bool in_gpu = placement == Placement::kGpu;
  if (in_gpu != options.gpu.has_value()) {
    return fail(
        Status::kInvalidArgument,
        in_gpu ? "endpoint option placement = gpu: say with option gpu whose memory the queues are to be in"
               : "endpoint option gpu is set: leave out it, or placement = host");
  }
  // Refuses this option for queues in GPU memory, because the host fills the ring of held slots for it.
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
  if (options.sharing == Sharing::kShared && options.unsafe_push_without_credits) {
    return refuse_option("unsafe_push_without_credits", 1, "0 where the endpoint is shared");
  }
  if (options.timeout_ns) {
    if (auto checked = check_duration("timeout_ns", *options.timeout_ns); !checked) return checked;
  }
  if (auto checked = check_duration("probe_after_ns", options.probe_after_ns); !checked) return checked;
  // Refused because 0 means "wait for ever" on the wire, so a dead peer would stay undetected.
  if (options.ack_timeout && (*options.ack_timeout == 0 || *options.ack_timeout > kMaxAckTimeout)) {
    return refuse_option("ack_timeout", *options.ack_timeout, "1 to 31 (4.096 us * 2^n)");
  }
  if (options.retry_count.value_or(0) > kMaxRetryCount) {
    return refuse_option("retry_count", *options.retry_count, "0 to 7");
  }
  if (options.service_level.value_or(0) > kMaxServiceLevel) {
    return refuse_option("service_level", *options.service_level, "0 to 15, on Ethernet to 7");
  }
  if (options.pkey && (*options.pkey & roce::kPartitionMask) == 0) {
    return refuse_option("pkey", *options.pkey, "a P_Key of the port's table, such as 32769 (0x8001)");
  }
  if (options.rnr_retry > 7) return refuse_option("rnr_retry", options.rnr_retry, "0 to 7");
  if (options.min_rnr_timer > 31) return refuse_option("min_rnr_timer", options.min_rnr_timer, "0 to 31");
  if (options.hop_limit == 0) return refuse_option("hop_limit", 0, "1 to 255");
  return {};
}

std::uint64_t retry_time_ns(std::uint8_t ack_timeout, std::uint8_t retry_count, bool hca_is_software) {
  const std::uint64_t asked_ns = 4096ull << ack_timeout;
  if (!hca_is_software) return 4 * asked_ns * (retry_count + 1u);
  std::uint64_t all_ns = 0;
  for (unsigned attempt = 0; attempt <= retry_count; ++attempt) {
    const std::uint64_t grown_ns = asked_ns << std::min(2u, attempt);
    all_ns += std::max(asked_ns, std::min(grown_ns, kNsPerSecond));
  }
  return all_ns;
}

Result<EndpointOptions> resolve_endpoint_options(const EndpointOptions& given, bool hca_is_software,
                                                 LinkLayer link_layer) {
  GDX_TRY(check_endpoint_options(given));
  EndpointOptions options = given;
  options.placement = placement_of(given);
  const Defaults& usual = hca_is_software ? kOnSoftware : kOnHardware;
  constexpr std::uint8_t kNone = 0;
  for (const auto& resolved :
       {resolve_option(options.timeout_ns, kCallTimeoutVariable, 1, kMaxWaitNs / kNsPerSecond,
                       usual.timeout_ns, kNsPerSecond),
        resolve_option(options.ack_timeout, kAckTimeoutVariable, 1, kMaxAckTimeout, usual.ack_timeout),
        resolve_option(options.retry_count, kRetryCountVariable, 0, kMaxRetryCount, usual.retry_count),
        resolve_option(options.traffic_class, kTrafficClassVariable, 0, UINT8_MAX, kNone),
        resolve_option(options.service_level, kServiceLevelVariable, 0, kMaxServiceLevel, kNone)}) {
    if (!resolved) return tl::unexpected(resolved.error());
  }
  if (link_layer == LinkLayer::kEthernet && *options.service_level > kMaxVlanPriority) {
    return fail(
        Status::kInvalidArgument,
        fmt::format("{} = {}: use 0 to 7, the priorities of a VLAN, because the HCA's port is Ethernet",
                    given.service_level ? "endpoint option service_level" : kServiceLevelVariable,
                    *options.service_level));
  }
  GDX_TRY(resolve_pkey(options.pkey));
  GDX_TRY(resolve_doorbell(options.doorbell));
  if (!options.adaptive_routing)
    options.adaptive_routing =
        GDX_TRY(number_from_environment(kAdaptiveRoutingVariable, 0, 1)).value_or(0) == 1;
  const std::uint64_t verdict_ns =
      options.probe_after_ns + retry_time_ns(*options.ack_timeout, *options.retry_count, hca_is_software);
  if (verdict_ns < *options.timeout_ns || options.may_time_out_before_retries) return options;
  const auto seconds = [](std::uint64_t ns) { return static_cast<double>(ns) / kNsPerSecond; };
  return fail(
      Status::kInvalidArgument,
      fmt::format(
          "calls would time out (option timeout_ns, ${}: {:.3f} s) before a dead peer is found, in {:.3f} s: "
          "raise that, or lower ack_timeout (${}: {}) or retry_count (${}: {})",
          kCallTimeoutVariable, seconds(*options.timeout_ns), seconds(verdict_ns), kAckTimeoutVariable,
          *options.ack_timeout, kRetryCountVariable, *options.retry_count));
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
  if (address.data_order > DataOrder::kKept) {
    return fail(Status::kInvalidArgument,
                fmt::format("the peer's endpoint address has the impossible data order {}",
                            static_cast<unsigned>(address.data_order)));
  }
  if (address.lid > kLargestLid) {
    return fail(Status::kInvalidArgument,
                fmt::format("the peer's endpoint address has the impossible LID {:#x}", address.lid));
  }
  if (std::all_of(std::begin(address.gid), std::end(address.gid),
                  [](std::uint8_t byte) { return byte == 0; })) {
    return fail(Status::kInvalidArgument, "the peer's endpoint address has no GID");
  }
  if ((address.pkey & roce::kPartitionMask) == 0) {
    return fail(Status::kInvalidArgument,
                fmt::format("the peer's endpoint address has the impossible P_Key {:#06x}", address.pkey));
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
