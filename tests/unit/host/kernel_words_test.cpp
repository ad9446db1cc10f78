// Words between kernels and this process: that by which a kernel takes an endpoint, and that by which it
// rings.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "base/page_size.h"
#include "host/queue/host_ringer.h"
#include "host/queue/owner_word.h"
#include "proto/gpu/queue.h"

namespace gdx {
namespace kernel_words_test {

TEST(OwnerWord, refuses_before_and_after_its_use_and_each_use_has_values_of_its_own) {
  std::set<std::uint64_t> values;
  const std::uint64_t* place = nullptr;
  for (int use = 0; use < 3; ++use) {
    std::uint64_t free = 0;
    {
      auto word = OwnerWord::create(nullptr);
      ASSERT_TRUE(word) << word.error().message;
      if (use == 0) place = word->address();
      EXPECT_EQ(word->address(), place) << "the place is used again";
      free = word->free_value();
      EXPECT_EQ(*place, free + kMostOpeners);
      EXPECT_TRUE(word->set_free());
      EXPECT_EQ(*place, free);
    }
    EXPECT_EQ(*place, free + kMostOpeners);
    // Kernels count up from the free value to the one before that which refuses.
    for (const std::uint64_t other : values) EXPECT_GE(free - other, 2 * kMostOpeners);
    values.insert(free);
  }
}

TEST(OwnerWord, words_share_pages_and_no_word) {
  std::vector<OwnerWord> words;
  std::set<const std::uint64_t*> places;
  std::set<const std::byte*> pages;
  for (int i = 0; i < 513; ++i) {
    auto word = OwnerWord::create(nullptr);
    ASSERT_TRUE(word) << word.error().message;
    places.insert(word->address());
    pages.insert(word->host_page().data());
    EXPECT_EQ(word->host_page().size(), page_bytes());
    const auto offset = reinterpret_cast<std::byte*>(word->address()) - word->host_page().data();
    EXPECT_GE(offset, 0);
    EXPECT_LT(offset, 4096);
    words.push_back(std::move(*word));
  }
  EXPECT_EQ(places.size(), 513u);
  EXPECT_EQ(pages.size(), 2u) << "512 words of 8 bytes fill one";
}

std::uint64_t load(std::uint64_t& word) { return std::atomic_ref(word).load(std::memory_order_acquire); }
void store(std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}
bool comes_true(std::uint64_t& word, std::uint64_t value) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (load(word) != value && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  return load(word) == value;
}

// In the second round the thread begins anew.
TEST(HostRinger, each_word_rings_its_own_doorbell_and_at_its_end_once_more) {
  for (std::uint64_t round = 0; round < 2; ++round) {
    alignas(64) std::uint64_t words[2] = {};
    alignas(64) std::uint64_t doorbells[2] = {};
    {
      const HostRinger first(&words[0], &doorbells[0]);
      {
        const HostRinger second(&words[1], &doorbells[1]);
        store(words[1], 20 + round);
        EXPECT_TRUE(comes_true(doorbells[1], 20 + round));
        EXPECT_TRUE(comes_true(words[1], 0));
        EXPECT_EQ(load(doorbells[0]), 0u);
        store(words[1], 30 + round);
      }
      EXPECT_EQ(load(doorbells[1]), 30 + round);
      store(words[0], 40 + round);
      EXPECT_TRUE(comes_true(doorbells[0], 40 + round));
      store(words[0], 50 + round);
    }
    EXPECT_EQ(doorbells[0], 50 + round);
    EXPECT_EQ(doorbells[1], 30 + round);
    EXPECT_EQ(words[0] + words[1], 0u);
  }
}

}  // namespace kernel_words_test
}  // namespace gdx
