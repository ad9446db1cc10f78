// Negotiation with libfabric: the provider's answer, and its properties in the words of a port.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "host/poster/libfabric_library.h"
#include "host/poster/libfabric_port.h"

namespace gdx::libfabric {

// Floor of the versions: no call here is newer.
inline constexpr std::uint32_t kApi = FI_VERSION(1, 17);

struct FreeInfo {
  void operator()(fi_info* info) const { library().freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

struct Negotiated {
  Info info;
  PortTraits traits;
};

// Errors: those of open_libfabric_port.
[[nodiscard]] Result<Negotiated> negotiate(const LibfabricOptions& options);

// Returns the status that a provider's error number means, a positive one.
[[nodiscard]] Status status_of(int error);

// "WHAT: WORDS (provider PROVIDER)". `error`: negative or positive.
[[nodiscard]] Error error_of(std::string_view what, long error, std::string_view provider);

// Returns whether a provider's address lies within this host.
[[nodiscard]] bool is_loopback(std::uint32_t format, std::span<const std::byte> address);

}  // namespace gdx::libfabric
