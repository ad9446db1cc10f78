// Which descriptors of this process are the devices'. Async-signal-safe, and no locks: every close of the
// process asks.
#pragma once

#include <cstdint>

#include "base/file_identity.h"

namespace gdx::softhca::uverbs {

// How a file descriptor of this process concerns the devices.
enum class FileKind : std::uint8_t { kForeign = 0, kNode, kEvents, kConnections, kNetlink };

struct DeviceFile {
  FileKind kind = FileKind::kForeign;
  std::uint8_t hca = 0;       // of a node: whose
  std::uint32_t context = 0;  // of a node: which open of it, from 1
};

// False: a number above those that are kept account of.
bool track_file(int fd, DeviceFile role);
// What `fd` is, kForeign once it has come to refer to another file.
DeviceFile tracked_file(int fd);

// `identity` is the file behind the nodes of HCA `hca` from now on.
void announce_node(std::uint8_t hca, const FileIdentity& identity);
// What `fd`, which refers to the file `identity` and is not tracked, was duplicated from: a program may hand
// a library such a descriptor (ibv_import_device). It is tracked from then on. kForeign: from no node.
DeviceFile recognise_duplicate(int fd, const FileIdentity& identity);

}  // namespace gdx::softhca::uverbs
