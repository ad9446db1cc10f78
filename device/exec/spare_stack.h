// Stacks of fibers. One that has ended leaves its stack to the next launch of the host thread, because
// mapping a stack takes twenty times as long as a short launch.
#pragma once

#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstddef>
#include <utility>

namespace gdx::exec {

// Threads: its own.
class SpareStack {
 public:
  explicit SpareStack(std::size_t stack_bytes) : stacks_(stack_bytes) {}
  ~SpareStack() {
    if (has_spare()) stacks_.deallocate(spare_);
  }
  SpareStack(const SpareStack&) = delete;
  SpareStack& operator=(const SpareStack&) = delete;

  boost::context::stack_context take() {
    return has_spare() ? std::exchange(spare_, {}) : stacks_.allocate();
  }
  void give(boost::context::stack_context stack) {
    if (has_spare()) {
      stacks_.deallocate(stack);
    } else {
      spare_ = stack;
    }
  }

 private:
  [[nodiscard]] bool has_spare() const { return spare_.sp != nullptr; }

  boost::context::protected_fixedsize_stack stacks_;
  boost::context::stack_context spare_;
};

}  // namespace gdx::exec
