// A file descriptor with one owner.
#pragma once

#include <unistd.h>

#include <utility>

#include "base/kept_descriptor.h"

namespace gdx {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int value) : value_(value) {}
  // One that stays open for longer than the call which makes it. Errors: none, and errno, as of `made`;
  // EMFILE.
  [[nodiscard]] static Descriptor keep(int made) { return Descriptor(keep_descriptor(made)); }
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      close();
      value_ = std::exchange(other.value_, -1);
    }
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }

  [[nodiscard]] int value() const { return value_; }  // -1: none
  [[nodiscard]] explicit operator bool() const { return value_ >= 0; }
  void close() {
    if (value_ >= 0 && stop_keeping(value_)) ::close(value_);
    value_ = -1;
  }

 private:
  int value_ = -1;
};

}  // namespace gdx
