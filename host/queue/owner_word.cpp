#include "host/queue/owner_word.h"

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/fork_mutex.h"
#include "base/log.h"
#include "base/page_size.h"
#include "host/gpu/gpu_memory.h"
#include "proto/gpu/queue.h"

namespace gdx {
namespace {

constexpr std::uint32_t kWordsOfPage = 512;
// Distance of the values of a word's uses. Each use begins and ends with a value that refuses all kernels.
constexpr std::uint64_t kUse = 2 * std::uint64_t{kMostOpeners};
constexpr int kHost = -1;

std::uint64_t refusing(std::uint64_t free_value) { return free_value + kMostOpeners; }

ForkMutex& lock() {
  static ForkMutex mutex;
  return mutex;
}

}  // namespace

// Words of one place. Functions are called under lock(), except address() and store().
class OwnerPage {
 public:
  static Result<std::shared_ptr<OwnerPage>> allocate(const Gpu* gpu) {
    auto page = std::make_shared<OwnerPage>();
    if (gpu != nullptr) {
      auto memory = GDX_TRY(GpuMemory::allocate(*gpu, kBytes, GpuUse::kPrivate));
      page->base_ = memory.address();
      page->gpu_memory_ = std::move(memory);
    } else {
      page->base_ = static_cast<std::byte*>(std::aligned_alloc(page_bytes(), host_bytes()));
      if (page->base_ == nullptr)
        return fail(Status::kNoMemory, fmt::format("no memory for {} bytes of owner words", host_bytes()));
      std::memset(page->base_, 0, host_bytes());
    }
    page->free_.resize(kWordsOfPage);
    std::iota(page->free_.rbegin(), page->free_.rend(), 0u);
    return page;
  }

  [[nodiscard]] bool has_room() const { return !free_.empty(); }
  std::uint32_t take() {
    const std::uint32_t index = free_.back();
    free_.pop_back();
    return index;
  }
  void give_back(std::uint32_t index) { free_.push_back(index); }
  // Returns the value that means free in the word's next use.
  std::uint64_t next_use(std::uint32_t index) { return kUse * uses_[index]++; }
  // Refuses all kernels that have a word of today.
  void refuse_all() {
    for (std::uint32_t i = 0; i < kWordsOfPage; ++i) {
      if (uses_[i] != 0) static_cast<void>(store(i, refusing(kUse * (uses_[i] - 1))));
    }
  }

  [[nodiscard]] std::uint64_t* address(std::uint32_t index) const {
    return reinterpret_cast<std::uint64_t*>(base_) + index;
  }
  [[nodiscard]] std::span<std::byte> host_page() const {
    return gpu_memory_ ? std::span<std::byte>{} : std::span(base_, host_bytes());
  }
  Result<void> store(std::uint32_t index, std::uint64_t value) {
    if (gpu_memory_) return gpu_memory_->write(index * sizeof value, std::as_bytes(std::span(&value, 1)));
    std::atomic_ref<std::uint64_t>(*address(index)).store(value, std::memory_order_release);
    return {};
  }

 private:
  static constexpr std::size_t kBytes = kWordsOfPage * sizeof(std::uint64_t);
  static std::size_t host_bytes() { return (kBytes + page_bytes() - 1) / page_bytes() * page_bytes(); }

  std::byte* base_ = nullptr;  // base of the words' host memory, which is never freed
  std::optional<GpuMemory> gpu_memory_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> uses_ = std::vector<std::uint32_t>(kWordsOfPage);
};

namespace {

// Returns the pages of the host, which stay, or of a GPU, which its words hold.
std::vector<std::weak_ptr<OwnerPage>>& pages_of(int place) {
  static auto* const pages = new std::map<int, std::vector<std::weak_ptr<OwnerPage>>>;
  return (*pages)[place];
}

// Returns all pages of the host.
std::vector<std::shared_ptr<OwnerPage>>& host_pages() {
  static auto* const pages = new std::vector<std::shared_ptr<OwnerPage>>;
  return *pages;
}

Result<std::shared_ptr<OwnerPage>> page_with_room(const Gpu* gpu) {
  std::vector<std::weak_ptr<OwnerPage>>& pages = pages_of(gpu != nullptr ? gpu->ordinal() : kHost);
  std::erase_if(pages, [](const auto& page) { return page.expired(); });
  for (const auto& known : pages) {
    if (auto page = known.lock(); page && page->has_room()) return page;
  }
  auto page = GDX_TRY(OwnerPage::allocate(gpu));
  if (gpu == nullptr) host_pages().push_back(page);
  pages.emplace_back(page);
  return page;
}

// A child by fork has copies of the parent's queues, which no HCA reads: what is posted there is lost.
[[maybe_unused]] const int watches_forks = pthread_atfork(nullptr, nullptr, [] {
  if (!ForkMutex::fork_had_all()) return;
  for (const auto& page : host_pages()) page->refuse_all();
});

}  // namespace

Result<OwnerWord> OwnerWord::create(const Gpu* gpu) {
  const std::lock_guard guard(lock());
  auto page = GDX_TRY(page_with_room(gpu));
  const std::uint32_t index = page->take();
  const std::uint64_t free_value = page->next_use(index);
  OwnerWord word(std::move(page), index, free_value);
  GDX_TRY(word.page_->store(index, refusing(free_value)));
  return word;
}

OwnerWord::~OwnerWord() {
  if (!page_) return;
  if (auto stored = page_->store(index_, refusing(free_value_)); !stored)
    log::error("kernels are not told that an endpoint has ended: {}", stored.error().message);
  const std::lock_guard guard(lock());
  page_->give_back(index_);
}

std::uint64_t* OwnerWord::address() const { return page_->address(index_); }
std::span<std::byte> OwnerWord::host_page() const { return page_->host_page(); }
Result<void> OwnerWord::set_free() { return page_->store(index_, free_value_); }

}  // namespace gdx
