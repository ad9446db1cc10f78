// A file descriptor with one owner.
#pragma once

#include <unistd.h>

#include <utility>

#include "base/kept_descriptor.h"

namespace gdx {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int value) : kept_{value, 0} {}
  // Keeps a descriptor that outlives the call which makes it. Errors: none, and errno, as of `made`; EMFILE.
  [[nodiscard]] static Descriptor keep(int made) {
    Descriptor kept;
    kept.kept_ = keep_descriptor(made);
    return kept;
  }
  Descriptor(Descriptor&& other) noexcept : kept_(std::exchange(other.kept_, {})) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      close();
      kept_ = std::exchange(other.kept_, {});
    }
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }

  [[nodiscard]] int value() const { return kept_.number; }  // -1: none
  [[nodiscard]] explicit operator bool() const { return value() >= 0; }
  // Returns whether a kept number is still its own; false after a program has closed it by a system call.
  [[nodiscard]] bool refers() const { return is_kept(kept_); }
  void close() {
    if (value() >= 0 && stop_keeping(kept_)) ::close(value());
    kept_ = {};
  }

 private:
  KeptDescriptor kept_;
};

}  // namespace gdx
