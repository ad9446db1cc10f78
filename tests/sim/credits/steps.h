// Device threads that run one step at a time, in the order in which the world calls them. A step ends before
// each access to memory that others change. So the world can take any order that a GPU's threads could.
// Memory is sequentially consistent.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <boost/context/fixedsize_stack.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "device/exec/fiber_annotations.h"

namespace gdx::sim {

// Observer of a thread's steps.
class StepWitness {
 public:
  virtual ~StepWitness() = default;
  virtual void begin_fill(const std::byte* to) = 0;
  virtual void end_fill(const std::byte* to, const std::byte* from) = 0;
  virtual void stored(const std::uint32_t* to, std::uint32_t value) = 0;
  virtual void loaded(const std::uint64_t* from, std::uint64_t value) = 0;
  virtual void rang(std::uint64_t doorbell) = 0;
};

// Observer of the words that device code publishes for a host, in their order.
class PublishWitness {
 public:
  virtual ~PublishWitness() = default;
  virtual void published(const std::uint32_t* to, std::uint32_t value) = 0;
};
// Sets the observer of this thread's device code from now on; null: none.
void set_publish_witness(PublishWitness* witness);

class StepThread {
 public:
  // `body` may keep nothing but memory of others: a thread may be destroyed wherever it is.
  StepThread(StepWitness& witness, std::function<void()> body);
  ~StepThread();
  StepThread(const StepThread&) = delete;
  StepThread& operator=(const StepThread&) = delete;

  // Runs it to its next step. False: it has ended.
  bool step();

 private:
  friend void step();
  friend StepWitness* witness();
  static void enter(boost::context::detail::transfer_t from);
  void suspend();

  StepWitness& witness_;
  std::function<void()> body_;
  boost::context::fixedsize_stack allocator_;
  boost::context::stack_context stack_;
  boost::context::detail::fcontext_t inside_ = nullptr;
  boost::context::detail::fcontext_t outside_ = nullptr;
  gdx::exec::FiberAnnotation annotation_;
  gdx::exec::FiberAnnotation outer_;
  bool ended_ = false;
};

// For the execution layer; outside a thread (of an exclusive endpoint, which has one) nothing happens.
void step();
[[nodiscard]] StepWitness* witness();

void published(const std::uint32_t* to, std::uint32_t value);
inline void published(const std::uint64_t* /*to*/, std::uint64_t /*value*/) {}

inline void begin_fill(const std::byte* to) { witness()->begin_fill(to); }
inline void end_fill(const std::byte* to, const std::byte* from) { witness()->end_fill(to, from); }
inline void stored(const std::uint32_t* to, std::uint32_t value) {
  if (StepWitness* const seen_by = witness()) seen_by->stored(to, value);
}
inline std::uint64_t loaded(const std::uint64_t* from, std::uint64_t value) {
  if (StepWitness* const seen_by = witness()) seen_by->loaded(from, value);
  return value;
}
inline void rang(std::uint64_t doorbell) {
  if (StepWitness* const seen_by = witness()) seen_by->rang(doorbell);
}
// Time that device code reads; its world sets it.
inline thread_local std::uint64_t now_ns = 0;

}  // namespace gdx::sim
