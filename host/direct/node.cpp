#include "host/direct/node.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

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
