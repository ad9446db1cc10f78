// One call of the host on a team: device code of the CPU layer on the thread that makes the call, as a grid
// of one thread or as a kernel of the user's. There is no other way to post from Python.
#pragma once

#include <Python.h>

#include <cstdint>
#include <utility>

#include "base/clock.h"
#include "device/team.h"
#include "host/gdx.h"
#include "proto/gpu/exported_kernel.h"

namespace gdx::python {

// Gives the interpreter away during its lifetime. Takes it back now and then while the call waits, so that
// Python handles its signals, and ends the wait when a handler raises. Threads: the one that made it.
class Call {
 public:
  explicit Call(const TeamHandle& team)
      : team_(team),
        team_aborted_(team.abort),
        outer_(std::exchange(current, this)),
        state_(PyEval_SaveThread()) {
    // Code out of line reads the copy, so its abort word is this call's.
    team_.abort = &aborted_;
    team_.copy = &team_;
  }
  ~Call() {
    PyEval_RestoreThread(state_);
    current = outer_;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // A launch in another's turn to wait would end that one: a Python signal handler's, for example.
  [[nodiscard]] static bool is_running() { return current != nullptr; }

  // Runs `body(team)`, which returns a Status, at thread scope.
  template <typename Body>
  Status run(Body body) {
    Status status = Status::kOk;
    exec::LaunchConfig config;
    config.progress = step;
    const Status launched = exec::run_grid(config, [&] { status = body(std::as_const(team_)); });
    return launched == Status::kOk ? status : launched;
  }

  // Runs a kernel of the user's, whose shared object has an execution layer of its own.
  Status run(const ExportedKernel& kernel, KernelLaunch launch, const void* const* values) {
    launch.progress = step;
    return kernel.launch(team_, launch, values);
  }

 private:
  static constexpr std::uint64_t kLookNs = 20'000'000;

  // The launch's progress, while its only thread waits.
  static int step() {
    const int done = progress();
    Call& call = *current;
    if (exec::load_flag(call.team_aborted_) != 0) exec::publish(&call.aborted_, 1);
    const std::uint64_t now_ns = monotonic_ns();
    if (now_ns - call.looked_ns_ < kLookNs) return done;
    call.looked_ns_ = now_ns;
    PyEval_RestoreThread(call.state_);
    if (PyErr_CheckSignals() != 0) exec::publish(&call.aborted_, 1);
    call.state_ = PyEval_SaveThread();
    return done;
  }

  static inline thread_local Call* current = nullptr;

  TeamHandle team_;
  const std::uint32_t* team_aborted_;
  std::uint32_t aborted_ = 0;
  std::uint64_t looked_ns_ = monotonic_ns();
  Call* outer_;
  PyThreadState* state_;
};

}  // namespace gdx::python
