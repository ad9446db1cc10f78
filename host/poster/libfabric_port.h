// The port by libfabric: endpoints of reliable datagrams with remote memory access, of any provider.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "host/poster/port.h"

namespace gdx {

struct LibfabricOptions {
  std::string provider;  // as fi_info prints it: "tcp", "shm", "verbs;ofi_rxm"
  // Address of this host to use. Empty: a loopback address where the provider authenticates nobody, and the
  // provider's choice elsewhere.
  std::string address;
  std::string domain{};   // the NIC as libfabric_nics names it; empty: any
  bool insecure = false;  // permits ways without authentication beyond this host: GDX_INSECURE=1
};

// Opens an endpoint of the provider. Errors: kUnsupported without libfabric in this build, for a provider
// that lacks what the poster cannot emulate, and for an address beyond this host that is not permitted;
// kNotFound for a provider that is not here; kSystem with libfabric's words.
[[nodiscard]] Result<std::unique_ptr<Port>> open_libfabric_port(const LibfabricOptions& options);

// Returns the properties of the port that open_libfabric_port would open. Errors: the same.
[[nodiscard]] Result<PortTraits> libfabric_traits(const LibfabricOptions& options);

// A way out of this host: an address to give as LibfabricOptions::address, and what the provider tells of it.
struct LibfabricNic {
  std::string domain;            // "mlx5_0", "eth0"
  std::string address;           // numeric; empty: the provider has no such addresses
  std::string pci;               // "0000:3b:00.0"; empty: unknown
  std::uint64_t bits_per_s = 0;  // 0: unknown
};

// Returns the provider's ways, one for each domain, within the bounds of open_libfabric_port: those of
// loopback where there are others are left out. Errors: the same.
[[nodiscard]] Result<std::vector<LibfabricNic>> libfabric_nics(const LibfabricOptions& options);

// Returns all providers with such endpoints on this machine. Errors: kUnsupported without libfabric.
[[nodiscard]] Result<std::vector<std::string>> libfabric_providers();

}  // namespace gdx
