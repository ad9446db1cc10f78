#include "base/node.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>

namespace gdx {

Result<peer::NodeIdentity> node_identity(const std::string& proc) {
  peer::NodeIdentity identity{};
  const std::string boot = proc + "/sys/kernel/random/boot_id";
  std::string text;
  std::ifstream(boot) >> text;
  if (text.size() != sizeof identity.boot_id) {
    return fail(Status::kSystem, fmt::format("cannot read the boot's id in {}: mount /proc", boot));
  }
  std::copy(text.begin(), text.end(), std::begin(identity.boot_id));
  const std::string network = proc + "/self/ns/net";
  struct stat found {};
  if (stat(network.c_str(), &found) != 0) {
    return fail(Status::kSystem, fmt::format("cannot look at {}: {}", network, std::strerror(errno)));
  }
  identity.network_device = found.st_dev;
  identity.network_inode = found.st_ino;
  identity.user = geteuid();
  return identity;
}

// FNV-1a.
std::uint32_t node_word() {
  auto identity = node_identity();
  if (!identity) return 0;
  identity->user = 0;
  std::uint32_t word = 2'166'136'261;
  for (const std::byte byte : std::as_bytes(std::span(&*identity, 1)))
    word = (word ^ std::to_integer<std::uint32_t>(byte)) * 16'777'619;
  return std::max(word, 1u);
}

std::optional<std::string> apart(const peer::NodeIdentity& here, const peer::NodeIdentity& there) {
  const bool same_boot =
      std::equal(std::begin(here.boot_id), std::end(here.boot_id), std::begin(there.boot_id));
  if (!same_boot || here.boot_id[0] == '\0') return "it runs on another machine (boot ids differ)";
  if (here.network_device != there.network_device || here.network_inode != there.network_inode) {
    return "it runs in another network namespace: let the containers share one";
  }
  if (here.user != there.user) return "it runs as another user: run all ranks as one";
  return std::nullopt;
}

}  // namespace gdx
