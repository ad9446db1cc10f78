// A host thread for each block of a program with static shared variables, which are thread_local on the CPU
// layer.
#pragma once

#include <functional>
#include <semaphore>
#include <thread>

namespace gdx::exec {

// A host thread that works while another waits for it.
class Carrier {
 public:
  ~Carrier() {
    work_ = nullptr;
    begin_.release();
    thread_.join();
  }
  void run(const std::function<void()>& work) {
    work_ = &work;
    begin_.release();
    end_.acquire();
  }

 private:
  void serve() {
    for (begin_.acquire(); work_ != nullptr; begin_.acquire()) {
      (*work_)();
      end_.release();
    }
  }

  const std::function<void()>* work_ = nullptr;
  std::binary_semaphore begin_{0};
  std::binary_semaphore end_{0};
  std::thread thread_{[this] { serve(); }};
};

}  // namespace gdx::exec
