// Pages of this process, brought in when the HCA is about to touch them: on-demand paging. A page that is not
// there is then an answer, and no signal.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gdx::softhca {

// Whether this system can: Linux 5.14, MADV_POPULATE_READ and MADV_POPULATE_WRITE.
[[nodiscard]] bool can_page_in();

// Makes all of [first, first + length) present, and writable where `written`. False: something of it is not
// mapped, or not so. It holds until the program unmaps or protects it, which a NIC would see and this HCA
// does not between this call and its access. Threads: safe.
[[nodiscard]] bool page_in(const std::byte* first, std::uint64_t length_bytes, bool written);

}  // namespace gdx::softhca
