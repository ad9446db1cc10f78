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
// Lets accesses to pages of a client's memory that the client has punched out fail, and add none, which would
// count as gdxd's. The HCA alone may touch these pages, because a fault of gdxd's own accesses ends it.
void refuse_client_holes(std::byte* first, std::size_t length_bytes);

// A dmabuf cannot shrink. A memfd that stands for one, as a fake driver's, must hold as a client's memory
// does. Its position, where its buffer begins, must lie in it. Errors: kInvalidArgument.
[[nodiscard]] Result<void> check_dmabuf(int file, std::uint64_t offset, std::uint64_t bytes);

// Errors: those of check_dmabuf; kNoMemory, kUnsupported.
[[nodiscard]] Result<MrHandle> register_dmabuf(const Hca& hca, const ipc::RegisterMemory& request,
                                               const std::vector<Descriptor>& files);

}  // namespace gdx::daemon
