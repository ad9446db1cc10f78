// Buffers that another driver shares by a descriptor. The kernel gives a hardware HCA their DMA addresses;
// the software HCA needs addresses of this process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/mapped_pages.h"
#include "driver-shim/softhca/engine/hca.h"

namespace gdx::softhca::uverbs {

// A part of a dmabuf, mapped during the object's lifetime.
class DmabufMapping {
 public:
  // A dmabuf is made by drivers only. So a memfd of the name "dmabuf" stands for one too, that begins at its
  // position. Errors: EBADF; EINVAL for what is no dmabuf, or a range beyond its end; EOPNOTSUPP for one that
  // cannot be mapped, as a GPU's; ENOTSUPP for one across PCIe, which Data Direct alone takes; ENOMEM.
  // Source: Linux drivers/dma-buf/dma-buf.c, dma_buf_get(); drivers/infiniband/core/umem_dmabuf.c.
  static ErrnoOr<DmabufMapping> map(int descriptor, std::uint64_t offset, std::uint64_t length_bytes,
                                    bool written);

  // Returns the address of the byte at `offset`.
  [[nodiscard]] std::byte* first() const { return first_; }

 private:
  DmabufMapping(MappedPages pages, std::byte* first) : pages_(std::move(pages)), first_(first) {}
  MappedPages pages_;
  std::byte* first_;
};

}  // namespace gdx::softhca::uverbs
