// Properties of PCI devices from the kernel beside their place in the tree: links, and ACS.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace gdx {

inline constexpr char kPciDevices[] = "/sys/bus/pci/devices";

struct PciLink {
  double gigatransfers = 0;  // per second and lane
  unsigned lanes = 0;

  friend bool operator==(const PciLink&, const PciLink&) = default;
};

// A link below its maximum is often asleep, because idle GPUs lower its speed, though not its width.
struct PciLinkState {
  PciLink now;
  PciLink most;  // the device's maximum
};

// Returns the link's state; nullopt if the kernel has none, as for a device of a root complex.
[[nodiscard]] std::optional<PciLinkState> read_link(const std::string& bus_id,
                                                    const std::string& devices = kPciDevices);
// Returns "16 GT/s x16".
[[nodiscard]] std::string describe(const PciLink& link);

// Redirection (ACS): whether a port sends transfers between devices below it up to the root complex.
enum class AcsState {
  kUnknown,    // configuration space is readable for root alone
  kDirect,     // it has no ACS, or does not redirect
  kRedirects,  // requests, completions or both
};

// Parses `config`, the readable part of the configuration space.
// Source: PCI Express Base Specification, 7.7.11, and linux/pci_regs.h, PCI_ACS_CTRL.
[[nodiscard]] AcsState parse_acs(std::span<const unsigned char> config);
[[nodiscard]] AcsState read_acs(const std::string& bus_id, const std::string& devices = kPciDevices);

}  // namespace gdx
