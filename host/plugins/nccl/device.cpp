#include "host/plugins/nccl/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string_view>

#include "host/bootstrap/meeting_place.h"

namespace gdx::nccl {
namespace {

constexpr char kProviderVariable[] = "GDX_PROVIDER";
constexpr char kAddressesVariable[] = "GDX_NCCL_ADDRESSES";
constexpr char kInterfacesVariable[] = "NCCL_SOCKET_IFNAME";
constexpr std::array<const char*, 3> kNics{"efa", "cxi", "verbs;ofi_rxm"};  // the first that is here
constexpr int kUnknownMbits = 10'000;
constexpr std::uint64_t kBitsPerMbit = 1'000'000;

Result<std::string> choose_provider(bool insecure) {
  const char* const set = std::getenv(kProviderVariable);
  const std::string_view named = set == nullptr ? "" : set;
  if (!named.empty() && named != "auto") return std::string(named);
  for (const char* const provider : kNics) {
    if (libfabric_nics({.provider = provider, .address = {}, .insecure = insecure}))
      return std::string(provider);
  }
  return fail(
      Status::kNoDevice,
      fmt::format("no NIC that libfabric drives by {}: fi_info -t FI_EP_RDM lists what is here; {}=tcp "
                  "takes sockets",
                  fmt::join(kNics, ", "), kProviderVariable));
}

std::string pci_path_of(const std::string& pci) {
  if (pci.empty()) return {};
  std::error_code error;
  const auto path = std::filesystem::canonical("/sys/bus/pci/devices/" + pci, error);
  return error ? std::string() : path.string();
}

// Returns the address of this host at which peers meet this process: on an interface that NCCL's own variable
// names, else the NIC's own, or that of its interface.
Result<std::string> host_of(const LibfabricNic& nic, const Device& device) {
  constexpr char kLoopback[] = "127.0.0.1";
  const auto addresses = GDX_TRY(bootstrap::host_addresses());
  const char* const set = std::getenv(kInterfacesVariable);
  const std::string_view words = set == nullptr ? "" : set;
  const bool is_named = !words.empty() && !words.starts_with('^');
  auto nameable = addresses;
  if (is_named) nameable.push_back({.text = kLoopback, .bytes = {}, .prefix_bits = 0, .interface = "lo"});
  const auto named = bootstrap::addresses_named(nameable, words);
  if (!named.empty()) return named.front().text;
  if (is_named)
    return fail(Status::kInvalidArgument,
                fmt::format("{}={} names no interface of this host that is up and has an address",
                            kInterfacesVariable, words));
  if (!nic.address.empty()) return nic.address;
  if (device.traits.within_host || addresses.empty()) return std::string(kLoopback);
  const auto is_of_nic = [&](const bootstrap::HostAddress& address) {
    std::error_code error;
    return !device.pci_path.empty() &&
           std::filesystem::exists(device.pci_path + "/net/" + address.interface, error);
  };
  const auto own = std::ranges::find_if(addresses, is_of_nic);
  return own == addresses.end() ? addresses.front().text : own->text;
}

Result<Device> device_of(const LibfabricNic& nic, const LibfabricOptions& options) {
  Device device;
  device.door.port = options;
  device.door.port.address = nic.address;
  if (nic.address.empty()) device.door.port.domain = nic.domain;
  device.traits = GDX_TRY(libfabric_traits(device.door.port));
  device.name = nic.domain.empty() ? device.traits.provider : nic.domain;
  device.pci_path = pci_path_of(nic.pci);
  device.door.host = GDX_TRY(host_of(nic, device));
  device.mbit_per_s = nic.bits_per_s == 0 ? kUnknownMbits : static_cast<int>(nic.bits_per_s / kBitsPerMbit);
  return device;
}

}  // namespace

Result<std::vector<Device>> find_devices() {
  LibfabricOptions options;
  options.insecure = GDX_TRY(insecure_from_environment());
  options.provider = GDX_TRY(choose_provider(options.insecure));
  std::vector<LibfabricNic> nics;
  if (const char* const listed = std::getenv(kAddressesVariable)) {
    std::istringstream words(listed);
    for (std::string address; std::getline(words, address, ',');) {
      options.address = address;
      auto found = GDX_TRY(libfabric_nics(options)).front();
      found.address = address;
      nics.push_back(std::move(found));
    }
  } else {
    nics = GDX_TRY(libfabric_nics(options));
  }
  std::vector<Device> devices;
  devices.reserve(nics.size());
  for (const LibfabricNic& nic : nics) devices.push_back(GDX_TRY(device_of(nic, options)));
  if (devices.empty())
    return fail(Status::kInvalidArgument,
                fmt::format("{} names no address: list those of NICs, or unset it", kAddressesVariable));
  return devices;
}

const char* way_of(const PortTraits& traits) {
  return traits.within_host ? "direct" : traits.software ? "emulated" : "proxied";
}

const char* words_of(SignalOrder order) {
  return order == SignalOrder::kMessage ? "ordered by the provider" : "ordered by gdx";
}

std::string refusal_of_memory(int kind) {
  return fmt::format(
      "memory of kind {} (a GPU's) cannot be registered: this plugin takes host memory alone, "
      "and says so in ptrSupport",
      kind);
}

}  // namespace gdx::nccl
