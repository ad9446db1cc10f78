// While one lives, its thread is not cancelled. No call into the kernel's RDMA devices ends a thread
// half-way, so none here may, although it sends, receives and logs with locks held.
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
