// libc's own functions beneath the interposed ones, so that this library's files, sockets and
// descriptors never pass through its own hooks.
#pragma once

#include <dlfcn.h>

#include <atomic>

namespace gdx::softhca::uverbs {

// The next definition of `name` after this library, looked up once. Works before any constructor has
// run: no allocation, no static initialisation.
template <typename Function>
class RealFunction {
 public:
  constexpr explicit RealFunction(const char* name) : name_(name) {}

  template <typename... Args>
  auto operator()(Args... args) {
    void* found = address_.load(std::memory_order_relaxed);
    if (found == nullptr) {
      found = dlsym(RTLD_NEXT, name_);
      address_.store(found, std::memory_order_relaxed);
    }
    return reinterpret_cast<Function*>(found)(args...);
  }

 private:
  const char* name_;
  std::atomic<void*> address_{nullptr};
};

extern RealFunction<int(const char*, int, ...)> real_open;
extern RealFunction<int(int)> real_close;

}  // namespace gdx::softhca::uverbs
