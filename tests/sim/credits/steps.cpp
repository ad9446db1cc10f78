#include "tests/sim/credits/steps.h"

#include <utility>

namespace gdx::sim {
namespace {

namespace ctx = boost::context::detail;

constexpr std::size_t kStackBytes = 128 * 1024;

StepThread* running = nullptr;
thread_local PublishWitness* publish_witness = nullptr;

}  // namespace

StepThread::StepThread(StepWitness& witness, std::function<void()> body)
    : witness_(witness), body_(std::move(body)), allocator_(kStackBytes), stack_(allocator_.allocate()) {
  outer_.adopt_thread();
  annotation_.create(static_cast<std::byte*>(stack_.sp) - stack_.size, stack_.size);
  inside_ = ctx::make_fcontext(stack_.sp, stack_.size, enter);
}

StepThread::~StepThread() {
  annotation_.destroy();
  allocator_.deallocate(stack_);
}

void StepThread::enter(ctx::transfer_t from) {
  StepThread& self = *static_cast<StepThread*>(from.data);
  self.annotation_.arrived();
  self.outside_ = from.fctx;
  self.body_();
  self.ended_ = true;
  self.annotation_.leave_for_good(self.outer_);
  ctx::jump_fcontext(self.outside_, nullptr);
}

bool StepThread::step() {
  if (ended_) return false;
  running = this;
  outer_.leave_for(annotation_);
  const ctx::transfer_t from = ctx::jump_fcontext(inside_, this);
  outer_.arrived_back();
  inside_ = from.fctx;
  running = nullptr;
  return !ended_;
}

void StepThread::suspend() {
  annotation_.leave_for_scheduler(outer_);
  const ctx::transfer_t from = ctx::jump_fcontext(outside_, nullptr);
  annotation_.arrived();
  outside_ = from.fctx;
}

void step() {
  if (running != nullptr) running->suspend();
}

void set_publish_witness(PublishWitness* witness) { publish_witness = witness; }

void published(const std::uint32_t* to, std::uint32_t value) {
  if (publish_witness != nullptr) publish_witness->published(to, value);
}

StepWitness* witness() { return running == nullptr ? nullptr : &running->witness_; }

}  // namespace gdx::sim
