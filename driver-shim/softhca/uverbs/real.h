// libc's own functions beneath the interposed ones, because this library's files, sockets and descriptors
// must bypass its own hooks.
#pragma once

#include <dlfcn.h>

#include <atomic>

namespace gdx::softhca::uverbs {

// The next definition of `name` after this library, looked up once: before the program runs, or by whoever
// calls before that. It needs no allocation and no static initialisation, because a call may come before both
// work.
class RealSymbol {
 public:
  constexpr explicit RealSymbol(const char* name) : name_(name) {}

  void* find() {
    void* found = address_.load(std::memory_order_relaxed);
    if (found == nullptr) {
      found = dlsym(RTLD_NEXT, name_);
      address_.store(found, std::memory_order_relaxed);
    }
    return found;
  }

 private:
  const char* name_;
  std::atomic<void*> address_{nullptr};
};

template <typename Function>
class RealFunction : public RealSymbol {
 public:
  using RealSymbol::RealSymbol;

  template <typename... Args>
  auto operator()(Args... args) {
    return reinterpret_cast<Function*>(find())(args...);
  }
};

// Declares one, together with all others in a section of their own, which is read as an array. `used` keeps
// each whole: clang otherwise splits them into members and drops the names.
#define GDX_REAL_FUNCTION __attribute__((section("gdx_real_functions"), used)) constinit

extern RealFunction<int(const char*, int, ...)> real_open;
extern RealFunction<int(int)> real_close;

}  // namespace gdx::softhca::uverbs
