// Files of memory: their places, their seals, and those of others that may be mapped.
#include "host/memory/shared_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <tuple>

#include "base/page_size.h"
#include "host/memory/memory.h"

namespace gdx {
namespace shared_file_test {

TEST(SharedFile, each_range_inside_is_found_at_its_place_until_the_listing_ends) {
  const std::size_t bytes = 2 * page_bytes();
  auto first = make_shared_file(bytes);
  auto second = make_shared_file(bytes);
  ASSERT_TRUE(first && second);
  for (const SharedFile* one : {&*first, &*second}) {
    const std::byte* const at = one->pages.get();
    for (const auto& [offset, length] : {std::pair{std::size_t{0}, bytes}, {1, bytes - 1}, {bytes - 1, 1}}) {
      const auto found = find_shared(at + offset, length);
      ASSERT_TRUE(found);
      EXPECT_EQ(found->file, one->file.value());
      EXPECT_EQ(found->offset, offset);
    }
    EXPECT_FALSE(find_shared(at, bytes + 1));
    EXPECT_FALSE(find_shared(at + 1, bytes));
    EXPECT_FALSE(find_shared(at + 1, ~std::size_t{0}));
    EXPECT_EQ(*at, std::byte{0});
    EXPECT_EQ(lseek(one->file.value(), 0, SEEK_END), static_cast<off_t>(bytes));
    EXPECT_EQ(fcntl(one->file.value(), F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    EXPECT_TRUE(check_shared_file(one->file.value(), bytes));
  }
  EXPECT_FALSE(find_shared(&bytes, 1));
  EXPECT_FALSE(find_shared(nullptr, 1));
  first->listed.reset();
  EXPECT_FALSE(find_shared(first->pages.get(), 1));
  EXPECT_TRUE(find_shared(second->pages.get(), 1)) << "that of the other file stays";
}

// Each fault alone, in a file that has no other.
TEST(SharedFile, one_of_another_process_is_checked_before_it_is_mapped) {
  constexpr int kSealed = F_SEAL_SHRINK;
  constexpr int kBytes = 8192;
  const std::tuple<int, int, bool, const char*> cases[] = {
      {kSealed, kBytes, true, ""},
      {F_SEAL_GROW, kBytes, true, "a shared file must be a memfd sealed against shrinking (F_SEAL_SHRINK)"},
      {kSealed | F_SEAL_WRITE, kBytes, true, "a shared file must not be sealed against writes"},
      {kSealed | F_SEAL_FUTURE_WRITE, kBytes, true, "a shared file must not be sealed against writes"},
      {kSealed, kBytes - 1, true, "a shared file is shorter than the 8192 bytes that were asked for"},
      {kSealed, kBytes, false, "a shared file must have its pages allocated: call posix_fallocate first"},
  };
  for (const auto& [seals, bytes, allocated, refusal] : cases) {
    const Descriptor file(memfd_create("a", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(allocated ? posix_fallocate(file.value(), 0, bytes) : ftruncate(file.value(), bytes), 0);
    ASSERT_EQ(fcntl(file.value(), F_ADD_SEALS, seals), 0);
    const auto checked = check_shared_file(file.value(), kBytes);
    EXPECT_EQ(checked ? "" : checked.error().message, refusal);
    EXPECT_TRUE(checked || checked.error().status == Status::kInvalidArgument);
  }
  const Descriptor other(open("/proc/version", O_RDONLY | O_CLOEXEC));
  for (const int file : {-1, other.value()})
    EXPECT_EQ(check_shared_file(file, 1).error().message,
              "a shared file must be a memfd without MFD_HUGETLB");
}

TEST(Access, change_by_a_peer_needs_local_write) {
  for (unsigned bits = 0; bits < 16; ++bits) {
    const bool changes = (bits & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0;
    const auto checked = check_access(static_cast<Access>(bits));
    EXPECT_EQ(checked.has_value(), !changes || (bits & IBV_ACCESS_LOCAL_WRITE) != 0) << bits;
    if (checked) continue;
    EXPECT_EQ(checked.error().status, Status::kInvalidArgument);
    EXPECT_EQ(checked.error().message,
              "remote write or atomic access to memory needs local write access too");
  }
}

TEST(Access, relaxed_ordering_is_for_payload_alone) {
  const Access payload =
      Access::kLocalWrite | Access::kRemoteWrite | Access::kRemoteRead | Access::kRelaxedOrdering;
  EXPECT_TRUE(check_access(payload));
  const auto refused = check_access(payload | Access::kRemoteAtomic);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, Status::kInvalidArgument);
  EXPECT_EQ(
      refused.error().message,
      "memory with relaxed ordering permits no remote atomics, because a signal there may pass its payload: "
      "give signals a region without Access::kRelaxedOrdering, and payload one without "
      "Access::kRemoteAtomic");
}

}  // namespace shared_file_test
}  // namespace gdx
