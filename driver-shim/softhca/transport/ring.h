// A queue whose elements keep their number for life and whose memory is reused. In steady state it allocates
// nothing, which a deque does not guarantee.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace gdx::softhca::transport {

template <typename T>
class Ring {
 public:
  [[nodiscard]] bool empty() const { return first_ == end_; }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(end_ - first_); }
  // Numbers of the oldest element and of the next one to be pushed.
  [[nodiscard]] std::uint64_t first() const { return first_; }
  [[nodiscard]] std::uint64_t end() const { return end_; }

  T& operator[](std::uint64_t number) {
    assert(number - first_ < size());
    return slots_[number & (slots_.size() - 1)];
  }
  const T& operator[](std::uint64_t number) const { return const_cast<Ring&>(*this)[number]; }
  T& front() { return (*this)[first_]; }
  [[nodiscard]] const T& front() const { return (*this)[first_]; }
  T& back() { return (*this)[end_ - 1]; }

  void push_back(T value) {
    if (size() == slots_.size()) grow();
    slots_[end_++ & (slots_.size() - 1)] = std::move(value);
  }
  // Appends a slot to fill; it still holds the content of an earlier element.
  T& extend() {
    if (size() == slots_.size()) grow();
    return slots_[end_++ & (slots_.size() - 1)];
  }
  // Removes the oldest element. References to it stay valid until an append.
  void pop_front() {
    assert(!empty());
    ++first_;
  }
  void clear() { first_ = end_; }

 private:
  void grow() {
    constexpr std::size_t kInitialSlots = 8;
    std::vector<T> larger(slots_.empty() ? kInitialSlots : 2 * slots_.size());
    for (std::uint64_t i = first_; i != end_; ++i) {
      larger[i & (larger.size() - 1)] = std::move(slots_[i & (slots_.size() - 1)]);
    }
    slots_ = std::move(larger);
  }

  std::vector<T> slots_;  // a power of two
  std::uint64_t first_ = 0;
  std::uint64_t end_ = 0;
};

}  // namespace gdx::softhca::transport
