// Files that a client passes: what holds of each before gdxd maps or registers its pages.
#pragma once

#include <cstdint>
#include <vector>

#include "base/descriptor.h"
#include "base/mapped_pages.h"
#include "base/result.h"
#include "host/hca/hca.h"
#include "proto/ipc/messages.h"

namespace gdx::daemon {

// Maps whole pages of a client's file, once it is known that they stay. `own_file` is the context's. Errors:
// kInvalidArgument, kNoMemory.
[[nodiscard]] Result<MappedPages> map_client_file(const std::vector<Descriptor>& files, int own_file,
                                                  std::uint64_t offset, std::uint64_t bytes);
// Makes accesses to pages that the client has punched out of its file fail. Otherwise such an access would
// allocate a new page, which would count as gdxd's. Only the HCA may touch pages of clients, because a fault
// in an access of its own would end gdxd.
void refuse_client_holes(std::byte* first, std::size_t length_bytes);

// Checks that a client's dmabuf holds the bytes. A real dmabuf cannot shrink, so it passes. A memfd that
// stands for one, as a fake driver's does, must pass check_shared_file. Its file position tells where its
// buffer begins. Errors: kInvalidArgument.
[[nodiscard]] Result<void> check_dmabuf(int file, std::uint64_t offset, std::uint64_t bytes);

// Registers the dmabuf that came with the request with the HCA. Errors: those of check_dmabuf; kNoMemory,
// kUnsupported.
[[nodiscard]] Result<MrHandle> register_dmabuf(const Hca& hca, const ipc::RegisterMemory& request,
                                               const std::vector<Descriptor>& files);

}  // namespace gdx::daemon
