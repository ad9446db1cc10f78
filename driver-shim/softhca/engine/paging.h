// Pages of this process, read in before the HCA's access: on-demand paging. An absent page is an error
// result, not a signal, because the program may unmap it at any moment.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gdx::softhca {

// Returns whether this system supports it: MADV_POPULATE_READ and MADV_POPULATE_WRITE (Linux 5.14), and
// process_vm_readv(2) and process_vm_writev(2), which some sandboxes forbid.
[[nodiscard]] bool can_page_in();

// Makes all of [first, first + length) present, and writable if `written`. False: part of it is not mapped,
// or not with that right. The pages stay until the program unmaps or protects them, so access them by the
// functions below. Threads: safe.
[[nodiscard]] bool page_in(const std::byte* first, std::uint64_t length_bytes, bool written);

// Load and store as dma_load() and dma_store() do, by one system call, which reads pages in. False: part is
// absent or forbidden, and a part may have been copied. Ordering: that of dma_store(), but Linux does not
// guarantee a single store of a word.
[[nodiscard]] bool paged_load(std::byte* to, const std::byte* from, std::size_t length_bytes);
[[nodiscard]] bool paged_store(std::byte* to, const std::byte* from, std::size_t length_bytes);

}  // namespace gdx::softhca
