// The process and, one at a time, the threads that may make an object's collective calls.
#pragma once

#include <atomic>
#include <memory>

#include "base/own_process.h"
#include "base/result.h"

namespace gdx {

// Threads: any.
class Caller {
  struct End {
    void operator()(std::atomic_flag* busy) const { busy->clear(std::memory_order_release); }
  };

 public:
  using Turn = std::unique_ptr<std::atomic_flag, End>;

  [[nodiscard]] bool is_here() const { return process_.is_here(); }
  // Errors: kInvalidArgument in a process that was forked from the object's.
  [[nodiscard]] Result<void> check_process() const;
  // Begins a call, which ends with the returned object, and before this one does. Errors: those of
  // check_process; kBusy while another thread is in a call.
  [[nodiscard]] Result<Turn> begin();

 private:
  OwnProcess process_;
  std::atomic_flag busy_;
};

}  // namespace gdx
