// The word by which kernels take an endpoint; see EndpointHandle::owner. Words of host memory are
// never unmapped, so that a kernel with the handle of a destroyed endpoint is refused. Words of a GPU's
// memory last as long as an endpoint there does.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "host/gpu/gpu.h"

namespace gdx {

class OwnerPage;

// Threads: each word one at a time.
class OwnerWord {
 public:
  // Returns a word that refuses kernels. With `gpu` it is in that GPU's memory.
  // Errors: kNoMemory; those of GpuMemory::allocate and GpuMemory::write.
  [[nodiscard]] static Result<OwnerWord> create(const Gpu* gpu);

  OwnerWord(OwnerWord&&) noexcept = default;
  OwnerWord& operator=(OwnerWord&&) = delete;
  OwnerWord(const OwnerWord&) = delete;
  OwnerWord& operator=(const OwnerWord&) = delete;
  // Refuses kernels from now on, whatever next uses the word's place.
  ~OwnerWord();

  [[nodiscard]] std::uint64_t* address() const;
  [[nodiscard]] std::uint64_t free_value() const { return free_value_; }
  // Returns the page to map for kernels; empty if it is in a GPU's memory.
  [[nodiscard]] std::span<std::byte> host_page() const;

  // Lets kernels open the endpoint. Errors: those of GpuMemory::write.
  [[nodiscard]] Result<void> set_free();

 private:
  OwnerWord(std::shared_ptr<OwnerPage> page, std::uint32_t index, std::uint64_t free_value)
      : page_(std::move(page)), index_(index), free_value_(free_value) {}

  std::shared_ptr<OwnerPage> page_;
  std::uint32_t index_;
  std::uint64_t free_value_;
};

}  // namespace gdx
