// A thread of production code as a fiber: it runs until it waits.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <cstddef>
#include <functional>
#include <utility>

#include "device/exec/fiber_annotations.h"

namespace gdx::sim {

// Threads: one, which resumes all. What still waits in the body at the end is never destroyed.
class Fiber {
 public:
  Fiber(std::size_t stack_bytes, std::function<void()> body)
      : body_(std::move(body)), allocator_(stack_bytes), stack_(allocator_.allocate()) {
    annotation_.create(static_cast<std::byte*>(stack_.sp) - stack_.size, stack_.size);
    inside_ = boost::context::detail::make_fcontext(stack_.sp, stack_.size, begin);
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber() {
    annotation_.destroy();
    allocator_.deallocate(stack_);
  }

  // Runs the body until it waits, or to its end.
  void resume() {
    outer().leave_for(annotation_);
    inside_ = boost::context::detail::jump_fcontext(inside_, this).fctx;
    outer().arrived_back();
  }
  // Within the body: returns once it is resumed.
  void wait() {
    annotation_.leave_for_scheduler(outer());
    outside_ = boost::context::detail::jump_fcontext(outside_, nullptr).fctx;
    annotation_.arrived();
  }
  [[nodiscard]] bool is_done() const { return done_; }

 private:
  static exec::FiberAnnotation& outer() {
    static exec::FiberAnnotation annotation = [] {
      exec::FiberAnnotation here;
      here.adopt_thread();
      return here;
    }();
    return annotation;
  }
  static void begin(boost::context::detail::transfer_t from) {
    auto& fiber = *static_cast<Fiber*>(from.data);
    fiber.annotation_.arrived();
    fiber.outside_ = from.fctx;
    fiber.body_();
    fiber.done_ = true;
    fiber.annotation_.leave_for_good(outer());
    boost::context::detail::jump_fcontext(fiber.outside_, nullptr);
  }

  std::function<void()> body_;
  boost::context::fixedsize_stack allocator_;
  boost::context::stack_context stack_;
  boost::context::detail::fcontext_t inside_ = nullptr;
  boost::context::detail::fcontext_t outside_ = nullptr;
  exec::FiberAnnotation annotation_;
  bool done_ = false;
};

}  // namespace gdx::sim
