// Descriptors of this process that refer to the devices. Async-signal-safe, and without locks, because every
// close of the process queries it.
#pragma once

#include <cstdint>

#include "base/file_identity.h"

namespace gdx::softhca::uverbs {

// Relation of a file descriptor of this process to the devices.
enum class FileKind : std::uint8_t { kForeign = 0, kNode, kEvents, kConnections, kNetlink };

struct alignas(8) DeviceFile {  // so that every compiler loads it at once
  FileKind kind = FileKind::kForeign;
  std::uint8_t hca = 0;       // for a device node: index of its HCA
  std::uint32_t context = 0;  // for a device node: number of its open, from 1
};

// False: a number above those that are kept account of.
bool track_file(int fd, DeviceFile role);
// Returns the device file of `fd`; kForeign once it refers to another file.
DeviceFile tracked_file(int fd);

// `identity` is the file behind the open `role` of a node, until forget_open(). Of kMaxRecognised opens at
// once duplicates are recognised. Threads: one at a time.
inline constexpr std::size_t kMaxRecognised = 4096;
void announce_open(const FileIdentity& identity, DeviceFile role);
void forget_open(const FileIdentity& identity);
// Returns the device file that `fd` was duplicated from. It refers to the file `identity` and is not tracked:
// a program may pass a library such a descriptor (ibv_import_device). It is tracked from then on. kForeign:
// from no node.
DeviceFile recognise_duplicate(int fd, const FileIdentity& identity);

}  // namespace gdx::softhca::uverbs
