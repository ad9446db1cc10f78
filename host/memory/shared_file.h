// Pages of host memory: this process's own, or a file without a name that other processes map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/descriptor.h"
#include "base/mapped_pages.h"
#include "base/result.h"

namespace gdx {

struct SharedFile {
  Descriptor file;
  MappedPages pages;
  std::shared_ptr<void> listed;  // while it lives, find_shared() finds the pages
};

struct SharedPlace {
  int file;
  std::uint64_t offset;  // place of the first byte in the file
};
// Returns the place of a range of this process's shared files. Threads: any.
[[nodiscard]] std::optional<SharedPlace> find_shared(const void* address, std::size_t bytes);

// Maps zeroed pages of this process, all there at once. `bytes` is a multiple of the page size. Errors:
// kNoMemory.
[[nodiscard]] Result<MappedPages> map_own_pages(std::size_t bytes);

// Makes a file of zeroes and maps it. Its pages are allocated at once, so that no store fails for lack of
// memory. Seals make its length final, so that every mapping of it stays valid. Errors: kNoMemory, kSystem.
[[nodiscard]] Result<SharedFile> make_shared_file(std::size_t bytes);

// Checks that this process may map `bytes` of a received file: a writable memfd in pages of the usual size.
// It can never shrink and has its first `bytes` allocated. Errors: kInvalidArgument with the missing
// property.
[[nodiscard]] Result<void> check_shared_file(int file, std::size_t bytes);

}  // namespace gdx
