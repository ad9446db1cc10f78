// Thread that learns of the end of other processes of this machine.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "base/descriptor.h"
#include "base/result.h"

namespace gdx::team {

class ProcessWatch {
 public:
  // Calls `ended` once for each process of `processes` that ends, by its rank, on the thread. They are pidfds
  // of the caller's, which outlive this object. Errors: kSystem, kNoMemory (no thread).
  [[nodiscard]] static Result<std::unique_ptr<ProcessWatch>> start(std::map<std::uint32_t, int> processes,
                                                                   std::function<void(std::uint32_t)> ended);
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;
  // Ends the thread, once a call of `ended` has returned.
  ~ProcessWatch();

 private:
  ProcessWatch(std::map<std::uint32_t, int> processes, std::function<void(std::uint32_t)> ended,
               Descriptor stop)
      : processes_(std::move(processes)), ended_(std::move(ended)), stop_(std::move(stop)) {}
  void serve();

  std::map<std::uint32_t, int> processes_;  // by rank
  std::function<void(std::uint32_t)> ended_;
  Descriptor stop_;  // an eventfd
  std::atomic<bool> stops_ = false;
  std::thread thread_;
};

}  // namespace gdx::team
