// Announces fiber switches to the sanitizers. For ThreadSanitizer a switch into a fiber carries no ordering,
// because being scheduled orders nothing on a GPU. Only the first switch orders, because a launch orders its
// arguments before the kernel.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace gdx::exec {

// Switches are always inlined, because a call would be entered on one side's shadow stack and left on the
// other's.
class FiberAnnotation {
 public:
  // A fiber whose stack is [base, base + size).
  void create([[maybe_unused]] std::byte* base, [[maybe_unused]] std::size_t size_bytes) {
    stack_base_ = base;
    stack_bytes_ = size_bytes;
#if defined(__SANITIZE_THREAD__)
    tsan_fiber_ = __tsan_create_fiber(0);
#endif
  }
  // The host thread that schedules.
  void adopt_thread() {
#if defined(__SANITIZE_THREAD__)
    tsan_fiber_ = __tsan_get_current_fiber();
#endif
#if defined(__SANITIZE_ADDRESS__)
    pthread_attr_t attributes;
    void* base = nullptr;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
      pthread_attr_getstack(&attributes, &base, &stack_bytes_);
      pthread_attr_destroy(&attributes);
    }
    stack_base_ = static_cast<std::byte*>(base);
#endif
  }
  void destroy() {
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(tsan_fiber_);
#endif
#if defined(__SANITIZE_ADDRESS__)
    // Unpoisons the stack, because frames that never returned leave redzones, which would outlive its
    // mapping.
    __asan_unpoison_memory_region(stack_base_, stack_bytes_);
#endif
  }

  // Scheduler side, around a resume.
  [[gnu::always_inline]] void leave_for([[maybe_unused]] FiberAnnotation& fiber) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fake_stack_, fiber.stack_base_, fiber.stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
    const unsigned flags = fiber.started_ ? __tsan_switch_to_fiber_no_sync : 0;
    fiber.started_ = true;
    __tsan_switch_to_fiber(fiber.tsan_fiber_, flags);
#endif
  }
  [[gnu::always_inline]] void arrived_back() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
#endif
  }

  // Fiber side, around a suspension. A switch into the scheduler orders, because the scheduler reads fiber
  // state.
  [[gnu::always_inline]] void leave_for_scheduler([[maybe_unused]] FiberAnnotation& scheduler) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fake_stack_, scheduler.stack_base_, scheduler.stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(scheduler.tsan_fiber_, 0);
#endif
  }
  [[gnu::always_inline]] void arrived() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
#endif
  }
  [[gnu::always_inline]] void leave_for_good([[maybe_unused]] FiberAnnotation& scheduler) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(nullptr, scheduler.stack_base_, scheduler.stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(scheduler.tsan_fiber_, 0);
#endif
  }

 private:
  [[maybe_unused]] std::byte* stack_base_ = nullptr;
  [[maybe_unused]] std::size_t stack_bytes_ = 0;
  [[maybe_unused]] void* fake_stack_ = nullptr;
  [[maybe_unused]] void* tsan_fiber_ = nullptr;
  [[maybe_unused]] bool started_ = false;
};

// A meeting of fibers of one host thread. A fiber that leaves observes all earlier stores of those that have
// arrived. A GPU's barrier promises no more. Only ThreadSanitizer needs the annotation.
class MeetingAnnotation {
 public:
  void arrive() {
#if defined(__SANITIZE_THREAD__)
    __tsan_release(this);
#endif
  }
  void leave() {
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(this);
#endif
  }
};

}  // namespace gdx::exec
