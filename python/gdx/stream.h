// Calls of a team on streams of CUDA. The driver makes each in its stream's turn, as a function of the host,
// on a thread of its own, which has no Python.
#pragma once

#include <dlfcn.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "device/team.h"
#include "host/gdx.h"
#include "raise.h"

namespace gdx::python {

// Handle of a stream, a CUstream.
using Stream = std::optional<std::uintptr_t>;

// Functions of the CUDA driver that this process has loaded. Whoever made a stream has loaded it.
struct CudaDriver {
  int (*launch_host_function)(std::uintptr_t stream, void (*function)(void*), void* data);
  int (*synchronize)(std::uintptr_t stream);
  int (*is_capturing)(std::uintptr_t stream, int* status);  // null: the driver has no graphs

  // Raises Error where there is none.
  static CudaDriver loaded() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) {
      raise(Status::kUnsupported,
            "stream: this process has loaded no CUDA driver, so there are no streams: leave it out", {});
    }
    CudaDriver driver{};
    driver.launch_host_function =
        reinterpret_cast<decltype(driver.launch_host_function)>(dlsym(library, "cuLaunchHostFunc"));
    driver.synchronize =
        reinterpret_cast<decltype(driver.synchronize)>(dlsym(library, "cuStreamSynchronize"));
    driver.is_capturing =
        reinterpret_cast<decltype(driver.is_capturing)>(dlsym(library, "cuStreamIsCapturing"));
    dlclose(library);  // its maker's reference stays
    if (driver.launch_host_function == nullptr || driver.synchronize == nullptr)
      raise(Status::kUnsupported,
            "stream: the CUDA driver is older than CUDA 10, and launches no functions of the host", {});
    return driver;
  }
};

// Those of one team. After a failed call later ones do nothing, until the failure is taken. Threads: any.
class StreamCalls : public std::enable_shared_from_this<StreamCalls> {
 public:
  using Body = std::function<Status(const TeamHandle& team)>;

  // Appends `body(team)` to the stream. Keeps `pages` until then. Returns the driver's result.
  int append(std::uintptr_t stream, const TeamHandle& team, std::shared_ptr<std::byte> pages, Body body) {
    const CudaDriver driver = CudaDriver::loaded();
    int capturing = 0;
    if (driver.is_capturing != nullptr) {
      const int result = driver.is_capturing(stream, &capturing);
      if (result != 0) return result;
    }
    if (capturing != 0)
      raise(Status::kUnsupported, "stream: it is being captured, and a graph cannot repeat this call", {});
    std::unique_ptr<Call> call(new Call{shared_from_this(), team, std::move(pages), std::move(body)});
    count(1);
    const nanobind::gil_scoped_release released;
    const int result = driver.launch_host_function(stream, &StreamCalls::run, call.get());
    if (result == 0) {
      static_cast<void>(call.release());
    } else {
      count(-1);
    }
    return result;
  }

  // Returns whether calls wait or run.
  [[nodiscard]] bool any() {
    const std::lock_guard lock(mutex_);
    return ended_ ? running_ != 0 : calls_ != 0;
  }
  [[nodiscard]] Status take_failure() {
    const std::lock_guard lock(mutex_);
    return std::exchange(failure_, Status::kOk);
  }
  // Waits for calls that run. Later ones do nothing.
  void end() {
    std::unique_lock lock(mutex_);
    ended_ = true;
    changed_.wait(lock, [this] { return running_ == 0; });
  }

 private:
  struct Call {
    std::shared_ptr<StreamCalls> calls;
    TeamHandle team;
    std::shared_ptr<std::byte> pages;
    Body body;
  };

  static void run(void* data) {
    const std::unique_ptr<Call> call(static_cast<Call*>(data));
    StreamCalls& calls = *call->calls;
    if (calls.begin()) {
      Status status = Status::kOk;
      exec::LaunchConfig config;
      config.progress = progress;
      const Status launched = exec::run_grid(config, [&] { status = call->body(std::as_const(call->team)); });
      calls.finish(launched == Status::kOk ? status : launched);
    }
    calls.count(-1);
  }

  bool begin() {
    const std::lock_guard lock(mutex_);
    if (ended_ || failure_ != Status::kOk) return false;
    ++running_;
    return true;
  }
  void finish(Status status) {
    {
      const std::lock_guard lock(mutex_);
      --running_;
      if (failure_ == Status::kOk) failure_ = status;
    }
    changed_.notify_all();
  }
  void count(int more) {
    const std::lock_guard lock(mutex_);
    calls_ += more;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int calls_ = 0;
  int running_ = 0;
  bool ended_ = false;
  Status failure_ = Status::kOk;
};

}  // namespace gdx::python
