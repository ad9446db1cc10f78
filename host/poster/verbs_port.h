// The port by libibverbs and librdmacm: a reliable connected queue pair for each rank, of any RDMA device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "host/poster/port.h"

namespace gdx {

// Name of this port, where others are named by libfabric, which has a provider `verbs`. With `:DEVICE` it
// takes that device.
inline constexpr std::string_view kVerbsPort = "ibverbs";

struct VerbsOptions {
  std::string device{};  // as ibv_devices names it; empty: the first that is usable
  // Time before a resend, 4.096 us * 2^ack_timeout, and the number of resends; iWARP has TCP's.
  std::uint8_t ack_timeout = 18;
  std::uint8_t retry_count = 7;
};

// Returns the options of a provider's name that means this port, with the device named in it; none for
// another name.
[[nodiscard]] std::optional<VerbsOptions> verbs_options_of(std::string_view provider);

// Opens the device and listens. Errors: kUnsupported without librdmacm, and for a device without reliable
// connections; kNotFound where no device, or not the one named, has an IP address; kSystem and kNoMemory with
// the call that failed.
[[nodiscard]] Result<std::unique_ptr<Port>> open_verbs_port(const VerbsOptions& options);

}  // namespace gdx
