// Disables cancellation of its thread during its lifetime. Calls into the kernel's RDMA devices never end a
// thread half-way, so calls here must not either. Calls here send, receive and log under locks.
#pragma once

#include <pthread.h>

namespace gdx::softhca::uverbs {

class CancellationOff {
 public:
  CancellationOff() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~CancellationOff() { pthread_setcancelstate(before_, nullptr); }
  CancellationOff(const CancellationOff&) = delete;
  CancellationOff& operator=(const CancellationOff&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace gdx::softhca::uverbs
