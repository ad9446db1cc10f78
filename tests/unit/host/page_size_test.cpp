// On a host of 64 KiB pages, as this process is told: what is laid out, allocated and registered in pages.
#include "base/page_size.h"

#include <gtest/gtest.h>
#include <infiniband/mlx5dv.h>
#include <unistd.h>

#include <cstdint>

#include "host/memory/gpu_registration.h"
#include "host/queue/queue_memory.h"

namespace {
constexpr long kLargePageBytes = 65536;
std::uint64_t page_sizes = 0;  // that the umem registered last may have
}  // namespace

// The linker gives gdx's own code this sysconf (--wrap). Sanitizers and libraries keep the C library's.
long real_sysconf(int name) noexcept asm("__real_sysconf");
long large_page_sysconf(int name) noexcept asm("__wrap_sysconf");
long large_page_sysconf(int name) noexcept {
  return name == _SC_PAGESIZE ? kLargePageBytes : real_sysconf(name);
}

// In place of libmlx5's.
extern "C" {
mlx5dv_devx_umem* mlx5dv_devx_umem_reg_ex(ibv_context*, mlx5dv_devx_umem_in* in) {
  page_sizes = in->pgsz_bitmap;
  return nullptr;
}
}

namespace gdx {
namespace {

constexpr std::size_t kLargePage = kLargePageBytes;

TEST(PageSize, it_is_the_hosts) { EXPECT_EQ(page_bytes(), kLargePage); }

TEST(PageSize, queues_lie_on_pages_of_the_host) {
  const auto memory = QueueMemory::allocate(16, 32);
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->completion_queue_offset(), kLargePage);
  EXPECT_EQ(memory->registered_bytes(), 3 * kLargePage);
  EXPECT_EQ(memory->host_memory().size() % kLargePage, 0u);
}

// A larger page than the host's would ask more of the offsets of the queues in it.
TEST(PageSize, umem_has_pages_of_the_host) {
  std::byte memory[64];
  EXPECT_EQ(hca_verbs().reg_umem(nullptr, memory, sizeof memory, 0), nullptr);
  EXPECT_EQ(page_sizes, kLargePage);
  page_sizes = 0;
  EXPECT_EQ(hca_verbs().reg_dmabuf_umem(nullptr, 0, sizeof memory, 0, 0), nullptr);
  EXPECT_EQ(page_sizes, kLargePage);
}

}  // namespace
}  // namespace gdx
