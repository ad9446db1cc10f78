// Pages of this process, brought in when the HCA is about to touch them: on-demand paging. A page that is not
// there is then an answer, and no signal: the program may unmap it at any moment, as it may before a NIC.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gdx::softhca {

// Whether this system can: MADV_POPULATE_READ and MADV_POPULATE_WRITE (Linux 5.14), and process_vm_readv(2)
// and process_vm_writev(2), which some sandboxes forbid.
[[nodiscard]] bool can_page_in();

// Makes all of [first, first + length) present, and writable where `written`. False: something of it is not
// mapped, or not so. It holds until the program unmaps or protects it: whoever touches it uses what is below.
// Threads: safe.
[[nodiscard]] bool page_in(const std::byte* first, std::uint64_t length_bytes, bool written);

// As dma_load() and dma_store(), a system call each, and `from` or `to` brought in on the way. False:
// something of it is not there or not so, and a part may have been copied. Ordering: as dma_store(), but that
// a word is stored at once is the kernel's habit, not its promise.
[[nodiscard]] bool paged_load(std::byte* to, const std::byte* from, std::size_t length_bytes);
[[nodiscard]] bool paged_store(std::byte* to, const std::byte* from, std::size_t length_bytes);

}  // namespace gdx::softhca
