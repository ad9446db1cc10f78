#include "host/gpu/relaxed_stores.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <iterator>

namespace gdx {
namespace {

constexpr char kProcessors[] = "/proc/cpuinfo";

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// In configuration space; hardware reads as 0 there. Source: dev_nv_xve_addendum.h of ga100,
// NV_XVE_PASSTHROUGH_EMULATED_CONFIG.
constexpr std::size_t kEmulatedConfig = 0xe8;
constexpr unsigned kEmulatedRelaxedOrdering = 1 << 4;

std::string asked_by_hypervisor(const std::string& pci_bus_id, const std::string& root) {
  std::string path = "/sys/bus/pci/devices/" + pci_bus_id + "/config";
  std::ranges::transform(path, path.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::string config = text_of(root + path);
  if (config.size() > kEmulatedConfig) {
    const bool asked = (static_cast<unsigned>(config[kEmulatedConfig]) & kEmulatedRelaxedOrdering) != 0;
    return asked ? fmt::format("bit 4 at 0x{:x} of {}", kEmulatedConfig, path) : "";
  }
  if (!may_be_virtual_machine(text_of(root + kProcessors))) return {};
  return fmt::format(
      "a hypervisor that {} does not rule out, which may ask for it at 0x{:x} of {}, as root can see",
      kProcessors, kEmulatedConfig, path);
}

}  // namespace

bool may_be_virtual_machine(std::string_view processors) {
  const std::string_view flags = processors.substr(std::min(processors.find("\nflags"), processors.size()));
  const std::string line = fmt::format("{} ", flags.substr(0, flags.find('\n', 1)));
  return flags.empty() || line.find(" hypervisor ") != std::string::npos;
}

std::string relaxed_ordering_in(std::string_view parameters) {
  struct Setting {
    std::string_view name;
    std::string_view separator;
  };
  constexpr Setting kSettings[] = {{"EnablePCIERelaxedOrderingMode", ": "},
                                   {"RmSetPCIERelaxedOrdering", "="}};
  for (const auto& [name, separator] : kSettings) {
    for (std::size_t at = 0; (at = parameters.find(name, at)) != std::string_view::npos; at += name.size()) {
      std::string_view value = parameters.substr(at + name.size());
      if (!value.starts_with(separator)) continue;
      value.remove_prefix(separator.size());
      const bool hexadecimal = value.starts_with("0x");
      if (hexadecimal) value.remove_prefix(2);
      unsigned number = 0;
      std::from_chars(value.data(), value.data() + value.size(), number, hexadecimal ? 16 : 10);
      if (number != 0) return fmt::format("{}{}{}", name, separator, number);
    }
  }
  return {};
}

RelaxedStores relaxed_stores(const std::string& pci_bus_id, int compute_capability, const std::string& root) {
  if (const std::string relaxed = relaxed_ordering_in(text_of(root + kNvidiaParameters)); !relaxed.empty()) {
    return {fmt::format("{} in {}", relaxed, kNvidiaParameters),
            "options nvidia NVreg_EnablePCIERelaxedOrderingMode=0, and no RmSetPCIERelaxedOrdering in "
            "NVreg_RegistryDwords"};
  }
  if (compute_capability != 80 && compute_capability != 86) return {};
  const std::string asked = asked_by_hypervisor(pci_bus_id, root);
  if (asked.empty()) return {};
  return {asked, "have the hypervisor ask for no relaxed ordering, or leave the virtual machine"};
}

}  // namespace gdx
