#include "host/topo/pci_sysfs.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <vector>

namespace gdx {
namespace {

constexpr std::size_t kPublicConfigBytes = 64;  // readable without root
constexpr std::size_t kExtendedConfig = 256;    // the first extended capability
constexpr unsigned kAcsCapability = 0x0d;
constexpr std::size_t kAcsControl = 6;  // place of the control word in the ACS capability
constexpr unsigned kRequestRedirect = 0x04;
constexpr unsigned kCompletionRedirect = 0x08;

std::optional<PciLink> read_one(const std::string& folder, const char* which) {
  std::ifstream speed(fmt::format("{}/{}_link_speed", folder, which));  // "16.0 GT/s PCIe"
  std::ifstream width(fmt::format("{}/{}_link_width", folder, which));  // "16"
  PciLink link;
  if (!(speed >> link.gigatransfers) || !(width >> link.lanes)) return std::nullopt;
  if (link.gigatransfers <= 0 || link.lanes == 0) return std::nullopt;
  return link;
}

}  // namespace

std::optional<PciLinkState> read_link(const std::string& bus_id, const std::string& devices) {
  const std::string folder = devices + "/" + bus_id;
  const auto now = read_one(folder, "current");
  const auto most = read_one(folder, "max");
  if (!now || !most) return std::nullopt;
  return PciLinkState{*now, *most};
}

std::string describe(const PciLink& link) {
  return fmt::format("{:g} GT/s x{}", link.gigatransfers, link.lanes);
}

AcsState parse_acs(std::span<const unsigned char> config) {
  if (config.size() <= kPublicConfigBytes) return AcsState::kUnknown;
  const auto word = [&](std::size_t at) { return config[at] | unsigned{config[at + 1]} << 8; };
  // Capabilities are a list, which a broken device could close into a ring: there is room for so many.
  std::size_t at = kExtendedConfig;
  for (std::size_t left = (config.size() - 1) / 4; left != 0 && at >= kExtendedConfig; --left) {
    if (at + 8 > config.size()) break;
    if (word(at) == kAcsCapability) {
      const bool redirects = (word(at + kAcsControl) & (kRequestRedirect | kCompletionRedirect)) != 0;
      return redirects ? AcsState::kRedirects : AcsState::kDirect;
    }
    at = word(at + 2) >> 4 & ~std::size_t{3};
  }
  return AcsState::kDirect;
}

AcsState read_acs(const std::string& bus_id, const std::string& devices) {
  std::ifstream file(devices + "/" + bus_id + "/config", std::ios::binary);
  const std::vector<unsigned char> config((std::istreambuf_iterator<char>(file)),
                                          std::istreambuf_iterator<char>());
  return parse_acs(config);
}

}  // namespace gdx
