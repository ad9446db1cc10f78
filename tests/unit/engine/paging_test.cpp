#include "driver-shim/softhca/engine/paging.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>

namespace gdx::softhca {
namespace paging_test {

constexpr std::size_t kPage = 4096;

// A page to write, one to read, one that nobody may touch.
class PagingTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!can_page_in()) GTEST_SKIP() << "needs Linux 5.14, and a sandbox that permits process_vm_writev";
    void* const mapped = mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    pages_ = static_cast<std::byte*>(mapped);
    ASSERT_EQ(mprotect(pages_ + kPage, kPage, PROT_READ), 0);
    ASSERT_EQ(mprotect(pages_ + 2 * kPage, kPage, PROT_NONE), 0);
    for (std::size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<std::byte>(i + 1);
  }
  void TearDown() override {
    if (pages_ != nullptr) munmap(pages_, 3 * kPage);
  }
  bool store(std::size_t offset, std::size_t length_bytes) {
    return paged_store(pages_ + offset, bytes_.data(), length_bytes);
  }
  bool load(std::size_t offset, std::size_t length_bytes) {
    return paged_load(loaded_.data(), pages_ + offset, length_bytes);
  }

  std::byte* pages_ = nullptr;
  std::array<std::byte, 100> bytes_{};
  std::array<std::byte, 100> loaded_{};
};

TEST_F(PagingTest, what_is_stored_is_loaded_whatever_its_length_and_alignment) {
  for (std::size_t length = 1; length <= bytes_.size(); ++length) {
    for (std::size_t offset = 0; offset < 8; ++offset) {
      ASSERT_TRUE(store(offset, length));
      EXPECT_EQ(pages_[offset + length], std::byte{0}) << "nothing behind it";
      loaded_.fill(std::byte{0});
      ASSERT_TRUE(load(offset, length));
      EXPECT_TRUE(std::equal(loaded_.begin(), loaded_.begin() + length, bytes_.begin())) << length;
      std::fill(pages_, pages_ + 2 * bytes_.size(), std::byte{0});
    }
  }
}

TEST_F(PagingTest, what_may_only_be_read_is_loaded_and_not_stored) {
  EXPECT_TRUE(load(kPage, 100));
  EXPECT_FALSE(store(kPage, 100));
  EXPECT_FALSE(store(kPage - 50, 100)) << "half of it";
  EXPECT_EQ(pages_[kPage], std::byte{0});
}

TEST_F(PagingTest, what_is_not_there_is_an_answer_and_no_signal) {
  for (const bool mapped : {true, false}) {
    if (!mapped) {
      ASSERT_EQ(mprotect(pages_, 3 * kPage, PROT_NONE), 0);
    }
    EXPECT_FALSE(load(2 * kPage, 1));
    EXPECT_FALSE(load(2 * kPage - 50, 100));
    EXPECT_FALSE(store(2 * kPage, 8));
    EXPECT_EQ(load(0, 8), mapped);
    EXPECT_EQ(store(0, 8), mapped);
  }
  EXPECT_FALSE(paged_load(loaded_.data(), nullptr, 8));
  EXPECT_FALSE(paged_store(nullptr, bytes_.data(), 8));
}

}  // namespace paging_test
}  // namespace gdx::softhca
