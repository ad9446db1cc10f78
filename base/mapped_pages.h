// Pages with one owner, which unmaps them.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <memory>

namespace gdx {

struct Unmap {
  std::size_t length_bytes = 0;
  void operator()(std::byte* pages) const { munmap(pages, length_bytes); }
};
using MappedPages = std::unique_ptr<std::byte, Unmap>;

}  // namespace gdx
